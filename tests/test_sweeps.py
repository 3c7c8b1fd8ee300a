"""Sweeps: tidy, parallel, cached, resumable."""

import subprocess
import sys
from dataclasses import dataclass

import numpy as np
import pytest

import mast
from mast.errors import ArgumentError
from mast.methods import SingleMethod
from mast.trace import COLUMNS

PROBLEM = mast.Problem(mast.Quadratic(np.diag([1.0, 2.0, 4.0]), [1.0, 1.0, 1.0]), mast.RandK(2))
MEASURED = ["method", "step_size", "seed", "status", *(name for name in COLUMNS if name != "seconds")]


def run(**changes):
    arguments = {
        "methods": ["dsgd", ("l_svrdsg", {"p": 0.5})],
        "step_sizes": [0.01, "theory"],
        "seeds": range(2),
    }
    return mast.sweep(PROBLEM, **{**arguments, "steps": 30, "cache": False, **changes})


def test_has_a_row_for_each_measured_step_of_each_run():
    table = run()
    assert len(table.groupby(["method", "step_size", "seed"])) == 8
    one = table[(table["method"] == "dsgd") & (table["step_size"] == 0.01) & (table["seed"] == 1)]
    direct = mast.minimize(PROBLEM, "dsgd", 30, 0.01, seed=1).trace
    np.testing.assert_array_equal(one["f_D"], direct["f_D"])
    assert set(table["status"]) == {"finished"}
    assert set(table["method"]) == {"dsgd", "l_svrdsg p=0.5"}


@pytest.fixture
def processes(monkeypatch):
    """Short work, too, is given to other processes."""
    monkeypatch.setattr("mast.support.cells.ALONE", -1.0)


@pytest.mark.usefixtures("processes")
def test_same_bits_with_one_and_two_jobs():
    assert run()[MEASURED].equals(run(jobs=2)[MEASURED])


def test_finished_runs_are_not_computed_again(tmp_path, monkeypatch):
    first = run(cache=tmp_path)
    files = sorted(tmp_path.iterdir())
    assert len(files) == 8
    monkeypatch.setattr("mast.sweeps.minimize", None)  # would raise if called
    assert run(cache=tmp_path).equals(first)
    with pytest.raises(TypeError):
        run(cache=tmp_path, seeds=[7])


def test_what_a_process_killed_at_its_end_left_is_tidied_up(tmp_path):
    first = run(cache=tmp_path)
    for cell in list(tmp_path.iterdir()):
        cell.with_suffix(".part").write_bytes(b"")
        cell.with_name(f".{cell.name}.lock").write_bytes(b"")
    assert run(cache=tmp_path).equals(first)
    assert [file.suffix for file in tmp_path.iterdir()] == [".cell"] * 8


def test_a_run_under_the_name_of_another_and_a_damaged_one_are_computed_again(tmp_path):
    first = run(cache=tmp_path)
    one, two, three = sorted(tmp_path.iterdir())[:3]
    one.write_bytes(two.read_bytes())
    three.write_bytes(three.read_bytes()[:-1])
    assert run(cache=tmp_path)[MEASURED].equals(first[MEASURED])
    assert one.read_bytes() != two.read_bytes()


def test_what_changes_is_computed(tmp_path):
    run(cache=tmp_path)
    run(cache=tmp_path, seeds=range(3))
    assert len(list(tmp_path.iterdir())) == 12
    run(cache=tmp_path, steps=31)
    assert len(list(tmp_path.iterdir())) == 20


def test_functions_are_cached_only_where_the_user_says(tmp_path, monkeypatch):
    monkeypatch.setattr("platformdirs.user_cache_dir", lambda name: str(tmp_path / name))
    run(cache=True)
    assert len(list((tmp_path / "mast" / "sweeps").iterdir())) == 8
    f = mast.Function(lambda x: (0.5 * float(x @ x), x), 2, smoothness=1, strong_convexity=1)
    mast.sweep(mast.Problem(f, mast.RandK(1)), ["dsgd"], [0.1], seeds=[0], steps=5, cache=True)
    assert len(list((tmp_path / "mast" / "sweeps").iterdir())) == 8


def test_seeds_may_be_an_iterator():
    assert run(seeds=iter(range(2)))[MEASURED].equals(run(seeds=[0, 1])[MEASURED])


def test_beyond_the_limit_is_quiet_and_its_status_is_kept():
    table = run(methods=["dsgd"], step_sizes=[100.0], steps=500)
    assert set(table["status"]) == {"diverged"}


@dataclass
class Twice(SingleMethod):
    """Two steps of gradient descent on f at once."""

    factor: float = 2.0

    def step(self, state, t, step_size):
        state.x -= self.factor * step_size * self.problem.objective.gradient(state.x)


class TestMethodsOfOnesOwn:
    @pytest.mark.usefixtures("processes")
    def test_objects_run_in_other_processes(self):
        arguments = {"methods": [Twice(), Twice(3.0), "dsgd"], "step_sizes": [0.01]}
        one, two = (run(**arguments, jobs=jobs)[MEASURED] for jobs in (1, 2))
        assert one.equals(two)
        assert set(one["method"]) == {"Twice factor=2.0", "Twice factor=3.0", "dsgd"}

    def test_so_do_those_of_a_script(self, tmp_path):
        """The class is in __main__, and registered by a name: other processes know of neither."""
        script = tmp_path / "script.py"
        script.write_text(SCRIPT)
        done = subprocess.run(
            [sys.executable, "-W", "error", str(script)], capture_output=True, text=True, cwd=tmp_path
        )
        assert done.returncode == 0, done.stderr
        assert done.stdout.split() == ["True", "3"]

    def test_they_are_cached_only_where_the_user_says(self, tmp_path, monkeypatch):
        monkeypatch.setattr("platformdirs.user_cache_dir", lambda name: str(tmp_path / name))
        run(methods=[Twice()], step_sizes=[0.01], cache=True)
        assert not (tmp_path / "mast").exists()
        run(methods=[Twice()], step_sizes=[0.01], cache=tmp_path)
        assert len(list(tmp_path.iterdir())) == 2


SCRIPT = """
from dataclasses import dataclass
import mast, mast.support.cells
from mast.methods import METHODS, SingleMethod
mast.support.cells.ALONE = -1.0

@dataclass
class Mine(SingleMethod):
    name = "mine"
    factor: float

    def step(self, state, t, step_size):
        state.x -= self.factor * step_size * self.problem.gradient(state.x)

METHODS["mine"] = Mine

if __name__ == "__main__":
    problem = mast.Problem(mast.Quadratic([[2.0, 1.0], [1.0, 2.0]], [3.0, 3.0]), mast.PermK(2))
    methods = [Mine(1.0), Mine(factor=0.5), ("mine", {"factor": 0.25})]
    tables = [mast.sweep(problem, methods, [0.01], seeds=[0], steps=20, jobs=jobs) for jobs in (1, 2)]
    one, two = (table.drop(columns="seconds") for table in tables)
    print(one.equals(two), one["method"].nunique())
"""


@pytest.mark.parametrize(
    "changes",
    [
        {"methods": [Twice]},
        {"methods": "dsgd"},
        {"methods": ["sgd"]},
        {"methods": []},
        {"seeds": []},
        {"methods": [("dsgd", {"p": 1})]},
        {"methods": [("dsgd",)]},
        {"step_sizes": 0.1},
        {"step_sizes": [lambda t: 0.1]},
        {"seeds": 3},
        {"seeds": [0.7]},
        {"jobs": 0},
    ],
)
def test_refusals(changes):
    with pytest.raises(ArgumentError):
        run(**changes)
