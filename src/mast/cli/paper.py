"""`mast reproduce` and `mast advise`: the paper's experiments, and theory before training."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mast.cli import DataDir, app, print_json

if TYPE_CHECKING:
    from mast.advice import ProblemAdvice

NOTE = """largest: the largest step size; floor: what its bound tends to;
gap: the one that was used; planned: the step size for the target.
Step sizes are in the sketch's coordinates: where a share p is kept, p²/L_f
there is 1/L_f on the weights themselves."""
REGIMES = {"strongly_convex": "strong", "convex": "convex", "nonconvex": "non-convex"}


@app.command()
def reproduce(
    experiment: Annotated[
        str,
        typer.Argument(
            help="The experiment, or a group of them: accuracy, trajectory, rand1 and shift (together: "
            "convex); neural, dropout and sizes, which train networks; demo, which is accuracy and sizes; "
            "all."
        ),
    ] = "convex",
    fast: Annotated[
        bool,
        typer.Option("--fast", help="Use small data, few seeds and short runs, which take a minute or two."),
    ] = False,
    full: Annotated[
        bool, typer.Option("--full", help="Use more seeds, rows or steps than by default.")
    ] = False,
    dataset: Annotated[
        str | None, typer.Option(help="A data set by name, or a LIBSVM file, instead of the paper's.")
    ] = None,
    data_dir: DataDir = None,
    out: Annotated[Path, typer.Option(help="The folder to write the report and all numbers to.")] = Path(
        "runs/paper"
    ),
    jobs: Annotated[
        int | None, typer.Option(help="How many processes compute at once. The default is one per core.")
    ] = None,
) -> None:
    """Repeat the paper's experiments and decide its claims; the last line names the report."""
    if fast and full:
        raise typer.BadParameter("give --fast or --full, not both")
    from mast.experiments.reproduce import reproduce

    effort = "fast" if fast else "full" if full else "normal"
    report = reproduce(experiment, out, effort, dataset, data_dir, jobs)
    print(f"report: {report}")


@app.command()
def advise(
    file: Annotated[str, typer.Argument(help="A LIBSVM file, or the name of a data set.")],
    sketch: Annotated[
        str, typer.Option(help="The sketch, such as bernoulli:0.7, randk:10% or permk:4.")
    ] = "permk:4",
    kappa: Annotated[
        float | None, typer.Option(help="The condition number. The default is 100, unless --alpha is given.")
    ] = None,
    alpha: Annotated[float | None, typer.Option(help="The l2 penalty, instead of --kappa.")] = None,
    delta: Annotated[
        float, typer.Option(help="The accuracy to plan for, as a share of that of the start.")
    ] = 0.01,
    data_dir: DataDir = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """Say which step sizes a sketch allows on a data set, and what it costs, before training."""
    from mast import advice, data, objectives, sketches

    parsed = sketches.parse(sketch)
    A, b = data.load(file, data_dir=data_dir)
    f = objectives.Logistic(A, b, l2=alpha, kappa=100.0 if kappa is None and alpha is None else kappa)
    result = advice.advise(f, parsed, delta=delta)
    if as_json:
        print_json(result.as_dict())
    else:
        show_advice(result)


def show_advice(advice: ProblemAdvice) -> None:
    """The constants, one line per method and regime, and the sentence, for a terminal of 80 columns."""
    import math
    import textwrap

    from rich.console import Console
    from rich.table import Column, Table

    console, c = Console(highlight=False, soft_wrap=True), advice.constants
    distance = "unknown" if math.isnan(advice.r0sq) else f"{advice.r0sq:.4g}"
    console.print(f"[bold]{advice.sketch}[/]")
    console.print(f"L_f = {advice.L_f:.4g}, mu_f = {advice.mu_f:.4g}, |x0 - x_D*|² = {distance}")
    console.print(f"L_D = {c.L_D:.4g}, mu_D = {c.mu_D:.4g}, L_max = {c.L_max:.4g}")
    names = [Column(name, no_wrap=True) for name in ("method", "regime")]
    numeric = ("largest", "floor", "gap", "planned", f"steps to {advice.delta:g}")
    names += [Column(name, justify="right", no_wrap=True) for name in numeric]
    table = Table(*names, box=None, header_style="bold", pad_edge=False)
    for line in advice.lines:
        numbers = (line.step_size, line.floor, line.gap, line.planned_step_size)
        shown = ["" if value is None else f"{value:.3g}" for value in numbers]
        count = line.iterations
        steps = "" if count is None else f"{count:,}" if count < 1e12 else "> 10^12"
        table.add_row(line.method, REGIMES[line.regime], *shown, steps)
    console.print(table, soft_wrap=False)
    console.print(NOTE)
    sentence = advice.sentence[0].upper() + advice.sentence[1:] + "."
    console.print(textwrap.fill(sentence, 79), style="bold")
