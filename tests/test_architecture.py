"""The shape of the project: dependencies point one way, and `import mast` stays light."""

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest

import mast

SOURCE = Path(mast.__file__).parent

CORE = {"errors", "checks", "arrays", "randomness", "sketches", "objectives", "problem", "theory"}
# room -> the rooms it may import from (itself always)
ALLOWED = {
    "errors": set(),
    "checks": {"errors"},
    "arrays": {"errors"},
    "randomness": {"errors", "checks"},
    "theory": {"errors", "checks"},
    "sketches": {"errors", "checks", "arrays", "randomness"},
    "objectives": {"errors", "checks", "arrays", "randomness", "sketches", "files"},
    "problem": {"errors", "checks", "arrays", "randomness", "sketches", "objectives"},
    "data": {"errors", "checks", "arrays", "randomness", "files"},
    "methods": CORE | {"files", "checkpoint"},
    "files": {"errors"},
    "locks": {"errors"},
    "progress": set(),
    "trace": CORE,
    "checkpoint": {"errors", "files", "locks"},
    "resume": CORE | {"methods", "files", "trace", "checkpoint"},
    "plots": {"errors", "run"},
    "advice": CORE | {"methods"},
    "advice_table": {"advice"},
    "cells": {"errors", "files", "locks", "progress", "randomness"},
    "sweeps": CORE | {"methods", "run", "trace", "resume", "cells", "files"},
    "run": CORE | {"methods", "trace", "resume", "progress", "plots"},
    "learn": CORE | {"methods", "run", "data", "files", "plots", "progress"},
    "nn": CORE | {"methods", "files", "plots", "progress", "checkpoint"},
    "cluster": CORE | {"methods", "run", "nn", "data", "files", "locks", "trace", "progress", "checkpoint"},
    "federated": CORE | {"methods", "run", "nn", "data", "files", "locks", "trace", "progress", "checkpoint"},
    "experiments": CORE
    | {"locks", "methods", "run", "data", "files", "learn", "nn", "plots", "progress", "cells"},
    "cli": CORE | {"methods", "run", "data", "files", "learn", "experiments", "advice", "advice_table"},
}
ALWAYS = {"__version__"}


def room(file: Path) -> str:
    return file.relative_to(SOURCE).parts[0].removesuffix(".py")


def imported_rooms(file: Path) -> set[str]:
    rooms = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            rooms |= {name.name.split(".")[1] for name in node.names if name.name.startswith("mast.")}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}: imports are absolute"
            parts = (node.module or "").split(".")
            if parts[0] == "mast":
                rooms |= {parts[1]} if len(parts) > 1 else {name.name for name in node.names}
    return rooms - ALWAYS


@pytest.mark.parametrize(
    "file",
    [f for f in sorted(SOURCE.rglob("*.py")) if room(f) not in ("__init__", "__main__")],
    ids=lambda f: str(f.relative_to(SOURCE)),
)
def test_dependencies_point_one_way(file):
    own = room(file)
    assert own in ALLOWED, f"{own} is a new room: say here what it may import"
    forbidden = imported_rooms(file) - ALLOWED[own] - {own}
    assert not forbidden, f"{own} must not import {sorted(forbidden)}"


def test_importing_mast_loads_nothing_heavy():
    code = (
        "import sys, json, mast; mast.Bernoulli, mast.Quadratic, mast.Problem, mast.Identity().draw(3); "
        "print(json.dumps(sorted(sys.modules)))"
    )
    loaded = set(json.loads(subprocess.check_output([sys.executable, "-c", code], text=True)))
    assert not loaded & {"numba", "matplotlib", "pandas", "torch", "sklearn", "typer", "rich"}
    light = subprocess.check_output(
        [sys.executable, "-c", "import sys, mast; print(*sys.modules)"], text=True
    )
    assert not set(light.split()) & {"numpy", "scipy", "numba", "matplotlib", "pandas", "torch", "sklearn"}


def test_every_listed_name_exists():
    for name in mast.__all__:
        if name not in ("nn",):  # needs an extra
            assert getattr(mast, name) is not None
    with pytest.raises(AttributeError, match="nothing_like_this"):
        _ = mast.nothing_like_this
    assert set(mast.__all__) == set(dir(mast))


def test_no_generator_with_hidden_state_in_the_package():
    """All randomness comes from keys: nothing uses NumPy's, Python's or torch's generators."""
    for file in SOURCE.rglob("*.py"):
        text = file.read_text()
        for word in ("np.random.", "import random\n", "default_rng", "torch.rand", "torch.manual_seed"):
            assert word not in text, f"{file.relative_to(SOURCE)} uses {word.strip()}"


def test_kernels_are_cached_on_disk():
    """Every compiled function is compiled once per machine, not once per process."""
    for file in SOURCE.rglob("*.py"):
        for line in file.read_text().splitlines():
            if line.strip().startswith(("@njit", "@numba.njit")):
                assert "cache=True" in line or 'inline="always"' in line, f"{file.name}: {line}"
