"""The `mast` command.

A command is a function in one of the files here; what it needs is imported inside it, so that
``mast --help`` answers at once. Results go to standard output, remarks and errors to standard error. Bad
input of any kind ends with exit code 2 and one line that says what was wrong.
"""

from __future__ import annotations

import logging
import sys
import warnings
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any, get_args, get_type_hints

import mast
from mast.errors import MastError

with warnings.catch_warnings():  # Typer 0.20 imports two names that Click 8.5 calls deprecated
    warnings.simplefilter("ignore", DeprecationWarning)
    import typer
    from typer.core import TyperArgument, TyperGroup
    from typer.models import ArgumentInfo

# Newer versions of Typer have a Click of their own; its errors are the bases of one that all versions name.
USAGE_ERROR: Any = typer.BadParameter.__base__
ANY_ERROR: Any = USAGE_ERROR.__base__


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
        if standalone_mode and "" in (sys.argv[1:] if args is None else args):
            _fail("an argument is empty: give a name or a path, or leave the option out")
        run = partial(super().main, args, prog_name, complete_var, False, windows_expand_args, **extra)
        if not standalone_mode:
            return run()
        try:
            # An exit asked for with typer.Exit comes back as its code; commands return nothing.
            code = run()
        except MastError as error:
            _fail(str(error))
        except USAGE_ERROR as error:
            path = error.ctx.command_path if error.ctx else "mast"
            # Typer and newer versions of Click both suggest what was meant: once is enough.
            message = error.message if "Did you mean" in error.message else error.format_message()
            _fail(f"{message.rstrip('.')}; `{path} --help` explains")
        except ANY_ERROR as error:
            _fail(error.format_message())
        except typer.Abort:
            sys.exit(130)
        sys.exit(code if isinstance(code, int) else 0)


def explain_arguments(command: Any) -> None:
    """Give arguments their help: Click 8.5 has a place for it, and clears what Typer 0.20 wrote there."""
    for inner in getattr(command, "commands", {}).values():  # of a group
        explain_arguments(inner)
    hints = get_type_hints(command.callback, include_extras=True) if command.callback else {}
    for parameter in command.params:
        if isinstance(parameter, TyperArgument) and parameter.help is None:
            notes = get_args(hints.get(parameter.name))
            parameter.help = next((note.help for note in notes if isinstance(note, ArgumentInfo)), None)


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

DataDir = Annotated[Path | None, typer.Option("--data-dir", help="The folder to search for data sets first.")]


def main() -> None:
    """Run the `mast` command."""
    app(prog_name="mast")


@app.callback()
def mast_command(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Show the version and stop.")] = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Print what is being done.")] = False,
) -> None:
    """Options that come before the command's name."""
    if version:
        print(mast.__version__)
        raise typer.Exit
    if verbose:
        logging.basicConfig(stream=sys.stderr, format="%(message)s")
        logging.getLogger("mast").setLevel(logging.INFO)
    help_if_alone(context)


def help_if_alone(context: typer.Context) -> None:
    """Show the help where no command follows."""
    if context.invoked_subcommand is None:
        print(context.get_help())
        raise typer.Exit


def working(what: str) -> Any:
    """A sign of life on a terminal, while something takes its time."""
    from rich.console import Console

    return Console(stderr=True).status(what)


def print_json(value: Any) -> None:
    """Print a value as JSON; null stands for NaN and infinity, which JSON does not have."""
    import json

    finite = json.loads(json.dumps(value), parse_constant=lambda _: None)
    print(json.dumps(finite, indent=1))


from mast.cli import data, learn, paper  # noqa: E402, F401 - they add their commands to `app`
