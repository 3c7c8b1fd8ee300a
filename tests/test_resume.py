"""Runs that stop and go on: what must agree, what is refused, and the same bits after a kill."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import numpy as np
import pytest

import mast
from mast.errors import CheckpointError, StepSizeWarning
from mast.methods import SingleMethod
from mast.sketches import DiagonalDraw
from mast.support import files
from mast.trace import COLUMNS

H = np.array([[2.0, 0.5, 0.0], [0.5, 1.0, 0.2], [0.0, 0.2, 3.0]])
F = mast.Quadratic(H, [1.0, -2.0, 0.5])
PROBLEM = mast.Problem(F, mast.PermK(3, seed=1), [0.1, 0.2, 0.3])
A, B = mast.data.load("a1a")
LINEAR = mast.Problem(mast.Logistic(A[:300], B[:300], kappa=100), mast.PermK(5))


class Remembering(mast.Identity):
    """Keeps the coordinates below `first`; remembers what it was asked, in three ways."""

    def __init__(self, first):
        self.first = first
        self._cache = {}

    @cached_property
    def table(self):
        return {"asked": 0}

    def sample(self, d, key):
        self.table["asked"] += 1
        self._cache[d, key] = DiagonalDraw(d, np.arange(self.first), np.ones(self.first))
        return self._cache[d, key]


class Hiding(mast.Identity):
    """The same with its argument under another name."""

    def __init__(self, first):
        self._kept = first
        self._cache = {}

    def sample(self, d, key):
        self._cache[key] = True
        return DiagonalDraw(d, np.arange(self._kept), np.ones(self._kept))


@dataclass
class Own(SingleMethod):
    """Gradient descent that remembers what it did."""

    factor: float = 1.0
    done: list = field(default_factory=list, init=False)

    def step(self, state, t, step_size):
        self.done.append(t)
        state.x -= self.factor * step_size * self.problem.objective.gradient(state.x)


@pytest.mark.parametrize("kind", [Remembering, Hiding])
def test_a_sketch_of_ones_own_may_remember_what_it_likes(kind, tmp_path):
    """Only what it was made with is compared."""
    path, sketch = tmp_path / "c", kind(2)
    arguments = {"method": "dcgd", "step_size": 0.05, "checkpoint": path}
    mast.minimize(mast.Problem(F, sketch), steps=5, **arguments)
    assert sketch._cache
    continued = mast.minimize(mast.Problem(F, sketch), steps=10, **arguments)
    fresh = mast.minimize(mast.Problem(F, kind(2)), steps=15, **arguments)
    assert (continued.steps, fresh.steps) == (10, 15)
    with pytest.raises(CheckpointError, match="its sketch is"):
        mast.minimize(mast.Problem(F, kind(1)), steps=15, **arguments)


def test_a_method_of_ones_own_is_compared_by_its_options(tmp_path):
    path, method = tmp_path / "c", Own(0.5)
    arguments = {"step_size": 0.1, "checkpoint": path}
    mast.minimize(PROBLEM, method, 5, **arguments)
    assert mast.minimize(PROBLEM, method, 10, **arguments).steps == 10
    straight = mast.minimize(PROBLEM, Own(0.5), 15, 0.1).x
    assert np.array_equal(mast.minimize(PROBLEM, Own(0.5), 15, **arguments).x, straight)
    with pytest.raises(CheckpointError, match=r"its options is factor=0\.5"):
        mast.minimize(PROBLEM, Own(0.25), 15, **arguments)


def test_an_objective_of_ones_own_may_remember_what_it_likes(tmp_path):
    class Bowl(mast.Objective):
        dim, convex, smoothness = 2, True, 1.0

        def __init__(self):
            self._asked = []

        def value_and_gradient(self, x):
            self._asked.append(1)
            return 0.5 * float(x @ x), x.copy()

    f = Bowl()
    for steps in (5, 10):
        result = mast.minimize(
            mast.Problem(f, mast.RandK(1)), "dsgd", steps, 0.1, [1, 1], checkpoint=tmp_path / "c"
        )
        assert result.steps == steps


class TestCheckpoints:
    def test_another_run_is_refused_by_the_field_that_differs(self, tmp_path):
        path = tmp_path / "c"
        base = {"problem": PROBLEM, "method": "dsgd", "steps": 5, "step_size": 0.01, "seed": 1}
        mast.minimize(**base, checkpoint=path)
        other_f = mast.Problem(mast.Quadratic(H, [1.0, -2.0, 0.6]), PROBLEM.sketch, PROBLEM.shift)
        other_s = mast.Problem(F, mast.PermK(3, seed=2), PROBLEM.shift)
        other_v = mast.Problem(F, PROBLEM.sketch)
        changes = {
            "seed": {"seed": 2},
            "method": {"method": "dcgd"},
            "step_size": {"step_size": 0.011},
            "x0": {"x0": np.ones(3)},
            "objective": {"problem": other_f},
            "sketch": {"problem": other_s},
            "shift": {"problem": other_v, "x0": PROBLEM.shift},
        }
        for name, change in changes.items():
            with pytest.raises(CheckpointError, match=f"its {name} is"):
                mast.minimize(**{**base, **change}, checkpoint=path)

    def test_theory_continues_with_the_step_size_it_began_with(self, tmp_path):
        bent = mast.Problem(mast.NonconvexLogistic(A[:50], B[:50], 0.1), mast.PermK(2))
        path = tmp_path / "c"
        first = mast.minimize(bent, "dsgd", 20, checkpoint=path)
        with pytest.warns(StepSizeWarning):  # it was chosen for 20 steps
            second = mast.minimize(bent, "dsgd", 80, checkpoint=path)
        with pytest.warns(StepSizeWarning):
            straight = mast.minimize(bent, "dsgd", 80, first.step_size)
        assert second.step_size == first.step_size
        assert np.array_equal(second.x, straight.x)

    def test_schedules_are_compared_by_what_they_did(self, tmp_path):
        path = tmp_path / "c"
        sizes = [0.01 + 0.001 * t for t in range(20)]
        first = mast.minimize(PROBLEM, "dsgd", 10, lambda t: sizes[t], checkpoint=path)
        assert first.status == "finished"
        continued = mast.minimize(PROBLEM, "dsgd", 20, lambda t: sizes[t], checkpoint=path)
        assert np.array_equal(continued.x, mast.minimize(PROBLEM, "dsgd", 20, lambda t: sizes[t]).x)
        with pytest.raises(CheckpointError, match="step_size"):
            mast.minimize(PROBLEM, "dsgd", 20, lambda t: 0.01, checkpoint=path)

    def test_fewer_steps_than_done_are_refused(self, tmp_path):
        path = tmp_path / "c"
        mast.minimize(PROBLEM, "dsgd", 10, checkpoint=path)
        with pytest.raises(CheckpointError, match="already at step 10"):
            mast.minimize(PROBLEM, "dsgd", 9, checkpoint=path)

    def test_options_count(self, tmp_path):
        path = tmp_path / "c"
        mast.minimize(LINEAR, "dsgd_sampled", 5, 0.001, checkpoint=path)
        with pytest.raises(CheckpointError, match="options"):
            mast.minimize(LINEAR, "dsgd_sampled", 6, 0.001, batch_size=2, checkpoint=path)

    def test_a_run_that_broke_off_between_two_measurements_measures_where_a_straight_one_does(
        self, tmp_path, monkeypatch
    ):
        monkeypatch.setattr("mast.run.CHECKPOINT_EVERY", 0.0)
        monkeypatch.setattr("mast.run.BURST", 1e-9)  # a step at a time
        calls, broken = 0, 400

        def call(x):
            nonlocal calls
            calls += 1
            if calls == broken:
                raise RuntimeError("broken off")
            return 0.5 * float(x @ x), x.copy()

        f = mast.Function(call, 2, smoothness=1, strong_convexity=1, infimum=0.0)
        problem = mast.Problem(f, mast.RandK(1))
        arguments = {"steps": 900, "step_size": 0.01, "x0": [1.0, 1.0], "trace": 100}
        with pytest.raises(RuntimeError, match="broken off"):
            mast.minimize(problem, "dsgd", **arguments, checkpoint=tmp_path / "c")
        reached = files.load(tmp_path / "c")[0]["numbers"]["step"]
        assert reached % 100
        continued = mast.minimize(problem, "dsgd", **arguments, checkpoint=tmp_path / "c")
        straight = mast.minimize(problem, "dsgd", **arguments)
        untimed = [name for name in COLUMNS if name != "seconds"]
        assert continued.trace[untimed].equals(straight.trace[untimed])

    def test_fields_that_do_not_fit_are_refused_even_with_a_right_sum(self, tmp_path):
        path = tmp_path / "c"
        run = {"problem": PROBLEM, "method": "l_svrdsg", "steps": 10, "step_size": 0.001, "checkpoint": path}
        mast.minimize(**run)
        description, arrays = files.load(path)
        for name in arrays:
            for wrong in (np.zeros(2), np.zeros((3, 3, 3)), np.zeros(3, dtype=np.int64)):
                files.save(path, description, arrays | {name: wrong})
                with pytest.raises(CheckpointError, match=f"damaged: its '{name}'"):
                    mast.minimize(**run)
        for name in ("kind", "format", "identity", "numbers"):
            files.save(path, description | {name: "text"}, arrays)
            with pytest.raises(CheckpointError, match=name if name not in ("kind", "format") else "not a"):
                mast.minimize(**run)
        numbers = description["numbers"]
        for name, value in numbers.items():
            wrongs = [wrong for wrong in ([], {"a": 1}, "text") if not isinstance(value, type(wrong))]
            rest = {key: kept for key, kept in numbers.items() if key != name}
            for changed in [rest | {name: wrong} for wrong in wrongs] + [rest]:
                files.save(path, description | {"numbers": changed}, arrays)
                if changed is not rest or name not in ("step_size", "diverged_at"):  # which may be None
                    with pytest.raises(CheckpointError, match=name):
                        mast.minimize(**run)

    def test_the_folder_must_exist(self, tmp_path):
        with pytest.raises(CheckpointError, match="folder"):
            mast.minimize(PROBLEM, "dsgd", 10, checkpoint=tmp_path / "nowhere" / "c")

    def test_no_pickle(self, tmp_path):
        path = tmp_path / "c"
        mast.minimize(PROBLEM, "dsgd", 10, checkpoint=path)
        description, arrays = files.load(path)
        assert json.dumps(description)
        assert all(a.dtype != object for a in arrays.values())


KILLED = """
import sys, mast, test_resume
print("ready", flush=True)
test_resume.run(sys.argv[1], sys.argv[2])
"""
LONG = {"dsgd_sampled": (1_500_000, {}), "l_svrdsg": (4000, {"p": 0.05})}


def run(method, path):
    """A run that writes checkpoints all the time."""
    steps, options = LONG[method]
    problem = mast.Problem(mast.Logistic(A, B, kappa=100), mast.PermK(10))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("mast.run.CHECKPOINT_EVERY", 0.0)
        patch.setattr("mast.run.BURST", 0.002)
        return mast.minimize(problem, method, steps, checkpoint=path, trace=steps, **options)


def step_in(checkpoint):
    return files.load(checkpoint)[0]["numbers"]["step"]


@pytest.mark.parametrize("method", LONG)
def test_killed_in_one_process_it_ends_with_the_same_bits_in_another(method, tmp_path):
    """Many kills of forked children are in tests/faults; here the second process is a stranger."""
    path = tmp_path / "killed"
    variables = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(
        [sys.executable, "-c", KILLED, method, str(path)], stdout=subprocess.PIPE, text=True, env=variables
    ) as process:
        assert process.stdout.readline() == "ready\n"
        while not (path.exists() and step_in(path)):
            assert process.poll() is None
            time.sleep(0.01)
        time.sleep(random.Random(method).uniform(0.0, 0.4))
        os.kill(process.pid, signal.SIGKILL)
    assert step_in(path) < LONG[method][0]
    assert np.array_equal(run(method, path).x, run(method, None).x)
    assert [p.name for p in Path(tmp_path).iterdir() if not p.name.startswith(".")].count("killed") == 1
