"""The command `python -m studies.elastic`."""

from __future__ import annotations

import argparse
import shutil
from dataclasses import replace
from pathlib import Path

import torch

from mast.errors import DataError
from studies.elastic.page import write
from studies.elastic.rows import Task
from studies.elastic.study import COLUMNS, RIVALS, Store, Study
from studies.elastic.tasks import TASKS

ROOT = Path(__file__).parents[2]
NUMBERS = ROOT / "docs" / "studies" / "elastic"  # what earlier runs found: runs go on from there
CONTENDERS = ("cuts", *RIVALS, "ours", "smaller")


def main(arguments: list[str] | None = None) -> None:
    """Run what is missing, and write the page and the figure."""
    parser = argparse.ArgumentParser(prog="python -m studies.elastic", description=__doc__)
    effort = parser.add_mutually_exclusive_group()
    effort.add_argument("--fast", action="store_true", help="stories260K alone, a few steps, about a minute")
    effort.add_argument("--full", action="store_true", help="four times the steps")
    parser.add_argument("--out", type=Path, default=Path("runs/elastic"), metavar="DIR")
    parser.add_argument("--data-dir", type=Path, default=Path("../shared/data"), metavar="DIR")
    parser.add_argument("--network", choices=TASKS, action="append", help="one or more of them; default all")
    parser.add_argument("--only", choices=CONTENDERS, action="append", help="these contenders")
    parser.add_argument("--seeds", type=int, default=5, metavar="N", help="at most N seeds")
    parser.add_argument("--publish", action="store_true", help="write numbers, page and figure into docs/")
    given = parser.parse_args(arguments)
    torch.set_num_threads(1)
    given.out = given.out / ("fast" if given.fast else "full" if given.full else "")
    given.out.mkdir(parents=True, exist_ok=True)
    if not (given.fast or given.full):
        for path in NUMBERS.glob("*.csv"):
            if not (given.out / path.name).exists():
                shutil.copy(path, given.out)
    results = Store(given.out / "results.csv", COLUMNS)
    times = Store(given.out / "seconds.csv", ["network", "session", "what", "size", "seconds"])
    for task in tasks(given):
        task = replace(task, seeds=min(task.seeds, given.seeds))
        try:
            loaded = task.load(given.data_dir, given.out / "cache")
        except DataError as error:
            print(f"{task.name} is left out: {error}")
            continue
        draws = {"draws": 2, "rounds": 2, "rates": 2} if given.fast else {}
        Study(loaded, results, times, **draws).judge(*(given.only or CONTENDERS))
    if results.rows.empty:
        parser.exit(2, "nothing was run, so there is nothing to write\n")
    write(results.rows, times.rows, given.out / "elastic.md", given.out / "elastic.png")
    if given.publish:
        write(results.rows, times.rows, NUMBERS.with_suffix(".md"), ROOT / "docs" / "images" / "elastic.png")
        NUMBERS.mkdir(exist_ok=True)
        for store in (results, times):
            shutil.copy(store.path, NUMBERS)
    print(f"page: {given.out / 'elastic.md'}")


def tasks(given: argparse.Namespace) -> list[Task]:
    """The tasks of an effort."""
    if given.fast:
        small = {"steps": 4, "seeds": 1, "validation": 16, "test": 16, "pool": 64, "length": 24}
        return [replace(TASKS["stories260k"], **small)]
    chosen = [TASKS[name] for name in given.network or TASKS]
    return [replace(task, steps=4 * task.steps) for task in chosen] if given.full else chosen


if __name__ == "__main__":
    main()
