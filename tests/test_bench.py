"""The benchmark harness: files are found, rows judged, nothing timed."""

import inspect
import json
from pathlib import Path

import pytest

from mast import bench
from mast.errors import ArgumentError

FOLDER = Path(__file__).parents[1] / "benchmarks"


def test_every_benchmark_file_loads():
    pytest.importorskip("torch")
    found = dict(bench.load(FOLDER))
    assert {"foundation", "learn", "linear", "methods", "nn"} <= set(found)
    assert all(inspect.isgeneratorfunction(rows) for rows in found.values())


def test_a_row_knows_on_which_side_of_its_target_it_should_be():
    assert bench.Row("job", "peer", 0.2, 0.25).met
    assert not bench.Row("job", "peer", 0.2, 0.25, at_most=False).met


def test_best_takes_turns():
    calls = []
    times = bench.best(lambda: calls.append(0), lambda: calls.append(1), tries=3)
    assert calls == [0, 1] * 4  # once to warm up, then three rounds
    assert len(times) == 2
    assert min(times) >= 0


def test_rows_are_printed_as_json(tmp_path, capsys):
    (tmp_path / "one.py").write_text(
        "from mast.bench import Row\ndef rows():\n    yield Row('a', 'b', 1.0, 2.0)\n"
    )
    rows = bench.run(tmp_path, as_json=True)
    assert json.loads(capsys.readouterr().out)["rows"][0]["met"] is True
    assert rows[0].job == "a"


def test_an_empty_folder_is_refused(tmp_path):
    with pytest.raises(ArgumentError, match="no benchmarks"):
        bench.run(tmp_path)
