"""Two generations of a checkpoint: the one before stands in for a damaged one; links, versions, leftovers."""

import contextlib
import os

import numpy as np
import pytest

import mast
from mast import files
from mast.errors import CheckpointWarning, DataError

PROBLEM = mast.Problem(mast.Quadratic(np.diag([1.0, 2.0, 4.0]), [1.0, 1.0, 1.0]), mast.RandK(2))
DAMAGE = {
    "cut": lambda raw: raw[: len(raw) // 2],
    "empty": lambda raw: b"",
    "zeroed": lambda raw: bytes(len(raw)),
    "changed": lambda raw: raw[:-5] + b"xxxxx",
}


def run(path, steps=40):
    return mast.minimize(PROBLEM, "s_page", steps, 0.001, checkpoint=path)


@pytest.mark.parametrize("how", DAMAGE)
def test_the_generation_before_stands_in_for_a_damaged_one(how, tmp_path):
    path = tmp_path / "c"
    run(path, 20)
    run(path, 40)
    path.write_bytes(DAMAGE[how](path.read_bytes()))
    with pytest.warns(CheckpointWarning, match="c is .* the checkpoint before it is used"):
        again = run(path, 60)
    straight = mast.minimize(PROBLEM, "s_page", 60, 0.001)
    assert again.x.tobytes() == straight.x.tobytes()
    assert files.load(path)[0]["numbers"]["step"] == 60
    assert files.load(files.previous(path))[0]["numbers"]["step"] < 60  # and it is whole


def test_at_every_moment_one_generation_is_whole(tmp_path, monkeypatch):
    """A write that fails at any of its steps leaves a file that the run goes on from."""
    path = tmp_path / "c"
    run(path, 20)
    for name in ("link", "replace", "fsync"):
        real, calls = getattr(os, name), []

        def fail(*arguments, real=real, calls=calls):
            calls.append(1)
            if len(calls) == 2:
                raise OSError(28, "No space left on device")
            return real(*arguments)

        with monkeypatch.context() as patch:
            patch.setattr(os, name, fail)
            with contextlib.suppress(DataError):
                run(path, 40)
        assert run(path, 40).x.tobytes() == mast.minimize(PROBLEM, "s_page", 40, 0.001).x.tobytes()
        path.unlink()
        run(path, 20)


def test_both_damaged_is_an_error(tmp_path):
    path = tmp_path / "c"
    run(path)
    for each in (path, files.previous(path)):
        each.write_bytes(b"MAST1\nhalf")
    with pytest.raises(DataError, match="c is damaged"):
        run(path)


def test_who_deletes_a_checkpoint_begins_anew(tmp_path):
    path = tmp_path / "c"
    run(path, 40)
    path.unlink()
    assert run(path, 10).steps == 10
    assert files.load(files.previous(path))[0]["numbers"]["step"] < 10


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
    assert [p.name for p in tmp_path.iterdir() if p.name.startswith(".")] == []


def test_the_version_is_recorded(tmp_path):
    run(tmp_path / "c")
    assert files.load(tmp_path / "c")[0]["mast"] == mast.__version__
