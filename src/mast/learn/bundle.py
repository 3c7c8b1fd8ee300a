"""A trained model in a folder: the model, a plain one to compare with, and how files become features."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mast import files
from mast.errors import DataError
from mast.learn.columns import FeatureColumns
from mast.learn.sources import RowReader
from mast.learn.sparsified import SparsifiedLinear
from mast.learn.storage import pack, read, unpack, write

KIND = "trained model"
FILE = "model.mast"


@dataclass(frozen=True)
class Bundle:
    """What `mast train` makes and `mast predict` and `mast evaluate` use."""

    model: Any
    plain_coef: NDArray[np.float64]
    plain_intercept: NDArray[np.float64]
    columns: FeatureColumns | None  # of a CSV file; None for LIBSVM
    target: str | None

    @property
    def plain(self) -> SparsifiedLinear:
        """The plain model, in the form of ours."""
        plain: SparsifiedLinear = self.model._with_plain(self.plain_coef, self.plain_intercept)
        return plain

    @property
    def reader(self) -> RowReader:
        """How files become rows for the model."""
        classes = getattr(self.model, "classes_", None)
        numeric = classes is None or classes.dtype.kind in "iuf"
        return RowReader(self.columns, self.model.n_features_in_, self.target, numeric)

    def save(self, folder: Path) -> Path:
        """Write the file of the folder, which is made if it is not there."""
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise DataError(f"{folder}: the folder cannot be made: {error.strerror}") from error
        model, arrays = pack(self.model)
        description = {
            "model": model,
            "columns": None if self.columns is None else self.columns.as_json(),
            "target": self.target,
        }
        more = {"plain_coef": self.plain_coef, "plain_intercept": self.plain_intercept}
        write(folder / FILE, KIND, description, arrays | more)
        return folder / FILE

    @staticmethod
    def load(folder: Path) -> Bundle:
        """Read a folder that `save` wrote; damaged and foreign ones are refused."""
        path = folder / FILE if folder.is_dir() or not folder.exists() else folder
        if not path.exists():
            raise DataError(f"{folder}: there is no model; `mast train` makes one")
        description, arrays = read(path, KIND)
        with files.damage_refused(path):
            model: Any = unpack(description["model"], arrays, path, SparsifiedLinear)  # type: ignore[type-abstract]
            content = description["columns"]
            columns = None if content is None else FeatureColumns.from_json(content)
            bundle = Bundle(
                model, arrays["plain_coef"], arrays["plain_intercept"], columns, description["target"]
            )
            _ = bundle.plain
            if not isinstance(bundle.target, str | None):
                raise DataError(f"{path} is damaged: its target is not the name of a column")
        if columns is not None and len(columns.feature_names) != model.n_features_in_:
            raise DataError(f"{path} is damaged: its columns do not fit the model")
        return bundle
