"""Fitted models and pipelines as files: JSON and arrays, checksummed, never pickle."""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import scipy.sparse
from numpy.typing import NDArray
from sklearn.pipeline import Pipeline
from sklearn.utils.validation import _check_feature_names_in, check_is_fitted

from mast import theory
from mast.errors import ArgumentError, DataError, MastError
from mast.learn.columns import column_from_json
from mast.learn.encoder import TableEncoder
from mast.learn.estimators import MastClassifier, MastRegressor
from mast.learn.factors import FactorGaussian
from mast.learn.gaussian import FeatureGaussian
from mast.learn.linear import LinearEstimator
from mast.sketches import Sketch
from mast.sketches.formats import describe, rebuild
from mast.support import files
from mast.support.files import as_path
from mast.theory import Guarantee

Arrays = dict[str, NDArray[Any]]
Model = TypeVar("Model", bound=LinearEstimator)

FORMAT = 3  #: 2 had no encoders of tables
SEPARATE = ("sketch", "shift", "random_state", "class_weight")  #: parameters that are not plain JSON
FITTED = {"alpha": float, "method": str, "missing": str, "seed": int}  #: what was found, and of which type


def write_kind(path: Path, kind: str, description: dict[str, Any], arrays: Arrays) -> None:
    """Write a file of this kind."""
    files.save(path, {"kind": kind, "format": FORMAT, **description}, arrays)


def read_kind(path: Path, kind: str) -> tuple[dict[str, Any], Arrays]:
    """Read a file of this kind; files of MAST's that hold something else, or another format, are refused."""
    description, arrays = files.load(path)
    if description.get("kind") != kind:
        raise DataError(
            f"{path} holds {description.get('kind') or 'something else'!r}, not a {kind} of MAST's"
        )
    if description.get("format") != FORMAT:
        raise DataError(
            f"{path} has the format {description.get('format')!r}, this version of MAST reads {FORMAT}"
        )
    return description, arrays


def pack_model(model: LinearEstimator) -> tuple[dict[str, Any], Arrays]:
    """A fitted model as a JSON description and arrays."""
    coef, state, parameters = model.coef_, model.random_state, model.get_params(deep=False)
    arrays: Arrays = {
        "coef": coef.toarray() if scipy.sparse.issparse(coef) else np.asarray(coef),
        "intercept": np.asarray(model.intercept_, dtype=np.float64),
        "n_iter": np.asarray(model.n_iter_),
        "shift": model.shift_,
        "indicators": model.indicators_,
    }
    description: dict[str, Any] = {
        "estimator": type(model).__name__,
        "parameters": {name: _as_json(name, v) for name, v in parameters.items() if name not in SEPARATE},
        "shifted": model.shift is not None,
        "sketch": describe(model.sketch, arrays) if isinstance(model.sketch, Sketch) else model.sketch,
        "sketch_used": describe(model.sketch_, arrays),
        # an int stays; a generator is not stored, as its state moves on
        "random_state": int(state) if isinstance(state, int | np.integer) else None,
        "fitted": {
            **{name: getattr(model, f"{name}_") for name in FITTED},
            "n_features": model.coef_.shape[-1] - model.indicators_.size,
            "guarantee": _pack_guarantee(model.guarantee_),
        },
        "feature_names": [str(name) for name in getattr(model, "feature_names_in_", [])] or None,
        "encoder": None if model.encoder_ is None else pack_encoder(model.encoder_),
    }
    if model.groups_ is not None:
        arrays["groups"] = model.groups_
    if model.gaussian_ is not None:
        arrays |= _pack_gaussian(model.gaussian_)
    if hasattr(model, "classes_"):
        description["classes"] = _pack_classes(model.classes_)
        description["class_weight"] = _pack_class_weight(getattr(model, "class_weight", None))
    return description, arrays


def unpack_model(description: dict[str, Any], arrays: Arrays, path: Path, wanted: type[Model]) -> Model:
    """The model of a description and arrays; whatever does not fit together is refused."""
    stored = {kind.__name__: kind for kind in (MastClassifier, MastRegressor)}.get(
        str(description.get("estimator"))
    )
    if stored is None:
        raise DataError(f"{path}: no estimator is called {description.get('estimator')!r}")
    if not issubclass(stored, wanted) and not issubclass(wanted, stored):
        raise DataError(f"{path} holds a {stored.__name__}, not a {wanted.__name__}")
    kind: Any = wanted if issubclass(wanted, stored) else stored
    with files.damage_refused(path):
        model: Model = _rebuild_model(kind, description, arrays)
    return model


def _rebuild_model(kind: Any, description: dict[str, Any], arrays: Arrays) -> Any:
    fitted, sketch = description["fitted"], description["sketch"]
    model = kind(**description["parameters"])
    model.sketch = rebuild(sketch, arrays) if isinstance(sketch, dict) else sketch
    model.random_state = description["random_state"]
    d = int(fitted["n_features"])
    rows = 1
    if issubclass(kind, MastClassifier):
        weight = description["class_weight"]
        model.class_weight = dict(weight) if isinstance(weight, list) else weight
        model.classes_ = np.array(description["classes"]["values"], dtype=description["classes"]["dtype"])
        if model.classes_.ndim != 1 or not 1 < np.unique(model.classes_).size == model.classes_.size:
            raise ValueError("the classes are not a list of different labels")
        rows = 1 if model.classes_.size == 2 else model.classes_.size
    n_iter = arrays["n_iter"]
    if n_iter.dtype.kind != "i" or n_iter.size != 1:
        raise ValueError("iterations must be a whole number")
    model.indicators_ = _check_columns(arrays["indicators"], d)
    wide = d + model.indicators_.size
    coef = check_floats(arrays["coef"]).reshape(rows, wide)
    intercept = check_floats(arrays["intercept"]).reshape(rows)
    model.shift_ = check_floats(arrays["shift"]).reshape(rows, wide)
    shift = model.shift_[:, :d].copy()
    if issubclass(kind, MastClassifier):
        model.coef_, model.intercept_, model.n_iter_ = coef, intercept, np.array([n_iter.item()])
    else:
        model.coef_, model.intercept_, model.n_iter_ = coef[0], float(intercept[0]), n_iter.item()
        shift = shift[0]
    model.shift = shift if description["shifted"] else None
    model.sketch_ = rebuild(description["sketch_used"], arrays)
    model.sketch_.check(wide)
    for name, kind_of_value in FITTED.items():
        setattr(model, f"{name}_", kind_of_value(fitted[name]))
    model.n_features_in_, model.guarantee_ = d, _unpack_guarantee(fitted["guarantee"])
    model.gaussian_ = _unpack_gaussian(arrays, d) if model.missing_ == "conditional" else None
    model.encoder_ = None
    if description["encoder"] is not None:
        model.encoder_ = unpack_encoder(description["encoder"])
        model.n_features_in_ = model.encoder_.n_features_in_
        if len(model.encoder_.groups_) != d:
            raise ValueError(f"the columns make {len(model.encoder_.groups_)} features, the model has {d}")
    model.groups_ = arrays.get("groups")
    _set_column_names(model, description["feature_names"])
    return model


def _set_column_names(fitted: Any, names: list[Any] | None) -> None:
    """Give a model or an encoder the names of its columns."""
    if names is not None:
        if len(names) != fitted.n_features_in_:
            raise ValueError(f"{len(names)} names for {fitted.n_features_in_} columns")
        fitted.feature_names_in_ = np.array([str(name) for name in names], dtype=object)


# ---- encoders and pipelines ------------------------------------------------------------------------


def pack_encoder(encoder: TableEncoder) -> dict[str, Any]:
    """A fitted encoder as JSON."""
    ids = encoder.ids
    return {
        "ids": ids if ids is None or isinstance(ids, str) else [str(name) for name in ids],
        "columns": [asdict(column) for column in encoder.columns_],
        "dropped": encoder.dropped_,
        "n_columns": encoder.n_features_in_,
        "names": [str(name) for name in getattr(encoder, "feature_names_in_", [])] or None,
    }


def unpack_encoder(content: dict[str, Any]) -> TableEncoder:
    """The encoder that `pack_encoder` packed."""
    encoder = TableEncoder(content["ids"])
    encoder.columns_ = [column_from_json(column) for column in content["columns"]]
    encoder.dropped_ = {str(name): str(why) for name, why in content["dropped"].items()}
    encoder.n_features_in_ = int(content["n_columns"])
    _set_column_names(encoder, content["names"])
    names = [column.name for column in encoder.columns_]
    if not names or len(set(names)) < len(names) or not set(names) <= set(_check_feature_names_in(encoder)):
        raise ValueError("the columns are not those of a table")
    return encoder


def save_pipeline(pipeline: Any, path: str | os.PathLike[str]) -> None:
    """Write a fitted pipeline of a `TableEncoder` and a `MastClassifier` or `MastRegressor` to one file.

    >>> import mast, pandas, tempfile, pathlib
    >>> from sklearn.pipeline import make_pipeline
    >>> frame, y = pandas.DataFrame({"a": [1.0, 2.0, 4.0], "b": ["x", "y", "x"]}), [0, 1, 1]
    >>> model = make_pipeline(mast.TableEncoder(), mast.MastClassifier(random_state=0)).fit(frame, y)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     mast.learn.save_pipeline(model, pathlib.Path(folder) / "model.mast")
    ...     again = mast.learn.load_pipeline(pathlib.Path(folder) / "model.mast")
    >>> bool((again.predict_proba(frame) == model.predict_proba(frame)).all())
    True
    """
    steps = getattr(pipeline, "steps", [])
    kinds = [type(step) for _, step in steps]
    if len(kinds) != 2 or kinds[0] is not TableEncoder or not issubclass(kinds[1], LinearEstimator):
        raise ArgumentError(
            "a file takes a pipeline of a TableEncoder and a MastClassifier or MastRegressor, got "
            f"{pipeline!r}; such a model alone has a method save"
        )
    (first, encoder), (second, model) = steps
    check_is_fitted(model)
    description, arrays = pack_model(model)
    content = {"names": [first, second], "encoder": pack_encoder(encoder), "model": description}
    write_kind(as_path("path", path), "pipeline", content, arrays)


def load_pipeline(path: str | os.PathLike[str]) -> Pipeline:
    """Read what `save_pipeline` wrote: the same predictions, bit for bit."""
    path = as_path("path", path)
    content, arrays = read_kind(path, "pipeline")
    with files.damage_refused(path):
        encoder = unpack_encoder(content["encoder"])
        model: Any = unpack_model(content["model"], arrays, path, LinearEstimator)
        if len(encoder.groups_) != model.n_features_in_:
            raise ValueError("the columns do not fit the model")
        first, second = (str(name) for name in content["names"])
        return Pipeline([(first, encoder), (second, model)])


# ---- the Gaussian of the features ------------------------------------------------------------------


def _pack_gaussian(gaussian: FeatureGaussian) -> Arrays:
    if isinstance(gaussian, FactorGaussian):
        return {"mean": gaussian.mean, "loadings": gaussian.loadings, "noise": gaussian.noise}
    return {"mean": gaussian.mean, "covariance": gaussian.covariance}


def _unpack_gaussian(arrays: Arrays, d: int) -> FeatureGaussian:
    mean = check_floats(arrays["mean"]).reshape(d)
    if "loadings" not in arrays:
        covariance = check_floats(arrays["covariance"]).reshape(d, d)
        if (covariance != covariance.T).any():
            raise ValueError("the covariance of the features is not symmetric")
        return FeatureGaussian(mean, covariance)
    loadings, noise = check_floats(arrays["loadings"]), check_floats(arrays["noise"]).reshape(d)
    if loadings.ndim != 2 or len(loadings) != d or not (noise > 0).all():
        raise ValueError("the factors do not fit the features")
    return FactorGaussian(mean, loadings, noise)


# ---- parts --------------------------------------------------------------------------------


def _as_json(name: str, value: Any) -> Any:
    value = value.item() if isinstance(value, np.generic) else value
    try:
        json.dumps(value)
    except (TypeError, ValueError):
        raise ArgumentError(f"{name}={value!r} cannot be written to a file") from None
    return value


def check_floats(array: NDArray[Any]) -> NDArray[np.float64]:
    """The array, if it holds finite numbers in double precision."""
    if array.dtype != np.float64 or not np.isfinite(array).all():
        raise ValueError("weights must be finite numbers in double precision")
    return array


def _check_columns(indices: Any, d: int) -> NDArray[np.int64]:
    columns = np.asarray(indices, dtype=np.int64).reshape(-1)
    if columns.size and not (0 <= columns.min() and columns.max() < d):
        raise ValueError("indicators of columns that are not there")
    return columns


def _pack_classes(classes: NDArray[Any]) -> dict[str, Any]:
    """Labels as JSON: numbers, booleans or texts."""
    if classes.dtype.kind not in "biufU" and not all(isinstance(label, str) for label in classes):
        raise ArgumentError("labels that are neither numbers nor texts cannot be written to a file")
    dtype = "object" if classes.dtype == object else classes.dtype.str
    return {"values": classes.tolist(), "dtype": dtype}


def _pack_class_weight(weight: Any) -> Any:
    if weight is None or weight == "balanced":
        return weight
    return [[_as_json("class_weight", label), float(value)] for label, value in dict(weight).items()]


def _pack_guarantee(guarantee: Guarantee | None) -> dict[str, Any] | None:
    if guarantee is None:
        return None
    constants = {name: float(value) for name, value in guarantee.constants.items() if np.isfinite(value)}
    return {"algorithm": guarantee.algorithm, "regime": guarantee.regime, "constants": constants}


def _unpack_guarantee(statement: dict[str, Any] | None) -> Guarantee | None:
    """The statement made again from its constants; None for one that needs more than those."""
    if statement is None or statement["algorithm"] != "DSGD":
        return None
    constants = dict(statement["constants"])
    if "mu" in constants:  # mu_D mu_f, which only counts as a product
        constants |= {"mu_f": constants.pop("mu"), "mu_D": 1.0}
    try:
        return theory.dsgd(statement["regime"], **constants)
    except (MastError, TypeError):
        return None
