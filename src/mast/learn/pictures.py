"""The picture of a model's sparsified versions: score against the share of features that is kept."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from mast.arrays import Array
from mast.errors import ArgumentError
from mast.plots import COLOURS, pyplot
from mast.sketches import Identity

if TYPE_CHECKING:
    import matplotlib.axes

    from mast.learn.base import SparsifiedLinear


def plot_sparsified(
    model: SparsifiedLinear,
    X: Any,
    y: Any,
    baseline: Any,
    densities: Sequence[float],
    draws: int,
    ax: matplotlib.axes.Axes | None,
) -> matplotlib.axes.Axes:
    """Mean and range of the scores at each density, of the model and of a plain one."""
    shares = sorted(float(density) for density in densities)
    if not shares:
        raise ArgumentError("there are no densities to draw")
    plain, plain_label = _plain(model, X, y, baseline)
    curves = {
        f"{type(model).__name__}, {model.sketch_.label().split(':')[0]}": curve(model, X, y, shares, draws),
        plain_label: curve(plain, X, y, shares, draws),
    }
    if ax is None:
        _, ax = pyplot().subplots(figsize=(6, 4), layout="constrained")
    assert ax is not None
    draw_curves(ax, shares, curves, "accuracy" if hasattr(model, "classes_") else "R²")
    return ax


def draw_curves(
    ax: matplotlib.axes.Axes, shares: Sequence[float], curves: dict[str, Array], score: str
) -> None:
    """A line for the mean of each curve, an array (shares, draws), and a band for its range."""
    for colour, (label, scores) in zip(COLOURS, curves.items(), strict=False):
        ax.plot(shares, scores.mean(axis=1), color=colour, marker="o", label=label)
        ax.fill_between(shares, scores.min(axis=1), scores.max(axis=1), color=colour, alpha=0.15, linewidth=0)
    ax.set_xlabel("share of features that is kept")
    ax.set_ylabel(score)
    draws = next(iter(curves.values())).shape[1]
    ax.set_title(f"mean and range of {draws} sparsified models")
    ax.legend()


def curve(model: SparsifiedLinear, X: Any, y: Any, shares: Sequence[float], draws: int) -> Array:
    """The scores, a row for each density; with all features there is one score only, repeated."""
    rows = []
    for share in shares:
        scores = model.score_sparsified(X, y, share, draws if share < 1 else 1)
        rows.append(np.broadcast_to(scores, (draws,)) if share == 1 else scores)
    return np.stack(rows)


def _plain(model: SparsifiedLinear, X: Any, y: Any, baseline: Any) -> tuple[SparsifiedLinear, str]:
    """A plain model in the form of ours, so that both are sparsified alike, and what it is called."""
    if baseline is None:
        baseline, name = _fitted(model, X, y), "the same without a sketch, fitted to these data"
    else:
        name = type(baseline).__name__
    for needed in ("coef_", "intercept_"):
        if not hasattr(baseline, needed):
            raise ArgumentError(f"the baseline must be a fitted linear model: {baseline!r} has no {needed}")
    return as_ours(model, baseline.coef_, baseline.intercept_), name


def _fitted(model: SparsifiedLinear, X: Any, y: Any) -> Any:
    options: dict[str, Any] = {
        "alpha": model.alpha_,
        "missing": model.missing_,
        "fit_intercept": model.fit_intercept,
    }
    return type(model)(Identity(), **options).fit(X, y)


def as_ours(model: SparsifiedLinear, coef: Any, intercept: Any) -> SparsifiedLinear:
    """A copy of the model with other weights and no shift."""
    from copy import copy

    coef = np.atleast_2d(np.asarray(coef, dtype=np.float64))
    if coef.shape != model.shift_.shape:
        raise ArgumentError(
            f"the baseline's weights have the shape {coef.shape}, the model's {model.shift_.shape}"
        )
    plain = copy(model)
    plain.shift_ = np.zeros_like(coef)
    plain.coef_ = plain._shaped(coef)
    plain.intercept_ = intercept
    return plain
