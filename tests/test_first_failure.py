"""The first failure stands before the tests that come after it, with and without pytest-xdist."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = """
import time
def test_a(): pass
def test_b(): assert 1 + 1 == 3
def test_c(): time.sleep({pause}); assert False
def test_d(): time.sleep({pause})
"""


@pytest.mark.parametrize(("workers", "pause"), [([], 0), (["-p", "xdist.plugin", "-n", "2"], 0.5)])
def test_failures_are_shown_when_they_happen(tmp_path, workers, pause):
    """Two workers finish in any order: the pauses make them finish in that of the tests."""
    (tmp_path / "test_it.py").write_text(TESTS.format(pause=pause))
    command = [sys.executable, "-m", "pytest", "-v", "-p", "first_failure", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [*command, *workers, "test_it.py"],
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parent), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        cwd=tmp_path, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 1, done.stderr
    at_once, _, at_the_end = done.stdout.partition("= FAILURES =")
    assert at_once.count("first failure: test_it.py::test_b") == 1
    assert at_once.count("\nFAILED test_it.py::test_c") == 1
    assert at_once.count("assert (1 + 1) == 3") == 1
    shown = at_once.index("assert (1 + 1) == 3")
    assert shown < at_once.index("\nFAILED test_it.py::test_c")
    last = "PASSED test_it.py::test_d" if workers else "test_it.py::test_d PASSED"
    assert shown < at_once.index(last)
    assert "2 failed, 2 passed" in at_the_end
