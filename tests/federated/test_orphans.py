"""A script that is killed leaves nothing running: neither its processes nor what these have started."""

import os
import signal
import subprocess
import sys
import time
import uuid

import pytest

pytest.importorskip("flwr", reason="the extra `federated` is not installed")
if sys.platform != "linux":
    pytest.skip("processes are looked up in /proc", allow_module_level=True)

from federated.engines import EXAMPLE, MARK, marked, settled

#: starts a process that starts another one in a session of its own, as Ray does, and waits
SCRIPT = """
import pathlib, signal, sys, time
signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in a shell's background
sys.path.insert(0, {example!r})
from processes import Processes
import os
home = pathlib.Path({home!r})
grandchild = [sys.executable, "-c", "import time; time.sleep(600)"]
child = f"import subprocess, time; subprocess.Popen({{grandchild}}, start_new_session=True)"
child += "; print('up', flush=True); time.sleep(600)"
with Processes(home, os.environ | {{"FLWR_HOME": str(home)}}) as processes:
    processes.start("one", sys.executable, "-c", child)
    while "up" not in (home / "one.log").read_text():
        time.sleep(0.05)
    print("started", flush=True)
    time.sleep({seconds})
"""


def started(home, mark, seconds=600):
    home.mkdir()
    code = SCRIPT.format(example=str(EXAMPLE), home=str(home), seconds=seconds)
    process = subprocess.Popen(
        [sys.executable, "-c", code], env=os.environ | {MARK: mark}, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout.readline() == "started\n"
    return process


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_a_script_that_ends_leaves_no_process(tmp_path, number):
    mark = uuid.uuid4().hex
    process = started(tmp_path / "home", mark)
    assert len(marked(mark)) >= 4  # the script, its guard, its child and its grandchild
    process.send_signal(number)
    process.communicate(timeout=60)
    assert not settled(mark, patience=10.0)
    assert (tmp_path / "home").exists() == (number == signal.SIGINT)  # which the script could see to itself


def test_a_script_that_ends_well_takes_its_guard_with_it(tmp_path):
    mark = uuid.uuid4().hex
    process = started(tmp_path / "home", mark, seconds=0)
    process.communicate(timeout=60)
    assert process.returncode == 0
    assert not settled(mark, patience=10.0)


@pytest.mark.slow
def test_a_simulation_that_is_killed_leaves_nothing_and_runs_again(tmp_path):
    """SIGKILL of the script while clients train; Ray, the SuperLink and all workers are gone within 10 s."""
    mark, out = uuid.uuid4().hex, tmp_path / "out"
    command = [sys.executable, str(EXAMPLE / "run.py"), "simulation", "--nodes", "2", "--out", str(out)]
    environment = os.environ | {MARK: mark, "OMP_NUM_THREADS": "1"}
    quiet = {"env": environment, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    words = 'capacities="bernoulli:0.5 permk:4" step-size=0.05 draws=0'
    process = subprocess.Popen([*command, "--run-config", f"{words} rounds=100000"], **quiet)
    deadline = time.monotonic() + 400
    while not (out / "checkpoint.mast").exists():
        assert time.monotonic() < deadline
        assert process.poll() is None
        time.sleep(0.2)
    process.kill()
    process.wait(timeout=60)
    assert not settled(mark, patience=10.0)
    from federated.engines import rounds_done

    done = rounds_done(out / "checkpoint.mast")
    again = subprocess.run(
        [*command, "--run-config", f"{words} rounds={done + 1}"], timeout=400, check=False, **quiet
    )
    assert again.returncode == 0
    assert rounds_done(out / "checkpoint.mast") == done + 1
