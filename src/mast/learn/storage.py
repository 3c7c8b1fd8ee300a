"""Fitted models as files, and the folders of `mast train`: JSON and arrays, checksummed, never pickle."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np
import scipy.sparse
from numpy.typing import NDArray

from mast import theory
from mast.errors import ArgumentError, DataError, MastError
from mast.learn.factors import Factors
from mast.learn.gaussian import FeatureGaussian
from mast.learn.imputer import ConditionalImputer
from mast.sketches import Sketch
from mast.sketches.conditional import Conditional
from mast.sketches.stored import describe, rebuild
from mast.support import files
from mast.theory import Guarantee

if TYPE_CHECKING:
    from mast.learn.encoder import TableEncoder
    from mast.learn.sources import RowReader
    from mast.learn.sparsified import SparsifiedLinear

Arrays = dict[str, NDArray[Any]]
Model = TypeVar("Model", bound="SparsifiedLinear")

FORMAT = 3  #: 2 had no encoders of tables
KIND, TRAINED = "linear model", "trained model"  #: one model, and what `mast train` makes
FILE = "model.mast"  #: of a trained model, in its folder
SEPARATE = ("sketch", "shift", "random_state", "class_weight")  #: parameters that are not plain JSON
FITTED = {"alpha": float, "method": str, "missing": str, "seed": int}  #: what was found, and of which type


def write(path: Path, kind: str, description: dict[str, Any], arrays: Arrays) -> None:
    """Write a file of this kind."""
    files.save(path, {"kind": kind, "format": FORMAT, **description}, arrays)


def read(path: Path, kind: str) -> tuple[dict[str, Any], Arrays]:
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


def pack(model: SparsifiedLinear) -> tuple[dict[str, Any], Arrays]:
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
        "parameters": {name: _plain(name, v) for name, v in parameters.items() if name not in SEPARATE},
        "shifted": model.shift is not None,
        "sketch": describe(model.sketch, arrays) if isinstance(model.sketch, Sketch) else model.sketch,
        "sketch_used": describe(model.sketch_, arrays),
        # an int stays; a generator is not stored, as its state moves on
        "random_state": int(state) if isinstance(state, int | np.integer) else None,
        "fitted": {
            **{name: getattr(model, f"{name}_") for name in FITTED},
            "n_features": model.coef_.shape[-1] - model.indicators_.size,
            "guarantee": _statement(model.guarantee_),
        },
        "feature_names": [str(name) for name in getattr(model, "feature_names_in_", [])] or None,
        "encoder": None if model.encoder_ is None else pack_encoder(model.encoder_),
    }
    if model.groups_ is not None:
        arrays["groups"] = model.groups_
    if model.imputer_ is not None:
        arrays |= _gaussian_arrays(model.imputer_.gaussian_)
    if hasattr(model, "classes_"):
        description["classes"] = _classes(model.classes_)
        description["class_weight"] = _class_weight(getattr(model, "class_weight", None))
    return description, arrays


def unpack(description: dict[str, Any], arrays: Arrays, path: Path, wanted: type[Model]) -> Model:
    """The model of a description and arrays; whatever does not fit together is refused."""
    from mast.learn import MastClassifier, MastRegressor

    stored = {kind.__name__: kind for kind in (MastClassifier, MastRegressor)}.get(
        str(description.get("estimator"))
    )
    if stored is None:
        raise DataError(f"{path}: no estimator is called {description.get('estimator')!r}")
    if not issubclass(stored, wanted) and not issubclass(wanted, stored):
        raise DataError(f"{path} holds a {stored.__name__}, not a {wanted.__name__}")
    kind: Any = wanted if issubclass(wanted, stored) else stored
    with files.damage_refused(path):
        model: Model = _rebuilt(kind, description, arrays)
    return model


def _rebuilt(kind: Any, description: dict[str, Any], arrays: Arrays) -> Any:
    from mast.learn import MastClassifier

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
    model.indicators_ = _columns(arrays["indicators"], d)
    wide = d + model.indicators_.size
    coef, intercept = _floats(arrays["coef"]).reshape(rows, wide), _floats(arrays["intercept"]).reshape(rows)
    model._with(coef, intercept, n_iter.item())
    model.shift_ = _floats(arrays["shift"]).reshape(rows, wide)
    model.shift = model._shaped(model.shift_[:, :d].copy()) if description["shifted"] else None
    model.sketch_ = rebuild(description["sketch_used"], arrays)
    model.sketch_.check(wide)
    for name, kind_of_value in FITTED.items():
        setattr(model, f"{name}_", kind_of_value(fitted[name]))
    model.n_features_in_, model.guarantee_ = d, _guarantee(fitted["guarantee"])
    model.imputer_ = None
    if model.missing_ == "conditional":
        model.imputer_ = ConditionalImputer()
        model.imputer_.gaussian_, model.imputer_.n_features_in_ = _gaussian(arrays, d), d
    model.encoder_ = None
    if description["encoder"] is not None:
        model.encoder_ = unpack_encoder(description["encoder"])
        model.n_features_in_ = model.encoder_.n_features_in_
        if len(model.encoder_.groups_) != d:
            raise ValueError(f"the columns make {len(model.encoder_.groups_)} features, the model has {d}")
    model.groups_ = arrays.get("groups")
    _named(model, description["feature_names"])
    return model


def _named(fitted: Any, names: list[Any] | None) -> None:
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
    from mast.learn.columns import column_from_json
    from mast.learn.encoder import TableEncoder

    encoder = TableEncoder(content["ids"])
    encoder.columns_ = [column_from_json(column) for column in content["columns"]]
    encoder.dropped_ = {str(name): str(why) for name, why in content["dropped"].items()}
    encoder.n_features_in_ = int(content["n_columns"])
    _named(encoder, content["names"])
    names = [column.name for column in encoder.columns_]
    if not names or len(set(names)) < len(names) or not set(names) <= set(encoder._names()):
        raise ValueError("the columns are not those of a table")
    return encoder


# ---- folders --------------------------------------------------------------------------------


class Weights(NamedTuple):
    """A linear model that takes what is missing for 0, the mean of a standardised number: what is usual."""

    coef: NDArray[np.float64]  #: (outputs, features)
    intercept: NDArray[np.float64]


@dataclass(frozen=True)
class Bundle:
    """A trained model, a usual one to compare with, and how files become rows for both."""

    model: Any
    usual: Weights
    reader: RowReader

    def save(self, folder: Path) -> Path:
        """Write the file of the folder, which is made if it is not there."""
        files.make_folder(folder)
        model, arrays = pack(self.model)
        arrays["usual_coef"], arrays["usual_intercept"] = self.usual
        encoder = self.reader.encoder
        description = {
            "model": model,
            "columns": None if encoder is None else pack_encoder(encoder),
            "target": self.reader.target,
            "dropped": self.reader.dropped,
        }
        write(folder / FILE, TRAINED, description, arrays)
        return folder / FILE

    @staticmethod
    def load(folder: Path) -> Bundle:
        """Read a folder that `save` wrote; damaged and foreign ones are refused."""
        from mast.learn.sources import RowReader
        from mast.learn.sparsified import SparsifiedLinear

        path = folder / FILE if folder.is_dir() or not folder.exists() else folder
        if not path.exists():
            raise DataError(f"{folder}: there is no model; `mast train` makes one")
        description, arrays = read(path, TRAINED)
        with files.damage_refused(path):
            model: Any = unpack(description["model"], arrays, path, SparsifiedLinear)  # type: ignore[type-abstract]
            outputs, d = model.shift_.shape
            usual = Weights(
                _floats(arrays["usual_coef"]).reshape(outputs, d),
                _floats(arrays["usual_intercept"]).reshape(outputs),
            )
            content, target = description["columns"], description["target"]
            encoder = None if content is None else unpack_encoder(content)
            if not isinstance(target, str | None):
                raise DataError(f"{path} is damaged: its target is not the name of a column")
            if encoder is not None and len(encoder.groups_) != d:
                raise DataError(f"{path} is damaged: its columns do not fit the model")
            dropped = [str(name) for name in description["dropped"]]
        classes = getattr(model, "classes_", None)
        numeric = classes is None or classes.dtype.kind in "iuf"
        return Bundle(model, usual, RowReader(encoder, d, target, numeric, dropped))


# ---- the imputer ------------------------------------------------------------------------------


def _gaussian_arrays(gaussian: FeatureGaussian) -> Arrays:
    model = gaussian.model
    if isinstance(model, Factors):
        return {"mean": gaussian.mean, "loadings": model.loadings, "noise": model.noise}
    return {"mean": gaussian.mean, "covariance": model.covariance}


def _gaussian(arrays: Arrays, d: int) -> FeatureGaussian:
    mean = _floats(arrays["mean"]).reshape(d)
    if "loadings" not in arrays:
        covariance = Conditional(_floats(arrays["covariance"]), 1.0)
        covariance.check(d)
        if len(covariance.covariance) != d:
            raise ValueError("the covariance does not fit the features")
        return FeatureGaussian(mean, covariance)
    loadings, noise = _floats(arrays["loadings"]), _floats(arrays["noise"]).reshape(d)
    if loadings.ndim != 2 or len(loadings) != d or not (noise > 0).all():
        raise ValueError("the factors do not fit the features")
    return FeatureGaussian(mean, Factors(loadings, noise))


# ---- parts --------------------------------------------------------------------------------


def _plain(name: str, value: Any) -> Any:
    value = value.item() if isinstance(value, np.generic) else value
    try:
        json.dumps(value)
    except (TypeError, ValueError):
        raise ArgumentError(f"{name}={value!r} cannot be written to a file") from None
    return value


def _floats(array: NDArray[Any]) -> NDArray[np.float64]:
    if array.dtype != np.float64 or not np.isfinite(array).all():
        raise ValueError("weights must be finite numbers in double precision")
    return array


def _columns(indices: Any, d: int) -> NDArray[np.int64]:
    columns = np.asarray(indices, dtype=np.int64).reshape(-1)
    if columns.size and not (0 <= columns.min() and columns.max() < d):
        raise ValueError("indicators of columns that are not there")
    return columns


def _classes(classes: NDArray[Any]) -> dict[str, Any]:
    """Labels as JSON: numbers, booleans or texts."""
    if classes.dtype.kind not in "biufU" and not all(isinstance(label, str) for label in classes):
        raise ArgumentError("labels that are neither numbers nor texts cannot be written to a file")
    dtype = "object" if classes.dtype == object else classes.dtype.str
    return {"values": classes.tolist(), "dtype": dtype}


def _class_weight(weight: Any) -> Any:
    if weight is None or weight == "balanced":
        return weight
    return [[_plain("class_weight", label), float(value)] for label, value in dict(weight).items()]


def _statement(guarantee: Guarantee | None) -> dict[str, Any] | None:
    if guarantee is None:
        return None
    constants = {name: float(value) for name, value in guarantee.constants.items() if np.isfinite(value)}
    return {"algorithm": guarantee.algorithm, "regime": guarantee.regime, "constants": constants}


def _guarantee(statement: dict[str, Any] | None) -> Guarantee | None:
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
