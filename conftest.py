"""What is collected here: doctests of optional parts need their packages; some pages are run as a whole."""

import contextlib
import importlib
import importlib.util
import re
import tempfile

import pytest

from documentation.blocks import PAGES, ROOT, lacks, only_sessions

pytest_plugins = ["first_failure", "own_folders"]

OPTIONAL = ("torch", "flwr", "lightning", "transformers", "onnx")
MISSING = [package for package in OPTIONAL if importlib.util.find_spec(package) is None]
if MISSING:
    MISSING += ["mast.nn", "mast.cluster", "mast.federated"]

# tests/documentation runs the pages that hold more than Python sessions.
elsewhere = [page for page in PAGES if not only_sessions(page) or lacks(page)]
collect_ignore = [page.relative_to(ROOT).as_posix() for page in elsewhere]
if importlib.util.find_spec("griffe") is None:
    collect_ignore.append("docs/tools/docstrings.py")


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
    """Those that wait for other processes come first, so that no worker is alone with one at the end."""
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
