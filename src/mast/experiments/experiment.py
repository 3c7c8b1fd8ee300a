"""What an experiment is: cells that are computed one by one, and what their results show.

A new experiment is a subclass of `Experiment` in a file or folder of its own, and one line in `reproduce`.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pandas

from mast.experiments.datasets import Dataset, locate
from mast.plots import bound_along
from mast.results import Result
from mast.support.cells import Cell, Done
from mast.support.checks import Array

EFFORTS = ("fast", "normal", "full")
NOISE = 2.0  # standard errors that tell a refutation from noise
Compute = Callable[..., dict[str, Any]]  # of a configuration and a data set
Table = list[list[str]]  # a small table for a reader: its first row and its first column are headings


@dataclass(frozen=True)
class Request:
    """What the user asked for: on which data, and with how much effort."""

    datasets: tuple[Dataset, ...]
    effort: str = "normal"

    def pick(self, fast: Any, normal: Any, full: Any) -> Any:
        """The value for this effort."""
        return {"fast": fast, "normal": normal, "full": full}[self.effort]


class Results(list[Done]):
    """Finished cells, which can be selected by their configuration and put into tables."""

    def of(self, compute: Compute | None = None, dataset: str | None = None, **config: Any) -> Results:
        """The cells of one function, data set or setting."""
        return Results(
            d
            for d in self
            if (compute is None or d.cell.compute is compute)
            and dataset in (None, d.cell.dataset.name)
            and all(d.cell.config.get(name) == value for name, value in config.items())
        )

    @property
    def datasets(self) -> list[str]:
        """The names of all data sets, in the order in which they come."""
        return list(dict.fromkeys(d.cell.dataset.name for d in self))

    def by_dataset(self) -> dict[str, Results]:
        """The cells of each data set."""
        return {name: self.of(dataset=name) for name in self.datasets}

    def claims(self, decide: Callable[[Results], Iterable[Claim]]) -> list[Claim]:
        """The claims about each data set's results, with its name."""
        return [
            replace(claim, dataset=name) for name, part in self.by_dataset().items() for claim in decide(part)
        ]

    def figures(self, name: str, title: str, caption: str, draw: Callable[[Results], Any]) -> list[Figure]:
        """One picture per data set, drawn from its results."""
        return [
            Figure(f"{name}_{data}", f"{title} ({data})", caption, partial(draw, part))
            for data, part in self.by_dataset().items()
        ]

    def settings(self) -> dict[str, dict[str, Any]]:
        """The settings of each function: a value where all its cells agree, else the list of all values."""
        values: dict[str, dict[str, dict[str, Any]]] = {}
        for d in self:
            of_function = values.setdefault(d.cell.compute.__name__, {})
            for name, value in d.cell.config.items():
                of_function.setdefault(name, {})[json.dumps(value)] = value
        return {
            function: {
                name: next(iter(each.values())) if len(each) == 1 else list(each.values())
                for name, each in settings.items()
            }
            for function, settings in values.items()
        }

    def values(self, name: str) -> Array:
        """A result of every cell, stacked."""
        return np.array([d[name] for d in self])

    def relative(self, name: str) -> Array:
        """A curve of every cell, divided by its first value."""
        return np.array([d[name] / d[name][0] for d in self])

    def mean(self, name: str) -> Array:
        """The mean of a result over all cells."""
        return np.asarray(np.mean([d[name] for d in self], axis=0))

    def frame(self, *names: str, **columns: Callable[[Done], Any] | str) -> Any:
        """A table with the rows of all cells: settings and results by name, renamed, or computed.

        Arrays are columns, and everything else is repeated in all rows of its cell.
        """
        sources: dict[str, Callable[[Done], Any] | str] = {**dict(zip(names, names, strict=True)), **columns}
        parts = []
        for d in self:
            values = {column: d[get] if isinstance(get, str) else get(d) for column, get in sources.items()}
            parts.append(pandas.DataFrame({"dataset": d.cell.dataset.name} | values))
        return pandas.concat(parts, ignore_index=True)


@dataclass(frozen=True)
class Claim:
    """A sentence that numbers decide."""

    claim: str  # in our words
    decides: str  # the number, and on which side of what it has to be
    measured: str | Table  # with its range or error
    holds: bool
    source: str = "paper"  # or "theory" (a bound), or "beyond" (not in the paper)
    dataset: str = ""
    noise: bool = False  # if it does not hold, then by less than NOISE standard errors


@dataclass(frozen=True)
class Gain:
    """What MAST brought in one setting: two accuracies, and the standard error of their difference."""

    setting: str
    baseline: float
    mast: float
    error: float
    rival: str  # what the baseline is


def small_table(corner: str, columns: Iterable[Any], **rows: Iterable[str]) -> Table:
    """The evidence of a claim, one row per keyword; an underscore in its name stands for a space.

    >>> small_table("K", [2, 4], lowest_score=["0.7", "0.6"])
    [['K', '2', '4'], ['lowest score', '0.7', '0.6']]
    """
    head = [corner, *(f"{c:g}" if isinstance(c, float) else str(c) for c in columns)]
    return [head, *([name.replace("_", " "), *values] for name, values in rows.items())]


def sentence(measured: str | Table) -> str:
    """A measurement in one line, for files of numbers.

    >>> sentence(small_table("K", [2, 4], ERM=["0.7", "0.6"]))
    'K: 2, 4; ERM: 0.7, 0.6'
    """
    if isinstance(measured, str):
        return measured
    return "; ".join(f"{row[0]}: {', '.join(row[1:])}" for row in measured)


def verdict(claim: Mapping[str, Any]) -> str:
    """What the numbers say of a claim.

    >>> verdict({"holds": True}), verdict({"holds": False, "noise": True})
    ('holds', 'within noise')
    """
    return "holds" if claim["holds"] else "within noise" if claim.get("noise") else "does not hold"


@dataclass(frozen=True)
class Figure:
    """A picture: `draw` makes it when it is needed."""

    name: str  # of its files
    title: str
    caption: str
    draw: Callable[[], Any]  # -> matplotlib.figure.Figure


@dataclass(frozen=True)
class Findings:
    """All that a reader gets from one experiment."""

    lead: str  # one paragraph
    figures: Sequence[Figure]
    tables: dict[str, Any]  # name -> pandas.DataFrame, written as CSV
    claims: Sequence[Claim]
    choices: Sequence[str] = ()  # what the paper leaves open, and what was chosen
    gains: Sequence[Gain] = ()


class Experiment(ABC):
    """One figure, or a few that belong together."""

    name: ClassVar[str]
    title: ClassVar[str]
    version: ClassVar[int] = 1  # a new number makes all cells new
    datasets: ClassVar[tuple[str, ...]] = ("a5a", "a1a", "w8a")
    fast_datasets: ClassVar[tuple[str, ...]] = ("a1a",)

    def find(self, effort: str, dataset: str | None, data_dir: Path | None) -> tuple[Dataset, ...]:
        """The data to run on: what the user names, or the experiment's own."""
        names = self.fast_datasets if effort == "fast" else self.datasets
        return tuple(locate(name, data_dir) for name in ((dataset,) if dataset is not None else names))

    @abstractmethod
    def cells(self, request: Request) -> list[Cell]:
        """All that has to be computed."""

    @abstractmethod
    def findings(self, request: Request, results: Results) -> Findings:
        """What the finished cells show."""

    def cell(self, compute: Compute, config: Mapping[str, Any], dataset: Dataset, cost: float = 1.0) -> Cell:
        """One cell of this experiment; the cost is about how many seconds it takes."""
        return Cell(self.name, self.version, compute, config, dataset, cost)

    def grid(
        self,
        compute: Compute,
        dataset: Dataset,
        cost: float,
        varied: Mapping[str, Iterable[Any]],
        **fixed: Any,
    ) -> list[Cell]:
        """One cell for each combination of the varied settings."""
        return [
            self.cell(compute, dict(zip(varied, values, strict=True)) | fixed, dataset, cost)
            for values in product(*varied.values())
        ]


def median_and_range(values: Array, form: str) -> str:
    """The median and the range.

    >>> median_and_range(np.array([1.0, 2.0, 4.0]), ".2g")
    '2 (1 to 4)'
    """
    return f"{np.median(values):{form}} ({values.min():{form}} to {values.max():{form}})"


def trace_arrays(result: Result, Psi0: float | None = None) -> dict[str, Any]:
    """The trace of a run as arrays, for a cell. The bound is infinite where the theorem says nothing.

    Psi0 is what the theorem starts from if that is not the loss at the start.
    """
    trace = result.trace
    return {
        "step": trace["step"].to_numpy(),
        "passes": trace["passes"].to_numpy(),
        "loss": trace["f"].to_numpy(),
        "gap": trace["f_D"].to_numpy() - result.infimum,
        "gradient_sq": trace["grad_sq"].to_numpy(),
        "distance_sq": trace["dist_sq"].to_numpy(),
        "bound": bound_along(result, Psi0),
        "step_size": result.step_size,
        "status": result.status,
    }
