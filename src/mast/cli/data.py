"""`mast data`: the sets known by name, and where they are."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from mast.cli import DataDir, app, help_if_alone, print_json

data_app = typer.Typer(help="Data sets: what is known by name, and where it is.")
app.add_typer(data_app, name="data", invoke_without_command=True)


@data_app.callback()
def data_command(context: typer.Context) -> None:
    """Show the help where no command follows."""
    help_if_alone(context)


@data_app.command("list")
def data_list(
    data_dir: DataDir = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON list instead of a table.")] = False,
) -> None:
    """List the data sets known by name, and where each is now."""
    from mast import data

    where = data.available(data_dir)
    if as_json:
        keys = ("name", "rows", "features", "address", "sha256")
        sets = [{key: getattr(known, key) for key in keys} for known in data.SETS.values()]
        print_json([known | {"where": where[known["name"]]} for known in sets])
        return
    from rich.console import Console
    from rich.table import Column, Table

    counts = (Column(name, justify="right") for name in ("rows", "features"))
    table = Table("name", *counts, "where", box=None, header_style="bold")
    for known in data.SETS.values():
        place = where[known.name]
        style = "dim" if place == "absent" else None
        table.add_row(known.name, f"{known.rows:,}", f"{known.features:,}", place, style=style)
    Console().print(table)


@data_app.command("fetch")
def data_fetch(
    name: Annotated[str, typer.Argument(help="A name that `mast data list` shows.")],
    data_dir: Annotated[
        Path | None, typer.Option("--data-dir", help="The folder to put the file into, instead of the cache.")
    ] = None,
) -> None:
    """Bring a data set to this machine, verify it, and print the path of its file."""
    from mast import data

    print(data.fetch(name, data_dir))
