"""Which learning rate a sketch allows: the theory's step sizes with the measured curvature of a loss."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from mast import theory
from mast.errors import ArgumentError, NoGuaranteeError
from mast.nn.batches import Batch, Loss, check_batches
from mast.nn.curvature import Curvature, MeanHessian, curvature
from mast.nn.factory import sparsify
from mast.nn.submodels import put_draw
from mast.nn.tensors.sparsified import multiply
from mast.nn.tensors.top_share import TopShare
from mast.nn.tensors.weights import Shift, Where, deep_copy, unwrapped
from mast.nn.units import Structured
from mast.nn.units.unit_map import align_columns
from mast.randomness import Key, Purpose
from mast.sketches import Constants, Sketch
from mast.sketches.draws import Draw, ModelDraw
from mast.support.checks import check_int
from mast.theory.guarantee import NO_STATEMENT

if TYPE_CHECKING:
    import pandas as pd

LARGE = 1_000_000  #: weights, above which curvature is looked at quickly
#: a method, its largest step size, and what that rests on; None where no statement applies, and why
Allowed = tuple[str, float | None, str]


@dataclass(frozen=True, repr=False)
class NetworkAdvice:
    """What `advise` found. Print it, or take `step_size`, `table`, `smoothness` and `constants`."""

    sketch: Sketch | TopShare
    constants: Constants | None  # of S over all trainable parameters; None if it has none
    smoothness: float  # the largest curvature of f that was seen: at x and at sparsified points
    smoothness_error: float
    at_x: Curvature
    at_draws: tuple[Curvature, ...]  # of f at sparsified points y
    of_draws: tuple[Curvature, ...]  # of f_S at x
    rows: tuple[Allowed, ...]

    @property
    def plain(self) -> float:
        """What plain training allows."""
        return 1 / self.smoothness

    @property
    def step_size(self) -> float | None:
        """The step size proposed for SGD with one draw per step: 1/(L_f L_max), safe for every draw."""
        return next((step_size for method, step_size, _ in self.rows if method == "dsgd"), None)

    @property
    def table(self) -> pd.DataFrame:
        """Method, step size, its ratio to plain training's, and what it rests on."""
        import pandas as pd

        table = pd.DataFrame(list(self.rows), columns=["method", "step_size", "basis"])
        table.insert(2, "ratio_to_plain", table["step_size"] / self.plain)
        return table

    @property
    def adam(self) -> str:
        """What is known of Adam and its kind."""
        if self.constants is None or self.constants.L_D <= 1:
            return "keep the learning rate of plain training."
        grow = math.sqrt(self.constants.L_D)
        return (
            "the size of its steps does not grow with the sketch, so the learning rate of plain training "
            f"stays stable, and makes 1/sqrt(L_D) = {1 / grow:.2g} of the progress per step; up to "
            f"{grow:.2g} times it regains that, with more noise. Gradient norms grow by sqrt(L_D) = "
            f"{grow:.2g}: raise a clipping threshold as much."
        )

    def __str__(self) -> str:
        c = self.constants
        known = (
            "biased: no constants, and no statement applies"
            if c is None
            else f"L_D = {c.L_D:.4g}, mu_D = {c.mu_D:.4g}, L_max = {c.L_max:.4g}"
        )
        rows = [("method", "step size", "of plain", "basis")]
        for method, size, basis in self.rows:
            numbers = ("none", "") if size is None else (f"{size:.3g}", f"{size / self.plain:.3g}")
            rows.append((method, *numbers, basis))
        return "\n".join(
            [
                f"{self.sketch.label()}: {known}",
                f"curvature of the loss: {self.smoothness:.4g} ± {self.smoothness_error:.2g}, measured at "
                f"x and at {len(self.at_draws)} sparsified points. The theory's L_f bounds it everywhere, "
                "so it is at least this.",
                *align_columns(rows),
                f"Adam and its kind (a rule of thumb, not a statement): {self.adam}",
            ]
        )

    def __repr__(self) -> str:
        return f"<NetworkAdvice for {self.sketch!r}: step size {self.step_size}, plain {self.plain:.4g}>"


def advise(
    model: nn.Module,
    loss: Loss | None,
    batches: Iterable[Any],
    sketch: Sketch | TopShare,
    *,
    steps: int = 1000,
    draws: int | None = None,
    iterations: int | None = None,
    shift: Shift = None,
    keep: Mapping[str, float] | None = None,
    where: Where | None = None,
    seed: int = 0,
) -> NetworkAdvice:
    """The largest step size that each method allows with this sketch, and what plain training would allow.

    The smoothness L_f is estimated as the largest curvature at the present weights and at `draws`
    sparsified points, by Lanczos on Hessian-vector products over the batches. The model is not changed.

    Up to a million weights, 20 iterations of Lanczos at x and at three sparsified points find all curvatures
    to about .1 %. Larger models get the quick way, which takes the time of about 20 forward and backward
    passes over the batches: 3 products with the Hessian at x, and 4 at one sparsified point, each of
    which costs 2.2 passes. Lanczos comes from below, so the quick way's step sizes take the upper end of
    what the `residual` leaves open. On small networks, fresh and trained, its smoothness was .6 to 1.2 times
    that of the exact way (once a third), which looks at more points. ``draws=3, iterations=20`` is the exact
    way, in fifteen times the time.

    Parameters
    ----------
    model
        The network, plain or sparsified, in the mode (train or eval) in which curvature is to be taken.
    loss
        ``loss(output, targets)``; None for a model that computes its own from labels among its inputs.
    batches
        A few batches, enough to stand for the data: their mean loss is taken as f. They are pairs of inputs
        and targets, or dicts with labels. Inputs are a tensor, a tuple of arguments or a dict of keyword
        arguments; the output is a tensor, or its ``.logits``.
    steps
        The length of the run, T, which the non-convex statements need.
    draws
        At how many sparsified points the curvature is measured; by default 3, or 1 for large models.
    iterations
        Of Lanczos, for each curvature, from a random start; by default 20, or the quick way for large models.

    >>> import mast, torch
    >>> model = torch.nn.Linear(2, 1, bias=False)
    >>> data = (torch.eye(2) * 2, torch.ones(2, 1))
    >>> advice = mast.nn.advise(model, torch.nn.functional.mse_loss, [data], mast.Bernoulli(0.5))
    >>> round(advice.smoothness, 3), round(advice.plain, 3), round(advice.step_size, 5)
    (4.0, 0.25, 0.0625)
    """
    data = [Batch.of(batch) for batch in check_batches("advise", batches)]
    if not data:
        raise ArgumentError("advise needs at least one batch")
    T = check_int("steps", steps, 1)
    draws = None if draws is None else check_int("draws", draws, 0)
    iterations = None if iterations is None else check_int("iterations", iterations, 1)
    dense = deep_copy(unwrapped(model))
    example = data[0].plain() if isinstance(sketch, Structured) else None
    sk = sparsify(deep_copy(dense), sketch, shift=shift, keep=keep, where=where, example=example)
    root = Key(seed).child(0, Purpose.ESTIMATE).seed
    small = sum(p.numel() for p in dense.parameters() if p.requires_grad) <= LARGE
    draws = (3 if small else 1) if draws is None else draws
    iterations = 20 if iterations is None and small else iterations
    try:
        hessian = MeanHessian(dense, loss, data)
        noise = None if iterations is None else hessian.random(seed)
        at_x, along = curvature(hessian, _start(noise, hessian.gradient()), iterations or 3)
        at_draws, of_draws = [], []
        for i in range(draws):
            key = Key(root, step=i)
            put_draw(sk, sk.kept(key), dense)
            hessian = MeanHessian(dense, loss, data)
            at_y, along_y = curvature(hessian, _start(noise, hessian.gradient(), along), iterations or 2)
            at_draws.append(at_y)
            if dense.training:
                apply = _sketch(sk.kept(key), hessian)
                of_y, _ = curvature(hessian, _start(noise, apply(along_y)), iterations or 2, apply)
                of_draws.append(of_y)
        points, sketched = (
            [c.upper if iterations is None else c for c in seen] for seen in ([at_x, *at_draws], of_draws)
        )
        top = max(points, key=lambda c: c.value)
        constants = sk.constants
    finally:
        sk.remove()
    if top.value <= 0:
        raise ArgumentError("the loss is flat at these weights: there is no curvature to advise on")
    return NetworkAdvice(
        sketch=sketch,
        constants=constants,
        smoothness=top.value,
        smoothness_error=top.error,
        at_x=at_x,
        at_draws=tuple(at_draws),
        of_draws=tuple(of_draws),
        rows=tuple(_rows(top.value, constants, sketched, T, getattr(sk.sketch, "independent", True))),
    )


def _start(noise: Tensor | None, *guesses: Tensor) -> Tensor:
    """The vector that Lanczos starts from: noise, if there is time for many iterations, else a good guess."""
    if noise is not None:
        return noise
    start = sum(guess / guess.norm().clamp(min=1e-30) for guess in guesses)
    assert isinstance(start, Tensor)
    return start if start.norm() > 0 else torch.ones_like(start)


def _sketch(kept: ModelDraw[Draw], hessian: MeanHessian) -> Callable[[Tensor], Tensor]:
    """S on a vector of all trainable parameters; S' is the same."""
    names = [name for name, p in hessian.model.named_parameters() if p.requires_grad]

    def apply(u: Tensor) -> Tensor:
        parts = zip(names, hessian.parts(u), strict=True)
        return hessian.join([multiply(kept[name], part) if name in kept else part for name, part in parts])

    return apply


def _rows(
    L_f: float, c: Constants | None, of_draws: list[Curvature], T: int, independent: bool
) -> list[Allowed]:
    rows: list[Allowed] = [("plain gd", 1 / L_f, "1/L_f, without a sketch")]
    if of_draws:
        worst = max(d.value for d in of_draws)
        basis = f"1 over the largest curvature of f_S in {len(of_draws)} draws: measured, no guarantee"
        rows.append(("dsgd, measured", 1 / worst if worst > 0 else None, basis))
    if c is None:
        return [*rows, ("dsgd", None, "the sketch is biased: no statement applies")]
    rows.append(("gd on f_D", 1 / (L_f * c.L_D), "1/(L_f L_D), all draws averaged"))
    if not independent:
        return [*rows, ("dsgd", None, NO_STATEMENT["dependent_draws"])]
    mu_D = c.mu_D or c.L_D  # what is never kept stays as it is, and the statement is about the rest
    given: dict[str, Any] = {"L_f": L_f, "L_D": c.L_D, "mu_D": mu_D, "L_max": c.L_max}
    tiny = 1e-12 * L_f / mu_D  # any strong convexity: the limit on the step size does not depend on it
    run = f"T = {T}"
    statements: list[tuple[str, Callable[[], Any]]] = [
        ("dsgd", lambda: theory.dsgd("strongly_convex", mu_f=tiny, **given)),
        (f"dsgd, {run}", lambda: theory.dsgd("nonconvex", **given)),
        (f"average of 8, {run}", lambda: theory.averaged_draws("nonconvex", draws=8, **given)),
        ("l_svrdsg", lambda: theory.l_svrdsg("convex", N=8, p=1 / 8, **given)),
        ("s_page, N = 8, p = 1/8", lambda: theory.s_page(N=8, p=1 / 8, **given)),
    ]
    for method, statement in statements:
        try:
            g = statement()
            rows.append((method, float(g.max_step_size(T)), f"{g.limit_formula}, {g.regime} f"))
        except (NoGuaranteeError, ArgumentError) as error:
            rows.append((method, None, str(error)))
    return rows
