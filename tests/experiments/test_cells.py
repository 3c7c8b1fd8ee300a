"""Cells: what is computed, what is kept, and what makes a cell new."""

import os
import time

import numpy as np
import pytest

from mast.errors import ArgumentError
from mast.experiments import engine
from mast.experiments.cells import Cell, perform, stored
from mast.experiments.datasets import Dataset

DATA = Dataset("none", "/nowhere", "0" * 64)


def square(config, dataset):
    return {
        "square": config["x"] ** 2,
        "row": np.arange(config["x"]),
        "name": dataset.name,
        "pid": os.getpid(),
    }


def fail(config, dataset):
    raise ArgumentError(f"cannot do {config['x']}")


def cell(x, version=1, compute=square, data=DATA, cost=1.0):
    return Cell("test", version, compute, {"x": x}, data, cost)


def test_key_depends_on_what_the_result_depends_on():
    same = Cell("test", 1, square, {"x": 3}, Dataset("other name", "/elsewhere", "0" * 64), cost=9.0)
    assert cell(3).key == same.key
    others = [
        cell(4),
        cell(3, version=2),
        cell(3, compute=fail),
        cell(3, data=Dataset("none", "/nowhere", "1" * 64)),
    ]
    assert len({cell(3).key, *(c.key for c in others)}) == 5


def test_result_comes_back_as_it_was(tmp_path):
    assert stored(cell(3), tmp_path) is None
    perform(cell(3), tmp_path)
    done = stored(cell(3), tmp_path)
    assert (done["square"], done["name"], done["x"]) == (9, "none", 3)
    assert done["row"].tolist() == [0, 1, 2]


def test_only_what_is_missing_is_computed(tmp_path):
    first = engine.run([cell(x) for x in (1, 2, 3)], tmp_path, jobs=1)
    assert (first.computed, first.reused) == (3, 0)
    times = {x: cell(x).file(tmp_path).stat().st_mtime_ns for x in (1, 2, 3)}
    time.sleep(0.01)
    second = engine.run([cell(x) for x in (2, 3, 4, 4)], tmp_path, jobs=1)
    assert (second.computed, second.reused) == (1, 2)
    assert [d["square"] for d in second.cells] == [4, 9, 16, 16]
    assert {x: cell(x).file(tmp_path).stat().st_mtime_ns for x in (1, 2, 3)} == times


@pytest.mark.parametrize("damage", [b"", b"MAST1\nnonsense", None])
def test_damaged_cell_is_computed_again(tmp_path, damage):
    engine.run([cell(3)], tmp_path, jobs=1)
    path = cell(3).file(tmp_path)
    path.write_bytes(path.read_bytes()[:-20] if damage is None else damage)
    again = engine.run([cell(3)], tmp_path, jobs=1)
    assert again.computed == 1
    assert again.cells[0]["square"] == 9


def test_cell_of_another_name_is_not_taken(tmp_path):
    engine.run([cell(3)], tmp_path, jobs=1)
    cell(3).file(tmp_path).rename(cell(4).file(tmp_path))
    assert engine.run([cell(4)], tmp_path, jobs=1).cells[0]["square"] == 16


def test_error_of_a_cell_keeps_the_finished_ones(tmp_path):
    with pytest.raises(ArgumentError, match="cannot do 2"):
        engine.run([cell(1, cost=2.0), cell(2, compute=fail)], tmp_path, jobs=1)
    assert stored(cell(1), tmp_path) is not None


def test_processes_compute_the_same(tmp_path, monkeypatch):
    monkeypatch.setattr(engine, "ALONE", -1.0)
    finished = engine.run([cell(x) for x in range(1, 6)], tmp_path, jobs=2)
    assert [d["square"] for d in finished.cells] == [1, 4, 9, 16, 25]
    assert os.getpid() not in {d["pid"] for d in finished.cells}
    with pytest.raises(ArgumentError, match="cannot do 7"):
        engine.run([cell(7, compute=fail)], tmp_path, jobs=2)


def test_jobs_must_be_positive(tmp_path):
    with pytest.raises(ArgumentError, match="at least 1"):
        engine.run([], tmp_path, jobs=0)


def test_lines_of_progress_where_there_is_no_terminal(tmp_path, monkeypatch, capsys):
    from mast.experiments import display

    monkeypatch.setattr(display, "LINE_EVERY", -1.0)
    engine.run([cell(1), cell(2)], tmp_path, jobs=1, terminal=False)
    lines = capsys.readouterr().err.splitlines()
    assert lines[0].startswith("computing: 1 of 2 cells, about")
    assert lines[1] == "computing: 2 of 2 cells, done"
