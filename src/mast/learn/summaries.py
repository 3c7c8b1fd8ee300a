"""Summaries of training and evaluation as people read them."""

from __future__ import annotations

from typing import Any


def show_training(result: dict[str, Any]) -> None:
    """What was trained, on what, how well it does, and where it is."""
    from rich.console import Console

    console = Console(highlight=False, soft_wrap=True)
    features = "" if result["features"] == result["columns"] else f" as {result['features']:,} features"
    console.print(
        f"[bold]{result['task']}[/] of {result['rows']:,} rows, {result['columns']:,} columns{features}",
    )
    if result["classes"]:
        shown = list(result["classes"].items())
        parts = ", ".join(f"{label} ({count:,})" for label, count in shown[:8])
        console.print(f"  classes     {parts}{', ...' if len(shown) > 8 else ''}", markup=False)
    for name, why in list(result["dropped"].items())[:8]:
        console.print(f"  left out    {name}, which is {why}", markup=False)
    if len(result["dropped"]) > 8:
        console.print(f"  left out    and {len(result['dropped']) - 8} more columns")
    console.print(f"  sketch      {result['sketch']}", markup=False)
    steps = f"{result['iterations']} iterations" + ("" if result["converged"] else ", not converged")
    console.print(f"  method      {result['method']}, {steps}, alpha {result['alpha']:.4g}")
    if result["guarantee"]:
        console.print(f"  theory      {result['guarantee']}", markup=False)
    show_scores(result["training"], "on the training rows")
    console.print(f"model: {result['model']}", markup=False)


def show_scores(scores: dict[str, Any], where: str) -> None:
    """A table of scores: rows are what is kept, columns the two models."""
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, header_style="bold", title=f"{scores['score']} {where}", title_justify="left")
    table.add_column("kept")
    for name in ("MAST: mean", "worst", "plain: mean", "worst"):
        table.add_column(name, justify="right")
    if "1" not in scores["densities"]:
        table.add_row("everything", *_cells({k: {"mean": v, "worst": v} for k, v in scores["whole"].items()}))
    for density, both in scores["densities"].items():
        label = "everything" if density == "1" else f"{100 * float(density):.3g} % of the features"
        table.add_row(label, *_cells(both))
    table.add_row("as the sketch keeps", *_cells(scores["sketched"]))
    Console(highlight=False).print(table)


def _cells(both: dict[str, dict[str, float]]) -> list[str]:
    return [f"{both[name][part]:.4f}" for name in ("mast", "plain") for part in ("mean", "worst")]
