"""Ctrl-C and SIGTERM: what is saved, what is raised or returned; nothing of it is left in a trace."""

import shutil
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

import mast
from mast.errors import ArgumentError, DataError
from mast.support import files

STEPS = 500


class Interrupted:
    """|x|²/2, whose call of a given number is interrupted by Ctrl-C."""

    def __init__(self, at: int) -> None:
        self.left = at  # which calls change, so that it is no part of what the function is

    def __call__(self, x):
        self.left -= 1
        if self.left == 0:
            raise KeyboardInterrupt
        return 0.5 * float(x @ x), x.copy()


def problem(at: int = -1) -> mast.Problem:
    f = mast.Function(Interrupted(at), 2, smoothness=1, strong_convexity=1, infimum=0.0)
    return mast.Problem(f, mast.RandK(1))


def run(at: int = -1, **options):
    return mast.minimize(problem(at), "dsgd", STEPS, 0.01, [1.0, 1.0], **options)


def measured(result) -> list:
    return [{name: value for name, value in row.items() if name != "seconds"} for row in result.rows]


@pytest.mark.parametrize("at", [60, 201, 457])
def test_ctrl_c_is_raised_after_the_checkpoint_is_written(at, tmp_path):
    with pytest.raises(KeyboardInterrupt):
        run(at, checkpoint=tmp_path / "c")
    assert 0 < files.load(tmp_path / "c")[0]["numbers"]["step"] < STEPS
    assert not list(tmp_path.glob(".*.lock"))
    result, straight = run(checkpoint=tmp_path / "c"), run()
    assert measured(result) == measured(straight)
    assert result.x.tobytes() == straight.x.tobytes()


@pytest.mark.parametrize("at", [60, 201, 457])
def test_or_returned_with_what_there_is(at, tmp_path):
    result = run(at, checkpoint=tmp_path / "c", on_interrupt="return")
    assert result.status == "interrupted"
    assert 0 < result.steps < STEPS
    assert result.trace["step"].iloc[-1] == result.steps
    assert files.load(tmp_path / "c")[0]["numbers"]["step"] == result.steps
    again = run(checkpoint=tmp_path / "c")
    assert again.status == "finished"
    assert measured(again) == measured(run())  # without the row that the interruption left in its result


def test_a_run_that_is_cut_at_its_first_measurement_begins_again(monkeypatch, tmp_path):
    def interrupted(measure, x):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("mast.run.Measure.at", interrupted)
        with pytest.raises(KeyboardInterrupt):
            run(checkpoint=tmp_path / "c")
    assert measured(run(checkpoint=tmp_path / "c")) == measured(run())


def test_a_longer_run_measures_where_a_straight_one_does(tmp_path):
    mast.minimize(problem(), "dsgd", 123, 0.01, [1.0, 1.0], checkpoint=tmp_path / "c")
    assert measured(run(checkpoint=tmp_path / "c")) == measured(run())


def test_an_interrupted_sweep_leaves_no_row_behind(tmp_path):
    def sweep(at, folder):
        table = mast.sweep(problem(at), ["dsgd"], [0.01], [0], STEPS, cache=folder, x0=[1.0, 1.0])
        return table.drop(columns="seconds")

    with pytest.raises(KeyboardInterrupt):
        sweep(300, tmp_path / "one")
    assert [file.suffix for file in (tmp_path / "one").iterdir()] == [".part"]
    assert sweep(-1, tmp_path / "one").equals(sweep(-1, tmp_path / "two"))
    assert [file.suffix for file in (tmp_path / "one").iterdir()] == [".cell"]
    assert sweep(-1, tmp_path / "one").equals(sweep(-1, tmp_path / "two"))  # now from the cells


def test_another_word_is_refused():
    with pytest.raises(ArgumentError, match="on_interrupt must be one of 'raise', 'return', got 'ask'"):
        run(on_interrupt="ask")


TERMINATED = """
import sys
import numpy as np
import mast
problem = mast.Problem(mast.Quadratic(np.diag([1.0, 2.0, 4.0]), [1.0, 1.0, 1.0]), mast.RandK(2))
mast.minimize(problem, "s_page", 50, 1e-3)  # compiles what is compiled
print("ready", flush=True)
mast.minimize(problem, "s_page", 10**9, 1e-3, checkpoint=sys.argv[1], trace=10**8, on_interrupt="return")
print("went on", flush=True)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="SIGTERM ends a process at once on Windows")
def test_sigterm_saves_and_ends_the_process(tmp_path):
    command = [sys.executable, "-c", TERMINATED, str(tmp_path / "c")]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stdout.readline() == "ready\n"
        while not (tmp_path / "c").exists():
            assert process.poll() is None, process.stderr.read()
            time.sleep(0.02)
        time.sleep(0.5)  # some steps, in less time than there is between two checkpoints
        process.send_signal(signal.SIGTERM)
        out, _ = process.communicate(timeout=60)
    finally:
        process.kill()
        process.wait()
    assert (process.returncode, out) == (128 + signal.SIGTERM, "")
    step = files.load(tmp_path / "c")[0]["numbers"]["step"]
    assert step > 0
    assert not list(tmp_path.glob(".*.lock"))
    small = mast.Problem(mast.Quadratic(np.diag([1.0, 2.0, 4.0]), [1.0, 1.0, 1.0]), mast.RandK(2))
    again = mast.minimize(small, "s_page", step, 1e-3, checkpoint=tmp_path / "c", trace=[0, step])
    assert again.x.tobytes() == mast.minimize(small, "s_page", step, 1e-3, trace=[0, step]).x.tobytes()


def test_a_way_of_ones_own_to_take_sigterm_stays(tmp_path):
    if sys.platform == "win32":
        pytest.skip("signals are others on Windows")
    seen = []
    before = signal.signal(signal.SIGTERM, lambda number, frame: seen.append(number))
    try:
        calls = iter(range(10**6))

        def callback(step, x):
            if next(calls) == 5:
                signal.raise_signal(signal.SIGTERM)

        assert run(checkpoint=tmp_path / "c", callback=callback).status == "finished"
        assert seen == [signal.SIGTERM]
    finally:
        signal.signal(signal.SIGTERM, before)
    run(checkpoint=tmp_path / "d")
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_finished_run_can_be_read_where_nothing_can_be_written(tmp_path):
    """The name is so long that no lock fits beside it: so even who may write everywhere cannot write here."""
    finished = run(checkpoint=tmp_path / "c")
    place = tmp_path / ("c" * 253)
    shutil.copyfile(tmp_path / "c", place)
    raw = place.read_bytes()
    again = run(checkpoint=place)
    assert measured(again) == measured(finished)
    assert again.x.tobytes() == finished.x.tobytes()
    with pytest.raises(DataError, match="cannot be written"):
        mast.minimize(problem(), "dsgd", STEPS + 1, 0.01, [1.0, 1.0], checkpoint=place)
    with pytest.raises(DataError, match="cannot be written"):
        run(checkpoint=tmp_path / ("d" * 253))
    assert place.read_bytes() == raw
