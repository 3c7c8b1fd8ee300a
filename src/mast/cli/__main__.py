"""``python -m mast.cli`` is the `mast` command."""

from mast.cli import main

main()
