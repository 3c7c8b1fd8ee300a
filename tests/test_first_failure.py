"""The first failure stands before the tests that come after it."""

import os
import subprocess
import sys
from pathlib import Path

TESTS = """
def test_a(): pass
def test_b(): assert 1 + 1 == 3
def test_c(): assert False
def test_d(): pass
"""


def test_failures_are_shown_when_they_happen(tmp_path):
    (tmp_path / "test_it.py").write_text(TESTS)
    command = [sys.executable, "-m", "pytest", "-v", "-p", "first_failure", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [*command, "test_it.py"],
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parent), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        cwd=tmp_path, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 1, done.stderr
    at_once, _, at_the_end = done.stdout.partition("= FAILURES =")
    assert at_once.count("first failure: test_it.py::test_b") == 1
    assert at_once.count("\nFAILED test_it.py::test_c") == 1
    assert at_once.index("assert (1 + 1) == 3") < at_once.index("::test_c") < at_once.index("::test_d")
    assert "2 failed, 2 passed" in at_the_end
