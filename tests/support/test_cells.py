"""Cells: what is computed, what is kept, and what makes a cell new."""

import os
import time
from dataclasses import dataclass

import numpy as np
import pytest

from mast.errors import ArgumentError
from mast.support import cells, progress
from mast.support.cells import Cell, perform, stored


@dataclass(frozen=True)
class Data:
    name: str
    path: str
    sha256: str


DATA = Data("none", "/nowhere", "0" * 64)


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
    same = Cell("test", 1, square, {"x": 3}, Data("other name", "/elsewhere", "0" * 64), cost=9.0)
    assert cell(3).key == same.key
    others = [
        cell(4),
        cell(3, version=2),
        cell(3, compute=fail),
        cell(3, data=Data("none", "/nowhere", "1" * 64)),
    ]
    assert len({cell(3).key, *(c.key for c in others)}) == 5


def test_result_comes_back_as_it_was(tmp_path):
    assert stored(cell(3), tmp_path) is None
    perform(cell(3), tmp_path)
    done = stored(cell(3), tmp_path)
    assert (done["square"], done["name"], done["x"]) == (9, "none", 3)
    assert done["row"].tolist() == [0, 1, 2]


def test_only_what_is_missing_is_computed(tmp_path):
    first = cells.run_cells([cell(x) for x in (1, 2, 3)], tmp_path, jobs=1)
    assert [d.reused for d in first] == [False] * 3
    times = {x: cell(x).file(tmp_path).stat().st_mtime_ns for x in (1, 2, 3)}
    time.sleep(0.01)
    second = cells.run_cells([cell(x) for x in (2, 3, 4, 4)], tmp_path, jobs=1)
    assert [d.reused for d in second] == [True, True, False, False]
    assert [d["square"] for d in second] == [4, 9, 16, 16]
    assert {x: cell(x).file(tmp_path).stat().st_mtime_ns for x in (1, 2, 3)} == times


@pytest.mark.parametrize("damage", [b"", b"MAST1\nnonsense", None])
def test_damaged_cell_is_computed_again(tmp_path, damage):
    cells.run_cells([cell(3)], tmp_path, jobs=1)
    path = cell(3).file(tmp_path)
    path.write_bytes(path.read_bytes()[:-20] if damage is None else damage)
    again = cells.run_cells([cell(3)], tmp_path, jobs=1)
    assert not again[0].reused
    assert again[0]["square"] == 9


def test_cell_of_another_name_is_not_taken(tmp_path):
    cells.run_cells([cell(3)], tmp_path, jobs=1)
    cell(3).file(tmp_path).rename(cell(4).file(tmp_path))
    assert cells.run_cells([cell(4)], tmp_path, jobs=1)[0]["square"] == 16


def test_error_of_a_cell_keeps_the_finished_ones(tmp_path):
    with pytest.raises(ArgumentError, match="cannot do 2"):
        cells.run_cells([cell(1, cost=2.0), cell(2, compute=fail)], tmp_path, jobs=1)
    assert stored(cell(1), tmp_path) is not None


def test_processes_compute_the_same(tmp_path, monkeypatch):
    monkeypatch.setattr(cells, "ALONE", -1.0)
    finished = cells.run_cells([cell(x) for x in range(1, 6)], tmp_path, jobs=2)
    assert [d["square"] for d in finished] == [1, 4, 9, 16, 25]
    assert os.getpid() not in {d["pid"] for d in finished}
    with pytest.raises(ArgumentError, match="cannot do 7"):
        cells.run_cells([cell(7, compute=fail)], tmp_path, jobs=2)


def test_without_a_folder_nothing_is_kept(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    finished = cells.run_cells([cell(2), cell(3)], None, jobs=1)
    assert [d["square"] for d in finished] == [4, 9]
    assert not list(tmp_path.iterdir())


def partly(config, dataset, part):
    """Stops once, and then continues from what it had."""
    if part is not None and not part.exists():
        part.write_text("half")
        raise KeyboardInterrupt
    return {"from": "" if part is None else part.read_text()}


def test_a_resumable_cell_continues_from_its_part(tmp_path):
    half = Cell("test", 1, partly, {}, DATA, resumable=True)
    with pytest.raises(KeyboardInterrupt):
        cells.run_cells([half], tmp_path, jobs=1)
    assert [file.suffix for file in tmp_path.iterdir()] == [".part"]
    assert cells.run_cells([half], tmp_path, jobs=1)[0]["from"] == "half"
    assert [file.suffix for file in tmp_path.iterdir()] == [".cell"]
    assert cells.run_cells([half], None, jobs=1)[0]["from"] == ""


def test_lines_of_progress_where_there_is_no_terminal(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(progress, "LINE_EVERY", -1.0)
    cells.run_cells([cell(1), cell(2)], tmp_path, jobs=1)
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "computing: 1 of 2 cells, starting"
    assert lines[1] == "computing: 2 of 2 cells, done"
    cells.run_cells([cell(3)], tmp_path, jobs=1, show=False)
    assert not capsys.readouterr().err
