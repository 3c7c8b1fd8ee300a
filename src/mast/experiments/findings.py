"""What an experiment is, and what it hands back: figures, numbers and claims."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mast.experiments.cells import Cell, Done
from mast.experiments.datasets import Dataset

EFFORTS = ("fast", "normal", "full")


@dataclass(frozen=True)
class Plan:
    """What the user asked for: on which data, and with how much effort."""

    datasets: tuple[Dataset, ...]
    effort: str = "normal"

    def pick(self, fast: Any, normal: Any, full: Any) -> Any:
        """The value for this effort."""
        return {"fast": fast, "normal": normal, "full": full}[self.effort]


@dataclass(frozen=True)
class Claim:
    """A sentence that numbers decide."""

    claim: str  # in our words
    dataset: str
    decides: str  # the number, and on which side of what it has to be
    measured: str  # with its spread
    holds: bool
    source: str = "paper"  # or "theory" (a bound), or "beyond" (not in the paper)


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
    configuration: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Experiment:
    """One figure, or a few that belong together; one file each."""

    name: str
    title: str
    datasets: tuple[str, ...]
    cells: Callable[[Plan], list[Cell]]
    findings: Callable[[Plan, list[Done]], Findings]
    fast_datasets: tuple[str, ...] = ("a1a",)
    #: (effort, --dataset, --data-dir) -> data, for an experiment whose data are not LIBSVM files
    find: Callable[[str, str | None, Path | None], tuple[Dataset, ...]] | None = None
