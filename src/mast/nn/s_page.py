"""S-PAGE (Algorithm 4, Theorem 20) on networks: variance reduction for non-convex f over a finite support.

With probability p, h is the mean gradient over b of the N draws, else h moves by the mean over
b_small draws of grad f_S(x) - grad f_S(x of the step before).
"""

from __future__ import annotations

from torch import Tensor

from mast.checks import whole
from mast.nn.estimators import Closure, OverSupport, Tensors
from mast.nn.sparsifier import Sparsifier


class SPAGE(OverSupport):
    """A gradient estimate that follows x, and is renewed now and then.

    Parameters
    ----------
    sk
        What `sparsify` returned.
    N
        The size of the support; Perm-K's number of blocks by default, else to be given.
    p
        The probability of a renewal. A step costs p b + 2 (1 - p) b_small gradients on average.
    b, b_small
        How many draws a renewal averages (N by default), and a move.

    `backward(closure, full=None)` evaluates renewals with `full`, the loss over all data, if that is given.
    """

    _kept = ("h", "before")

    def __init__(
        self, sk: Sparsifier, *, p: float, N: int | None = None, b: int | None = None, b_small: int = 1
    ) -> None:
        super().__init__(sk, N, p)
        self.b = self.N if b is None else whole("b", b, 1, self.N)
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
        self.before = self.here()
        self.add(self.h)
        return loss
