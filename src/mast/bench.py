"""The stopwatch of `mast bench`: our time beside a peer's in the same run, as a ratio against a target.

A benchmark is a file in `benchmarks/` with a function ``rows()`` that yields `Row`s. The
numbers are the best of several tries, taken in turns, because machines are noisy.
"""

from __future__ import annotations

import importlib.util
import json
import platform
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from mast.errors import ArgumentError


@dataclass(frozen=True)
class Row:
    """One comparison. `ratio` is what the target speaks of; `at_most` says on which side it should be."""

    job: str
    peer: str
    ratio: float
    target: float
    at_most: bool = True
    detail: str = ""

    @property
    def met(self) -> bool:
        """Whether the ratio is on the right side of its target."""
        return self.ratio <= self.target if self.at_most else self.ratio >= self.target


def best(*jobs: Callable[[], Any], tries: int = 7) -> list[float]:
    """The shortest time in seconds of each job, the jobs taking turns; a first round warms up."""
    for job in jobs:
        job()
    times = [float("inf")] * len(jobs)
    for _ in range(tries):
        for i, job in enumerate(jobs):
            start = time.perf_counter()
            job()
            times[i] = min(times[i], time.perf_counter() - start)
    return times


def seconds(value: float) -> str:
    """A time as people read it.

    >>> seconds(0.00125), seconds(2.5)
    ('1.25 ms', '2.5 s')
    """
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if value >= size:
            return f"{value / size:.3g} {unit}"
    return f"{value * 1e9:.3g} ns"


def load(folder: Path, only: str = "") -> Iterator[tuple[str, Callable[[], Iterable[Row]]]]:
    """The benchmark files of a folder, by name."""
    files = [f for f in sorted(folder.glob("*.py")) if only in f.stem and not f.stem.startswith("_")]
    if not files:
        raise ArgumentError(
            f"no benchmarks{f' named like {only!r}' if only else ''} in the folder {str(folder)!r}: "
            "run this from a checkout of the source, or pass --folder"
        )
    for file in files:
        spec = importlib.util.spec_from_file_location(f"benchmarks_{file.stem}", file)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = module  # dataclasses look their module up
        spec.loader.exec_module(module)
        if hasattr(module, "rows"):
            yield file.stem, module.rows


def run(folder: Path, only: str = "", as_json: bool = False) -> list[Row]:
    """Run the benchmarks, print each row as it is done, and return all of them."""
    from rich.console import Console
    from rich.table import Table

    console = Console(stderr=as_json)
    rows: list[Row] = []
    table = Table("job", "against", "ratio", "target", "met", "detail", title=f"MAST on {machine()}")
    for name, make in load(folder, only):
        with console.status(f"{name} ..."):
            for row in make():
                rows.append(row)
                sign = "<=" if row.at_most else ">="
                met = "yes" if row.met else "[bold red]no[/]"
                target = f"{sign} {row.target:g}"
                table.add_row(row.job, row.peer, f"{row.ratio:.3g}", target, met, row.detail)
                console.print(f"{row.job}: {row.ratio:.3g} ({target})", style="dim", highlight=False)
    if as_json:
        print(
            json.dumps({"machine": machine(), "rows": [{**asdict(r), "met": r.met} for r in rows]}, indent=2)
        )
    else:
        console.print(table)
    return rows


def machine() -> str:
    """The facts about this machine that a reader of the numbers needs."""
    import os

    return f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}"
