"""What is collected here: doctests of optional parts need their packages; some pages are run as a whole."""

import importlib.util

from documentation.blocks import PAGES, ROOT, lacks, only_sessions

pytest_plugins = ["first_failure", "own_folders"]

OPTIONAL = ("torch", "flwr", "lightning", "transformers", "onnx")

# tests/documentation runs the pages that hold more than Python sessions.
elsewhere = [page for page in PAGES if not only_sessions(page) or lacks(page)]
collect_ignore = [page.relative_to(ROOT).as_posix() for page in elsewhere]
if importlib.util.find_spec("griffe") is None:
    collect_ignore.append("docs/tools/docstrings.py")


def pytest_configure(config):
    """Skip the doctests of modules whose optional package is not installed."""
    if any(importlib.util.find_spec(package) is None for package in OPTIONAL):
        config.option.doctest_ignore_import_errors = True
