"""A gradient estimator: `backward(closure)` stands where `loss.backward()` stood."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

from torch import Tensor

from mast.errors import ArgumentError
from mast.nn.sparsifier import Sparsifier
from mast.randomness import Key, Purpose
from mast.support.checks import check_int


class Average:
    """The mean of grad f_S over `draws` independent draws: less noise, for as many passes.

    ``estimator.backward(closure)`` stands where ``loss.backward()`` stood; `closure` computes the loss with
    the model and returns it, without a backward pass. It is called several times, so it should
    compute the same function each time: one batch, no dropout.

    The first draw is the one plain training would use, so ``draws=1`` is plain training.
    `mast.theory.averaged_draws` has the guarantee. With ``split=True`` the batch is divided into as many
    parts, and each has a draw of its own: as many rows pass through the model as without, but its weights
    are drawn and multiplied once per part. ``backward(closure, *batch)`` calls the closure with each part of
    the batch's tensors, and weighs the losses by their rows.

    >>> import mast, torch
    >>> model = torch.nn.Linear(3, 1)
    >>> sk = mast.nn.sparsify(model, mast.Bernoulli(0.5))
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    >>> estimator = mast.nn.Average(sk, draws=4)
    >>> loss = estimator.backward(lambda: model(torch.ones(2, 3)).square().mean())
    >>> optimizer.step()
    >>> estimator = mast.nn.Average(sk, draws=2, split=True)
    >>> loss = estimator.backward(lambda x: model(x).square().mean(), torch.ones(4, 3))
    """

    def __init__(self, sk: Sparsifier, draws: int, split: bool = False) -> None:
        if not isinstance(sk, Sparsifier):
            raise ArgumentError(f"an estimator takes what sparsify() returned, got {type(sk).__name__}")
        self.sk = sk
        self.draws, self.split = check_int("draws", draws, 1), bool(split)

    def key(self, j: int) -> Key:
        """Draw j of the current step."""
        now = self.sk.key
        return now if j == 0 else Key(Key(now.seed).child(j, Purpose.ESTIMATE).seed, now.step, now.node)

    def backward(self, closure: Callable[..., Tensor], *batch: Tensor) -> Tensor:
        """Add the mean gradient to `.grad`, and return the mean loss."""
        losses = []
        for j, (divisor, part) in enumerate(self._parts(batch)):
            with self.sk.at(self.key(j)):
                loss = _loss(partial(closure, *part)) / divisor
                loss.backward()  # type: ignore[no-untyped-call]
            losses.append(loss.detach())
        return sum(losses[1:], losses[0])

    def _parts(self, batch: tuple[Tensor, ...]) -> Iterator[tuple[float, tuple[Tensor, ...]]]:
        """For each draw what its loss is divided by, and what the closure takes."""
        if not self.split:
            for _ in range(self.draws):
                yield self.draws, batch
            return
        rows = {len(tensor) for tensor in batch}
        if len(rows) != 1 or min(rows) < self.draws:
            raise ArgumentError(
                f"split=True divides a batch into {self.draws} parts: pass its tensors after the closure, "
                f"all with the same number of rows, at least {self.draws}; got {sorted(rows) or 'none'}"
            )
        for part in zip(*(tensor.tensor_split(self.draws) for tensor in batch), strict=True):
            yield min(rows) / len(part[0]), part


def _loss(closure: Callable[[], Tensor]) -> Tensor:
    loss = closure()
    if not isinstance(loss, Tensor) or loss.numel() != 1:
        raise ArgumentError(
            "the closure must return the loss, a tensor with one number, before any backward pass"
        )
    return loss
