"""What is collected here: examples in docstrings; those of optional parts need their packages."""

import contextlib
import importlib
import importlib.util
import re
import tempfile

import pytest

from documentation.blocks import ROOT, NearlyEqual

pytest_plugins = ["first_failure", "own_folders"]

OPTIONAL = ("torch", "flwr", "lightning", "transformers")
MISSING = [package for package in OPTIONAL if importlib.util.find_spec(package) is None]
if MISSING:
    MISSING += ["mast.nn", "mast.cluster", "mast.federated"]

collect_ignore = [] if importlib.util.find_spec("griffe") else ["docs/tools/docstrings.py"]


def pytest_ignore_collect(collection_path):
    """Leave out modules without examples, and those whose optional package is not installed."""
    if collection_path.suffix != ".py" or collection_path.name.startswith("test_"):
        return None
    text = collection_path.read_text(encoding="utf-8")
    if ">>>" not in text:
        return True  # importing some of them takes seconds
    if not MISSING:
        return None
    if ROOT / "src" not in collection_path.parents:
        needs = rf"^(?:import|from) (?:{'|'.join(MISSING)})\b"
        return re.search(needs, text, re.MULTILINE) is not None or None
    module = collection_path.relative_to(ROOT / "src").with_suffix("")
    try:
        importlib.import_module(".".join(module.parts).removesuffix(".__init__"))
    except ImportError:
        return True
    return None


def pytest_collection_modifyitems(items):
    """Those that wait for other processes come first, so that no worker is alone with one at the end.

    The examples of docstrings show numbers of one processor: on another they may differ a little.
    """
    for item in items:
        if isinstance(item, pytest.DoctestItem):
            item.runner._checker = NearlyEqual()
    folders = [ROOT / "tests" / name for name in ("federated", "experiments", "faults", "cluster")]
    items.sort(
        key=lambda item: next((i for i, f in enumerate(folders) if f in item.path.parents), len(folders))
    )


@pytest.fixture(autouse=True)
def examples_write_elsewhere(request):
    """What the examples of pages and docstrings write goes to a temporary folder, not into the clone."""
    if not isinstance(request.node, pytest.DoctestItem):
        yield
        return
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        yield
