"""What `mast train` makes: a model and a usual one to compare with, rows of files for both, and scores."""

from __future__ import annotations

import io
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas
import scipy.sparse
from numpy.typing import NDArray

from mast import data
from mast.errors import ArgumentError, DataError
from mast.learn.columns import CategoryColumn
from mast.learn.commands.csv_files import all_numbers, convert_numbers, read_table
from mast.learn.encoder import TableEncoder
from mast.learn.linear import LinearEstimator
from mast.learn.scoring import draw_curves, largest_error, sketch_at, total_error
from mast.learn.storage import (
    check_floats,
    pack_encoder,
    pack_model,
    read_kind,
    unpack_encoder,
    unpack_model,
    write_kind,
)
from mast.learn.validation import ColumnsWarning, quote_names
from mast.support import files
from mast.support.checks import Array

FILE = "model.mast"  #: of a trained model, in its folder
KIND = "trained model"
DENSITIES = (1.0, 0.75, 0.5, 0.25, 0.1)
MODELS = ("mast", "usual")

Scores = dict[tuple[str, float | None], Array]  #: by model and density; None is the training sketch


class Rows(NamedTuple):
    """The rows of a file as features."""

    X: Any
    y: Any  #: None where there are no labels, or none are asked for
    missing: Array  #: the share of the columns that each row misses
    remarks: list[str]  #: on the columns of the file
    kept: pandas.DataFrame | None = None  #: columns that are passed on


@dataclass(frozen=True)
class TrainedModel:
    """A trained model, a usual one to compare with, and how files become rows for both.

    The usual one is a linear model that takes what is missing for 0, the mean of a standardised number.
    """

    model: Any
    usual_coef: Array  #: (outputs, features)
    usual_intercept: Array
    encoder: TableEncoder | None  #: of a table; None for LIBSVM
    target: str | None
    dropped: list[str]  #: columns that were left out by name

    def save(self, folder: Path) -> Path:
        """Write the file of the folder, which is made if it is not there."""
        files.make_folder(folder)
        model, arrays = pack_model(self.model)
        arrays["usual_coef"], arrays["usual_intercept"] = self.usual_coef, self.usual_intercept
        description = {
            "model": model,
            "columns": None if self.encoder is None else pack_encoder(self.encoder),
            "target": self.target,
            "dropped": self.dropped,
        }
        write_kind(folder / FILE, KIND, description, arrays)
        return folder / FILE

    @staticmethod
    def load(folder: Path) -> TrainedModel:
        """Read a folder that `save` wrote; damaged and foreign ones are refused."""
        path = folder / FILE if folder.is_dir() or not folder.exists() else folder
        if not path.exists():
            raise DataError(f"{folder}: there is no model; `mast train` makes one")
        description, arrays = read_kind(path, KIND)
        with files.damage_refused(path):
            model: Any = unpack_model(description["model"], arrays, path, LinearEstimator)
            outputs, d = model.shift_.shape
            coef = check_floats(arrays["usual_coef"]).reshape(outputs, d)
            intercept = check_floats(arrays["usual_intercept"]).reshape(outputs)
            content, target = description["columns"], description["target"]
            encoder = None if content is None else unpack_encoder(content)
            if not isinstance(target, str | None):
                raise DataError(f"{path} is damaged: its target is not the name of a column")
            if encoder is not None and len(encoder.groups_) != d:
                raise DataError(f"{path} is damaged: its columns do not fit the model")
            dropped = [str(name) for name in description["dropped"]]
        return TrainedModel(model, coef, intercept, encoder, target, dropped)

    def rows(self, file: str, data_dir: Path | None, labels: bool = True, keep: Sequence[str] = ()) -> Rows:
        """All rows of a file; where labels are asked for, those that have one."""
        if self.encoder is None:
            if keep:
                raise ArgumentError("--keep is for CSV files, whose columns have names")
            X, y = data.load(file, self.model.n_features_in_, data_dir, labels="raw")
            return Rows(X, y, np.zeros(X.shape[0]), [])
        frame = read_table(file, [*self._categories(), *keep, *([self.target] if self.target else [])])
        for name in keep:
            if name not in frame:
                raise DataError(
                    f"{file}: there is no column {name!r} to keep; the columns are {quote_names(list(frame))}"
                )
        remarks: list[str] = []
        labelled = labels and self.target in frame
        if labelled:
            rows, frame = len(frame), rows_with_target(file, frame, self.target)
            if len(frame) < rows:
                remarks = [f"{rows - len(frame):,} rows without {self.target!r} are left out"]
        unused = [name for name in (self.target, *self.dropped) if name in frame]
        X, on_columns = encode_rows(file, self.encoder, frame.drop(columns=unused))
        classes = getattr(self.model, "classes_", None)
        numeric = classes is None or classes.dtype.kind in "iuf"
        y_ = labels_of(file, frame[self.target], numeric) if labelled else None
        return Rows(X, y_, self.encoder.missing_shares(X), remarks + on_columns, frame[list(keep)])

    def _categories(self) -> list[str]:
        """The columns that were texts, and are read as such: numbers would lose how they are written."""
        parts = self.encoder.columns_ if self.encoder else []
        return [part.name for part in parts if isinstance(part, CategoryColumn) and not part.boolean]


# ---- rows to train on ------------------------------------------------------------------------------


def is_csv(file: str) -> bool:
    """Whether a file is a table, by its name."""
    name = file.lower().removesuffix(".gz").removesuffix(".bz2")
    return name.endswith((".csv", ".tsv"))


def training_rows(
    file: str, target: str | None, drop: list[str], task: str, data_dir: Path | None
) -> tuple[Any, NDArray[Any], int]:
    """The rows of a file to train on, their labels, and how many rows have none and are left out.

    The rows are a data frame, or a sparse matrix of a LIBSVM file.
    """
    if target is None and not is_csv(file):
        if drop:
            raise ArgumentError("--drop is for CSV files, whose columns have names")
        X, y = data.load(file, None, data_dir, labels="raw")
        return X, as_integers(y), 0
    frame = read_table(file, [] if target is None else [target])
    target = _check_target(file, frame, target, drop)
    rows = len(frame)
    frame = rows_with_target(file, frame, target)
    y = labels_of(file, frame[target], _is_numeric(file, frame[target], task))
    return convert_numbers(frame.drop(columns=[target, *drop]), file), y, rows - len(frame)


def _check_target(file: str, frame: pandas.DataFrame, target: str | None, drop: list[str]) -> str:
    """The target's name, if it and the columns to leave out are there."""
    names = quote_names(list(frame))
    if target is None:
        raise DataError(f"{file}: which column is to be predicted? Give --target, one of {names}")
    for name in [target, *drop]:
        if name not in frame:
            what = "predict" if name == target else "drop"
            raise DataError(f"{file}: there is no column {name!r} to {what}; the columns are {names}")
    if len({target, *drop}) == frame.shape[1]:
        raise DataError(f"{file}: no column is left to learn from")
    return target


def rows_with_target(file: str, frame: pandas.DataFrame, target: str | None) -> pandas.DataFrame:
    """The rows whose target is not missing."""
    frame = frame[frame[target].notna()]
    if frame.empty:
        raise DataError(f"{file}: the target {target!r} is missing in every row")
    return frame


def _is_numeric(file: str, column: pandas.Series, task: str) -> bool:
    try:
        return all_numbers(column, file) is not None
    except DataError:  # nearly so: numbers with a mistake, unless they are the names of classes
        if task == "classify":
            return False
        raise


def labels_of(file: str, column: pandas.Series, numeric: bool) -> NDArray[Any]:
    """A target that is there in all rows, as numbers or as texts."""
    if not numeric:
        codes, texts = pandas.factorize(column)
        return np.asarray(np.array([text.strip() for text in texts])[codes])
    numbers = all_numbers(column, file)
    if numbers is None:
        raise DataError(f"{file}: the target {column.name!r} holds text, the model predicts numbers")
    if np.isinf(numbers).any():
        raise DataError(f"{file}: the target {column.name!r} holds infinity")
    return as_integers(numbers)


def as_integers(numbers: Array) -> NDArray[Any]:
    """Numbers as integers, if all of them are."""
    exact = (numbers == np.round(numbers)).all() and np.abs(numbers).max() < 2**53
    return numbers.astype(np.int64) if exact else numbers


def encode_rows(file: str, encoder: TableEncoder, frame: pandas.DataFrame) -> tuple[Any, list[str]]:
    """The features of a table, and remarks on its columns."""
    with warnings.catch_warnings(record=True) as caught, naming_file(file):
        warnings.simplefilter("always", ColumnsWarning)
        X = encoder.transform(frame)
    return X, [str(warning.message) for warning in caught if warning.category is ColumnsWarning]


@contextmanager
def naming_file(file: str) -> Iterator[None]:
    """Errors name the file."""
    try:
        yield
    except DataError as error:
        raise DataError(f"{file}{',' if str(error).startswith(('line', 'row')) else ':'} {error}") from None


# ---- scores with features missing, beside what is usual, and a picture of them ---------------------------


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
