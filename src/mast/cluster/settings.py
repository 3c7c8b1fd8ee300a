"""The settings of a run: what `train.toml` may say, checked before anything starts.

=============  ==================================================================================
``[run]``      rounds, seed, out, timeout, checkpoint_seconds, progress, draws, threads
``[server]``   step_size, optimizer, local_step_size, regime, wire
``[nodes]``    count, capacity or capacities, coupling, participation, participants, local_steps,
               on_server
``[model]``    kind, and for linear models l2, kappa, weight, shift; for networks factory, loss,
               score, keep, shift
``[data]``     file or files, split, labels, n_features, test; for networks factory, test, batch_size
=============  ==================================================================================

Paths are relative to the file that names them.
"""

from __future__ import annotations

import tomllib
import types
import typing
from collections.abc import Mapping
from dataclasses import MISSING, asdict, dataclass, fields
from pathlib import Path
from typing import Any, Literal

from mast.errors import ArgumentError, DataError


@dataclass(frozen=True)
class Run:
    """The run as a whole."""

    rounds: int
    seed: int = 0
    out: str = "out"  # a folder: checkpoint, trace, model, scores
    timeout: float = 120.0  # seconds after which a silent rank counts as lost
    checkpoint_seconds: float = 5.0  # at least this long between checkpoints; 0: one after every round
    progress: bool = True
    draws: int = 10  # submodels that are scored for each node
    threads: int = 1  # of each rank


@dataclass(frozen=True)
class ServerSettings:
    """What the server does with the answers."""

    step_size: float | str = "theory"
    optimizer: str = "sgd"
    local_step_size: float | None = None
    regime: str | None = None  # for step_size = "theory": "strongly_convex", "convex", "nonconvex"
    wire: str | None = None  # "float32" or "float64"; the model's own if absent


@dataclass(frozen=True)
class NodesSettings:
    """The nodes and what each can hold."""

    count: int | None = None  # as many as there are ranks, or capacities
    capacity: str | None = None  # of all nodes
    capacities: list[str] | None = None  # one a node
    coupling: Literal["independent", "disjoint"] = "independent"
    participation: float | list[float] = 1.0
    participants: int | None = None
    local_steps: int = 1
    on_server: bool = True  # whether the server's rank has nodes too


@dataclass(frozen=True)
class ModelSettings:
    """The objective."""

    kind: Literal["logistic", "least_squares", "nonconvex_logistic", "network"]
    l2: float | None = None
    kappa: float | None = None
    weight: float | None = None
    shift: str | None = None  # a .npy file with v; for networks also "start": the model as it was made
    factory: str | None = None  # "file.py:function" or "module:function", which makes the network
    loss: str = "cross_entropy"
    score: str | None = None  # "file.py:function" of a submodel; accuracy, or minus the loss, if absent
    keep: dict[str, float] | None = None  # keep probabilities by patterns of parameter names


@dataclass(frozen=True)
class DataSettings:
    """The rows."""

    file: str | None = None  # shared by all nodes, by rows; each rank reads it and keeps its rows
    files: list[str] | None = None  # one a node
    split: Literal["contiguous", "interleaved"] = "contiguous"
    labels: str | list[float] | None = None
    n_features: int | None = None
    test: str | None = None
    factory: str | None = None  # "file.py:function": function(node, nodes) gives a node's inputs and targets
    batch_size: int | None = None


@dataclass(frozen=True)
class Settings:
    """All of it, and the folder that paths are relative to."""

    run: Run
    server: ServerSettings
    nodes: NodesSettings
    model: ModelSettings
    data: DataSettings
    folder: Path

    @property
    def out(self) -> Path:
        """The folder of the results."""
        return self.folder / self.run.out

    @property
    def network(self) -> bool:
        """Whether the model is a network."""
        return self.model.kind == "network"

    def path(self, name: str) -> Path:
        """A path that the settings name."""
        return self.folder / Path(name).expanduser()

    def text(self) -> dict[str, Any]:
        """The settings as plain JSON."""
        return {name: asdict(getattr(self, name)) for name in _SECTIONS}


_SECTIONS: dict[str, type[Any]] = {
    "run": Run,
    "server": ServerSettings,
    "nodes": NodesSettings,
    "model": ModelSettings,
    "data": DataSettings,
}


def read(path: str | Path) -> dict[str, Any]:
    """The content of a TOML file; a file that is absent or not TOML is an error that says where."""
    path = Path(path)
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or error}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise DataError(f"{path} is not TOML: {error}") from None


def settings_of(content: Mapping[str, Any], folder: Path, ranks: int) -> Settings:
    """The settings that a file's content means, if all of it is right; the first fault is an error."""
    for name in content:
        if name not in _SECTIONS:
            raise ArgumentError(f"unknown section [{name}]; there are {_listed(_SECTIONS)}")
    from mast.cluster import checking

    parts = {name: _section(name, kind, content.get(name, {})) for name, kind in _SECTIONS.items()}
    settings = Settings(**parts, folder=folder)
    checking.check_run(settings)
    settings = checking.with_capacities(settings, ranks)
    checking.check_server(settings)
    checking.check_model(settings)
    return settings


def _section(name: str, kind: type[Any], content: Any) -> Any:
    if not isinstance(content, Mapping):
        raise ArgumentError(f"[{name}] must be a section of keys and values, got {content!r}")
    known = {field.name: field for field in fields(kind)}
    hints = typing.get_type_hints(kind)
    values = {}
    for key, value in content.items():
        if key not in known:
            raise ArgumentError(f"unknown key {key!r} in [{name}]; it has {_listed(known)}")
        if not _fits(value, hints[key]):
            raise ArgumentError(f"{key} in [{name}] must be {_said(hints[key])}, got {value!r}")
        values[key] = value
    for key, field in known.items():
        if key not in values and field.default is MISSING:
            raise ArgumentError(f"{key} is missing in [{name}]: it must be {_said(hints[key])}")
    return kind(**values)


def _fits(value: Any, hint: Any) -> bool:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return any(_fits(value, argument) for argument in arguments)
    if origin is Literal:
        return value in arguments
    if origin is list:
        return isinstance(value, list) and all(_fits(item, arguments[0]) for item in value)
    if origin is dict:
        return isinstance(value, dict) and all(_fits(item, arguments[1]) for item in value.values())
    if hint is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    if hint is int:
        return isinstance(value, int) and not isinstance(value, bool)
    return isinstance(value, hint)


def _said(hint: Any) -> str:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return " or ".join(_said(argument) for argument in arguments if argument is not type(None))
    if origin is Literal:
        return "one of " + _listed(arguments)
    if origin is list:
        return f"a list, each {_said(arguments[0])}"
    if origin is dict:
        return f"a table, each {_said(arguments[1])}"
    return {int: "a whole number", float: "a number", str: "text", bool: "true or false"}[hint]


def _listed(names: Any) -> str:
    return ", ".join(map(str, names))
