"""What is collected here: doctests of optional parts need their packages; some pages are run as a whole."""

import importlib.util

from documentation.blocks import PAGES, ROOT, only_sessions

pytest_plugins = ["first_failure"]

NEEDS = {
    "src/mast/nn/*": "torch",
    "src/mast/nn/lightning.py": "lightning",
    "src/mast/nn/transformers.py": "transformers",
    "src/mast/exchange/*": "torch",
    "src/mast/cluster/*": "torch",
    "tests/cluster/payload.py": "torch",
    "src/mast/federated/*": "flwr",
    "docs/tools/docstrings.py": "griffe",
}

collect_ignore_glob = [files for files, package in NEEDS.items() if importlib.util.find_spec(package) is None]
# tests/documentation runs the pages that hold more than Python sessions.
collect_ignore = [page.relative_to(ROOT).as_posix() for page in PAGES if not only_sessions(page)]
