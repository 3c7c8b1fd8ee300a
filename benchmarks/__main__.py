"""The command of `make bench`: `python benchmarks [AREA ...] [--json] [--markdown FILE]`, in a checkout."""

from __future__ import annotations

import argparse
from pathlib import Path

from _bench import run
from mast.errors import MastError

FOLDER = Path(__file__).parent


def main() -> None:
    """Run the areas that are named, or all."""
    parser = argparse.ArgumentParser(prog="benchmarks", description="Speed beside peers, as ratios.")
    parser.add_argument("areas", nargs="*", metavar="AREA", help="a file of this folder, such as linear")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument(
        "--markdown", type=Path, metavar="FILE", help="write docs/benchmarks.md, or FILE, too"
    )
    given = parser.parse_args()
    try:
        run(FOLDER, given.areas, given.json, given.markdown)
    except MastError as error:
        parser.error(str(error))


main()
