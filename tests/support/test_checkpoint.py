"""The one form of checkpoints: arrays, numbers and an identity in a file that is whole or not there."""

import os

import numpy as np
import pytest

import mast
from mast.errors import CheckpointError, DataError, InUseError
from mast.support import files
from mast.support.checkpoint import Checkpoint, fill_arrays, refuse_other_run

PROBLEM = mast.Problem(mast.Quadratic(np.diag([1.0, 2.0, 4.0]), [1.0, 1.0, 1.0]), mast.RandK(2))
IDENTITY = {"seed": "0", "nodes": "3"}


def run(path, steps):
    return mast.minimize(PROBLEM, "s_page", steps, 0.001, checkpoint=path)


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
        refuse_other_run(IDENTITY, IDENTITY | {"sketch": "RandK"}, "this file")


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


DAMAGE = {
    "cut": (lambda raw: raw[: len(raw) // 2], "truncated"),
    "empty": (lambda raw: b"", "does not begin with its mark"),
    "zeroed": (lambda raw: bytes(len(raw)), "does not begin with its mark"),
    "changed": (lambda raw: raw[:-5] + b"xxxxx", "damaged"),
}


@pytest.mark.parametrize("how", DAMAGE)
def test_a_damaged_file_is_refused_by_name(how, tmp_path):
    path = tmp_path / "c"
    run(path, 20)
    damaged = DAMAGE[how][0](path.read_bytes())
    path.write_bytes(damaged)
    with pytest.raises(DataError, match=f"c is .*{DAMAGE[how][1]}"):
        run(path, 40)
    assert path.read_bytes() == damaged
    assert list(tmp_path.iterdir()) == [path]
    path.unlink()
    assert run(path, 40).x.tobytes() == mast.minimize(PROBLEM, "s_page", 40, 0.001).x.tobytes()


@pytest.mark.skipif(os.name == "nt", reason="links need rights on Windows")
def test_a_link_stays_one_and_what_it_points_to_is_written(tmp_path):
    (tmp_path / "far").mkdir()
    real, link = tmp_path / "far" / "real", tmp_path / "link"
    link.symlink_to(real)
    run(link, 20)
    assert link.is_symlink()
    assert files.load(real)[0]["numbers"]["step"] == 20
    run(link, 40)
    run(real, 60)
    assert run(link, 60).steps == 60
    assert link.is_symlink()
    assert [*real.parent.iterdir()] == [real]
    assert sorted(tmp_path.iterdir()) == [real.parent, link]


def test_the_version_is_recorded(tmp_path):
    run(tmp_path / "c", 5)
    assert files.load(tmp_path / "c")[0]["mast"] == mast.__version__


def test_one_process_at_a_time(checkpoint):
    with checkpoint.alone(), pytest.raises(InUseError, match="in use by another process"), checkpoint.alone():
        pass


def test_arrays_are_filled_in_where_they_fit():
    x = np.zeros(2)
    fill_arrays({"x": x}, {"x": np.ones(2), "other": np.ones(5)})
    assert x.tolist() == [1, 1]
    for wrong in ({}, {"x": np.ones(3)}, {"x": np.ones(2, dtype=np.float32)}):
        with pytest.raises(CheckpointError, match="its 'x' does not fit"):
            fill_arrays({"x": x}, wrong)
