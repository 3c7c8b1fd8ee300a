"""The `mast` command.

A command is a function here; what it needs is imported inside it, so that ``mast --help``
answers at once. Results go to standard output, remarks and errors to standard error. Bad input
of any kind ends with exit code 2 and one line that says what was wrong.
"""

from __future__ import annotations

import logging
import sys
import warnings
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any, get_args, get_type_hints

import click

import mast
from mast.errors import ArgumentError, MastError

with warnings.catch_warnings():  # Typer 0.20 imports two names that Click 8.5 calls deprecated
    warnings.simplefilter("ignore", DeprecationWarning)
    import typer
    from typer.core import TyperArgument, TyperGroup
    from typer.models import ArgumentInfo


class OneLineErrors(TyperGroup):
    """Turns errors of ours, and wrong usage, into one line on standard error and exit code 2."""

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        windows_expand_args: bool = True,
        **extra: Any,
    ) -> Any:
        """Run the command; with `standalone_mode` (the default) this ends the process."""
        explain_arguments(self)
        run = partial(super().main, args, prog_name, complete_var, False, windows_expand_args, **extra)
        if not standalone_mode:
            return run()
        try:
            # An exit asked for with typer.Exit comes back as its code; commands return nothing.
            code = run()
        except MastError as error:
            _fail(str(error))
        except click.UsageError as error:
            path = error.ctx.command_path if error.ctx else "mast"
            # Typer and newer versions of Click both suggest what was meant: once is enough.
            said = error.message if "Did you mean" in error.message else error.format_message()
            _fail(f"{said.rstrip('.')}; `{path} --help` explains")
        except click.ClickException as error:
            _fail(error.format_message())
        except click.Abort:
            sys.exit(130)
        sys.exit(code if isinstance(code, int) else 0)


def explain_arguments(command: click.Command) -> None:
    """Give arguments their help: Click 8.5 has a place for it, and clears what Typer 0.20 wrote there."""
    for inner in command.commands.values() if isinstance(command, click.Group) else []:
        explain_arguments(inner)
    hints = get_type_hints(command.callback, include_extras=True) if command.callback else {}
    for parameter in command.params:
        if isinstance(parameter, TyperArgument) and parameter.help is None:
            said = [
                note.help for note in get_args(hints.get(parameter.name)) if isinstance(note, ArgumentInfo)
            ]
            parameter.help = next(iter(said), None)


def _fail(message: str) -> None:
    print("mast:", " ".join(message.split()), file=sys.stderr)
    sys.exit(2)


app = typer.Typer(
    cls=OneLineErrors,
    help="Train once, run sparse: models whose sparsified versions work.",
    context_settings={"help_option_names": ["-h", "--help"]},
    invoke_without_command=True,
    pretty_exceptions_enable=False,
)

# Groups of commands, each a `typer.Typer` of its own.
data_app = typer.Typer(help="Data sets: what is known by name, and where it is.")
app.add_typer(data_app, name="data", invoke_without_command=True)


def main() -> None:
    """Run the `mast` command."""
    app(prog_name="mast")


@app.callback()
def mast_command(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Show the version and stop.")] = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Say what is done meanwhile.")] = False,
) -> None:
    """Options that come before the command's name."""
    if version:
        print(mast.__version__)
        raise typer.Exit
    if verbose:
        logging.basicConfig(stream=sys.stderr, format="%(message)s")
        logging.getLogger("mast").setLevel(logging.INFO)
    _help_if_alone(context)


@data_app.callback()
def data_command(context: typer.Context) -> None:
    """Show the help where no command follows."""
    _help_if_alone(context)


def _help_if_alone(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        print(context.get_help())
        raise typer.Exit


DataDir = Annotated[Path | None, typer.Option("--data-dir", help="The folder to search first.")]


@data_app.command("list")
def data_list(
    data_dir: DataDir = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON list instead of a table.")] = False,
) -> None:
    """List the data sets known by name, and where each is now."""
    from mast import data

    where = data.available(data_dir)
    if as_json:
        import json

        print(
            json.dumps(
                [
                    {
                        "name": known.name,
                        "rows": known.rows,
                        "features": known.features,
                        "where": where[known.name],
                        "address": known.address,
                        "sha256": known.sha256,
                    }
                    for known in data.SETS.values()
                ],
                indent=1,
            )
        )
        return
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, header_style="bold")
    table.add_column("name")
    table.add_column("rows", justify="right")
    table.add_column("features", justify="right")
    table.add_column("where")
    for known in data.SETS.values():
        place = where[known.name]
        table.add_row(
            known.name,
            f"{known.rows:,}",
            f"{known.features:,}",
            place,
            style="dim" if place == "absent" else None,
        )
    Console().print(table)


@data_app.command("fetch")
def data_fetch(
    name: Annotated[str, typer.Argument(help="A name that `mast data list` shows.")],
    data_dir: Annotated[
        Path | None, typer.Option("--data-dir", help="The folder to put it into, instead of the cache.")
    ] = None,
) -> None:
    """Bring a data set to this machine, verify it, and print the path of its file."""
    from mast import data

    print(data.fetch(name, data_dir))


@app.command()
def reproduce(
    experiment: Annotated[
        str,
        typer.Argument(
            help="accuracy, trajectory, rand1, shift; convex is all of them and more. neural, "
            "dropout, density: networks. all: everything."
        ),
    ] = "convex",
    fast: Annotated[
        bool, typer.Option("--fast", help="Small data, few seeds, short runs: a minute or two.")
    ] = False,
    full: Annotated[bool, typer.Option("--full", help="More seeds, rows or steps than by default.")] = False,
    dataset: Annotated[
        str | None, typer.Option(help="A data set by name, or a LIBSVM file, instead of the paper's.")
    ] = None,
    data_dir: DataDir = None,
    out: Annotated[Path, typer.Option(help="The folder for the report and all numbers.")] = Path(
        "runs/paper"
    ),
    jobs: Annotated[int | None, typer.Option(help="Processes at once; by default one a core.")] = None,
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
    sketch: Annotated[str, typer.Option(help="Such as bernoulli:0.7, randk:10%, permk:4.")] = "permk:4",
    kappa: Annotated[
        float | None, typer.Option(help="The condition number; 100 if no --l2 is given.")
    ] = None,
    l2: Annotated[float | None, typer.Option(help="The l2 regularisation, instead of --kappa.")] = None,
    delta: Annotated[float, typer.Option(help="The accuracy to plan for, as a share of the start's.")] = 0.01,
    data_dir: DataDir = None,
    as_json: Annotated[bool, typer.Option("--json", help="JSON instead of a table.")] = False,
) -> None:
    """Say which step sizes a sketch allows on a data set, and what it costs, before training."""
    from mast import advice, data, objectives, sketches

    parsed = sketches.parse(sketch)
    A, b = data.load(file, data_dir=data_dir)
    f = objectives.Logistic(A, b, l2=l2, kappa=100.0 if kappa is None and l2 is None else kappa)
    result = advice.advise(f, parsed, delta=delta)
    if as_json:
        import json

        print(json.dumps(result.as_dict(), indent=1))
    else:
        from mast.advice_table import show

        show(result)


@app.command()
def train(
    file: Annotated[str, typer.Argument(help="A CSV file, a LIBSVM file, or the name of a data set.")],
    target: Annotated[str | None, typer.Option(help="The column to predict, in a CSV file.")] = None,
    sketch: Annotated[
        str,
        typer.Option(
            help="permk:4, bernoulli:0.7, randk:10%, or groups:FILE with a group of columns a line."
        ),
    ] = "permk:4",
    out: Annotated[Path, typer.Option(help="The folder for the model.")] = Path("model"),
    task: Annotated[str, typer.Option(help="classify or regress; auto looks at the target.")] = "auto",
    kappa: Annotated[float, typer.Option(help="The condition number; larger penalises less.")] = 100.0,
    alpha: Annotated[float | None, typer.Option(help="The l2 penalty, instead of --kappa.")] = None,
    drop: Annotated[list[str] | None, typer.Option(help="A column to leave out; may be repeated.")] = None,
    intercept: Annotated[bool, typer.Option(help="Whether there is an intercept.")] = True,
    seed: Annotated[int, typer.Option(help="Decides everything random.")] = 0,
    data_dir: DataDir = None,
    as_json: Annotated[bool, typer.Option("--json", help="JSON instead of a summary.")] = False,
) -> None:
    """Train a linear model that keeps working when weights are pruned or features are missing.

    Numbers of a CSV file are standardised and its texts become categories; the features of one category
    live or die together. Missing values are allowed, but not in the target.

    For example:

    \b
      mast train a1a --out model
      mast train a1a --sketch bernoulli:0.5 --kappa 1000 --out model
      mast evaluate model a1a
      mast predict model a1a
    """  # noqa: D301
    from mast.learn.commands import train

    with _working(f"training on {file}"):
        result = train(
            file,
            out,
            target=target,
            sketch=sketch,
            task=task,
            kappa=kappa,
            alpha=alpha,
            drop=drop,
            seed=seed,
            intercept=intercept,
            data_dir=data_dir,
        )
    if as_json:
        _print_json(result)
    else:
        from mast.learn.summaries import show_training

        show_training(result)


@app.command()
def predict(
    model: Annotated[Path, typer.Argument(help="The folder that `mast train` wrote.")],
    file: Annotated[str, typer.Argument(help="A file of the kind the model was trained on.")],
    proba: Annotated[bool, typer.Option("--proba", help="Also the probability of each class.")] = False,
    out: Annotated[Path | None, typer.Option(help="A CSV file to write to, instead of printing.")] = None,
    data_dir: DataDir = None,
    as_json: Annotated[bool, typer.Option("--json", help="JSON instead of lines.")] = False,
) -> None:
    """Predict, a line for each row of a file.

    For example:

    \b
      mast train a1a --out model
      mast predict model a1a --proba
    """  # noqa: D301
    from mast.learn.commands import predict

    with _working(f"predicting {file}"):
        names, rows = predict(model, file, proba=proba, data_dir=data_dir)
    if as_json:
        _print_json([dict(zip(names, row, strict=True)) for row in rows])
        return
    import csv
    import io

    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    if proba or out is not None:
        writer.writerow(names)
    writer.writerows(rows)
    if out is None:
        print(text.getvalue(), end="")
    else:
        from mast import files

        files.write(out, text.getvalue().encode())
        print(f"predictions: {out}")


@app.command()
def evaluate(
    model: Annotated[Path, typer.Argument(help="The folder that `mast train` wrote.")],
    file: Annotated[str, typer.Argument(help="A file with the target's column, or a LIBSVM file.")],
    draws: Annotated[int, typer.Option(help="Sparsified models a density.")] = 100,
    plot: Annotated[
        Path | None,
        typer.Option(help="The picture to write; by default evaluation.png in the model's folder."),
    ] = None,
    no_plot: Annotated[bool, typer.Option("--no-plot", help="Write no picture.")] = False,
    data_dir: DataDir = None,
    as_json: Annotated[bool, typer.Option("--json", help="JSON instead of a table.")] = False,
) -> None:
    """Score a model and its sparsified versions on a file, beside a plain model; write a picture of it.

    For example:

    \b
      mast train a1a --out model
      mast evaluate model a1a --draws 20
    """  # noqa: D301
    from mast.learn.commands import evaluate

    picture = plot or (model if model.is_dir() else model.parent) / "evaluation.png"
    with _working(f"evaluating on {file}"):
        result = evaluate(
            model,
            file,
            draws=draws,
            plot=None if no_plot else picture,
            insist=plot is not None,
            data_dir=data_dir,
        )
    if as_json:
        _print_json(result)
        return
    from mast.learn.summaries import show_scores

    for remark in result["remarks"]:
        print("mast:", remark, file=sys.stderr)
    print(f"{result['rows']:,} rows; {result['sketch']}")
    show_scores(result, f"of {draws} sparsified models")
    if "plot" in result:
        print(f"plot: {result['plot']}")


def _working(what: str) -> Any:
    """A sign of life on a terminal, while something takes its time."""
    from rich.console import Console

    return Console(stderr=True).status(what)


def _print_json(value: Any) -> None:
    import json

    print(json.dumps(value, indent=1))


@app.command()
def bench(
    only: Annotated[str, typer.Argument(help="Run only the benchmark files with this in their name.")] = "",
    folder: Annotated[Path, typer.Option(help="The folder with the benchmark files.")] = Path("benchmarks"),
    as_json: Annotated[bool, typer.Option("--json", help="JSON instead of a table.")] = False,
    markdown: Annotated[
        Path | None, typer.Option(help="A file to write the table to as well, such as docs/benchmarks.md.")
    ] = None,
) -> None:
    """Measure speed beside peers, in one run, as ratios; from a checkout of the source."""
    if not (folder / "_bench.py").is_file():
        raise ArgumentError(
            f"no benchmarks in the folder {str(folder)!r}: they are part of the source repository, not of "
            "the installed package; run this from a checkout, or pass --folder"
        )
    import importlib

    sys.path.insert(0, str(folder.resolve()))
    importlib.import_module("_bench").run(folder, only, as_json, markdown)


if __name__ == "__main__":
    main()
