"""Runs with Rand-1 sketches of logistic losses, coordinate by coordinate.

With Rand-1, f_D(x) = (1/d) sum_j phi_j(d x_j): coordinate j moves only when it is drawn, and where it
then goes depends on nothing else. So after t steps of DSGD the loss is known from how often each
coordinate was drawn, and any number of seeds costs little more than counting. A test compares
these curves with `mast.minimize`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numba import njit

from mast.errors import ArgumentError
from mast.objectives import Logistic
from mast.sketches import RandK
from mast.sketches.compiled import UnitArrays, unit_arrays
from mast.sketches.kernels import draw_units
from mast.support.checks import Array, Indices


@dataclass(frozen=True)
class CoordinateLosses:
    """phi_j(z) = sum_g weight_g log(1 + exp(-slope_g z)) + rest_j log 2 + l2/2 z², over the groups g of j.

    A group is all rows with the same a_ij b_i: binary data have at most two a coordinate.
    """

    owner: Indices  # of each group, ascending
    slope: Array
    weight: Array
    rest: Array
    l2: float

    @property
    def d(self) -> int:
        """The number of coordinates."""
        return self.rest.size

    @staticmethod
    def of(f: Logistic) -> CoordinateLosses:
        """Group the entries of the data by column and value."""
        A = f.design.csr
        rows = np.repeat(np.arange(f.terms), np.diff(A.indptr))
        pairs = np.stack([A.indices.astype(float), A.data * f.labels[rows]])
        unique, inverse = np.unique(pairs, axis=1, return_inverse=True)
        weight: Any = np.bincount(inverse.ravel(), weights=f.rates[rows], minlength=unique.shape[1])
        owner = unique[0].astype(np.int64)
        rest: Any = float(f.rates.sum()) - np.bincount(owner, weights=weight, minlength=f.dim)
        return CoordinateLosses(owner, unique[1], weight, rest, f.l2)

    def values(self, z: Array) -> Array:
        """phi_j(z_j) for all j."""
        losses = self.weight * np.logaddexp(0.0, -self.slope * z[self.owner])
        return np.asarray(self._sum(losses) + self.rest * np.log(2.0) + self.l2 / 2 * z**2)

    def slopes(self, z: Array) -> Array:
        """phi_j'(z_j)."""
        return self._sum(-self.weight * self.slope * self._pull(z)) + self.l2 * z

    def curvatures(self, z: Array) -> Array:
        """phi_j''(z_j), which is largest at 0: there it is L_jj."""
        pull = self._pull(z)
        return self._sum(self.weight * self.slope**2 * pull * (1 - pull)) + self.l2

    def _pull(self, z: Array) -> Array:
        """1/(1 + exp(m)) of each group's margin m, without overflow."""
        return np.asarray(0.5 * (1 - np.tanh(self.slope * z[self.owner] / 2)))

    def _sum(self, terms: Array) -> Array:
        totals: Any = np.bincount(self.owner, weights=terms, minlength=self.d)
        return totals.astype(np.float64, copy=False)  # type: ignore[no-any-return]

    def path(self, x0: Array, factor: float, moves: int) -> Array:
        """phi_j after 0, 1, ..., `moves` moves of each coordinate: z <- z - factor phi_j'(z), z = d x."""
        z = self.d * x0
        values = np.empty((moves + 1, self.d))
        values[0] = self.values(z)
        for m in range(moves):
            z = z - factor * self.slopes(z)
            values[m + 1] = self.values(z)
        return values


def rand1_arrays(d: int) -> UnitArrays:
    """Rand-1 in d dimensions as arrays for the compiled loop."""
    arrays = unit_arrays(RandK(1), d)
    if arrays is None:
        raise ArgumentError(f"Rand-1 runs are drawn for up to 65,536 features, this data set has {d:,}")
    return arrays


def times_drawn(d: int, seed: int, stops: Indices) -> Indices:
    """How often each coordinate was drawn by Rand-1 before each stop: the draws of `mast.minimize`."""
    u = rand1_arrays(d)
    words = np.array([seed & 0xFFFFFFFF, seed >> 32], dtype=np.uint32)
    return np.asarray(_times_drawn(int(u.kind), 1, u.thresholds, words, stops, d))


@njit(cache=True)
def _times_drawn(kind: int, k: int, thresholds: Any, seed: Any, stops: Any, units: int) -> Any:
    """For each stop (ascending), how often each unit survived in the steps before it."""
    counts = np.zeros((stops.size, units), dtype=np.int64)
    order = np.arange(units)
    kept = np.empty(units, dtype=np.int64)
    running = np.zeros(units, dtype=np.int64)
    for s in range(stops.size):
        for t in range(stops[s - 1] if s else 0, stops[s]):
            count = draw_units(kind, k, thresholds, seed, t, 0, order, kept)
            for m in range(count):
                running[kept[m]] += 1
        counts[s] = running
    return counts


def losses_at_stops(values: Array, counts: Indices) -> Array:
    """f_D at each stop, from the paths of the coordinates and how often each was drawn."""
    return np.asarray(values[counts, np.arange(counts.shape[1])].mean(axis=1))
