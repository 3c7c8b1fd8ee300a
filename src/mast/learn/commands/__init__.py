"""What `mast train`, `mast predict` and `mast evaluate` do, and the summaries they give."""

from __future__ import annotations

import time
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas
from numpy.typing import NDArray
from sklearn.base import clone, is_classifier
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression, Ridge

from mast import randomness
from mast.errors import ArgumentError, DataError, MissingExtraError
from mast.learn.commands.scores import draw_picture, score_both, summary, with_zeros
from mast.learn.commands.trained_model import TrainedModel, encoded, errors_of, training_rows
from mast.learn.encoder import TableEncoder
from mast.learn.estimators import MastClassifier, MastRegressor
from mast.learn.validation import ColumnsWarning
from mast.randomness import Key, Purpose
from mast.support.checks import Array, check_number

CLASSES = 20  #: whole numbers with at most CLASSES values are taken for classes
VALUES = 10_000  #: more different labels than this are numbers to regress on
DRAWS = 100
HELD_OUT_DRAWS = 20
DRAWN = 2_000_000  #: features of all draws together on held-out rows, unless two draws have more
LEAST_ROWS = 20  #: of fewer rows none is held out


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
    ids: list[str] | None = None,
    holdout: float = 0.2,
    seed: int = 0,
    intercept: bool = True,
    data_dir: Path | None = None,
) -> dict[str, Any]:
    """Train on a file, write the model to a folder, and say what was done.

    `ids` names identifiers, or is ["none"]; None finds them.

    Scores are those of a model that has not seen the rows which are held out; the model that is written has
    seen all of them.
    """
    begun = time.monotonic()
    if task not in ("auto", "classify", "regress"):
        raise ArgumentError(f"--task is auto, classify or regress, not {task!r}")
    holdout = check_number("--holdout", holdout, least=0, below=1)
    X, y, without_target = training_rows(file, target, drop or [], task, data_dir)
    values, counts = np.unique(y, return_counts=True)
    classify = _classifies(file, values, len(y), task)
    encoder = _encoder(X, ids)
    kind: Any = MastClassifier if classify else MastRegressor
    model = kind(
        sketch, alpha=alpha, kappa=kappa, missing=missing, fit_intercept=intercept, random_state=seed
    )
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", ConvergenceWarning)
        trained, shares = _fitted(file, model, encoder, X, y, target, drop or [])
    path = trained.save(out)
    held = held_out(y if classify else np.zeros(len(y)), holdout, seed)
    features = model.n_features_in_
    return {
        "file": file,
        "rows": len(y),
        "rows_without_target": without_target,
        "columns": len(encoder.columns_) if encoder else features,
        "features": features,
        "target": target,
        "task": "classification" if classify else "regression",
        "classes": dict(zip(map(_shown, values), counts.tolist(), strict=True)) if classify else None,
        "dropped": {**dict.fromkeys(drop or [], "named by --drop"), **(encoder.dropped_ if encoder else {})},
        "sketch": repr(model.sketch_).strip("<>"),
        "method": model.method_,
        "iterations": int(np.max(model.n_iter_)),
        "converged": not caught,
        "alpha": model.alpha_,
        "missing": {"rule": model.missing_, "share": float(shares.mean())},
        "held_out": _held_out_scores(file, clone(model), encoder, X, y, held) if held.any() else None,
        "seconds": round(time.monotonic() - begun, 3),
        "model": str(path),
    }


def _encoder(X: Any, ids: list[str] | None) -> TableEncoder | None:
    """The encoder of a table, which is not fitted yet; None for LIBSVM."""
    if isinstance(X, pandas.DataFrame):
        return TableEncoder("auto" if ids is None else None if ids == ["none"] else ids)
    if ids is not None:
        raise ArgumentError("--ids is for CSV files, whose columns have names")
    return None


def _fitted(
    file: str,
    model: Any,
    encoder: TableEncoder | None,
    X: Any,
    y: Any,
    target: str | None,
    drop: list[str],
) -> tuple[TrainedModel, Array]:
    """A model and the usual one, fitted to some rows, and the share of columns that each row misses."""
    shares = np.zeros(X.shape[0])
    if encoder is not None:
        with warnings.catch_warnings(), errors_of(file):
            warnings.simplefilter("ignore", ColumnsWarning)  # the summary names columns that are left out
            encoder.fit(X)
        X = encoded(file, encoder, X)[0]
        shares = encoder.missing_shares(X)
    usual: Any = LogisticRegression(max_iter=1000) if is_classifier(model) else Ridge()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # the comparison need not be exact
        usual.set_params(fit_intercept=model.fit_intercept).fit(with_zeros(X), y)
    coef, intercept = np.atleast_2d(usual.coef_), np.atleast_1d(usual.intercept_)
    model.fit(X, y)
    intercept = np.broadcast_to(intercept, coef.shape[:1]).astype(np.float64)
    return TrainedModel(model, coef, intercept, encoder, target, drop), shares


def held_out(y: Any, share: float, seed: int) -> NDArray[np.bool_]:
    """Which rows are held out: this share of each class, drawn by the seed; none of very few rows.

    >>> held_out(np.repeat([0, 1], 20), 0.2, 0).reshape(2, 20).sum(axis=1)
    array([4, 4])
    """
    held = np.zeros(len(y), dtype=bool)
    if len(y) >= LEAST_ROWS:
        order = randomness.permutation(Key(seed), Purpose.BATCH, len(y))
        _, codes, counts = np.unique(y[order], return_inverse=True, return_counts=True)
        by_class = np.argsort(codes, kind="stable")
        place = np.arange(len(y)) - np.repeat(np.cumsum(counts) - counts, counts)  # of a row in its class
        wanted = np.minimum(np.round(share * counts), counts - 1)
        held[order[by_class[place < np.repeat(wanted, counts)]]] = True
    return held


def _held_out_scores(
    file: str, model: Any, encoder: TableEncoder | None, X: Any, y: Any, held: NDArray[np.bool_]
) -> dict[str, Any]:
    """The scores on some rows of a model that was fitted to the others."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        trained, _ = _fitted(file, model, encoder and clone(encoder), X[~held], y[~held], None, [])
    X, y = X[held], y[held]
    if trained.encoder is not None:
        X = encoded(file, trained.encoder, X)[0]
    draws = max(2, min(HELD_OUT_DRAWS, DRAWN // X.shape[1]))
    return {"rows": len(y), **summary(trained, score_both(trained, X, y, draws), draws)}


def _classifies(file: str, values: Any, rows: int, task: str) -> bool:
    """Whether the target holds classes: texts, whole numbers of few values, and any two values."""
    numeric = values.dtype.kind in "iuf"
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
    folder: Path,
    file: str,
    *,
    proba: bool = False,
    keep: Sequence[str] = (),
    data_dir: Path | None = None,
) -> tuple[pandas.DataFrame, list[str]]:
    """For each row the prediction, the share of its columns that is missing, and perhaps probabilities.

    The columns of the file that are to be kept come first. Beside them, remarks on the columns of the file.
    """
    trained = TrainedModel.load(folder)
    if proba and not hasattr(trained.model, "classes_"):
        raise ArgumentError("--proba is for classifiers: this model predicts numbers")
    rows = trained.rows(file, data_dir, labels=False, keep=keep)
    predicted = {"prediction": trained.model.predict(rows.X), "missing": rows.missing.round(6)}
    if proba:
        names = [f"p({_shown(label)})" for label in trained.model.classes_]
        predicted |= dict(zip(names, trained.model.predict_proba(rows.X).T, strict=True))
    if twice := [name for name in keep if name in predicted]:
        raise ArgumentError(f"--keep {twice[0]}: the predictions have a column of this name")
    table = pandas.DataFrame(predicted)
    if rows.kept is not None:
        table = pandas.concat([rows.kept.set_axis(table.index), table], axis=1)
    return table, rows.remarks


def evaluate(
    folder: Path,
    file: str,
    *,
    draws: int = DRAWS,
    plot: Path | None = None,
    insist: bool = False,
    data_dir: Path | None = None,
) -> dict[str, Any]:
    """The scores of a model and of its sparsified versions on a file, beside what is usual, and a picture.

    Where matplotlib is not installed a remark takes the place of the picture, unless one insists.
    """
    trained = TrainedModel.load(folder)
    rows = trained.rows(file, data_dir)
    if rows.y is None:
        raise DataError(f"{file}: there is no column {trained.target!r} to compare predictions with")
    remarks = rows.remarks
    labels = set(np.unique(rows.y).tolist())
    unknown = _unknown_labels(file, labels, getattr(trained.model, "classes_", None))
    if unknown:
        remarks = [*remarks, f"never seen in training, so always wrong: {', '.join(map(str, unknown[:5]))}"]
    scores = score_both(trained, rows.X, rows.y, draws)
    result: dict[str, Any] = {
        "model": str(folder),
        "file": file,
        "rows": len(rows.y),
        "sketch": repr(trained.model.sketch_).strip("<>"),
        "missing": float(rows.missing.mean()),
        "remarks": remarks,
        **summary(trained, scores, draws),
    }
    if plot is not None:
        try:
            result["plot"] = str(draw_picture(trained, scores, plot))
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
