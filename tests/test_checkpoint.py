"""The one form of checkpoints: arrays, numbers and an identity in a file that is whole or not there."""

import numpy as np
import pytest

from mast import files
from mast.checkpoint import Checkpoint, compare, fill
from mast.errors import CheckpointError, DataError, InUseError

IDENTITY = {"seed": "0", "nodes": "3"}


@pytest.fixture
def checkpoint(tmp_path):
    return Checkpoint(tmp_path / "c", "server", IDENTITY)


def test_what_was_written_comes_back(checkpoint):
    assert checkpoint.read() is None
    checkpoint.write({"round": 7, "extra": None}, {"x": np.arange(3.0)})
    numbers, arrays = checkpoint.read()
    assert numbers == {"round": 7, "extra": None}
    assert arrays["x"].tolist() == [0, 1, 2]


def test_the_field_that_differs_is_named(checkpoint):
    checkpoint.write({}, {})
    with pytest.raises(CheckpointError, match="another run: its nodes is 3, here it is 4"):
        Checkpoint(checkpoint.path, "server", IDENTITY | {"nodes": "4"}).read()
    with pytest.raises(CheckpointError, match="its sketch is None"):
        compare(IDENTITY, IDENTITY | {"sketch": "RandK"}, "this file")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kind": "run"}, "not a checkpoint of a server"),
        ({"format": 1}, "not a checkpoint of a server for MAST .* written by MAST 0.1"),
        ({"identity": None}, "damaged: its 'identity'"),
        ({"numbers": [1]}, "damaged: its 'numbers'"),
    ],
)
def test_other_files_are_refused(checkpoint, change, message):
    description = {"kind": "server", "format": 2, "identity": IDENTITY, "numbers": {}}
    files.save(checkpoint.path, description | change, {})
    with pytest.raises(CheckpointError, match=message):
        checkpoint.read()
    checkpoint.path.write_bytes(b"MAST1\nhalf")
    with pytest.raises(DataError, match="damaged"):
        checkpoint.read()


def test_one_process_at_a_time(checkpoint):
    with checkpoint.alone(), pytest.raises(InUseError, match="in use by another process"), checkpoint.alone():
        pass


def test_arrays_are_filled_in_where_they_fit():
    x = np.zeros(2)
    fill({"x": x}, {"x": np.ones(2), "other": np.ones(5)})
    assert x.tolist() == [1, 1]
    for wrong in ({}, {"x": np.ones(3)}, {"x": np.ones(2, dtype=np.float32)}):
        with pytest.raises(CheckpointError, match="its 'x' does not fit"):
            fill({"x": x}, wrong)
