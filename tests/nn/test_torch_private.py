"""What PyTorch does not promise is used through one module, which names it all."""

import ast
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

import mast

torch = pytest.importorskip("torch", reason="mast.nn needs PyTorch")
from mast.nn.tensors import torch_private  # noqa: E402

ROOT = Path(__file__).parents[2]
SOURCE = Path(mast.__file__).parent
INSTANCES = {
    "Module": torch.nn.Linear(1, 1),
    "Tensor": torch.ones(1),
    "UntypedStorage": torch.ones(1).untyped_storage(),
    "Node": torch.ones(1, requires_grad=True).clone().grad_fn,
}
KNOWN = {name for names in torch_private.ATTRIBUTES.values() for name in names}


def private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


ATTRIBUTES = {name for instance in INSTANCES.values() for name in dir(instance) if private(name)}


def our_own(tree: ast.AST) -> set[str]:
    """Names that our classes give to their own attributes and methods."""
    return {n.name for n in ast.walk(tree) if isinstance(n, ast.FunctionDef)} | {
        n.attr
        for n in ast.walk(tree)
        if isinstance(n, ast.Attribute) and isinstance(n.value, ast.Name) and n.value.id == "self"
    }


def used(tree: ast.AST) -> set[str]:
    """Private names of torch that are imported or spelt out, and private names of attributes."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (parts := (node.module or "").split("."))[0] == "torch":
            found |= {name for name in (*parts, *(alias.name for alias in node.names)) if private(name)}
        elif isinstance(node, ast.Attribute) and private(node.attr):
            root = node.value
            while isinstance(root, ast.Attribute):
                root = root.value
            if node.attr in ATTRIBUTES or (isinstance(root, ast.Name) and root.id in ("torch", "nn")):
                found.add(node.attr)
    return found


def test_nothing_private_is_used_elsewhere():
    trees = {file: ast.parse(file.read_text()) for file in SOURCE.rglob("*.py")}
    allowed = KNOWN.union(*map(our_own, trees.values()))
    elsewhere = {
        str(file.relative_to(SOURCE)): sorted(names)
        for file, tree in trees.items()
        if file.name != "torch_private.py" and (names := used(tree) - allowed)
    }
    assert not elsewhere


@pytest.mark.parametrize("kind", INSTANCES)
def test_the_attributes_are_still_there(kind):
    for name in torch_private.ATTRIBUTES[kind]:
        assert hasattr(INSTANCES[kind], name)


def test_the_bounds_are_the_versions_that_were_tried():
    """From the oldest that was tried to the next major version; the newest and the tested one lie between."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    (bounds,) = (r for r in project["optional-dependencies"]["nn"] if r.startswith("torch"))
    oldest, *_ = torch_private.TRIED
    assert bounds == f"torch>={oldest.removesuffix('.0')},<3"
    assert all(Version(version) in Requirement(bounds).specifier for version in torch_private.TRIED)
    assert f"torch=={oldest}\n" in (ROOT / "oldest.txt").read_text()
    assert any(f"torch=={v}\n" in (ROOT / "constraints.txt").read_text() for v in torch_private.TRIED)
    page = (ROOT / "docs" / "support.md").read_text()
    assert all(f"| {version} |" in page for version in torch_private.TRIED)


WITHOUT = [  # names that PyTorch has, and what the refusal says where it has not
    ("torch.nn.modules.conv", "_ConvNd", "'_ConvNd' from 'torch.nn.modules.conv'"),
    ("torch._C", "_current_graph_task_id", "torch._C._current_graph_task_id"),
    ("torch.nn.Module", "_call_impl", "torch.nn.Module._call_impl"),
]
REMOVE = f"""
import pkgutil, torch
with torch.no_grad():  # as an import within a function may be
    for place, name, _ in {WITHOUT}:
        owner = pkgutil.resolve_name(place)
        kept = getattr(owner, name)
        delattr(owner, name)
        try:
            import mast.nn
        except ImportError as error:
            print(error)
        setattr(owner, name, kept)
    import mast.nn
"""


def test_a_pytorch_without_one_of_the_names_is_refused_by_name():
    done = subprocess.run([sys.executable, "-c", REMOVE], capture_output=True, text=True, check=True)
    for refusal, (_, _, text) in zip(done.stdout.splitlines(), WITHOUT, strict=True):
        assert text in refusal
        assert f"torch {torch.__version__} " in refusal
        assert all(version in refusal for version in torch_private.TRIED)
