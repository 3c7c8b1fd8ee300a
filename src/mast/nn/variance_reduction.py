"""Variance reduction over a finite support of the sketch: L-SVRDSG and S-PAGE on networks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mast import randomness
from mast.checks import choice, probability, whole
from mast.errors import ArgumentError
from mast.nn.estimators import Closure, GradientEstimator, Tensors
from mast.nn.sparsifier import Sparsifier
from mast.nn.structure import Structured
from mast.nn.tensors.scaling import multiply
from mast.randomness import Key, Purpose
from mast.sketches import Nested, Sketch


class SupportEstimator(GradientEstimator):
    """An estimator over a finite uniform support: N draws, fixed by the seed.

    By default it is the list that the sketch is: the members of `Sampled`, of `Nested` with equal weights, or
    of Perm-K's fixed partition; of the latter over single weights, a multiple of K is its support too. Any
    other N is a sample, whose mean S is not quite I: `mean_error` says by how much.
    """

    def __init__(self, sk: Sparsifier, N: int | None, p: float, b: int | None = None) -> None:
        super().__init__(sk)
        sketch, members = sk.sketch, sk.members
        if N is None and members is None:
            raise ArgumentError(
                f"{sketch!r} has no small support of its own: pass N, how many draws to sample from it"
            )
        units = isinstance(sketch, Structured)  # whose Perm-K has other blocks together for every other key
        listed = (units or sketch.cycle is None) if N is None else (units and N == sketch.cycle)
        self._list = _keys_of(sketch) if listed else None
        self.N = whole("N", members if N is None else N, 1)
        self.p = probability("p, of a refresh,", p)
        self.b = self.N if b is None else whole("b", b, 1, self.N)

    @property
    def _seed(self) -> int:
        """The seed of the support: a child of the sparsifier's, which loading a state may change."""
        return Key(self.sk.seed).child(0, Purpose.SUPPORT).seed

    def key(self, i: int) -> Key:
        """Draw i of the support. Nodes of one group get disjoint blocks of Perm-K, so K of them get all."""
        return Key(self._seed, node=i) if self._list is None else self._list[i]

    def mean_error(self) -> float:
        """The largest entry of |mean S - I| over the support: 0 if it is the sketch's own."""
        errors = []
        for i, w in enumerate(self.sk.weights):
            one = torch.ones(w.shape, dtype=torch.float64, device=w.parameter.device)
            members = (self.sk.drawing.kept(i, self.key(j), one) for j in range(self.N))
            total = sum((multiply(kept, one) for kept in members), torch.zeros_like(one))
            errors.append(float((total / self.N - 1).abs().max()))
        return max(errors)

    def _batch(self, b: int) -> list[Key]:
        """b draws of the support without replacement, those of the current step."""
        if b == self.N:
            return [self.key(i) for i in range(self.N)]
        chosen = randomness.permutation(Key(self._seed, self.sk.step), Purpose.BATCH, self.N, 0, b)
        return [self.key(i) for i in chosen.tolist()]

    def _one(self) -> Key:
        """One draw of the support, that of the current step."""
        return self.key(randomness.below(Key(self._seed, self.sk.step), Purpose.CHOICE, self.N))

    def _coin(self) -> bool:
        """Whether the current step refreshes."""
        return randomness.uniform(Key(self._seed, self.sk.step), Purpose.COIN) < self.p

    # ---- resuming ------------------------------------------------------------------------

    _settings: tuple[str, ...] = ("N", "p")  # attributes that have to be equal in a resumed run
    _memory: tuple[str, ...] = ()  # attributes with tensors by name, or None

    def state_dict(self) -> dict[str, Any]:
        """What a resumed run needs: the settings, and the tensors that the estimator remembers."""
        settings = {name: getattr(self, name) for name in self._settings}
        return settings | {name: _copied(getattr(self, name)) for name in self._memory}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a state that an estimator of the same kind and settings gave."""
        for name in (*self._settings, *self._memory):
            if name not in state:
                kind = type(self).__name__.removesuffix("Estimator")
                raise ArgumentError(f"this is not the state of a {kind}: it has no {name!r}")
        for name in self._settings:
            saved, present = state[name], getattr(self, name)
            if saved != present:
                raise ArgumentError(
                    f"the state was saved with another {name}: it was {saved!r}, is {present!r}"
                )
        for name in self._memory:
            setattr(self, name, _copied(state[name]))


class LSVRDSGEstimator(SupportEstimator):
    """L-SVRDSG (Algorithm 3, Theorems 17 and 19): the noise vanishes as x and w tend to a minimiser.

    h = grad f_S(x) - grad f_S(w) + hhat, hhat the mean gradient at w over b of the N draws; after
    a step, with probability p, the reference point w becomes the x of before the step.

    Parameters
    ----------
    sk
        What `sparsify` returned.
    N
        The size of the support; that of a list, or Perm-K's number of blocks, by default, else to be given.
    p
        The probability of a refresh. A step costs 2 + p b gradients on average.
    b
        How many draws hhat averages; N by default.
    batch
        With b < N: "fresh" draws a batch for hhat at every step (b more gradients per step), "kept" uses that
        of the last refresh, and needs a smaller step size.

    `backward(closure, full=None)` evaluates hhat with `full`, the loss over all data, if that is given.
    """

    _settings = ("N", "p", "b", "batch")
    _memory = ("w", "hhat")

    def __init__(
        self, sk: Sparsifier, *, p: float, N: int | None = None, b: int | None = None, batch: str = "fresh"
    ) -> None:
        super().__init__(sk, N, p, b)
        self.batch = choice("batch", batch, ("fresh", "kept"))
        self.w: Tensors | None = None
        self.hhat: Tensors | None = None

    def backward(self, closure: Closure, full: Closure | None = None) -> Tensor:
        """Add h to `.grad`, and return f_S(x)."""
        full = closure if full is None else full
        key = self._one()
        loss, h = self.gradient(key, closure)
        with self.quietly():
            if self.w is None:
                self._refresh(full)
            _, at_w = self.gradient(key, closure, self.w)
            hhat = self.hhat or self.mean_gradient(self._batch(self.b), full, self.w)[1]
            for name in h:
                h[name] += hhat[name] - at_w[name]
            if self._coin():
                self._refresh(full)
        self.add(h)
        return loss

    def _refresh(self, full: Closure) -> None:
        """From the next use on, w is the present x."""
        self.w = self.present()
        fresh = self.batch == "fresh" and self.b < self.N
        self.hhat = None if fresh else self.mean_gradient(self._batch(self.b), full)[1]


class SPAGEEstimator(SupportEstimator):
    """S-PAGE (Algorithm 4, Theorem 20), for non-convex f: an estimate that follows x.

    With probability p, h is the mean gradient over b of the N draws, else h moves by the mean over
    b_small draws of grad f_S(x) - grad f_S(x of the step before).

    Parameters
    ----------
    sk
        What `sparsify` returned.
    N
        The size of the support; that of a list, or Perm-K's number of blocks, by default, else to be given.
    p
        The probability of a renewal. A step costs p b + 2 (1 - p) b_small gradients on average.
    b, b_small
        How many draws a renewal averages (N by default), and a move.

    `backward(closure, full=None)` evaluates renewals with `full`, the loss over all data, if that is given.
    """

    _settings = ("N", "p", "b", "b_small")
    _memory = ("h", "before")

    def __init__(
        self, sk: Sparsifier, *, p: float, N: int | None = None, b: int | None = None, b_small: int = 1
    ) -> None:
        super().__init__(sk, N, p, b)
        self.b_small = whole("b_small", b_small, 1, self.N)
        self.h: Tensors | None = None
        self.before: Tensors | None = None

    def backward(self, closure: Closure, full: Closure | None = None) -> Tensor:
        """Add h to `.grad`, and return the mean loss of the draws that were evaluated at x."""
        if self.h is None or self._coin():
            loss, self.h = self.mean_gradient(self._batch(self.b), closure if full is None else full)
        else:
            keys = self._batch(self.b_small)
            loss, now = self.mean_gradient(keys, closure)
            with self.quietly():
                _, then = self.mean_gradient(keys, closure, self.before)
            for name, h in self.h.items():
                h += now[name] - then[name]
        self.before = self.present()
        self.add(self.h)
        return loss


def _keys_of(sketch: Sketch) -> list[Key]:
    """The keys of the members of a list, which have to be equally likely."""
    core = sketch.sketch if isinstance(sketch, Structured) else sketch
    if isinstance(core, Nested) and np.ptp(core.weights) > 1e-12:
        raise ArgumentError(f"variance reduction needs draws of equal probability, those of {core!r} differ")
    return [sketch.member_key(i) for i in range(sketch.members or 0)]


def _copied(tensors: Tensors | None) -> Tensors | None:
    return None if tensors is None else {name: t.detach().clone() for name, t in tensors.items()}
