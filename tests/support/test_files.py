"""Files are whole or not there, written by one at a time; what is not ours stays, and nothing is left."""

import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext

import numpy as np
import pytest

import mast
from mast.errors import DataError, InUseError
from mast.support.files import exclusive, load, lock_of, save, write

PROBLEM = mast.Problem(mast.Quadratic([[2.0, 1.0], [1.0, 2.0]], [3.0, 3.0]), mast.PermK(2))
HOLDER = """
import sys
from pathlib import Path
from mast.support.files import exclusive
with exclusive(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.readline()
"""


@pytest.fixture
def hold():
    """Starts processes that have a lock until their input is closed."""
    started = []

    def start(path):
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        process = subprocess.Popen([sys.executable, "-c", HOLDER, str(path)], text=True, **pipes)
        started.append(process)
        assert process.stdout.readline() == "held\n"
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def precious(path):
    path.write_text("what took a year")
    return path


STRANGE = {
    "a link": lambda lock: lock.symlink_to(precious(lock.with_name("precious"))),
    "a link to nothing": lambda lock: lock.symlink_to(lock.with_name("nothing")),
    "a second name": lambda lock: os.link(precious(lock.with_name("precious")), lock),
    "a second name of an empty file": lambda lock: (
        lock.with_name("e").touch(),
        os.link(lock.with_name("e"), lock),
    ),
    "a file of the user's": precious,
    "a folder": lambda lock: lock.mkdir(),
    "a pipe": lambda lock: os.mkfifo(lock),
}


@pytest.mark.skipif(os.name == "nt", reason="there are no such files on this system")
@pytest.mark.parametrize("make", STRANGE.values(), ids=STRANGE)
def test_what_is_not_a_lock_is_left_as_it_is(tmp_path, make):
    lock = lock_of(tmp_path / "run")
    make(lock)
    before = {path.name: (os.lstat(path).st_mode, os.lstat(path).st_ino) for path in tmp_path.iterdir()}
    with pytest.raises(DataError, match=r"\.run\.lock beside it is not a lock of MAST's; move it away"):
        mast.minimize(PROBLEM, steps=5, checkpoint=tmp_path / "run")
    assert {
        path.name: (os.lstat(path).st_mode, os.lstat(path).st_ino) for path in tmp_path.iterdir()
    } == before
    assert all(p.read_text() == "what took a year" for p in tmp_path.glob("precious"))
    if make is precious:
        assert lock.read_text() == "what took a year"


def test_a_link_and_its_target_have_one_lock(tmp_path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "folder" / "run")
    (tmp_path / "place").symlink_to(tmp_path / "folder")
    with exclusive(tmp_path / "folder" / "run"):
        for path in (tmp_path / "link", tmp_path / "place" / "run"):
            with pytest.raises(InUseError, match=f"{path} is in use by another process"), exclusive(path):
                pass
    with exclusive(tmp_path / "link"):
        assert [path.name for path in (tmp_path / "folder").iterdir()] == [".run.lock"]
    assert not list((tmp_path / "folder").iterdir())


def test_a_folder_that_is_not_there_is_not_made(tmp_path):
    with pytest.raises(DataError, match="its folder does not exist"), exclusive(tmp_path / "absent" / "run"):
        pass
    assert not list(tmp_path.iterdir())


def test_a_file_system_without_locks_is_refused(tmp_path, monkeypatch):
    import errno

    fcntl = pytest.importorskip("fcntl")

    def flock(*_):
        raise OSError(errno.ENOSYS, "Function not implemented")

    monkeypatch.setattr(fcntl, "flock", flock)
    with pytest.raises(DataError, match="its file system has no locks"), exclusive(tmp_path / "run"):
        pass


def test_what_a_killed_process_left_is_taken_over(tmp_path, hold):
    holder = hold(tmp_path / "run")
    holder.kill()
    holder.communicate()
    assert lock_of(tmp_path / "run").exists()
    with exclusive(tmp_path / "run"):
        assert lock_of(tmp_path / "run").exists()
    assert not lock_of(tmp_path / "run").exists()


def test_a_lock_that_its_holder_deletes_holds_nobody(tmp_path, monkeypatch):
    """Between opening a lock and taking it, its holder may delete it and somebody else make a new one."""
    fcntl = pytest.importorskip("fcntl")
    real, first = fcntl.flock, []

    def flock(file, operation):
        if not first:
            first.append(file)
            lock_of(tmp_path / "run").unlink()
            lock_of(tmp_path / "run").touch()
        return real(file, operation)

    monkeypatch.setattr(fcntl, "flock", flock)
    with exclusive(tmp_path / "run"), pytest.raises(InUseError), exclusive(tmp_path / "run"):
        pass
    assert not list(tmp_path.iterdir())


def test_who_waits_says_so_and_gives_up(tmp_path, capfd, monkeypatch, hold):
    monkeypatch.setattr("mast.support.files.SAY_AFTER", 0.2)
    hold(tmp_path / "run")
    begun = time.monotonic()
    refused = pytest.raises(InUseError, match="after 1 s, in use by another process")
    with refused, exclusive(tmp_path / "run", wait=1.0):
        pass
    assert time.monotonic() - begun >= 1.0
    (line,) = capfd.readouterr().err.splitlines()
    assert line == f"waiting for another process: it has {tmp_path / 'run'}, for at most 1 s"


def test_a_sweep_gives_up_waiting_for_another_process(tmp_path, hold):
    options = {"step_sizes": [0.01], "seeds": [0], "steps": 20, "cache": tmp_path}
    mast.sweep(PROBLEM, **options)
    (cell,) = tmp_path.glob("*.cell")
    cell.unlink()
    holder = hold(cell)
    with pytest.raises(InUseError, match="in use by another process"):
        mast.sweep(PROBLEM, **options, wait=0.2)
    holder.communicate("")
    assert len(mast.sweep(PROBLEM, **options)) > 1
    lock_of(cell).touch()  # as a kill leaves it, right after the result was written
    assert len(mast.sweep(PROBLEM, **options)) > 1
    assert list(tmp_path.iterdir()) == [cell]


# ---- writing -------------------------------------------------------------------------------------


@pytest.mark.parametrize("locked", [False, True])
def test_a_file_is_the_old_or_the_new_one_whatever_fails(tmp_path, monkeypatch, locked):
    path, lock = tmp_path / "file", exclusive if locked else nullcontext
    for name in ("fsync", "replace"):
        write(path, b"old")

        def fail(*_):
            raise OSError(28, "No space left on device")

        with monkeypatch.context() as patch, lock(path):
            patch.setattr(os, name, fail)
            with pytest.raises(DataError, match="file cannot be written: No space left"):
                write(path, b"new")
        assert path.read_bytes() == b"old"
        assert list(tmp_path.iterdir()) == [path]


@pytest.mark.skipif(os.name == "nt", reason="links need rights on Windows")
def test_what_a_killed_writer_left_is_written_over_and_links_are_not_followed(tmp_path):
    path, left = tmp_path / "run", tmp_path / ".run.partial"
    for make in (lambda: left.write_bytes(b"half"), lambda: left.symlink_to(precious(tmp_path / "precious"))):
        make()
        mast.minimize(PROBLEM, steps=5, checkpoint=path)
        assert not os.path.lexists(left)
        path.unlink()
    assert (tmp_path / "precious").read_text() == "what took a year"
    left.mkdir()
    with pytest.raises(DataError, match="run cannot be written"):
        mast.minimize(PROBLEM, steps=5, checkpoint=path)
    assert left.is_dir()


WRITER = """
import sys
from contextlib import nullcontext
from pathlib import Path
import numpy as np
from mast.support.files import exclusive, save
path = Path(sys.argv[1])
with exclusive(path) if sys.argv[2] == "locked" else nullcontext():
    for number in range(10**9):
        save(path, {"number": number}, {"x": np.full(20000, number)})
        print(number, flush=True)
"""


@pytest.mark.parametrize("locked", ["locked", "free"])
def test_a_writer_that_is_killed_leaves_a_whole_file(tmp_path, locked):
    path = tmp_path / "file"
    random = np.random.default_rng(0)
    for _ in range(3):
        process = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(path), locked], text=True, stdout=subprocess.PIPE
        )
        process.stdout.readline()
        time.sleep(random.uniform(0, 0.05))
        process.kill()
        written = process.communicate()[0].split()
        description, arrays = load(path)
        assert description["number"] >= int(written[-2]) if len(written) > 1 else True
        assert (arrays["x"] == description["number"]).all()
    if locked == "locked":
        with exclusive(path):
            pass
        assert list(tmp_path.iterdir()) == [path]


def test_two_that_write_one_file_without_a_lock_do_not_meet(tmp_path):
    def writes(number):
        for _ in range(20):
            save(tmp_path / "file", {"number": number}, {"x": np.full(2000, number)})

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(writes, range(4)))
    description, arrays = load(tmp_path / "file")
    assert (arrays["x"] == description["number"]).all()
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
