"""Scores of a model and its sparsified versions beside a plain one, over rows that may come in pieces."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np

from mast import files
from mast.arrays import Array
from mast.errors import ArgumentError
from mast.learn.bundle import Bundle
from mast.learn.columns import RunningMoments
from mast.learn.scoring import draw_curves
from mast.learn.sparsified import scores_of

DENSITIES = (1.0, 0.75, 0.5, 0.25, 0.1)


class Tally:
    """Errors, added up: of the model and of a plain one, of each draw, at each density.

    A score is 1 - errors/reference: of the rows, how many are right; or R², whose reference is the sum of
    squares around the mean.
    """

    def __init__(self, bundle: Bundle, densities: tuple[float, ...], draws: int) -> None:
        self.models: dict[str, Any] = {"mast": bundle.model, "plain": bundle.plain}
        self.classifies = hasattr(bundle.model, "classes_")
        self.densities, self.draws = densities, draws
        #: None is the training sketch
        self.errors: dict[tuple[str, float | None], Array] = {
            (name, density): np.zeros(1 if density == 1.0 else draws)
            for name in self.models
            for density in dict.fromkeys((1.0, None, *densities))
        }
        self.rows, self.numbers = 0, RunningMoments()

    def add(self, X: Any, y: Any) -> None:
        """Count these rows."""
        for (name, density), errors in self.errors.items():
            errors += self.models[name]._errors(X, y, density, errors.size)
        if not self.classifies:
            self.numbers.add(y)
        self.rows += len(y)

    def scores(self, name: str, density: float | None) -> Array:
        """One score per draw."""
        reference = self.rows if self.classifies else float(self.numbers.squares)
        return scores_of(self.errors[name, density], reference)

    def summary(self) -> dict[str, Any]:
        """Scores of both models: whole, under the training sketch, and at densities."""
        return {
            "score": "accuracy" if self.classifies else "R²",
            "whole": {name: float(self.scores(name, 1.0)[0]) for name in self.models},
            "sketched": self._both(None),
            "densities": {f"{density:g}": self._both(density) for density in self.densities},
            "draws": self.draws,
        }

    def _both(self, density: float | None) -> dict[str, dict[str, float]]:
        found = {name: self.scores(name, density) for name in self.models}
        return {name: {"mean": float(s.mean()), "worst": float(s.min())} for name, s in found.items()}

    def picture(self, path: Path) -> Path:
        """Write the score against the density."""
        from mast.plots import look, pyplot

        pyplot()  # says how to get matplotlib where it is not there
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure

        figure = Figure(figsize=(6, 4), layout="constrained")
        FigureCanvasAgg(figure)  # no window, whatever the user's settings
        kind = path.suffix.lstrip(".").lower() or "png"
        if kind not in figure.canvas.get_supported_filetypes():
            raise ArgumentError(f"a picture cannot be written as {path.name!r}: use .png, .svg or .pdf")
        shares = sorted(self.densities)
        labels = {"mast": "MAST", "plain": "the same without a sketch"}
        curves = {
            label: np.stack([np.broadcast_to(self.scores(name, share), (self.draws,)) for share in shares])
            for name, label in labels.items()
        }
        content = io.BytesIO()
        with look():
            draw_curves(figure.subplots(), shares, curves, self.summary()["score"])
            figure.savefig(content, format=kind, dpi=150)
        files.write(path, content.getvalue())
        return path
