"""The shape of the project: dependencies point one way, and `import mast` stays light."""

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest

import mast

SOURCE = Path(mast.__file__).parent

CORE = {"errors", "support", "randomness", "sketches", "objectives", "problem", "theory"}
# room -> the rooms it may import from (itself always)
ALLOWED = {
    "errors": set(),
    "support": {"errors", "randomness"},
    "randomness": {"errors", "support"},
    "theory": {"errors", "support"},
    "sketches": {"errors", "support", "randomness"},
    "objectives": {"errors", "support", "randomness", "sketches"},
    "problem": {"errors", "support", "randomness", "sketches", "objectives"},
    "data": {"errors", "support", "randomness"},
    "distributed": CORE,
    "methods": CORE | {"distributed"},
    "trace": CORE,
    "results": {"errors", "theory", "support", "trace", "plots"},
    "resume": CORE | {"methods", "trace"},
    "plots": {"errors", "support", "results"},
    "advice": CORE | {"methods"},
    "allocation": CORE,
    "sweeps": CORE | {"methods", "run", "trace", "resume"},
    "run": CORE | {"methods", "trace", "results", "resume", "plots"},
    "learn": CORE | {"methods", "run", "data", "plots"},
    "nn": CORE | {"methods", "distributed", "allocation", "plots"},
    "engines": CORE | {"distributed", "methods", "nn", "results", "trace"},
    "cluster": {"engines", "distributed", "nn"},
    "federated": {"engines", "distributed", "nn"},
    "experiments": CORE | {"methods", "run", "results", "data", "learn", "nn", "plots"},
    "cli": CORE | {"methods", "run", "data", "learn", "experiments", "advice"},
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


# ---- inside rooms ------------------------------------------------------------------------------------


def module(file: Path) -> str:
    parts = ("mast", *file.relative_to(SOURCE).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module(file): file for file in sorted(SOURCE.rglob("*.py"))}
PACKAGES = {name for name, file in MODULES.items() if file.name == "__init__.py"}
#: commands add themselves to the application that is made in the front door
REGISTERS = {"mast.cli"}


def statements(body: list[ast.stmt]):
    """The import statements that run when a module is imported: not those of functions and of types."""
    for node in body:
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield node
        elif isinstance(node, ast.If | ast.Try | ast.With):
            typing = isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)
            yield from statements([] if typing else node.body)
            yield from statements(getattr(node, "orelse", []))


def imported_modules(name: str) -> set[str]:
    """The modules of ours that a module imports, named as exactly as its statements do."""
    found = set()
    for node in statements(ast.parse(MODULES[name].read_text()).body):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        else:
            exact = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= {e if e in MODULES else str(node.module) for e in exact}
    return found & set(MODULES) - {name}


IMPORTS = {name: set() if name in REGISTERS else imported_modules(name) for name in MODULES}


def cycle(graph: dict[str, set[str]]) -> list[str]:
    """The names along a cycle of a graph; empty, if it has none."""
    done: set[str] = set()

    def walk(name: str, path: list[str]) -> list[str]:
        if name in path:
            return [*path[path.index(name) :], name]
        if name not in done:
            for other in sorted(graph.get(name, ())):
                if found := walk(other, [*path, name]):
                    return found
            done.add(name)
        return []

    return next((found for name in sorted(graph) if (found := walk(name, []))), [])


def contracted(place) -> dict[str, set[str]]:
    """The graph between places, where `place(module)` says in which one a module is; None: in none."""
    graph: dict[str, set[str]] = {}
    for name, others in IMPORTS.items():
        if (start := place(name)) is not None:
            graph.setdefault(start, set()).update({place(o) for o in others} - {None, start})
    return graph


def test_a_cycle_is_found():
    assert cycle({"a": {"b", "c"}, "b": {"c"}, "c": set()}) == []
    assert cycle({"a": {"b"}, "b": {"c"}, "c": {"b"}}) == ["b", "c", "b"]


def test_no_modules_import_each_other():
    assert not cycle(IMPORTS)


@pytest.mark.parametrize("package", sorted(PACKAGES - {"mast"}))
def test_no_files_and_folders_of_a_package_import_each_other(package):
    """Each file and each folder directly in a package is one place; its front door, which shows all, none."""

    def place(name: str) -> str | None:
        inside = name.removeprefix(package + ".")
        return inside.partition(".")[0] if inside != name else None

    assert not cycle(contracted(place))


def test_the_folders_of_nn_do_not_import_the_files_beside_them():
    """Folders of `mast.nn` are floors: what lies in one imports lower folders, and the files use them all."""

    def place(name: str) -> str | None:
        if not name.startswith("mast.nn.") or name in PACKAGES:
            return None
        return name.rpartition(".")[0]

    graph = contracted(place)
    assert {"mast.nn", "mast.nn.units", "mast.nn.tensors"} <= set(graph)
    assert not cycle(graph)


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
                inlined = "forceinline=True" in line or 'inline="always"' in line
                assert "cache=True" in line or inlined, f"{file.name}: {line}"
