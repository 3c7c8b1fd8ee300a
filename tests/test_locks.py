"""Locks: what stands in their place and is not ours stays; who waits says for whom, and not for ever."""

import os
import subprocess
import sys
import time

import pytest

import mast
from mast.errors import DataError
from mast.locks import InUseError, exclusive, lock_of

PROBLEM = mast.Problem(mast.Quadratic([[2.0, 1.0], [1.0, 2.0]], [3.0, 3.0]), mast.PermK(2))
HOLDER = """
import sys, time
from pathlib import Path
from mast.locks import exclusive
with exclusive(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.readline()
"""


def hold(path):
    """Another process that has the lock until its input is closed."""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    process = subprocess.Popen([sys.executable, "-c", HOLDER, str(path)], text=True, **pipes)
    assert process.stdout.readline() == "held\n"
    return process


@pytest.mark.skipif(not hasattr(os, "O_NOFOLLOW"), reason="links are followed on this system")
def test_a_link_in_the_place_of_a_lock_is_not_followed(tmp_path):
    precious = tmp_path / "precious"
    precious.write_text("what took a year")
    lock_of(tmp_path / "run").symlink_to(precious)
    with pytest.raises(DataError, match=r"\.run\.lock beside it is not a lock of MAST's"):
        mast.minimize(PROBLEM, steps=5, checkpoint=tmp_path / "run")
    assert precious.read_text() == "what took a year"
    assert lock_of(tmp_path / "run").is_symlink()


@pytest.mark.skipif(not hasattr(os, "link"), reason="there are no hard links on this system")
def test_another_name_of_a_file_is_not_a_lock(tmp_path):
    precious = tmp_path / "precious"
    precious.touch()
    os.link(precious, lock_of(tmp_path / "run"))
    with pytest.raises(DataError, match="not a lock of MAST's"), exclusive(tmp_path / "run"):
        pass
    assert precious.read_bytes() == b""


@pytest.mark.skipif(os.name == "nt", reason="a locked file cannot be read on Windows")
def test_a_file_with_something_else_in_it_is_not_a_lock(tmp_path):
    lock_of(tmp_path / "run").write_text("notes of mine")
    with pytest.raises(DataError, match="not a lock of MAST's"), exclusive(tmp_path / "run"):
        pass
    assert lock_of(tmp_path / "run").read_text() == "notes of mine"


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no pipes with names on this system")
def test_a_pipe_or_a_folder_is_not_a_lock(tmp_path):
    os.mkfifo(lock_of(tmp_path / "run"))
    lock_of(tmp_path / "other").mkdir()
    for name in ("run", "other"):
        with pytest.raises(DataError, match="not a lock of MAST's"), exclusive(tmp_path / name):
            pass


def test_what_a_killed_process_left_is_taken_over(tmp_path):
    holder = hold(tmp_path / "run")
    holder.kill()
    holder.communicate()
    assert lock_of(tmp_path / "run").exists()
    with exclusive(tmp_path / "run"):
        assert f'"pid": {os.getpid()}' in lock_of(tmp_path / "run").read_text()
    assert not lock_of(tmp_path / "run").exists()


def test_who_waits_says_for_whom_and_gives_up(tmp_path, capfd, monkeypatch):
    monkeypatch.setattr("mast.locks.SAY_AFTER", 0.2)
    holder = hold(tmp_path / "run")
    begun = time.monotonic()
    try:
        refused = pytest.raises(InUseError, match=rf"after 1 s, in use by process {holder.pid} on")
        with refused, exclusive(tmp_path / "run", wait=1.0):
            pass
    finally:
        holder.communicate("")
    assert 1.0 <= time.monotonic() - begun < 30
    lines = capfd.readouterr().err.splitlines()
    assert len(lines) == 1
    assert lines[0].startswith(f"waiting for process {holder.pid} on")
    assert "run, for at most 1 s" in lines[0]


def test_a_sweep_gives_up_waiting_for_another_process(tmp_path):
    options = {"step_sizes": [0.01], "seeds": [0], "steps": 20, "cache": tmp_path}
    mast.sweep(PROBLEM, **options)
    (cell,) = tmp_path.glob("*.cell")
    cell.unlink()
    holder = hold(cell)
    try:
        with pytest.raises(InUseError, match=f"process {holder.pid}"):
            mast.sweep(PROBLEM, **options, wait=0.2)
    finally:
        holder.communicate("")
    assert len(mast.sweep(PROBLEM, **options)) > 1
