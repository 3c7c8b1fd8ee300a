"""The `mast` command: what it prints, and that bad input ends with code 2 and one line."""

import json
import re
import subprocess
import sys

import pytest

import mast
from mast import cli
from mast.data import catalogue
from mast.errors import ArgumentError


@pytest.fixture(autouse=True)
def alone(monkeypatch, tmp_path):
    monkeypatch.delenv("MAST_DATA", raising=False)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("mast.data.lookup.cache", lambda: tmp_path / "cache")
    monkeypatch.setattr(catalogue, "COLLECTION", "http://127.0.0.1:9/")  # nobody listens there
    monkeypatch.setenv("COLUMNS", "100")


@pytest.fixture
def run(monkeypatch, capsys):
    def run(*words):
        monkeypatch.setattr(sys, "argv", ["mast", *map(str, words)])
        with pytest.raises(SystemExit) as caught:
            cli.main()
        out, err = capsys.readouterr()
        return caught.value.code, out, err

    return run


def test_version(run):
    assert run("--version") == (0, f"{mast.__version__}\n", "")


@pytest.mark.parametrize(
    "words", [[], ["--help"], ["-h"], ["data"], ["data", "--help"], ["data", "fetch", "-h"]]
)
def test_help(run, words):
    code, out, err = run(*words)
    assert (code, err) == (0, "")
    assert "Usage: mast" in out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["data", "fetch"], "A name that `mast data list` shows."),
        (["predict"], "The folder that `mast train` wrote."),
        (["evaluate"], "mast evaluate model a1a --draws 20\n"),
    ],
)
def test_help_explains_arguments_and_keeps_the_lines_of_examples(run, words, said, monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    _, out, _ = run(*words, "--help")
    plain = re.sub(r"\x1b\[[0-9;]*m", "", out)
    assert said in re.sub(r" +\n", "\n", plain)
    assert "\\b" not in plain


def test_list(run):
    code, out, err = run("data", "list")
    assert (code, err) == (0, "")
    rows = {line.split()[0]: line.split()[1:] for line in out.splitlines()}
    assert rows["a1a"] == ["1,605", "123", "embedded"]
    assert rows["w8a"] == ["49,749", "300", "absent"]


def test_list_as_json(run, tmp_path):
    (tmp_path / "w8a.gz").touch()
    code, out, _ = run("data", "list", "--json", "--data-dir", tmp_path)
    assert code == 0
    sets = {known["name"]: known for known in json.loads(out)}
    assert sets["w8a"]["where"] == "data_dir"
    assert sets["w8a"]["rows"] == 49749
    assert sets["a1a"]["where"] == "embedded"


def test_fetch(run, tmp_path):
    code, out, err = run("data", "fetch", "a1a", "--data-dir", tmp_path / "mine")
    assert (code, err) == (0, "")
    assert out == f"{tmp_path / 'mine' / 'a1a.gz'}\n"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["data", "fetch", "a9a"], "http://127.0.0.1:9/a9a"),
        (["data", "fetch", "mushroom"], "did you mean mushrooms?"),
        (["data", "fetch"], "Missing argument"),
        (["data", "fetch", "a1a", "--data-dir"], "'--data-dir' requires an argument"),
        (["data", "fech", "a1a"], "Did you mean 'fetch'?"),
        (["nothing"], "No such command 'nothing'"),
        (["--nothing"], "--nothing"),
        (["data", "list", "--nothing"], "--nothing"),
        (["data", "list", "more"], "unexpected extra argument"),
    ],
)
def test_bad_input_ends_with_code_2_and_one_line(run, words, said):
    code, out, err = run(*words)
    assert (code, out) == (2, "")
    assert said in err
    assert err.startswith("mast: ")
    assert err.count("\n") == 1
    assert err.endswith("\n")


def test_an_error_of_several_lines_is_printed_as_one(run, monkeypatch):
    def fails(*_):
        raise ArgumentError("one\n  two")

    monkeypatch.setattr("mast.data.fetch", fails)
    assert run("data", "fetch", "a1a") == (2, "", "mast: one two\n")


def test_an_error_that_is_not_ours_keeps_its_traceback(monkeypatch):
    def fails(*_):
        raise ZeroDivisionError

    monkeypatch.setattr("mast.data.fetch", fails)
    monkeypatch.setattr(sys, "argv", ["mast", "data", "fetch", "a1a"])
    with pytest.raises(ZeroDivisionError):
        cli.main()


def test_help_imports_nothing_heavy():
    code = (
        "import sys, mast.cli\n"
        "try: mast.cli.app(['--help'])\n"
        "except SystemExit: pass\n"
        "heavy = {'numpy', 'scipy', 'numba', 'sklearn', 'pandas', 'matplotlib', 'torch', 'pooch'}\n"
        "print(sorted(heavy & set(sys.modules)), file=sys.stderr)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stderr.strip() == "[]"


def test_the_module_runs_too():
    done = subprocess.run(
        [sys.executable, "-m", "mast", "data", "fetch", "no such set"],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
