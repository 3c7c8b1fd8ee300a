"""``python -m mast`` is the `mast` command."""

from mast.cli import main

main()
