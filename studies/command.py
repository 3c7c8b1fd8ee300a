"""The command line of all studies: `python -m studies.NAME [--fast | --full] [--out DIR] ...`."""

from __future__ import annotations

import argparse
import importlib
from pathlib import Path

from mast.errors import MastError
from mast.experiments.reproduce import run_experiments


def main(place: str) -> None:
    """Run the study of a class, given with its module: other processes import its cells from there."""
    module, _, kind = place.rpartition(".")
    study = getattr(importlib.import_module(module), kind)()
    parser = argparse.ArgumentParser(prog=f"python -m studies.{study.name}", description=study.title)
    effort = parser.add_mutually_exclusive_group()
    for name, words in (("fast", "few seeds and short runs"), ("full", "more seeds, rows or steps")):
        effort.add_argument(f"--{name}", dest="effort", action="store_const", const=name, help=words)
    parser.add_argument("--dataset", help="a data set, instead of the study's own")
    parser.add_argument("--data-dir", type=Path, metavar="DIR", help="a folder with data sets")
    parser.add_argument("--out", type=Path, metavar="DIR", default=Path("runs") / study.name)
    parser.add_argument("--jobs", type=int, metavar="N", help="processes; the default is one per core")
    given = parser.parse_args()
    try:
        report = run_experiments(
            [study], given.out, given.effort or "normal", given.dataset, given.data_dir, given.jobs
        )
    except MastError as error:
        parser.exit(2, f"{parser.prog}: {error}\n")
    print(f"report: {report}")
