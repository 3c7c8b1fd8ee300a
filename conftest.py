"""What is collected here: doctests of optional parts need their packages; some pages are run as a whole."""

import importlib.util

from documentation.blocks import PAGES, ROOT, only_sessions

NEEDS = {
    "torch": "src/mast/nn/*",
    "lightning": "src/mast/nn/lightning.py",
    "transformers": "src/mast/nn/transformers.py",
    "flwr": "src/mast/federated/*",
    "griffe": "docs/tools/docstrings.py",
}

collect_ignore_glob = [files for package, files in NEEDS.items() if importlib.util.find_spec(package) is None]
# tests/documentation runs the pages that hold more than Python sessions.
collect_ignore = [page.relative_to(ROOT).as_posix() for page in PAGES if not only_sessions(page)]
