"""Two processes that want the same file or folder: one waits, or is refused by name; nothing is mixed up."""

import json
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import mast
from mast.errors import InUseError
from mast.support.files import exclusive

pytestmark = pytest.mark.faults

SETUP = """
import json, sys, time
from pathlib import Path
import numpy as np
import mast, mast.sweeps
folder = Path(sys.argv[1])

calls = 0
def slowly(x):
    # from the hundredth call on, which is a step of the run, nothing happens until a file appears
    global calls
    calls += 1
    while calls > 100 and not (folder / "go on").exists():
        time.sleep(0.01)
    return 0.5 * float(x @ x), x.copy()

f = mast.Function(slowly, 2, smoothness=1, strong_convexity=1, infimum=0.0)
problem = mast.Problem(f, mast.RandK(1))
print("ready", flush=True)
"""
RUN = """
mast.minimize(problem, "dsgd", 500, 0.01, [1.0, 1.0], checkpoint=folder / "run")
"""
SWEEP = """
quadratic = mast.Problem(mast.Quadratic(np.diag([1.0, 2.0, 4.0]), [1.0, 1.0, 1.0]), mast.RandK(2))
sys.stdin.readline()
real, computed = mast.sweeps.minimize, []
def counted(*arguments, **options):
    computed.append(options["seed"])
    return real(*arguments, **options)
mast.sweeps.minimize = counted
table = mast.sweep(quadratic, ["dsgd"], [0.01], range(6), 800, cache=folder / "cells")
print(json.dumps([table.drop(columns="seconds").to_csv(), computed]))
"""


def start(code: str, folder: Path) -> subprocess.Popen:
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    process = subprocess.Popen([sys.executable, "-c", SETUP + code, str(folder)], text=True, **pipes)
    assert process.stdout.readline() == "ready\n", process.stderr.read()
    return process


def locked(holder: subprocess.Popen, folder: Path) -> Path:
    """Wait until the process has its lock."""
    lock, patience = folder / ".run.lock", time.monotonic() + 60
    while not lock.exists():
        assert holder.poll() is None, holder.stderr.read()
        assert time.monotonic() < patience, "no lock after a minute"
        time.sleep(0.01)
    return lock


def test_a_checkpoint_in_use_is_refused(tmp_path):
    holder = start(RUN, tmp_path)
    try:
        lock = locked(holder, tmp_path)
        f = mast.Function(lambda x: (0.5 * float(x @ x), x.copy()), 2, smoothness=1, strong_convexity=1)
        (tmp_path / "link").symlink_to(tmp_path / "run")
        for name in ("run", "link"):
            with pytest.raises(InUseError, match="run is in use by another process"):
                mast.minimize(mast.Problem(f, mast.RandK(1)), "dsgd", 9, 0.01, checkpoint=tmp_path / name)
        (tmp_path / "go on").touch()
        _, errors = holder.communicate()
        assert holder.returncode == 0, errors
        assert not lock.exists()
        assert (tmp_path / "run").exists()
    finally:
        holder.kill()
        holder.communicate()


def test_a_lock_of_a_killed_process_holds_nobody_up(tmp_path):
    holder = start(RUN, tmp_path)
    lock = locked(holder, tmp_path)
    holder.kill()
    holder.communicate()
    assert lock.exists()
    with exclusive(tmp_path / "run"):
        pass
    assert not lock.exists()


def test_sweeps_over_one_folder_share_the_work(tmp_path):
    """Three at once: each cell is computed by one of them, and all three have all of the table."""
    sweepers = [start(SWEEP, tmp_path) for _ in range(3)]
    try:
        for sweeper in sweepers:  # all of them are ready, so that they begin together
            sweeper.stdin.write("\n")
            sweeper.stdin.flush()
        answers = [sweeper.communicate() for sweeper in sweepers]
        assert [s.returncode for s in sweepers] == [0, 0, 0], answers
        tables, computed = zip(*(json.loads(out) for out, _ in answers), strict=True)
        assert len(set(tables)) == 1
        assert sorted(np.concatenate(computed).tolist()) == list(range(6))
        assert [path.suffix for path in (tmp_path / "cells").iterdir()] == [".cell"] * 6
    finally:
        for sweeper in sweepers:
            sweeper.kill()
            sweeper.communicate()


def test_threads_of_one_process_exclude_each_other_too(tmp_path):
    from concurrent.futures import ThreadPoolExecutor

    inside, most = 0, 0

    def enter(_: int) -> None:
        nonlocal inside, most
        for _ in range(20):
            with exclusive(tmp_path / "file", wait=600):
                inside += 1
                most = max(most, inside)
                inside -= 1

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(enter, range(4)))
    assert most == 1
    assert not list(tmp_path.iterdir())
