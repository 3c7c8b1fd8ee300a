"""Flower's engines for tests: the example's own script starts and stops them, one test at a time."""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
import time
import uuid
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from mast.errors import StepSizeWarning
from mast.support import files
from mast.support.files import exclusive

EXAMPLE = Path(__file__).parents[2] / "examples" / "federated"
MARK = "MAST_TESTS_FEDERATION"
#: bytes of the temporary folder for which Ray's longest socket still has a name
LONGEST = 107 - len("/mast-12345678/ray/session_2026-01-01_00-00-00_123456_1234567/sockets/plasma_store")


def example(name: str) -> ModuleType:
    """A module of the example."""
    import importlib

    if str(EXAMPLE) not in sys.path:
        sys.path.insert(0, str(EXAMPLE))
    return importlib.import_module(name)


@contextlib.contextmanager
def federation(nodes: int, *, simulation: bool, tls: bool = False) -> Iterator[Any]:
    """A federation, the only one of all tests at this time; nothing of it is left at the end."""
    if " " in sys.prefix:  # Alembic, which makes Flower's tables, takes the path of its scripts for two
        pytest.skip("Flower's SuperLink cannot make its tables in an environment whose path has a space")
    if simulation and len(tempfile.gettempdir()) > LONGEST:
        pytest.skip("Ray's sockets have at most 107 bytes of path: give the tests a shorter TMPDIR")
    mark = uuid.uuid4().hex
    with exclusive(Path(tempfile.gettempdir()) / "mast-tests-federation", wait=600):
        before = dict(os.environ)
        os.environ.update({MARK: mark, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"})
        try:
            with tempfile.TemporaryDirectory(prefix="mast-") as home:
                with example("run").Federation(Path(home), nodes, simulation=simulation, tls=tls) as made:
                    yield made
                left = settled(mark)
        finally:
            os.environ.clear()
            os.environ.update(before)
    assert not left, f"still running: {left}"


def settled(mark: str, patience: float = 10.0) -> list[str]:
    """The processes with this mark in their environment that do not end."""
    deadline = time.monotonic() + patience
    while (left := marked(mark)) and time.monotonic() < deadline:
        time.sleep(0.2)
    return left


def marked(mark: str) -> list[str]:
    """Commands of the living processes, other than this one, with the mark in their environment."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if int(folder.name) != os.getpid() and mark.encode() in (folder / "environ").read_bytes():
                found.append((folder / "cmdline").read_bytes().replace(b"\0", b" ").decode()[:200])
    return found


def rounds_done(checkpoint: Path) -> int:
    """How far a run has come, by its checkpoint."""
    return int(files.load(checkpoint)[0]["numbers"]["round"]) if checkpoint.exists() else 0


def wait_for_round(checkpoint: Path, t: int, patience: float = 600.0) -> None:
    """Wait until a run has done t rounds."""
    deadline = time.monotonic() + patience
    while rounds_done(checkpoint) < t:
        assert time.monotonic() < deadline, f"round {t} was not reached within {patience:g} s"
        time.sleep(0.1)


def expected(config: dict[str, Any], rounds: int, step_size: float, **options: Any) -> Any:
    """Where the example's linear model ends after `rounds` rounds in one process, if all clients answer."""
    import mast

    task = example("mast_federation.tasks").task_of(DEFAULTS | config)
    nodes = mast.Nodes([task.problem(i) for i in range(task.nodes)])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", StepSizeWarning)  # there is none of theory for local steps
        return mast.minimize(
            nodes, "distributed", rounds, step_size, seed=task.seed, trace=rounds, samples=0, **options
        ).x


DEFAULTS = {"task": "linear", "nodes": 4, "capacities": "", "seed": 0}
