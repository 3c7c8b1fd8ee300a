"""A parent that is killed leaves no process behind: workers are gone in seconds, and it can start again."""

import os
import signal
import subprocess
import sys
import time

import pytest

from faults.tally import survived

pytestmark = [
    pytest.mark.faults,
    pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="processes are looked up in /proc"),
]
SWEEP = """
import sys
import mast
import mast.support.cells
mast.support.cells.ALONE = 0.0  # so that workers start at once
problem = mast.Problem(mast.Quadratic([[2.0, 1.0], [1.0, 2.0]], [3.0, 3.0]), mast.PermK(2))
print("ready", flush=True)
mast.sweep(problem, ["s_page"], [1e-6], range(6), int(sys.argv[2]), jobs=2, cache=sys.argv[1], trace=10_000)
print("done", flush=True)
"""


def processes_of(session: int) -> set[int]:
    """The living processes of a session, by the fourth number behind the name in /proc/PID/stat."""
    members = set()
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat", encoding="utf-8", errors="replace") as file:
                    fields = file.read().rpartition(")")[2].split()
            except OSError:
                continue  # it has ended meanwhile
            if int(fields[3]) == session and fields[0] != "Z":
                members.add(int(name))
    return members


def start(folder, steps: int) -> subprocess.Popen:
    command = [sys.executable, "-c", SWEEP, str(folder), str(steps)]
    sweep = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)
    assert sweep.stdout.readline() == "ready\n"
    return sweep


@pytest.mark.parametrize("when", ["workers begin", "workers compute"])
def test_workers_of_a_killed_sweep_are_gone_in_ten_seconds(when, tmp_path):
    sweep = start(tmp_path, 10**8)
    try:
        patience = time.monotonic() + 60
        while len(processes_of(sweep.pid)) < 3 or (
            when == "workers compute" and not list(tmp_path.glob("*.part"))
        ):
            assert sweep.poll() is None
            assert time.monotonic() < patience, "no workers after a minute"
            time.sleep(0.02)
        sweep.kill()
        sweep.communicate()
        killed = time.monotonic()
        while processes_of(sweep.pid):
            assert time.monotonic() < killed + 10, f"still there: {processes_of(sweep.pid)}"
            time.sleep(0.05)
    finally:
        for left in processes_of(sweep.pid):
            os.kill(left, signal.SIGKILL)
    again = start(tmp_path, 100)  # nothing holds it up
    out, _ = again.communicate(timeout=120)
    assert out == "done\n"
    assert again.returncode == 0
    survived("killed parent of a sweep", 1, 1, "workers gone within 10 s, and run again at once")
