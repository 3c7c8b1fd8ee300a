"""L-SVRDSG (Algorithm 3, Theorems 17 and 19) on networks: variance reduction over a finite support.

h = grad f_S(x) - grad f_S(w) + hhat, hhat the mean gradient at w over b of the N draws; after
a step, with probability p, the reference point w becomes the x of before the step.
"""

from __future__ import annotations

from torch import Tensor

from mast.checks import whole
from mast.errors import ArgumentError
from mast.nn.estimators import Closure, OverSupport, Tensors
from mast.nn.sparsifier import Sparsifier


class LSVRDSG(OverSupport):
    """Variance-reduced gradients that tend to grad f_D exactly as x and w tend to a minimiser.

    Parameters
    ----------
    sk
        What `sparsify` returned.
    N
        The size of the support; Perm-K's number of blocks by default, else to be given.
    p
        The probability of a refresh. A step costs 2 + p b gradients on average.
    b
        How many draws hhat averages; N by default.
    batch
        With b < N: "fresh" draws a batch for hhat at every step (b more gradients a step), "kept" uses that
        of the last refresh, and needs a smaller step size.

    `backward(closure, full=None)` evaluates hhat with `full`, the loss over all data, if that is given.
    """

    _kept = ("w", "hhat")

    def __init__(
        self, sk: Sparsifier, *, p: float, N: int | None = None, b: int | None = None, batch: str = "fresh"
    ) -> None:
        super().__init__(sk, N, p)
        self.b = self.N if b is None else whole("b", b, 1, self.N)
        if batch not in ("fresh", "kept"):
            raise ArgumentError(f'batch is "fresh" or "kept", got {batch!r}')
        self.batch = batch
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
            hhat = self._mean_at_w(full)
            for name in h:
                h[name] += hhat[name] - at_w[name]
            if self._coin():
                self._refresh(full)
        self.add(h)
        return loss

    def _refresh(self, full: Closure) -> None:
        """From the next use on, w is the present x."""
        self.w = self.here()
        fresh = self.batch == "fresh" and self.b < self.N
        self.hhat = None if fresh else self.mean_gradient(self._batch(self.b), full)[1]

    def _mean_at_w(self, full: Closure) -> Tensors:
        return self.hhat or self.mean_gradient(self._batch(self.b), full, self.w)[1]
