"""What the gradient estimators have in common: evaluating a loss under a draw, here or at other weights."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from mast import randomness
from mast.checks import whole
from mast.errors import ArgumentError
from mast.nn.sparsifier import Sparsifier
from mast.nn.structure import Structured
from mast.randomness import Key, Purpose
from mast.sketches import PermK

Closure = Callable[[], Tensor]
Tensors = dict[str, Tensor]


class Estimator(ABC):
    """Fills `.grad` with an estimate of grad f_D, for any torch optimizer.

    ``estimator.backward(closure)`` stands where ``loss.backward()`` stood; `closure` computes the loss with
    the model and returns it, without a backward pass. It is called several times, so it should
    compute the same function each time: one batch, no dropout.
    """

    def __init__(self, sk: Sparsifier) -> None:
        if not isinstance(sk, Sparsifier):
            raise ArgumentError(f"an estimator takes what sparsify() returned, got {type(sk).__name__}")
        self.sk = sk

    @abstractmethod
    def backward(self, closure: Closure) -> Tensor:
        """Add the estimate to `.grad`, and return the loss (detached)."""

    def parameters(self) -> Tensors:
        """The trainable parameters of the model, sketched or not."""
        return {name: p for name, p in self.sk.model.named_parameters() if p.requires_grad}

    def gradient(
        self, key: Key, closure: Closure, at: Mapping[str, Tensor] | None = None
    ) -> tuple[Tensor, Tensors]:
        """Loss and grad f_S for the draw of `key`, at x or at other weights; `.grad` stays as it was."""
        parameters = self.parameters()
        before = {name: p.grad for name, p in parameters.items()}
        try:
            for p in parameters.values():
                p.grad = None
            with self.sk.at(key), _weights(parameters, at):
                loss = _loss(closure)
                loss.backward()  # type: ignore[no-untyped-call]
            zero = torch.zeros_like
            return loss.detach(), {n: zero(p) if p.grad is None else p.grad for n, p in parameters.items()}
        finally:
            for name, p in parameters.items():
                p.grad = before[name]

    def mean_gradient(
        self, keys: Sequence[Key], closure: Closure, at: Mapping[str, Tensor] | None = None
    ) -> tuple[Tensor, Tensors]:
        """The mean over several draws of loss and gradient."""
        loss, mean = self.gradient(keys[0], closure, at)
        for key in keys[1:]:
            term, g = self.gradient(key, closure, at)
            loss = loss + term
            for name in mean:
                mean[name] += g[name]
        for total in mean.values():
            total /= len(keys)
        return loss / len(keys), mean

    def add(self, h: Mapping[str, Tensor]) -> None:
        """h joins what `.grad` holds."""
        for name, p in self.parameters().items():
            p.grad = h[name].clone() if p.grad is None else p.grad.add_(h[name])

    def here(self) -> Tensors:
        """A copy of x."""
        return {name: p.detach().clone() for name, p in self.parameters().items()}

    @contextmanager
    def quietly(self) -> Iterator[None]:
        """With the buffers (BatchNorm's statistics) restored afterwards: extra passes leave no trace."""
        buffers = [(b, b.clone()) for b in self.sk.model.buffers()]
        try:
            yield
        finally:
            with torch.no_grad():
                for b, before in buffers:
                    b.copy_(before)


class OverSupport(Estimator):
    """An estimator over a finite uniform support: N draws, fixed by the seed.

    With Perm-K's fixed partition, N = K (the default) or a multiple of it is the sketch's own support. Any
    other support is a sample, whose mean S is not quite I: `mean_error` says by how much.
    """

    def __init__(self, sk: Sparsifier, N: int | None, p: float) -> None:
        super().__init__(sk)
        core = sk.sketch.sketch if isinstance(sk.sketch, Structured) else sk.sketch  # over units: each space
        exact = isinstance(core, PermK) and not core.redraw
        if N is None:
            if not exact:
                raise ArgumentError(
                    f"{sk.sketch!r} has no small support of its own: pass N, how many draws to sample from it"
                )
            assert isinstance(core, PermK)
            N = core.k
        self.N = whole("N", N, 1)
        self.p = float(p)
        if not 0 < self.p <= 1:
            raise ArgumentError(f"p is the probability of a refresh, in (0, 1], got {p!r}")
        self._seed = Key(sk.seed).child(0, Purpose.SUPPORT).seed

    def key(self, i: int) -> Key:
        """Draw i of the support. Nodes of one group get disjoint blocks of Perm-K, so K of them get all."""
        return Key(self._seed, node=i)

    def mean_error(self) -> float:
        """The largest entry of |mean S - I| over the support: 0 if it is the sketch's own."""
        worst = 0.0
        for i, w in enumerate(self.sk.weights):
            one = torch.ones(w.shape, dtype=torch.float64, device=w.parameter.device)
            total = sum(self.sk.drawing.factor(i, self.key(j), one).multiply(one) for j in range(self.N))
            assert isinstance(total, Tensor)
            worst = max(worst, float((total / self.N - 1).abs().max()))
        return worst

    def _batch(self, b: int) -> list[Key]:
        """b draws of the support without replacement, those of the current step."""
        if b == self.N:
            return [self.key(i) for i in range(self.N)]
        moment = Key(self._seed, self.sk.step)
        chosen = randomness.permutation(moment, Purpose.BATCH, self.N, 0, b)
        return [self.key(i) for i in chosen.tolist()]

    def _one(self) -> Key:
        """One draw of the support, that of the current step."""
        return self.key(randomness.below(Key(self._seed, self.sk.step), Purpose.CHOICE, self.N))

    def _coin(self) -> bool:
        """Whether the current step refreshes."""
        return randomness.uniform(Key(self._seed, self.sk.step), Purpose.COIN) < self.p

    # ---- resuming ------------------------------------------------------------------------

    _kept: tuple[str, ...] = ()

    def state_dict(self) -> dict[str, Any]:
        """What a resumed run needs: the tensors the estimator remembers."""
        return {"N": self.N, "p": self.p} | {name: _copied(getattr(self, name)) for name in self._kept}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a state of the same kind of estimator."""
        for name in ("N", "p"):
            if state.get(name) != getattr(self, name):
                raise ArgumentError(
                    f"the state was saved with another {name}: it was {state.get(name)!r}, is "
                    f"{getattr(self, name)!r}"
                )
        for name in self._kept:
            if name not in state:
                raise ArgumentError(f"this is not the state of a {type(self).__name__}: it has no {name!r}")
            setattr(self, name, _copied(state[name]))


def _loss(closure: Closure) -> Tensor:
    loss = closure()
    if not isinstance(loss, Tensor) or loss.numel() != 1:
        raise ArgumentError(
            "the closure must return the loss, a tensor with one number, before any backward pass"
        )
    return loss


def _copied(tensors: Tensors | None) -> Tensors | None:
    return None if tensors is None else {name: t.detach().clone() for name, t in tensors.items()}


@contextmanager
def _weights(parameters: Tensors, at: Mapping[str, Tensor] | None) -> Iterator[None]:
    """With other values in the parameters; their memory is exchanged, x is not overwritten."""
    if at is None:
        yield
        return
    before = {name: p.data for name, p in parameters.items()}
    try:
        for name, p in parameters.items():
            p.data = at[name]
        yield
    finally:
        for name, p in parameters.items():
            p.data = before[name]
