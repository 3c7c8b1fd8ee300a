"""The reference has every public name, the commands' page every command, the diagram every room."""

import importlib
import re
import sys
from pathlib import Path

import pytest
import typer
from typer.core import TyperArgument, TyperGroup

import mast
from documentation.blocks import ROOT, tool
from test_architecture import ALLOWED

DOCS = ROOT / "docs"
TEXT = "\n".join(page.read_text(encoding="utf-8") for page in (DOCS / "reference").glob("*.md"))
NAMED = re.findall(r"^::: ([\w.]+)$", TEXT, re.MULTILINE)
# Rooms with names for users; those of `mast` itself come first.
ROOMS = ["mast"] + [
    f"mast.{name}"
    for name in (
        *("sketches", "objectives", "problem", "methods", "run", "sweeps", "theory", "data", "learn"),
        *("errors", "randomness", "nn", "cluster", "federated", "distributed", "nn.nodes"),
    )
]
WHOLE = {"mast.errors", "mast.randomness"}  # shown by one line for the module


def resolved(path: str):
    """The object that a dotted path names."""
    parts = path.split(".")
    for length in range(len(parts), 0, -1):
        try:
            found = importlib.import_module(".".join(parts[:length]))
        except ModuleNotFoundError:
            continue
        for part in parts[length:]:
            found = getattr(found, part)
        return found
    raise AssertionError(path)


def public_names(room: str) -> dict[str, object]:
    """What a room offers: its `__all__`, or the classes and functions that are defined in it."""
    module = importlib.import_module(room)
    names = getattr(module, "__all__", None) or [
        name
        for name, value in vars(module).items()
        if not name.startswith("_") and getattr(value, "__module__", "") == room
    ]
    found = {name: getattr(module, name) for name in names if not name.startswith("__")}
    return {name: value for name, value in found.items() if type(value) is not type(sys)}


@pytest.mark.parametrize("room", ROOMS)
def test_every_public_name_is_in_the_reference(room):
    if room in WHOLE:
        assert room in NAMED
        return
    shown = [resolved(path) for path in NAMED]
    not_for_users = {"mast.run": {"start_of"}, "mast.sweeps": {"Run"}}.get(room, set())
    for name, value in public_names(room).items():
        there = f"{room}.{name}" in NAMED or any(value is other for other in shown)
        there |= getattr(value, "__module__", "") in WHOLE
        assert there or name in not_for_users, f"{room}.{name} is on no page of docs/reference"


def test_every_path_in_the_reference_is_there():
    assert len(NAMED) == len(set(NAMED)) > 100
    for path in NAMED:
        assert resolved(path) is not None


def commands_of(command, spelled: str):
    """Each command that does something, as it is spelled."""
    if isinstance(command, TyperGroup):
        for name, inner in command.commands.items():
            yield from commands_of(inner, f"{spelled} {name}")
    else:
        yield spelled, command


def test_every_command_and_option_is_on_the_commands_page():
    """Each with the words of its help, in the section of its command, and nothing that is not there."""
    from mast.cli import app, explain_arguments

    page = (DOCS / "reference" / "commands.md").read_text(encoding="utf-8")
    whole = typer.main.get_command(app)
    explain_arguments(whole)
    sections = {text.partition("\n")[0]: text for text in page.split("\n## ")[1:]}
    commands = dict(commands_of(whole, "mast"))
    assert list(sections) == list(commands)
    for spelled, command in commands.items():
        assert f"`{spelled}`" in page, f"{spelled} is not in the table of reference/commands.md"
        listed = dict(re.findall(r"^\| (`[^|]+`) \| (.+) \|$", sections[spelled], re.MULTILINE))
        helps = {}
        for parameter in command.params:
            names = [*parameter.opts, *parameter.secondary_opts]
            if isinstance(parameter, TyperArgument):
                names = [parameter.name.upper()]
            helps[", ".join(f"`{name}`" for name in names)] = parameter.help
        assert list(listed) == list(helps), spelled
        for name, text in helps.items():
            assert text, f"{spelled}: {name} has no help"
            assert listed[name].startswith(text), f"{spelled}: {name}"


def test_the_diagram_shows_the_rooms_that_there_are():
    """All rooms, none twice, and each uses only rooms of its own band and below."""
    bands = [list(rooms) for rooms in tool("rooms").BANDS.values()]
    assert sorted(name for band in bands for name in band) == sorted(ALLOWED)
    height = {name: -number for number, band in enumerate(bands) for name in band}
    for room, uses in ALLOWED.items():
        for other in uses:
            assert height[other] <= height[room], f"{room} uses {other}, which stands above it in the diagram"


def test_the_diagram_is_up_to_date():
    """`python docs/tools/pictures.py architecture` draws it anew."""
    shown = (DOCS / "images" / "architecture.svg").read_text(encoding="utf-8")
    assert shown == tool("rooms").diagram()
    assert set(re.findall(r'data-room="(\w+)"', shown)) == set(ALLOWED)


def test_every_package_of_mast_has_a_page_or_a_reason():
    """A new folder of the source is either on a page of the reference or internal on purpose."""
    internal = {"cli", "experiments", "engines", "support"}  # on pages of other names, or for us only
    folders = {path.name for path in Path(mast.__file__).parent.iterdir() if (path / "__init__.py").exists()}
    assert folders - internal == {name.split(".")[1] for name in ROOMS[1:]} & folders
