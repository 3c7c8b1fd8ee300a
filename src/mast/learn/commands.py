"""What `mast train`, `mast predict` and `mast evaluate` do, and the summaries they give."""

from __future__ import annotations

import time
import warnings
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from sklearn.exceptions import ConvergenceWarning

from mast import data
from mast.errors import ArgumentError, DataError, MissingExtraError
from mast.learn.bundle import Bundle, as_integers, labels_of, preview
from mast.learn.classifier import MastClassifier
from mast.learn.columns import FeatureColumns, learn_columns
from mast.learn.grouping import sketch_of
from mast.learn.regressor import MastRegressor
from mast.learn.tables import is_number, read_table
from mast.sketches import Identity

CLASSES = 20  #: whole numbers with at most so many values are taken for classes
DENSITIES = (1.0, 0.75, 0.5, 0.25, 0.1)
DRAWS = 100


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
    X, y, columns, target = _training_data(file, target, drop or [], task, data_dir)
    names = [part.name for part in columns.parts] if columns else [str(j + 1) for j in range(X.shape[1])]
    owners = columns.owners if columns else np.arange(X.shape[1])
    classify = task == "classify" or (task == "auto" and _looks_like_classes(y))
    if not classify and y.dtype.kind not in "iuf":
        raise DataError(f"{file}: the target holds text, so there is nothing to regress on")
    _check_target(file, y, classify)
    kind: Any = MastClassifier if classify else MastRegressor
    common = {
        "alpha": alpha,
        "kappa": kappa,
        "missing": missing,
        "fit_intercept": intercept,
        "random_state": seed,
    }
    model = kind(sketch_of(sketch, owners, names), **common)
    plain = kind(Identity(), **common)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", ConvergenceWarning)
        model.fit(X, y)
        plain.fit(X, y)
    bundle = Bundle(model, np.asarray(plain.coef_), np.asarray(plain.intercept_), columns, target)
    path = bundle.save(out)
    return {
        "file": file,
        "rows": int(X.shape[0]),
        "columns": len(names),
        "features": int(X.shape[1]),
        "target": target,
        "task": "classification" if classify else "regression",
        "classes": _counts(y) if classify else None,
        "dropped": columns.dropped if columns else {},
        "sketch": repr(model.sketch_).strip("<>"),
        "method": model.method_,
        "iterations": int(np.max(model.n_iter_)),
        "converged": not caught,
        "alpha": model.alpha_,
        "missing": {"rule": model.missing_, "share": _share(X, columns)},
        "training": scores(bundle, X, y, densities=()),
        "seconds": round(time.monotonic() - begun, 3),
        "model": str(path),
    }


def _share(X: Any, columns: FeatureColumns | None) -> float:
    return 0.0 if columns is None else float(columns.missing_shares(X).mean())


def _training_data(
    file: str, target: str | None, drop: list[str], task: str, data_dir: Path | None
) -> tuple[Any, NDArray[Any], Any, str | None]:
    if target is None and not _is_csv(file):
        if drop:
            raise ArgumentError("--drop is for CSV files, whose columns have names")
        X, y = data.load(file, data_dir=data_dir, labels="raw")
        return X, as_integers(y), None, None
    table = read_table(file)
    if target is None:
        raise DataError(f"{file}: which column is to be predicted? Give --target, one of {preview(table)}")
    text = task == "classify" and not (
        target in table.cells and all(is_number(cell) for cell in table.column(target))
    )
    y = labels_of(table, target, False if text else None)
    for name in drop:
        if name not in table.cells:
            raise DataError(f"{file}: there is no column {name!r} to drop")
    columns = learn_columns(table, {target, *drop})
    return columns.apply(table), y, columns, target


def _is_csv(file: str) -> bool:
    name = file.lower().removesuffix(".gz").removesuffix(".bz2")
    return name.endswith((".csv", ".tsv"))


def _looks_like_classes(y: NDArray[Any]) -> bool:
    """Text is classes; so are whole numbers that take few values, and any two values."""
    distinct = np.unique(y).size
    return y.dtype.kind not in "iuf" or distinct <= 2 or (y.dtype.kind in "iu" and distinct <= CLASSES)


def _check_target(file: str, y: NDArray[Any], classify: bool) -> None:
    values = np.unique(y)
    if classify and values.size < 2:
        raise DataError(f"{file}: every row has the class {_shown(values[0])}, so there is nothing to learn")
    if classify and values.size > y.size / 2 and values.size > CLASSES:
        raise DataError(
            f"{file}: the target takes {values.size:,} values in {y.size:,} rows, too many for classes; "
            "--task regress predicts numbers"
        )


def _counts(y: NDArray[Any]) -> dict[str, int]:
    values, counts = np.unique(y, return_counts=True)
    return {_shown(v): int(c) for v, c in zip(values, counts, strict=True)}


def _shown(value: Any) -> str:
    return str(value.item() if isinstance(value, np.generic) else value)


# ---- use ------------------------------------------------------------------------------------


class Predictions(NamedTuple):
    """A table of predictions, and remarks on the columns of the file."""

    names: list[str]
    rows: list[list[Any]]
    remarks: list[str]


def predict(folder: Path, file: str, *, proba: bool = False, data_dir: Path | None = None) -> Predictions:
    """For each row the prediction, the share of its columns that is missing, and perhaps probabilities."""
    bundle = Bundle.load(folder)
    found = bundle.features(file, data_dir)
    if proba and not hasattr(bundle.model, "classes_"):
        raise ArgumentError("--proba is for classifiers: this model predicts numbers")
    names = ["prediction", "missing"]
    columns = [bundle.model.predict(found.X).tolist(), found.missing.round(6).tolist()]
    if proba:
        names += [f"p({_shown(label)})" for label in bundle.model.classes_]
        columns += bundle.model.predict_proba(found.X).T.tolist()
    return Predictions(names, [list(row) for row in zip(*columns, strict=True)], found.remarks)


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
    X, y, missing, remarks = bundle.features(file, data_dir)
    if y is None:
        raise DataError(f"{file}: there is no column {bundle.target!r} to compare predictions with")
    result: dict[str, Any] = {
        "model": str(folder),
        "file": file,
        "rows": int(X.shape[0]),
        "sketch": repr(bundle.model.sketch_).strip("<>"),
        "missing": float(missing.mean()),
        "remarks": remarks + _unknown_labels(file, y, getattr(bundle.model, "classes_", None)),
        **scores(bundle, X, y, draws=draws),
    }
    if plot is not None:
        try:
            result["plot"] = str(_draw(bundle, X, y, draws, plot))
        except MissingExtraError as error:
            if insist:
                raise
            result["remarks"].append(f"no picture: {error}")
    return result


def _unknown_labels(file: str, y: Any, classes: Any) -> list[str]:
    """A remark on labels that the model does not know; an error where they cannot be a few new classes."""
    unknown = [] if classes is None else sorted(set(np.unique(y).tolist()) - set(classes.tolist()))
    if not unknown:
        return []
    named = ", ".join(map(str, unknown[:5]))
    if len(classes) == 2 or not np.isin(y, classes).any():
        known = ", ".join(map(_shown, classes[:5]))
        raise DataError(f"{file}: the model knows the labels {known}, and the file has others: {named}")
    return [f"never seen in training, so always wrong: {named}"]


def scores(
    bundle: Bundle, X: Any, y: Any, densities: tuple[float, ...] = DENSITIES, draws: int = DRAWS
) -> dict[str, Any]:
    """Scores of the model and of a plain one: whole, under the training sketch, and at densities."""
    both = {"mast": bundle.model, "plain": bundle.plain}
    return {
        "score": "accuracy" if hasattr(bundle.model, "classes_") else "R²",
        "whole": {name: float(m.score_sparsified(X, y, 1.0, 1)[0]) for name, m in both.items()},
        "sketched": {name: _spread(m.score_sparsified(X, y, None, draws)) for name, m in both.items()},
        "densities": {
            f"{density:g}": {
                name: _spread(m.score_sparsified(X, y, density, draws if density < 1 else 1))
                for name, m in both.items()
            }
            for density in densities
        },
        "draws": draws,
    }


def _spread(values: NDArray[np.float64]) -> dict[str, float]:
    return {"mean": float(values.mean()), "worst": float(values.min())}


def _draw(bundle: Bundle, X: Any, y: Any, draws: int, path: Path) -> Path:
    import io

    from mast import files
    from mast.plots import pyplot

    pyplot()  # says how to get matplotlib where it is not there
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6, 4), layout="constrained")
    FigureCanvasAgg(figure)  # no window, whatever the user's settings
    ax = figure.subplots()
    bundle.model.plot_sparsified(X, y, baseline=bundle.plain, densities=DENSITIES, draws=draws, ax=ax)
    ours, plain = ax.get_lines()
    ax.legend([ours, plain], [str(ours.get_label()), "the same without a sketch"])
    kind = path.suffix.lstrip(".").lower() or "png"
    if kind not in figure.canvas.get_supported_filetypes():
        raise ArgumentError(f"a picture cannot be written as {path.name!r}: use .png, .svg or .pdf")
    content = io.BytesIO()
    figure.savefig(content, format=kind, dpi=150)
    files.write(path, content.getvalue())
    return path
