"""Advice as a table that people read in a terminal of 80 columns."""

from __future__ import annotations

import textwrap

from rich.console import Console
from rich.table import Table

from mast.advice import ProblemAdvice, StatementAdvice

NOTE = """largest: the largest step size; floor: what its bound tends to;
gap: the one that was used; planned: the step size for the target.
Step sizes are in the sketch's coordinates: where a share p is kept, p²/L_f
there is 1/L_f on the weights themselves."""
REGIMES = {"strongly_convex": "strong", "convex": "convex", "nonconvex": "non-convex"}


def show(advice: ProblemAdvice) -> None:
    """Print the constants, one line per method and regime, and the sentence."""
    console = Console(highlight=False, soft_wrap=True)
    c = advice.constants
    console.print(f"[bold]{advice.sketch}[/]")
    console.print(f"L_f = {advice.L_f:.4g}, mu_f = {advice.mu_f:.4g}, |x0 - x_D*|² = {advice.r0sq:.4g}")
    console.print(f"L_D = {c.L_D:.4g}, mu_D = {c.mu_D:.4g}, L_max = {c.L_max:.4g}")
    table = Table(box=None, header_style="bold", pad_edge=False)
    for name in ("method", "regime"):
        table.add_column(name, no_wrap=True)
    for name in ("largest", "floor", "gap", "planned", f"steps to {advice.delta:g}"):
        table.add_column(name, justify="right", no_wrap=True)
    for line in advice.lines:
        table.add_row(*_cells(line))
    console.print(table, soft_wrap=False)
    console.print(NOTE)
    sentence = advice.sentence[0].upper() + advice.sentence[1:] + "."
    console.print(textwrap.fill(sentence, 79), style="bold")


def _cells(line: StatementAdvice) -> list[str]:
    steps = "" if line.iterations is None else f"{line.iterations:,}" if line.iterations < 1e12 else "> 10^12"
    numbers = (line.step_size, line.floor, line.gap, line.planned_step_size)
    return [line.method, REGIMES[line.regime], *map(_number, numbers), steps]


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.3g}"
