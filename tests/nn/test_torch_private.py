"""What PyTorch does not promise is used through one module, which names it all."""

import ast
import tomllib
from pathlib import Path

import pytest

import mast

torch = pytest.importorskip("torch", reason="mast.nn needs PyTorch")
from mast.nn.tensors import torch_private  # noqa: E402

SOURCE = Path(mast.__file__).parent
INSTANCES = {
    "Module": torch.nn.Linear(1, 1),
    "Tensor": torch.ones(1),
    "Optimizer": torch.optim.SGD([torch.ones(1)], lr=0.1),
    "UntypedStorage": torch.ones(1).untyped_storage(),
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
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    (torch_bounds,) = (r for r in project["optional-dependencies"]["nn"] if r.startswith("torch"))
    assert torch_bounds == "torch>=2.13,<2.14"
    assert "Tried with torch 2.13.0;" in torch_private.__doc__
