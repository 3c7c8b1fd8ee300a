"""The stopwatch of `mast bench`: our time beside a peer's in the same run, as a ratio against a target.

A benchmark is a file in `benchmarks/` with a function ``rows()`` that yields `Row`s. The
numbers are the best of several tries, taken in turns, because machines are noisy. Where physics
sets a limit, a row says which: `bandwidth` and `arithmetic` measure what this machine can do.
"""

from __future__ import annotations

import importlib.util
import json
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mast.errors import ArgumentError
from mast.machine import arithmetic, bandwidth, facts, machine

if TYPE_CHECKING:
    from rich.table import Table

__all__ = ["Row", "arithmetic", "bandwidth", "best", "exponent", "load", "run", "seconds", "versus"]


@dataclass(frozen=True)
class Row:
    """One comparison. `ratio` is what the target speaks of; `at_most` says on which side it should be.

    `ours` and `theirs` are the times in seconds, where the row compares times, and `limit` the time that
    the machine itself needs at the least, with what it is the limit of: memory, arithmetic, wire.
    """

    job: str
    peer: str
    ratio: float
    target: float
    at_most: bool = True
    detail: str = ""
    ours: float | None = None
    theirs: float | None = None
    limit: float | None = None
    limit_of: str = ""

    @property
    def met(self) -> bool:
        """Whether the ratio is on the right side of its target."""
        return self.ratio <= self.target if self.at_most else self.ratio >= self.target

    def cells(self) -> list[str]:
        """The row as texts, one for each of `HEADER`."""
        limit = "" if self.limit is None else f"{seconds(self.limit)} ({self.limit_of})"
        return [
            self.job,
            "" if self.ours is None else seconds(self.ours),
            self.peer,
            "" if self.theirs is None else seconds(self.theirs),
            f"{self.ratio:.3g}",
            f"{'<=' if self.at_most else '>='} {self.target:.3g}",
            "yes" if self.met else "no",
            limit,
            self.detail,
        ]


WIDE = 220  #: characters of a line where no terminal says how many there are
HEADER = ["job", "ours", "against", "theirs", "ratio", "target", "met", "limit", "detail"]


def versus(
    job: str,
    ours: float,
    peer: str,
    theirs: float,
    target: float,
    *,
    limit: float | None = None,
    limit_of: str = "",
    detail: str = "",
) -> Row:
    """A row that compares two times: the ratio is ours by theirs, and should be at most the target.

    >>> versus("sort", 0.002, "NumPy", 0.001, target=3).met
    True
    """
    return Row(job, peer, ours / theirs, target, True, detail, ours, theirs, limit, limit_of)


def best(*jobs: Callable[[], Any], tries: int = 7) -> list[float]:
    """The shortest time in seconds of each job, the jobs taking turns; a first round warms up."""
    for job in jobs:
        job()
    return _best(jobs, tries, time.perf_counter)


def _best(jobs: tuple[Callable[[], Any], ...], tries: int, clock: Callable[[], float]) -> list[float]:
    times = [float("inf")] * len(jobs)
    for _ in range(tries):
        for i, job in enumerate(jobs):
            start = clock()
            job()
            times[i] = min(times[i], clock() - start)
    return times


def exponent(job: str, sizes: list[float], values: list[float], target: float, unit: str = "s") -> Row:
    """A row about growth: e of the fit values ~ sizes^e, which should be at most the target.

    >>> exponent("double the size, double the time", [1, 2, 4], [0.1, 0.2, 0.4], 1.05).ratio
    1.0
    """
    import numpy as np

    e = float(np.polyfit(np.log(sizes), np.log(values), 1)[0])
    shown = ", ".join(seconds(v) if unit == "s" else f"{v / 1e6:.3g} MB" for v in values)
    return Row(job, f"size^{target:g}", round(e, 12), target, detail=f"{_sizes(sizes)}: {shown}")


def _sizes(sizes: list[float]) -> str:
    return ", ".join(f"10^{len(f'{s:.0f}') - 1}" if f"{s:.0f}".strip("0") == "1" else f"{s:g}" for s in sizes)


def processor_times(*jobs: Callable[[], Any], tries: int = 5) -> list[float]:
    """As `best`, in processor time: on a busy machine long runs are interrupted and short ones are not."""
    for job in jobs:
        job()
    return _best(jobs, tries, time.process_time)


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


def run(folder: Path, only: str = "", as_json: bool = False, markdown: Path | None = None) -> list[Row]:
    """Run the benchmarks, print each row as it is done, then all of them as one table, and return them."""
    from rich.console import Console

    console = Console(stderr=as_json)
    if not console.is_terminal:
        console.width = WIDE
    begun = time.monotonic()
    found: list[tuple[str, Row]] = []
    for name, make in load(folder, only):
        with console.status(f"{name} ..."):
            for row in make():
                found.append((name, row))
                console.print(
                    f"{row.job}: {row.ratio:.3g} ({row.cells()[5]})",
                    style="dim",
                    highlight=False,
                    markup=False,
                )
    rows = [row for _, row in found]
    took = time.monotonic() - begun
    if markdown is not None:
        _write(markdown, page(rows, took))
    if as_json:
        listed = [{"file": name, **asdict(row), "met": row.met} for name, row in found]
        print(json.dumps({"machine": machine(), "facts": facts(), "seconds": took, "rows": listed}, indent=2))
    else:
        console.print(machine(), highlight=False, markup=False)
        console.print(_table(rows))
        missed = sum(not row.met for row in rows)
        console.print(f"{len(rows)} rows in {seconds(took)}; {missed or 'none'} missed the target")
    return rows


def _table(rows: list[Row]) -> Table:
    from rich.markup import escape
    from rich.table import Table

    table = Table(*HEADER)
    for row in rows:
        cells = [escape(cell) for cell in row.cells()]
        table.add_row(*cells, style=None if row.met else "bold red")
    return table


def page(rows: list[Row], took: float) -> str:
    """The table as a page of Markdown, with the machine it was made on."""
    lines = [
        "# Benchmarks",
        "",
        f"Made by `mast bench --markdown` in {seconds(took)}, on {machine()}.",
        "",
        "Each row is a job: our time, the time of a peer in the same run, and their ratio, which should be "
        "on the right side of its target. Times are the best of several tries, taken in turns. The limit is "
        "what the machine itself needs: to move the bytes through its memory, to do the arithmetic, or to "
        "bring them over the wire. Rows about growth fit an exponent: 1 is linear in the size.",
        "",
        "| " + " | ".join(HEADER) + " |",
        "|" + "---|" * len(HEADER),
    ]
    for row in rows:
        cells = [cell.replace("|", "\\|") for cell in row.cells()]
        lines.append("| " + " | ".join(cells if row.met else [f"**{c}**" if c else "" for c in cells]) + " |")
    return "\n".join([*lines, ""])


def _write(path: Path, text: str) -> None:
    from mast import files

    files.write(path, text.encode())
