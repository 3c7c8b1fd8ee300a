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
    assert {"foundation", "growth", "learn", "linear", "methods", "nn", "peers"} <= set(found)
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


def test_a_comparison_of_times_shows_them_and_the_limit():
    row = bench.versus("job", 0.002, "peer", 0.001, 3, limit=5e-4, limit_of="memory", detail="more")
    assert row.met
    assert row.cells() == ["job", "2 ms", "peer", "1 ms", "2", "<= 3", "yes", "500 µs (memory)", "more"]


@pytest.mark.parametrize("power", [0.0, 0.5, 1.0, 2.0])
def test_exponents_are_fitted(power):
    sizes = [10.0, 100.0, 1000.0]
    row = bench.exponent("growth", sizes, [3 * size**power for size in sizes], 1.0)
    assert row.ratio == pytest.approx(power, abs=1e-9)
    assert row.met is (power <= 1)
    assert row.detail.startswith("10^1, 10^2, 10^3: ")


def test_a_page_has_every_row_and_marks_what_was_missed(tmp_path, capsys):
    (tmp_path / "two.py").write_text(
        "from mast.bench import Row\n"
        "def rows():\n"
        "    yield Row('a|b', 'c', 1.0, 2.0)\n"
        "    yield Row('d', 'e', 3.0, 2.0)\n"
    )
    bench.run(tmp_path, markdown=tmp_path / "page.md")
    page = (tmp_path / "page.md").read_text()
    table = [line for line in page.splitlines() if line.startswith("|")]
    assert len(table) == 4
    assert table[2].startswith("| a\\|b |")
    assert table[3].startswith("| **d** |")
    assert "GB/s" in page
    assert "1 missed" in capsys.readouterr().out


def test_an_empty_folder_is_refused(tmp_path):
    with pytest.raises(ArgumentError, match="no benchmarks"):
        bench.run(tmp_path)
