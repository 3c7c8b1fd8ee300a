"""Files with one wrong field and a right checksum: readers say so, and never fail in another way."""

import copy
import json
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import mast
from faults.amounts import FULL
from faults.artifacts import ARTIFACTS, PROBLEM, Artifact, Sealed, network_artifacts
from faults.tally import survived
from mast.errors import MastError
from mast.support import files

pytestmark = pytest.mark.faults
NODES = mast.Nodes([PROBLEM, PROBLEM])
RUNS = {"s_page": PROBLEM, "agd": PROBLEM, "dsgd_sampled": PROBLEM, "distributed": NODES}
WRONG = (None, True, -1, 0, 3, 1.5, 1e308, -1e308, float("nan"), float("inf"), 10**30)
WRONG = (*WRONG, "", "x", [], [1], {}, {"a": 1}, {"kind": "Grouped", "sketch": {}, "groups": {}})


def _run(method: str) -> Artifact:
    def continued(path):
        return mast.minimize(RUNS[method], method, 10, 0.001, checkpoint=path).x.tolist()

    def make(folder):
        continued(folder / "run")
        return folder / "run"

    return Sealed(make, continued)


ALL = ARTIFACTS | network_artifacts() | {f"checkpoint of {method}": _run(method) for method in RUNS}


def paths_in(value: Any, path: tuple = ()) -> Iterator[tuple]:
    """The way to every field of a description, at any depth."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield (*path, key)
        yield from paths_in(inner, (*path, key))


def wrong_descriptions(description: dict) -> Iterator[tuple[str, dict]]:
    """Copies with one field gone or replaced."""
    for path in paths_in(description):
        for value in (..., *WRONG):
            changed = copy.deepcopy(description)
            place: Any = changed
            for key in path[:-1]:
                place = place[key]
            if value is ...:
                del place[path[-1]]
            else:
                place[path[-1]] = value
            yield f"{path} is {value!r}", changed


def wrong_arrays(arrays: dict) -> Iterator[tuple[str, dict]]:
    """Copies with one array gone or replaced."""
    for name, array in arrays.items():
        wrong = {
            "absent": None,
            "empty": array.ravel()[:0],
            "a number": np.float64(1.0) * np.ones(()),
            "of one dimension more": array[None],
            "longer": np.concatenate([array.ravel(), array.ravel()]),
            "text": np.full(array.shape, "x"),
            "boolean": np.ones(array.shape, dtype=bool),
            "complex": np.full(array.shape, 1j),
            "of bytes": np.full(array.shape, 200, dtype=np.uint8),
            "in half precision": np.ones(array.shape, dtype=np.float16),
            "negative": np.full(array.shape, -7).astype(array.dtype) if array.dtype.kind in "if" else None,
            "not a number": np.full(array.shape, np.nan) if array.dtype.kind == "f" else None,
            "huge": np.full(array.shape, 1e308) if array.dtype.kind == "f" else None,
        }
        for what, value in wrong.items():
            rest = {key: item for key, item in arrays.items() if key != name}
            if value is not None:
                rest[name] = value
            yield f"{name} is {what}", rest


@pytest.mark.parametrize("name", [name for name, artifact in ALL.items() if artifact.open])
def test_one_wrong_field_is_an_error_of_ours_or_none(name, tmp_path):
    artifact = ALL[name]
    path = artifact.make(tmp_path)
    raw = path.read_bytes()
    description, arrays = artifact.open(path)
    changes = [(what, changed, arrays) for what, changed in wrong_descriptions(description)]
    changes += [(what, description, changed) for what, changed in wrong_arrays(arrays)]
    every = 1 if FULL else max(1, len(changes) // 60)
    tried = refused = 0
    for what, head, body in changes[::every]:
        try:
            artifact.seal(path, json.loads(json.dumps(head)), body)
        except ValueError:  # what no file of this kind can hold
            continue
        tried += 1
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                artifact.read(path)
        except MastError:
            refused += 1
        except Exception as error:
            raise AssertionError(f"{what}: {type(error).__name__}: {error}") from error
    path.write_bytes(raw)
    artifact.read(path)
    assert refused > tried / 8
    survived("wrong field, right checksum", tried, tried, "refused by name, or of no consequence")


def test_an_array_that_unpacks_to_more_than_its_file_is_refused(tmp_path):
    import io
    import zipfile

    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("array_x.npy", bytes(50_000_000))
        archive.writestr("description.npy", b"")
    content = packed.getvalue()
    assert len(content) < 100_000
    (tmp_path / "bomb").write_bytes(files._head(content) + content)
    with pytest.raises(MastError, match="claims to be larger than the file"):
        files.load(tmp_path / "bomb")
