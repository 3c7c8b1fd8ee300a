"""Scores of a trained model with features missing, beside what is usual, and a picture of them."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse

from mast.errors import ArgumentError
from mast.learn.scoring import draw_curves
from mast.learn.storage import Bundle
from mast.support import files
from mast.support.arrays import Array

MODELS = ("mast", "usual")


def with_zeros(X: Any) -> Any:
    """Features with 0 for what is missing: the mean of a number, and no value of a category."""
    if scipy.sparse.issparse(X):
        X = X.copy()
        X.data = np.nan_to_num(X.data, copy=False, nan=0.0)
        return X
    return np.nan_to_num(np.asarray(X), nan=0.0)


class Scores:
    """Scores on some rows: of the model and of the usual one, one per draw, at each density."""

    def __init__(self, bundle: Bundle, X: Any, y: Any, densities: tuple[float, ...], draws: int) -> None:
        self.bundle, self.densities, self.draws = bundle, densities, draws
        self.classifies = hasattr(bundle.model, "classes_")
        zeros = with_zeros(X)
        #: by model and density; None is the training sketch
        self.found: dict[tuple[str, float | None], Array] = {}
        for density in dict.fromkeys((1.0, None, *densities)):
            count = 1 if density == 1.0 else draws
            self.found["mast", density] = bundle.model.score_sparsified(X, y, density, count)
            self.found["usual", density] = self._usual(zeros, y, density, count)

    def _usual(self, X: Any, y: Any, density: float | None, draws: int) -> Array:
        """The scores of the usual model under the same draws: what they drop is 0."""
        model, (coef, intercept) = self.bundle.model, self.bundle.usual
        sketch, reference, errors = model._at(density), model._reference(y), []
        for i in range(draws):
            draw = sketch.draw(coef.shape[1], model.seed_, i)
            kept = coef * (draw.diagonal() != 0) if sketch.diagonal else draw.apply(coef.T).T
            errors.append(model._error(np.asarray(X @ kept.T) + intercept, y))
        return 1 - np.array(errors) / reference if reference > 0 else np.where(np.array(errors) > 0, 0.0, 1.0)

    def summary(self) -> dict[str, Any]:
        """Scores of both models: whole, under the training sketch, and at densities."""
        return {
            "score": "accuracy" if self.classifies else "R²",
            "whole": {name: float(self.found[name, 1.0][0]) for name in MODELS},
            "sketched": self._both(None),
            "densities": {f"{density:g}": self._both(density) for density in self.densities},
            "draws": self.draws,
        }

    def _both(self, density: float | None) -> dict[str, dict[str, float]]:
        found = {name: self.found[name, density] for name in MODELS}
        return {name: {"mean": float(s.mean()), "worst": float(s.min())} for name, s in found.items()}

    def picture(self, path: Path) -> Path:
        """Write the score against the density."""
        from mast.plots import look, pyplot

        pyplot()  # says how to get matplotlib where it is not there
        from matplotlib.figure import Figure

        figure = Figure(figsize=(6, 4), layout="constrained")  # no window, whatever the user's settings
        kind = path.suffix.lstrip(".").lower() or "png"
        if kind not in figure.canvas.get_supported_filetypes():
            raise ArgumentError(f"a picture cannot be written as {path.name!r}: use .png, .svg or .pdf")
        shares = sorted(self.densities)
        fitted = "LogisticRegression" if self.classifies else "Ridge"
        labels = {"mast": "MAST", "usual": f"{fitted}, one-hot, means"}
        curves = {label: [self.found[name, share] for share in shares] for name, label in labels.items()}
        content = io.BytesIO()
        with look():
            draw_curves(figure.subplots(), shares, curves, self.summary()["score"])
            figure.savefig(content, format=kind, dpi=150)
        files.write(path, content.getvalue())
        return path
