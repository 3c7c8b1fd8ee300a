"""What `mast train`, `mast predict` and `mast evaluate` do, and the summaries they give."""

from __future__ import annotations

import io
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas
from sklearn.exceptions import ConvergenceWarning

from mast import files
from mast.arrays import Array
from mast.errors import ArgumentError, DataError, MissingExtraError
from mast.learn.classifier import MastClassifier
from mast.learn.columns import sketch_of
from mast.learn.regressor import MastRegressor
from mast.learn.scoring import draw_curves
from mast.learn.sources import Rows, training_rows
from mast.learn.storage import Bundle
from mast.sketches import Identity

CLASSES = 20  #: whole numbers with at most so many values are taken for classes
VALUES = 10_000  #: more different labels than this are numbers to regress on
DRAWS = 100
DENSITIES = (1.0, 0.75, 0.5, 0.25, 0.1)


def train(
    file: str,
    out: Path,
    *,
    target: str | None = None,
    sketch: str = "auto",
    task: str = "auto",
    kappa: float | None = None,
    alpha: float | None = None,
    missing: str = "auto",
    drop: list[str] | None = None,
    seed: int = 0,
    intercept: bool = True,
    data_dir: Path | None = None,
) -> dict[str, Any]:
    """Train on a file, write the model to a folder, and say what was done."""
    begun = time.monotonic()
    if task not in ("auto", "classify", "regress"):
        raise ArgumentError(f"--task is auto, classify or regress, not {task!r}")
    reader, rows = training_rows(file, target, drop or [], task, data_dir)
    columns, features = reader.columns, reader.width
    values, counts = np.unique(rows.y, return_counts=True)
    classify = _classifies(file, reader.numeric, values, len(rows.y), task)
    kind: Any = MastClassifier if classify else MastRegressor
    common = {
        "alpha": alpha,
        "kappa": kappa,
        "missing": missing,
        "fit_intercept": intercept,
        "random_state": seed,
    }
    owners = columns.owners if columns else np.arange(features)
    model, plain = kind(sketch_of(sketch, owners), **common), kind(Identity(), **common)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", ConvergenceWarning)
        for one in (model, plain):
            one.fit(rows.X, rows.y)
    bundle = Bundle(model, model._with_plain(plain.coef_, plain.intercept_), reader)
    path = bundle.save(out)
    return {
        "file": file,
        "rows": len(rows.y),
        "columns": len(columns.parts) if columns else features,
        "features": features,
        "target": reader.target,
        "task": "classification" if classify else "regression",
        "classes": dict(zip(map(_shown, values), counts.tolist(), strict=True)) if classify else None,
        "dropped": columns.dropped if columns else {},
        "sketch": repr(model.sketch_).strip("<>"),
        "method": model.method_,
        "iterations": int(np.max(model.n_iter_)),
        "converged": not caught,
        "alpha": model.alpha_,
        "missing": {"rule": model.missing_, "share": float(rows.missing.mean())},
        "training": Scores(bundle, rows, (), DRAWS).summary(),
        "seconds": round(time.monotonic() - begun, 3),
        "model": str(path),
    }


def _classifies(file: str, numeric: bool, values: Any, rows: int, task: str) -> bool:
    """Whether the target holds classes: texts, whole numbers of few values, and any two values."""
    few = values.size <= 2 or (values.dtype.kind in "iu" and values.size <= CLASSES)
    classify = task == "classify" or (task == "auto" and (not numeric or few))
    if not classify and not numeric:
        raise DataError(f"{file}: the target holds text, so there is nothing to regress on")
    if classify and values.size < 2:
        raise DataError(f"{file}: every row has the class {_shown(values[0])}, so there is nothing to learn")
    if classify and values.size > max(min(rows / 2, VALUES), CLASSES):
        raise DataError(
            f"{file}: the target takes {values.size:,} values in {rows:,} rows, too many for classes; "
            "--task regress predicts numbers"
        )
    return classify


def _shown(value: Any) -> str:
    return str(value.item() if isinstance(value, np.generic) else value)


# ---- use ------------------------------------------------------------------------------------


def predict(
    folder: Path, file: str, *, proba: bool = False, data_dir: Path | None = None
) -> tuple[pandas.DataFrame, list[str]]:
    """For each row the prediction, the share of its columns that is missing, and perhaps probabilities.

    Beside them, remarks on the columns of the file.
    """
    bundle = Bundle.load(folder)
    if proba and not hasattr(bundle.model, "classes_"):
        raise ArgumentError("--proba is for classifiers: this model predicts numbers")
    rows = bundle.reader.rows(file, data_dir, labels=False)
    predicted = {"prediction": bundle.model.predict(rows.X), "missing": rows.missing.round(6)}
    if proba:
        names = [f"p({_shown(label)})" for label in bundle.model.classes_]
        predicted |= dict(zip(names, bundle.model.predict_proba(rows.X).T, strict=True))
    return pandas.DataFrame(predicted), rows.remarks


def evaluate(
    folder: Path,
    file: str,
    *,
    draws: int = DRAWS,
    plot: Path | None = None,
    insist: bool = False,
    data_dir: Path | None = None,
) -> dict[str, Any]:
    """The scores of a model and of its sparsified versions on a file, and a picture of them.

    Where matplotlib is not installed a remark takes the place of the picture, unless one insists.
    """
    bundle = Bundle.load(folder)
    rows = bundle.reader.rows(file, data_dir)
    if rows.y is None:
        raise DataError(f"{file}: there is no column {bundle.reader.target!r} to compare predictions with")
    remarks = rows.remarks
    labels = set(np.unique(rows.y).tolist())
    unknown = _unknown_labels(file, labels, getattr(bundle.model, "classes_", None))
    if unknown:
        remarks = [*remarks, f"never seen in training, so always wrong: {', '.join(map(str, unknown[:5]))}"]
    scores = Scores(bundle, rows, DENSITIES, draws)
    result: dict[str, Any] = {
        "model": str(folder),
        "file": file,
        "rows": len(rows.y),
        "sketch": repr(bundle.model.sketch_).strip("<>"),
        "missing": float(rows.missing.mean()),
        "remarks": remarks,
        **scores.summary(),
    }
    if plot is not None:
        try:
            result["plot"] = str(scores.picture(plot))
        except MissingExtraError as error:
            if insist:
                raise
            result["remarks"].append(f"no picture: {error}")
    return result


def _unknown_labels(file: str, labels: set[Any], classes: Any) -> list[Any]:
    """The labels that a classifier does not know; an error where they cannot be a few new classes."""
    unknown = [] if classes is None else sorted(labels - set(classes.tolist()))
    if unknown and (len(classes) == 2 or len(unknown) == len(labels)):
        known, named = ", ".join(map(_shown, classes[:5])), ", ".join(map(str, unknown[:5]))
        raise DataError(f"{file}: the model knows the labels {known}, and the file has others: {named}")
    return unknown


# ---- scores ---------------------------------------------------------------------------------


class Scores:
    """Scores on some rows: of the model and of a plain one, one per draw, at each density."""

    def __init__(self, bundle: Bundle, rows: Rows, densities: tuple[float, ...], draws: int) -> None:
        self.models: dict[str, Any] = {"mast": bundle.model, "plain": bundle.plain}
        self.classifies = hasattr(bundle.model, "classes_")
        self.densities, self.draws = densities, draws
        #: by model and density; None is the training sketch
        self.found: dict[tuple[str, float | None], Array] = {
            (name, density): model.score_sparsified(rows.X, rows.y, density, 1 if density == 1.0 else draws)
            for name, model in self.models.items()
            for density in dict.fromkeys((1.0, None, *densities))
        }

    def summary(self) -> dict[str, Any]:
        """Scores of both models: whole, under the training sketch, and at densities."""
        return {
            "score": "accuracy" if self.classifies else "R²",
            "whole": {name: float(self.found[name, 1.0][0]) for name in self.models},
            "sketched": self._both(None),
            "densities": {f"{density:g}": self._both(density) for density in self.densities},
            "draws": self.draws,
        }

    def _both(self, density: float | None) -> dict[str, dict[str, float]]:
        found = {name: self.found[name, density] for name in self.models}
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
        labels = {"mast": "MAST", "plain": "the same without a sketch"}
        curves = {label: [self.found[name, share] for share in shares] for name, label in labels.items()}
        content = io.BytesIO()
        with look():
            draw_curves(figure.subplots(), shares, curves, self.summary()["score"])
            figure.savefig(content, format=kind, dpi=150)
        files.write(path, content.getvalue())
        return path
