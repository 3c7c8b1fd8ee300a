"""One of a list: of given matrices (Matrices), or of n fixed draws of another sketch (Sampled).

A list is a finite support, which variance reduction and exact sums work on. The mean of matrices has to be I.
That of draws is I where they are the blocks of whole partitions (`PermK`, also redrawn), or if it is
corrected; else it is only nearly I, and `mean(d)` says how far from it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import count
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mast import randomness
from mast.errors import ArgumentError, NotDiagonalError
from mast.randomness import Key, Purpose
from mast.sketches.base import Sketch, percent, probabilities
from mast.sketches.composed import Mixture, innermost
from mast.sketches.draws import DiagonalDraw, Draw, MatrixDraw
from mast.sketches.estimates import moments_of
from mast.sketches.independent import Bernoulli
from mast.sketches.laws import Constants
from mast.sketches.nested import Nested, Prefix
from mast.sketches.perm_k import PermK
from mast.sketches.subsets import RandK, Rolling
from mast.support.checks import Array, check_int, check_list, frozen, numbers

_REMEMBERED = 1 << 22  # coordinates of all draws of a list together


class Matrices(Sketch):
    """S is matrices[i] with probability weights[i] (uniform if no weights are given).

    >>> import mast
    >>> swap = [[0.0, 1.0], [1.0, 0.0]]
    >>> mast.Matrices([[[2, 0], [0, 2]], [[0, 0], [0, 0]]]).constants(2)
    Constants(L_D=2.0, mu_D=2.0, L_max=4.0)
    >>> mast.Matrices([swap, [[2.0, -1.0], [-1.0, 2.0]]]).draw(2, seed=0).apply([1.0, 0.0])
    array([0., 1.])
    """

    def __init__(self, matrices: Sequence[ArrayLike], weights: ArrayLike | None = None) -> None:
        stack = [
            numbers(f"matrix {i}", matrix, 2) for i, matrix in enumerate(check_list("matrices", matrices))
        ]
        if not stack:
            raise ArgumentError("Matrices needs at least one matrix")
        self.dim = self._fixed_dim = stack[0].shape[0]
        for i, matrix in enumerate(stack):
            if matrix.shape != (self.dim, self.dim):
                raise ArgumentError(f"matrix {i} has shape {matrix.shape}, expected {(self.dim, self.dim)}")
        self.matrices: Array = frozen(np.stack(stack))
        self.weights = probabilities("weights", weights, len(stack))
        self._uniform = weights is None
        off = np.abs(np.tensordot(self.weights, self.matrices, 1) - np.eye(self.dim)).max()
        rounding = 1e-9 + 1e-14 * len(stack) * float(np.abs(self.matrices).max())
        if off > rounding:
            raise ArgumentError(f"the mean of the matrices must be I, but an entry is off by {off:.3g}")
        self.diagonal = all(np.count_nonzero(m - np.diag(np.diag(m))) == 0 for m in self.matrices)

    def sample(self, d: int, key: Key) -> Draw:
        """One of the matrices."""
        self.check(d)
        if self._uniform:
            return self._one(randomness.below(key, Purpose.CHOICE, len(self.matrices)))
        return self._one(randomness.choice(key, Purpose.CHOICE, np.cumsum(self.weights)))

    def _one(self, i: int) -> Draw:
        if not self.diagonal:
            return MatrixDraw(self.matrices[i])
        c = np.diag(self.matrices[i])
        indices = np.flatnonzero(c)
        return DiagonalDraw(self.dim, indices, c[indices])

    def expected_square(self, d: int) -> Array:
        """The mean of S'S."""
        self.check(d)
        square = np.einsum("n,nki,nkj->ij", self.weights, self.matrices, self.matrices, optimize=True)
        return np.diag(square).copy() if self.diagonal else np.asarray(square)

    def sandwich(self, H: Array) -> Array:
        """The mean of S'HS."""
        self.check(H.shape[0])
        S = self.matrices
        return np.asarray(np.einsum("n,nki,kl,nlj->ij", self.weights, S, H, S, optimize=True))

    def support_size(self, d: int) -> int:
        """As many as there are matrices."""
        self.check(d)
        return len(self.matrices)

    def outcomes(self, d: int) -> Iterator[tuple[float, Draw]]:
        """The matrices."""
        return ((weight, self._one(i)) for i, weight in enumerate(self.weights.tolist()))

    def arguments(self) -> dict[str, Any]:
        """The matrices, and their weights if there are any: without them the choice is made otherwise."""
        return {"matrices": self.matrices} | ({} if self._uniform else {"weights": self.weights})

    def label(self) -> str:
        """How many matrices of which size."""
        share = float(np.mean([np.diag(m) != 0 for m in self.matrices]))
        kept = f": keeps {percent(share)}" if self.diagonal else ""
        return f"Matrices({len(self.matrices)} of size {self.dim} x {self.dim}){kept}"


class Sampled(Sketch):
    """One of n fixed draws of `sketch`, each with probability 1/n.

    In a network one member of the list holds for all layers. Its scale is not seen by Adam, whose steps have
    the length of the learning rate: with one mask, ``Sampled(Bernoulli(k), 1)``, the weights in use are x/k,
    and they take the steps of a plain network if the rate of Adam is multiplied by k (that of SGD by k²).

    Parameters
    ----------
    sketch
        A diagonal sketch.
    n
        How many draws the list has. With ``PermK(K)`` and a multiple of K the list is balanced: every
        coordinate is kept equally often, and the mean is I. ``PermK(K, redraw=True)`` gives balanced lists of
        many different masks.
    seed
        Decides the draws.
    balanced
        Every coordinate is kept by equally many draws, so that the mean is I: for ``Bernoulli(p)`` if p n is
        a whole number (by the draws that come nearest to keeping it; takes n bits of memory per coordinate),
        for ``RandK(k)`` if k divides the dimension d and d/k divides n. Each draw by itself has the law of
        the sketch.
    corrected
        Where no list is balanced: divide coordinate i by its mean over the list, so that the mean is I.
        Coordinates that no draw keeps stay at the shift.

    >>> import mast
    >>> five = mast.Sampled(mast.Bernoulli(0.5), 5, seed=1)
    >>> five.mean(4), five.members
    (array([1.2, 1.6, 0.8, 0.8]), 5)
    >>> mast.Sampled(mast.Bernoulli(0.5), 5, seed=1, corrected=True).mean(4)
    array([1., 1., 1., 1.])
    >>> mast.Sampled(mast.PermK(2, redraw=True), 6).mean(4)
    array([1., 1., 1., 1.])
    >>> mast.Sampled(mast.Bernoulli(0.4), 5, balanced=True).constants(1000)
    Constants(L_D=2.5, mu_D=2.5, L_max=6.25)
    """

    def __init__(
        self, sketch: Sketch, n: int, seed: int = 0, *, balanced: bool = False, corrected: bool = False
    ) -> None:
        if not isinstance(sketch, Sketch):
            raise ArgumentError(f"Sampled takes a sketch such as mast.Bernoulli(0.5), got {sketch!r}")
        if not sketch.diagonal:
            raise NotDiagonalError(f"a list is made of draws of diagonal sketches, {sketch!r} is not one")
        self.sketch = sketch
        self.n = self.members = check_int("n", n, 1)
        self.seed = Key(seed).seed
        self.balanced, self.corrected = bool(balanced), bool(corrected)
        #: how many draws of a balanced Bernoulli list keep a coordinate
        self._times = self._equal_times() if self.balanced and not isinstance(sketch, RandK) else np.ones(1)
        whole_partitions = sketch.unbiased and sketch.stride > 1 and self.n % sketch.stride == 0
        self.unbiased = self.balanced or self.corrected or whole_partitions
        self._layer: int | None = None  # in a network, the layer that the draws are over
        self._made: tuple[int, list[DiagonalDraw]] = (0, [])
        self._means: dict[tuple[int, int | None], Array] = {}
        self._masks: dict[tuple[int, int | None], NDArray[np.uint8]] = {}  # of a balanced list, packed

    # ---- the list ----------------------------------------------------------------------------

    def member_of(self, key: Key) -> int:
        """The number of the draw that `key` picks."""
        return randomness.below(key, Purpose.CHOICE, self.n)

    def draws(self, d: int) -> list[DiagonalDraw]:
        """The n draws."""
        if self._made[0] != d:
            self._made = (d, [self.member(d, i, self._layer) for i in range(self.n)])
        return self._made[1]

    def of_layer(self, layer: int) -> Sampled:
        """The list over one layer of a network, whose name has this number: each layer has its own draws."""
        again = Sampled(self.sketch, self.n, self.seed, balanced=self.balanced, corrected=self.corrected)
        again._layer = layer
        return again

    def member(self, d: int, i: int, layer: int | None = None) -> DiagonalDraw:
        """Draw i of the list; in a network, over the layer whose name has this number."""
        draw = self._plain(d, i, layer)
        if not self.corrected:
            return draw
        return draw.with_scales(draw.scales / self._mean(d, layer)[draw.indices])

    def member_seed(self, i: int) -> Key:
        """The key, but for its index, of draw i over the layers of a network."""
        step, node = divmod(i, self.sketch.stride)
        return Key(self.seed, step, node)

    def _plain(self, d: int, i: int, layer: int | None) -> DiagonalDraw:
        """Draw i as the sketch, or a balanced list of it, makes it."""
        if not self.balanced:
            if layer is None:
                draw = self.sketch.sample(d, self._key(i))
            else:
                draw = sample_layer(self.sketch, d, self.member_seed(i), layer)
            assert isinstance(draw, DiagonalDraw)
            return draw
        if isinstance(self.sketch, RandK):
            parts = d // self.sketch.count(d)  # a block of a new partition is a uniform subset
            step, node = divmod(i, parts)
            return PermK(parts, redraw=True).sample(d, Key(self.seed, step, node, layer or 0))
        if (d, layer) not in self._masks:
            self._masks[d, layer] = self._balanced_masks(d, layer)
        kept = np.flatnonzero(np.unpackbits(self._masks[d, layer][i], count=d))
        return DiagonalDraw(d, kept, np.broadcast_to(self.n / self._times, (d,))[kept])

    def _key(self, i: int) -> Key:
        """The key of draw i over a vector. Nodes of one group have the blocks of one partition."""
        return Key(self.seed, index=i) if self.sketch.stride == 1 else self.member_seed(i)

    def _balanced_masks(self, d: int, layer: int | None) -> NDArray[np.uint8]:
        """Of the words that decide on a coordinate, one per draw, the smallest keep it: as many as shall."""
        keys = [self._key(i) if layer is None else Key(self.seed, i, 0, layer) for i in range(self.n)]
        times, kept = np.broadcast_to(self._times, (d,)), np.empty((self.n, d), dtype=bool)
        chunk = max(1, _REMEMBERED // self.n)
        for start in range(0, d, chunk):
            part = slice(start, min(start + chunk, d))
            words = np.stack([randomness.words(key, Purpose.MASK, part.start, part.stop) for key in keys])
            order = np.argsort(words, axis=0, kind="stable")  # of equal words the earlier draw's
            np.put_along_axis(kept[:, part], order, np.arange(self.n)[:, None] < times[part], axis=0)
        return np.packbits(kept, axis=1)

    def _equal_times(self) -> Array:
        """n times the probabilities, or an error that says what would be balanced."""
        if not isinstance(self.sketch, Bernoulli) or not self.sketch.unbiased:
            raise ArgumentError(
                f"balanced lists are made of Bernoulli and RandK, got {self.sketch!r}; lists of whole "
                "partitions, Sampled(PermK(K), n) with n a multiple of K, are balanced by themselves"
            )
        share = np.atleast_1d(self.sketch.keep)
        times: Array = np.rint(share * self.n)
        off = np.abs(share * self.n - times) > self.n / 2**31
        if off.any():
            raise ArgumentError(
                f"{self.n} draws cannot all keep a coordinate with probability {share[off][0]:.6g} equally "
                "often: n times the probability must be a whole number. Choose another n, or corrected=True"
            )
        return times

    def _mean(self, d: int, layer: int | None) -> Array:
        """The mean of the draws, before any correction."""
        if (d, layer) not in self._means:
            total = np.zeros(d)
            for i in range(self.n):
                draw = self._plain(d, i, layer)
                total[draw.indices] += draw.scales
            if sum(map(len, self._means.values())) + d > _REMEMBERED:
                self._means.clear()
            self._means[d, layer] = total / self.n
        return self._means[d, layer]

    # ---- what a sketch says ------------------------------------------------------------------

    def sample(self, d: int, key: Key) -> Draw:
        """One of the n draws."""
        i = self.member_of(key)
        few = self.n * self.check(d) <= _REMEMBERED
        return self.draws(d)[i] if few else self.member(d, i, self._layer)

    def outcomes(self, d: int) -> Iterator[tuple[float, Draw]]:
        """The n draws, all equally likely."""
        for draw in self.draws(d):
            yield 1 / self.n, draw

    def mean(self, d: int) -> Array:
        """The mean of the list."""
        return moments_of(self, self.check(d)).mean

    def constants(self, d: int) -> Constants:
        """Those of the list: statements about it use these, also where its mean is not I."""
        square, listed = self.expected_square(d), moments_of(self, d)
        unbiased = bool(np.abs(listed.mean - 1).max() <= 1e-9)
        return Constants(float(square.max()), float(square.min()), listed.largest, unbiased=unbiased)

    def at(self, density: float) -> Sketch:
        """A list of as many draws of the same kind of sketch, at this density."""
        sketch = self.sketch.at(density)
        try:
            return Sampled(sketch, self.n, self.seed, balanced=self.balanced, corrected=self.corrected)
        except ArgumentError:  # at this density no list of n draws is balanced
            return Sampled(sketch, self.n, self.seed, corrected=True)

    def check(self, d: int) -> int:
        """The dimension d, or an error if the list cannot be drawn in it."""
        d = self.sketch.check(d)
        if self.balanced and isinstance(self.sketch, RandK):
            k = self.sketch.count(d)
            if d % k or self.n % (d // k):
                raise ArgumentError(
                    f"{self.n} draws that keep {k} of {d} coordinates cannot keep all equally often in whole "
                    f"partitions: k must divide d, and d/k must divide n. Choose another n, or corrected=True"
                )
        return d

    def label(self) -> str:
        """How many draws of what."""
        how = ", balanced" * self.balanced + ", corrected" * self.corrected
        return f"Sampled({self.n} draws, seed={self.seed}{how}) of {self.sketch.label()}"


def sample_layer(sketch: Sketch, d: int, key: Key, layer: int) -> Draw:
    """The draw over one layer of a network, whose name has this number; all layers have the same key.

    What layers have in common follows from the key alone: a share, a window, a component, a member.
    """
    if isinstance(sketch, Mixture):
        component, own = sketch.choose(key)
        return sample_layer(component, d, own, layer)
    if isinstance(sketch, Sampled):
        return sketch.member(sketch.check(d), sketch.member_of(key), layer)
    return sketch.sample(d, Key(key.seed, key.step, key.node, 0 if same_for_layers(sketch) else layer))


def same_for_layers(sketch: Sketch) -> bool:
    """Whether a key draws one share, or one window, for all layers of a network, each as it fits its size."""
    return isinstance(sketch, Nested | Prefix | Rolling)


def member_key(sketch: Sketch, member: int) -> Key:
    """A key that draws this member of a list: the first step, or node, of seed 0 that does.

    >>> import mast
    >>> nested = mast.Nested([0.25, 0.5, 1.0])
    >>> nested.sample(8, member_key(nested, 1))
    <draw: keeps 4 of 8 coordinates>
    """
    if sketch.members is None:
        raise ArgumentError(f"{sketch!r} is no list of draws: lists are Sampled, Nested and PermK")
    member, listed = check_int("member", member, 0, sketch.members - 1), innermost(sketch)
    keys = (Key(step=i) if sketch.stride == 1 else Key(node=i) for i in count())
    if not isinstance(listed, Nested | PermK | Sampled):  # a list of one
        return next(keys)
    return next(key for key in keys if listed.member_of(key) == member)
