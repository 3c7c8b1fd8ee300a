"""`mast train`, `mast predict` and `mast evaluate`: linear models from files, and what is said of them."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from mast.cli import DataDir, app, print_json, working


@app.command()
def train(
    file: Annotated[str, typer.Argument(help="A CSV file, a LIBSVM file, or the name of a data set.")],
    target: Annotated[
        str | None, typer.Option(help="The name of the column to predict, for a CSV file.")
    ] = None,
    sketch: Annotated[
        str,
        typer.Option(
            help="The sketch to train with: auto, bernoulli:0.7, randk:10%, permk:4.",
        ),
    ] = "auto",
    out: Annotated[Path, typer.Option(help="The folder to write the model to.")] = Path("model"),
    task: Annotated[
        str, typer.Option(help="What to predict: classify, regress, or auto, which looks at the target.")
    ] = "auto",
    alpha: Annotated[
        float | None,
        typer.Option(help="The l2 penalty. The default is that of LogisticRegression with C = 1."),
    ] = None,
    kappa: Annotated[
        float | None,
        typer.Option(help="The condition number, instead of --alpha. A larger one penalises less."),
    ] = None,
    missing: Annotated[
        str,
        typer.Option(
            help="What stands for missing values: conditional, scale, or auto, which looks at the table."
        ),
    ] = "auto",
    drop: Annotated[
        list[str] | None, typer.Option(help="A column to leave out. The option may be repeated.")
    ] = None,
    ids: Annotated[
        list[str] | None,
        typer.Option(
            help="A column of identifiers, instead of those that are found; none keeps all columns. "
            "The option may be repeated."
        ),
    ] = None,
    holdout: Annotated[
        float, typer.Option(help="The share of the rows that is held out for the scores; 0 is none.")
    ] = 0.2,
    intercept: Annotated[bool, typer.Option(help="Whether the model has an intercept.")] = True,
    seed: Annotated[int, typer.Option(help="The seed that decides everything random.")] = 0,
    data_dir: DataDir = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a summary.")] = False,
) -> None:
    """Train a linear model that keeps working when features are missing or weights are pruned.

    Numbers of a CSV file are standardised, dates become numbers and other texts categories; identifiers are
    left out. Values may be missing here and later; rows without a target are left out. A share of the rows
    is held out for the scores, and the model that is written is then trained on all of them.

    For example:

    \b
      mast train a1a --out model
      mast train a1a --sketch bernoulli:0.5 --alpha 0.001 --out model
      mast evaluate model a1a
      mast predict model a1a
    """  # noqa: D301
    from mast.learn.commands import train

    with working(f"training on {file}"):
        result = train(
            file,
            out,
            target=target,
            sketch=sketch,
            task=task,
            kappa=kappa,
            alpha=alpha,
            missing=missing,
            drop=drop,
            ids=ids,
            holdout=holdout,
            seed=seed,
            intercept=intercept,
            data_dir=data_dir,
        )
    if as_json:
        print_json(result)
    else:
        show_training(result)


@app.command()
def predict(
    model: Annotated[Path, typer.Argument(help="The folder that `mast train` wrote.")],
    file: Annotated[str, typer.Argument(help="A file of the kind that the model was trained on.")],
    proba: Annotated[bool, typer.Option("--proba", help="Print the probability of each class, too.")] = False,
    keep: Annotated[
        list[str] | None,
        typer.Option(help="A column of the file to pass on to the output. The option may be repeated."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="A CSV file to write the predictions to, instead of printing them.")
    ] = None,
    data_dir: DataDir = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of lines.")] = False,
) -> None:
    """Predict, one line for each row of a file: the prediction, and the share of its columns that is missing.

    A column that the file does not have counts as missing in every row.

    For example:

    \b
      mast train a1a --out model
      mast predict model a1a --proba
    """  # noqa: D301
    from mast.learn.commands import predict
    from mast.support import files

    with working(f"predicting {file}"):
        table, remarks = predict(model, file, proba=proba, keep=keep or [], data_dir=data_dir)
    for remark in remarks:
        print(f"mast: {file}: {remark}", file=sys.stderr)
    if as_json:
        print_json(table.to_dict("records"))
        return
    text = table.to_csv(index=False, lineterminator="\n")
    if out is None:
        print(text, end="")
    else:
        files.write(out, text.encode())
        print(f"predictions: {out}")


@app.command()
def evaluate(
    model: Annotated[Path, typer.Argument(help="The folder that `mast train` wrote.")],
    file: Annotated[str, typer.Argument(help="A file with the target's column, or a LIBSVM file.")],
    draws: Annotated[int, typer.Option(help="How many sparsified models are scored per density.")] = 100,
    plot: Annotated[
        Path | None,
        typer.Option(help="The picture to write. The default is evaluation.png in the model's folder."),
    ] = None,
    no_plot: Annotated[bool, typer.Option("--no-plot", help="Do not write a picture.")] = False,
    data_dir: DataDir = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """Score a model on a file, whole and with features missing, beside a usual one; write a picture of it.

    The usual one is LogisticRegression or Ridge after one-hot encoding, with means for missing numbers.

    For example:

    \b
      mast train a1a --out model
      mast evaluate model a1a --draws 20
    """  # noqa: D301
    from mast.learn.commands import evaluate

    picture = plot or (model if model.is_dir() else model.parent) / "evaluation.png"
    with working(f"evaluating on {file}"):
        result = evaluate(
            model,
            file,
            draws=draws,
            plot=None if no_plot else picture,
            insist=plot is not None,
            data_dir=data_dir,
        )
    if as_json:
        print_json(result)
        return
    for remark in result["remarks"]:
        print(f"mast: {file}: {remark}", file=sys.stderr)
    missing = f", {100 * result['missing']:.3g} % of the cells missing" if result["missing"] else ""
    print(f"{result['rows']:,} rows{missing}; {result['sketch']}")
    show_scores(result, f"of {draws} sparsified models")
    if "plot" in result:
        print(f"plot: {result['plot']}")


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
    if result["rows_without_target"]:
        console.print(
            f"  left out    {result['rows_without_target']:,} rows without {result['target']}", markup=False
        )
    rule, share = result["missing"]["rule"], result["missing"]["share"]
    console.print(f"  missing     {100 * share:.3g} % of the cells; rule: {rule}")
    if result["held_out"] is not None:
        show_scores(result["held_out"], f"on {result['held_out']['rows']:,} rows that were held out")
    console.print(f"model: {result['model']}", markup=False)


def show_scores(scores: dict[str, Any], where: str) -> None:
    """A table of scores: rows are what is kept, columns the two models."""
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, header_style="bold", title=f"{scores['score']} {where}", title_justify="left")
    table.add_column("kept")
    for name in ("MAST: mean", "worst", "usual: mean", "worst"):
        table.add_column(name, justify="right")
    if "1" not in scores["densities"]:
        table.add_row("everything", *_cells({k: {"mean": v, "worst": v} for k, v in scores["whole"].items()}))
    for density, both in scores["densities"].items():
        label = "everything" if density == "1" else f"{100 * float(density):.3g} % of the features"
        table.add_row(label, *_cells(both))
    table.add_row("as the sketch keeps", *_cells(scores["sketched"]))
    Console(highlight=False).print(table)


def _cells(both: dict[str, dict[str, float]]) -> list[str]:
    return [f"{both[name][part]:.4f}" for name in ("mast", "usual") for part in ("mean", "worst")]
