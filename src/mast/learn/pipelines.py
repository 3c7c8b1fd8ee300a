"""Pipelines of a TableEncoder and a model as files: JSON and arrays, checksummed, never pickle."""

from __future__ import annotations

import os
from typing import Any

from sklearn.pipeline import Pipeline
from sklearn.utils.validation import check_is_fitted

from mast.errors import ArgumentError
from mast.learn.encoder import TableEncoder
from mast.learn.sparsified import SparsifiedLinear
from mast.learn.storage import pack, pack_encoder, read, unpack, unpack_encoder, write
from mast.support import files
from mast.support.files import as_path

KIND = "pipeline"


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
    if len(kinds) != 2 or kinds[0] is not TableEncoder or not issubclass(kinds[1], SparsifiedLinear):
        raise ArgumentError(
            "a file takes a pipeline of a TableEncoder and a MastClassifier or MastRegressor, got "
            f"{pipeline!r}; such a model alone has a method save"
        )
    (first, encoder), (second, model) = steps
    check_is_fitted(model)
    description, arrays = pack(model)
    content = {"names": [first, second], "encoder": pack_encoder(encoder), "model": description}
    write(as_path("path", path), KIND, content, arrays)


def load_pipeline(path: str | os.PathLike[str]) -> Pipeline:
    """Read what `save_pipeline` wrote: the same predictions, bit for bit."""
    path = as_path("path", path)
    content, arrays = read(path, KIND)
    with files.damage_refused(path):
        encoder = unpack_encoder(content["encoder"])
        model: Any = unpack(content["model"], arrays, path, SparsifiedLinear)  # type: ignore[type-abstract]
        if len(encoder.groups_) != model.n_features_in_:
            raise ValueError("the columns do not fit the model")
        first, second = (str(name) for name in content["names"])
        return Pipeline([(first, encoder), (second, model)])
