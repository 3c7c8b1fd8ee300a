"""The stopwatch of `make bench`: our time beside a peer's in the same run, as a ratio against a target.

A benchmark is a file in this folder with a function ``rows()`` that yields `Row`s, and a ``TITLE``. The
numbers are the best of several tries, taken in turns, because machines are noisy. Where physics
sets a limit, a row says which: `bandwidth` and `arithmetic` measure what this machine can do.
"""

from __future__ import annotations

import importlib.util
import json
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from _machine import arithmetic, bandwidth, facts, machine
from mast.errors import ArgumentError
from mast.support import files

if TYPE_CHECKING:
    from rich.table import Table

__all__ = ["Row", "arithmetic", "bandwidth", "best", "exponent", "load", "run", "seconds", "versus"]


@dataclass(frozen=True)
class Row:
    """One comparison. `ratio` is what the target speaks of; `at_most` says on which side it should be.

    `ours` and `theirs` are what is compared, in `unit`: seconds ("s") or bytes ("B"); `limit` is the least
    that the machine itself needs, with what it is the limit of: memory, arithmetic, wire. A row whose
    ratio `is_exponent` speaks of growth.
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
    unit: str = "s"
    is_exponent: bool = False

    @property
    def met(self) -> bool:
        """Whether the ratio is on the right side of its target."""
        return self.ratio <= self.target if self.at_most else self.ratio >= self.target

    def cells(self) -> list[str]:
        """The row as texts, one for each of `HEADER`."""
        limit = "" if self.limit is None else f"{amount(self.limit, self.unit)} ({self.limit_of})"
        return [
            self.job,
            "" if self.ours is None else amount(self.ours, self.unit),
            self.peer,
            "" if self.theirs is None else amount(self.theirs, self.unit),
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
    unit: str = "s",
) -> Row:
    """A row that compares two times, or sizes: the ratio is ours by theirs, and should be at most the target.

    >>> versus("sort", 0.002, "NumPy", 0.001, target=3).met
    True
    """
    return Row(job, peer, ours / theirs, target, True, detail, ours, theirs, limit, limit_of, unit)


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
    shown = ", ".join(amount(v, unit) for v in values)
    return Row(
        job, f"size^{target:g}", round(e, 12), target, detail=f"{_sizes(sizes)}: {shown}", is_exponent=True
    )


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


def amount(value: float, unit: str) -> str:
    """A time ("s") or a size ("B") as people read it.

    >>> amount(0.002, "s"), amount(848_752, "B"), amount(0, "B")
    ('2 ms', '849 kB', '0 B')
    """
    if unit == "s":
        return seconds(value)
    for name, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if value >= size:
            return f"{value / size:.3g} {name}"
    return f"{value:.3g} B"


@dataclass(frozen=True)
class Section:
    """The rows of one benchmark file, under its title, with the first line of its docstring."""

    name: str
    title: str
    about: str
    rows: list[Row]


def load(folder: Path, areas: Sequence[str] = ()) -> Iterator[tuple[Section, Callable[[], Iterable[Row]]]]:
    """The benchmark files of a folder, in the order of their names: a section without rows, and its rows.

    `areas` names the files that are wanted; none: all of them.
    """
    known = {f.stem: f for f in sorted(folder.glob("*.py")) if not f.stem.startswith("_")}
    unknown = [area for area in areas if area not in known]
    if unknown:
        raise ArgumentError(f"there are no benchmarks {', '.join(unknown)}; there are: {', '.join(known)}")
    for file in [f for name, f in known.items() if not areas or name in areas]:
        spec = importlib.util.spec_from_file_location(f"benchmarks_{file.stem}", file)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = module  # dataclasses look their module up
        spec.loader.exec_module(module)
        if hasattr(module, "rows"):
            title = getattr(module, "TITLE", file.stem.replace("_", " ").capitalize())
            about = (module.__doc__ or "").strip().partition("\n")[0]
            yield Section(file.stem, title, about, []), module.rows


def run(
    folder: Path, areas: Sequence[str] = (), as_json: bool = False, markdown: Path | None = None
) -> list[Row]:
    """Run the benchmarks, print each row as it is done, then all of them as one table, and return them."""
    from rich.console import Console

    console = Console(stderr=as_json)
    if not console.is_terminal:
        console.width = WIDE
    begun = time.monotonic()
    sections: list[Section] = []
    for section, make in load(folder, areas):
        sections.append(section)
        with console.status(f"{section.name} ..."):
            for row in make():
                section.rows.append(row)
                console.print(
                    f"{row.job}: {row.ratio:.3g} ({row.cells()[5]})",
                    style="dim",
                    highlight=False,
                    markup=False,
                )
    took = time.monotonic() - begun
    rows = [row for section in sections for row in section.rows]
    if markdown is not None:
        files.write(markdown, page(sections, took).encode())
    if as_json:
        listed = [
            {"file": section.name, **asdict(row), "met": row.met}
            for section in sections
            for row in section.rows
        ]
        print(json.dumps({"machine": machine(), "facts": facts(), "seconds": took, "rows": listed}, indent=2))
    else:
        console.print(machine(), highlight=False, markup=False)
        console.print(_table(sections))
        missed = sum(not row.met for row in rows)
        console.print(f"{len(rows)} rows in {seconds(took)}; {missed or 'none'} missed the target")
    return rows


def _table(sections: list[Section]) -> Table:
    from rich.markup import escape
    from rich.table import Table

    table = Table(*HEADER)
    for section in sections:
        for row in section.rows:
            cells = [escape(cell) for cell in row.cells()]
            table.add_row(*cells, style=None if row.met else "bold red")
        table.add_section()
    return table


def page(sections: list[Section], took: float) -> str:
    """The rows as a page of Markdown, a table for each file, with the machine they were measured on."""
    rows = [row for section in sections for row in section.rows]
    missed = [row for row in rows if not row.met]
    lines = [
        "# Benchmarks",
        "",
        f"{len(rows)} comparisons, made in one run of `python benchmarks --markdown` in {seconds(took)}. "
        f"{len(rows) - len(missed)} meet their target, {len(missed) or 'none'} "
        f"{'does' if len(missed) == 1 else 'do'} not{':' if missed else '.'}",
        "",
        *(f"- {_plain(row.job)}: {row.ratio:.3g}, target {_target(row)}" for row in missed),
        *([""] if missed else []),
        "*Ours* and *theirs* are the best of several tries, taken in turns in the same run; *ratio* is ours "
        "by theirs. The *limit* is what the machine itself needs: to move the bytes through its memory, to "
        "do the arithmetic, or to bring them over the wire. An *exponent* says how a cost grows; 1 is "
        "linear.",
        "",
        f"The machine: {machine()}.",
        "",
    ]
    for section in sections:
        if section.rows:
            lines += [f"## {section.title}", "", section.about, "", *_markdown(section.rows), ""]
    return "\n".join(lines)


def _markdown(rows: list[Row]) -> list[str]:
    """A table with the columns that its rows fill; remarks stand small below the job."""
    growth = all(row.is_exponent for row in rows)
    header = ["job", "ours", "against", "theirs", "exponent" if growth else "ratio", "target", "", "limit"]
    table = []
    for row in rows:
        job, ours, peer, theirs, ratio, _, _, limit, detail = map(_plain, row.cells())
        job = job if row.met else f"**{job}**"
        job += f"<br><small>{detail}</small>" if detail else ""
        mark = "✓" if row.met else "**missed**"
        table.append([job, ours, "" if growth else peer, theirs, ratio, _target(row), mark, limit])
    used = [i for i in range(len(header)) if any(line[i] for line in table)]
    rules = ["---" if header[i] in ("job", "against", "limit", "") else "---:" for i in used]
    listed = [[header[i] for i in used], rules, *([line[i] for i in used] for line in table)]
    return ["| " + " | ".join(line) + " |" for line in listed]


def _plain(text: str) -> str:
    """A text as Markdown shows it in a cell: nothing in it is a border, a tag, or emphasis."""
    for mark in "\\|*_`":
        text = text.replace(mark, f"\\{mark}")
    return text.replace("<", "&lt;").replace(">", "&gt;")


def _target(row: Row) -> str:
    return f"{'≤' if row.at_most else '≥'} {row.target:.3g}"
