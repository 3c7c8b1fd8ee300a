"""The benchmark harness: files are found, rows judged, nothing timed."""

import doctest
import importlib
import inspect
import json
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from mast.errors import ArgumentError

FOLDER = Path(__file__).parents[1] / "benchmarks"
sys.path.insert(0, str(FOLDER))
bench = importlib.import_module("_bench")
sys.path.remove(str(FOLDER))  # where tests look for their own `federated` and `learn`


@pytest.mark.parametrize("name", ["_bench", "_machine"])
def test_the_examples_in_its_docstrings(name):
    result = doctest.testmod(importlib.import_module(name))
    assert result.attempted > result.failed == 0


def test_every_benchmark_file_loads(monkeypatch):
    pytest.importorskip("torch")
    monkeypatch.syspath_prepend(FOLDER)
    found = {section.name: (section, rows) for section, rows in bench.load(FOLDER)}
    assert {"foundation", "growth", "learn", "linear", "methods", "nn", "peers"} <= set(found)
    assert all(inspect.isgeneratorfunction(rows) for _, rows in found.values())
    titles = [section.title for section, _ in found.values()]
    assert len(set(titles)) == len(titles)
    assert all(section.about.endswith(".") for section, _ in found.values())


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
        "from _bench import Row\ndef rows():\n    yield Row('a', 'b', 1.0, 2.0)\n"
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


def test_sizes_are_shown_as_sizes():
    row = bench.versus("file", 5_000, "peer", 2e6, 0.11, unit="B")
    assert row.cells()[1:5] == ["5 kB", "peer", "2 MB", "0.0025"]


PAGES = {
    "one": """
        '''Jobs with bars. And more.\n\n        Not shown.'''
        from _bench import Row, versus
        TITLE = "Some jobs"
        def rows():
            yield versus("a|b_c", 0.001, "peer <x>", 0.002, 2.0, detail="more")
            yield Row("d", "e", 3.0, 2.0)
        """,
    "two": """
        '''How it grows.'''
        from _bench import exponent
        def rows():
            yield exponent("growth", [10, 100], [1.0, 10.0], 1.05)
        """,
}


def test_a_page_has_every_row_in_its_section_and_says_what_was_missed(tmp_path, capsys):
    for name, code in PAGES.items():
        (tmp_path / f"{name}.py").write_text(textwrap.dedent(code).strip())
    bench.run(tmp_path, markdown=tmp_path / "page.md")
    page = (tmp_path / "page.md").read_text()
    assert "2 meet their target, 1 does not:\n\n- d: 3, target ≤ 2\n" in page
    assert "GB/s" in page
    first, second = page.split("## ")[1:]
    assert first.splitlines() == [
        "Some jobs",
        "",
        "Jobs with bars. And more.",
        "",
        "| job | ours | against | theirs | ratio | target |  |",
        "| --- | ---: | --- | ---: | ---: | ---: | --- |",
        r"| a\|b\_c<br><small>more</small> | 1 ms | peer &lt;x&gt; | 2 ms | 0.5 | ≤ 2 | ✓ |",
        "| **d** |  | e |  | 3 | ≤ 2 | **missed** |",
        "",
    ]
    assert second.startswith("Two\n\nHow it grows.\n\n| job | exponent | target |  |\n")
    assert "| growth<br><small>10^1, 10^2: 1 s, 10 s</small> | 1 | ≤ 1.05 | ✓ |" in second
    assert "1 missed" in capsys.readouterr().out


def test_only_the_areas_that_are_named(tmp_path):
    for name in ("linear", "nonlinear", "learn"):
        code = f"from _bench import Row\ndef rows():\n    yield Row('{name}', 'b', 1, 2)\n"
        (tmp_path / f"{name}.py").write_text(code)
    assert [row.job for row in bench.run(tmp_path, ["linear", "learn"])] == ["learn", "linear"]
    with pytest.raises(ArgumentError, match="no benchmarks lineal; there are: learn, linear, nonlinear"):
        bench.run(tmp_path, ["lineal"])


def test_the_command_refuses_what_is_not_there_in_one_line():
    done = subprocess.run([sys.executable, FOLDER, "nothing"], capture_output=True, text=True)
    assert done.returncode == 2
    assert "no benchmarks nothing; there are: cluster," in done.stderr.splitlines()[-1]
