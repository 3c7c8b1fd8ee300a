"""Scores of a trained model with features missing, beside what is usual, and a picture of them."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse

from mast.errors import ArgumentError
from mast.learn.commands.trained_model import TrainedModel
from mast.learn.scoring import draw_curves
from mast.learn.sparsified import largest_error, sketch_at, total_error
from mast.support import files
from mast.support.checks import Array

DENSITIES = (1.0, 0.75, 0.5, 0.25, 0.1)
MODELS = ("mast", "usual")

Scores = dict[tuple[str, float | None], Array]  #: by model and density; None is the training sketch


def with_zeros(X: Any) -> Any:
    """Features with 0 for what is missing: the mean of a number, and no value of a category."""
    if scipy.sparse.issparse(X):
        X = X.copy()
        X.data = np.nan_to_num(X.data, copy=False, nan=0.0)
        return X
    return np.nan_to_num(np.asarray(X), nan=0.0)


def score_both(trained: TrainedModel, X: Any, y: Any, draws: int) -> Scores:
    """Scores on some rows: of the model and of the usual one, one per draw, at each density."""
    zeros, scores = with_zeros(X), {}
    for density in dict.fromkeys((1.0, None, *DENSITIES)):
        count = 1 if density == 1.0 else draws
        scores["mast", density] = trained.model.score_sparsified(X, y, density, count)
        scores["usual", density] = _score_usual(trained, zeros, y, density, count)
    return scores


def _score_usual(trained: TrainedModel, X: Any, y: Any, density: float | None, draws: int) -> Array:
    """The scores of the usual model under the same draws: what they drop is 0."""
    model, coef, errors = trained.model, trained.usual_coef, []
    sketch, reference = sketch_at(model.sketch_, density), largest_error(model, y)
    for i in range(draws):
        draw = sketch.draw(coef.shape[1], model.seed_, i)
        kept = coef * (draw.diagonal() != 0) if sketch.diagonal else draw.apply(coef.T).T
        errors.append(total_error(model, np.asarray(X @ kept.T) + trained.usual_intercept, y))
    return 1 - np.array(errors) / reference if reference > 0 else np.where(np.array(errors) > 0, 0.0, 1.0)


def score_name(model: Any) -> str:
    """What scores are."""
    return "accuracy" if hasattr(model, "classes_") else "R²"


def summary(trained: TrainedModel, scores: Scores, draws: int) -> dict[str, Any]:
    """Scores of both models: whole, under the training sketch, and at densities."""
    return {
        "score": score_name(trained.model),
        "whole": {name: float(scores[name, 1.0][0]) for name in MODELS},
        "sketched": _mean_and_worst(scores, None),
        "densities": {f"{density:g}": _mean_and_worst(scores, density) for density in DENSITIES},
        "draws": draws,
    }


def _mean_and_worst(scores: Scores, density: float | None) -> dict[str, dict[str, float]]:
    found = {name: scores[name, density] for name in MODELS}
    return {name: {"mean": float(s.mean()), "worst": float(s.min())} for name, s in found.items()}


def draw_picture(trained: TrainedModel, scores: Scores, path: Path) -> Path:
    """Write the scores against the density."""
    from mast.plots import look, pyplot

    pyplot()  # says how to get matplotlib where it is not there
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6, 4), layout="constrained")  # no window, whatever the user's settings
    kind = path.suffix.lstrip(".").lower() or "png"
    if kind not in figure.canvas.get_supported_filetypes():
        raise ArgumentError(f"a picture cannot be written as {path.name!r}: use .png, .svg or .pdf")
    shares = sorted(DENSITIES)
    fitted = "LogisticRegression" if hasattr(trained.model, "classes_") else "Ridge"
    labels = {"mast": "MAST", "usual": f"{fitted}, one-hot, means"}
    curves = {label: [scores[name, share] for share in shares] for name, label in labels.items()}
    content = io.BytesIO()
    with look():
        draw_curves(figure.subplots(), shares, curves, score_name(trained.model))
        figure.savefig(content, format=kind, dpi=150)
    files.write(path, content.getvalue())
    return path
