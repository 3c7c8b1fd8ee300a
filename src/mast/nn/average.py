"""Average: the mean of several independent sketched gradients at each step."""

from __future__ import annotations

from torch import Tensor

from mast.checks import whole
from mast.nn.estimators import Closure, Estimator, _loss
from mast.nn.sparsifier import Sparsifier
from mast.randomness import Key, Purpose


class Average(Estimator):
    """The mean of grad f_S over `draws` independent draws: less noise, for as many passes.

    The first draw is the one plain training would use, so ``draws=1`` is plain training.
    `mast.theory.averaged_draws` has the guarantee.

    >>> import mast, torch
    >>> model = torch.nn.Linear(3, 1)
    >>> sk = mast.nn.sparsify(model, mast.Bernoulli(0.5))
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    >>> estimator = mast.nn.Average(sk, draws=4)
    >>> loss = estimator.backward(lambda: model(torch.ones(2, 3)).square().mean())
    >>> optimizer.step()
    """

    def __init__(self, sk: Sparsifier, draws: int) -> None:
        super().__init__(sk)
        self.draws = whole("draws", draws, 1)

    def key(self, j: int) -> Key:
        """Draw j of the current step."""
        if j == 0:
            return self.sk.key
        return Key(Key(self.sk.seed).child(j, Purpose.ESTIMATE).seed, self.sk.step, self.sk.node)

    def backward(self, closure: Closure) -> Tensor:
        """Add the mean gradient to `.grad`, and return the mean loss."""
        total = None
        for j in range(self.draws):
            with self.sk.at(self.key(j)):
                loss = _loss(closure) / self.draws
                loss.backward()  # type: ignore[no-untyped-call]
            total = loss.detach() if total is None else total + loss.detach()
        assert total is not None
        return total
