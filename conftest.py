"""Which doctests can be collected here: those of optional parts need their packages."""

import importlib.util

NEEDS = {"torch": "*", "lightning": "lightning.py", "transformers": "transformers.py"}

collect_ignore_glob = [
    f"src/mast/nn/{files}" for package, files in NEEDS.items() if importlib.util.find_spec(package) is None
]
