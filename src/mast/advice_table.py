"""Advice as a table that people read in a terminal."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from mast.advice import ProblemAdvice


def show(advice: ProblemAdvice) -> None:
    """Print the constants, one line per statement, and the sentence."""
    console = Console()
    c = advice.constants
    console.print(f"[bold]{advice.sketch}[/]")
    console.print(
        f"L_f = {advice.L_f:.4g}, mu_f = {advice.mu_f:.4g}, L_D = {c.L_D:.4g}, mu_D = {c.mu_D:.4g}, "
        f"L_max = {c.L_max:.4g}, gap = {advice.gap:.4g}, |x0 - x_D*|² = {advice.r0sq:.4g}",
        highlight=False,
    )
    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column("method", no_wrap=True)
    table.add_column("regime")
    for name in (
        "step size",
        "smaller than plain",
        "rate per step",
        "ends within",
        f"steps to {advice.delta:g}",
    ):
        table.add_column(name, justify="right")
    for line in advice.lines:
        table.add_row(
            line.method,
            line.regime.replace("_", " "),
            _number(line.step_size),
            "" if line.against_plain is None else f"{line.against_plain:.3g} x",
            "" if line.rate is None else f"1 - {1 - line.rate:.2g}",
            _number(line.neighbourhood),
            "" if line.iterations is None else f"{line.iterations:,}",
        )
    console.print(table, highlight=False)
    console.print(advice.sentence[0].upper() + advice.sentence[1:] + ".", style="bold", highlight=False)


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.3g}"
