"""The settings of a run: what `train.toml` may say, checked before anything starts.

The sections are the classes below, with their keys. Paths are relative to the file that names them.
"""

from __future__ import annotations

import os
import tomllib
import types
import typing
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal

from mast.checks import nonnegative, number, positive, whole
from mast.errors import ArgumentError, DataError, MastError
from mast.methods.distributed import Roster, parse_optimizer, parse_sketch
from mast.nn.structure.sketches import parse


@dataclass(frozen=True)
class RunSettings:
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
    aggregation: Literal["unbiased", "mean"] = "unbiased"  # over all nodes, or over those that held a weight
    regime: Literal["strongly_convex", "convex", "nonconvex"] | None = None  # for step_size = "theory"
    wire: Literal["float32", "float64"] | None = None  # what values travel as; the model's own if absent


@dataclass(frozen=True)
class NodesSettings:
    """The nodes and what each can hold."""

    count: int | None = None  # as many as there are ranks, or capacities
    capacity: str | None = None  # of all nodes
    capacities: list[str] | None = None  # one per node
    coupling: Literal["independent", "disjoint", "common"] = "independent"
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
    files: list[str] | None = None  # one per node
    split: Literal["contiguous", "interleaved"] = "contiguous"
    labels: Literal["binary", "raw"] | list[float] | None = None
    n_features: int | None = None
    test: str | None = None
    factory: str | None = None  # "file.py:function": function(node, nodes) gives a node's inputs and targets
    batch_size: int | None = None


@dataclass(frozen=True)
class Settings:
    """All of it, and the folder that paths are relative to."""

    run: RunSettings
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

    @property
    def capacities(self) -> list[str]:
        """What each node can hold, one text per node."""
        return self.nodes.capacities or []

    def path(self, name: str) -> Path:
        """A path that the settings name."""
        return self.folder / Path(name).expanduser()


_SECTIONS: dict[str, type[Any]] = {
    name: kind for name, kind in typing.get_type_hints(Settings).items() if name != "folder"
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
    parts = {name: _section(name, kind, content.get(name, {})) for name, kind in _SECTIONS.items()}
    settings = Settings(**parts, folder=folder)
    _check_run(settings)
    settings = _with_capacities(settings, ranks)
    _check_server(settings)
    _check_model(settings)
    return settings


# ---- types of keys -------------------------------------------------------------------------------------


def _section(name: str, kind: type[Any], content: Any) -> Any:
    if not isinstance(content, Mapping):
        raise ArgumentError(f"[{name}] must be a section of keys and values, got {content!r}")
    known = {field.name: field for field in fields(kind)}
    hints = typing.get_type_hints(kind)
    for key, value in content.items():
        if key not in known:
            raise ArgumentError(f"unknown key {key!r} in [{name}]; it has {_listed(known)}")
        if not _fits(value, hints[key]):
            raise ArgumentError(f"{key} in [{name}] must be {_in_words(hints[key])}, got {value!r}")
    for key, field in known.items():
        if key not in content and field.default is MISSING:
            raise ArgumentError(f"{key} is missing in [{name}]: it must be {_in_words(hints[key])}")
    return kind(**content)


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
    if hint in (int, float):
        return isinstance(value, int | hint) and not isinstance(value, bool)
    return isinstance(value, hint)


def _in_words(hint: Any) -> str:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return " or ".join(_in_words(argument) for argument in arguments if argument is not type(None))
    if origin is Literal:
        return "one of " + _listed(arguments)
    if origin is list:
        return f"a list, each {_in_words(arguments[0])}"
    if origin is dict:
        return f"a table, each {_in_words(arguments[1])}"
    return {int: "a whole number", float: "a number", str: "text", bool: "true or false"}[hint]


def _listed(names: Any) -> str:
    return ", ".join(map(str, names))


# ---- what types do not say: ranges, names of sketches, files that must be there ------------------------


def _check_run(settings: Settings) -> None:
    run, out = settings.run, settings.out
    whole("rounds in [run]", run.rounds, 0)
    whole("draws in [run]", run.draws, 0)
    whole("threads in [run]", run.threads, 1)
    whole("seed in [run]", run.seed, 0, (1 << 64) - 1)
    nonnegative("checkpoint_seconds in [run]", run.checkpoint_seconds)
    number("timeout in [run], in seconds,", run.timeout, above=0, most=24 * 3600)
    if not run.out or not out.parent.is_dir():
        raise ArgumentError(f"out in [run]: the folder {str(out.parent)!r} does not exist")
    if out.exists() and not out.is_dir():
        raise ArgumentError(f"out in [run]: {str(out)!r} is not a folder")
    if not os.access(out if out.exists() else out.parent, os.W_OK | os.X_OK):
        raise ArgumentError(f"out in [run]: {str(out)!r} cannot be written to")


def _with_capacities(settings: Settings, ranks: int) -> Settings:
    """The settings with one capacity per node."""
    nodes = settings.nodes
    if (nodes.capacity is None) == (nodes.capacities is None):
        raise ArgumentError("[nodes] needs capacity (one for all nodes) or capacities (one per node)")
    count = nodes.count
    if count is None:
        servers_only = 0 if nodes.on_server or ranks == 1 else 1
        count = ranks - servers_only if nodes.capacities is None else len(nodes.capacities)
    whole("count in [nodes]", count, 1)
    texts = [str(nodes.capacity)] * count if nodes.capacities is None else nodes.capacities
    if len(texts) != count:
        raise ArgumentError(f"[nodes] has {len(texts)} capacities for {count} nodes")
    for text in dict.fromkeys(texts):
        try:
            parse(text) if settings.network else parse_sketch(text)
        except MastError as error:
            key = "capacity" if nodes.capacities is None else f"capacities[{texts.index(text)}]"
            raise ArgumentError(f"{key} in [nodes]: {error}") from None
    whole("local_steps in [nodes]", nodes.local_steps, 1)
    nodes = replace(nodes, count=count, capacity=None, capacities=list(texts))
    try:
        roster_of(settings.run.seed, nodes, 1)
    except MastError as error:
        raise ArgumentError(f"[nodes]: {error}") from None
    return replace(settings, nodes=nodes)


def roster_of(seed: int, nodes: NodesSettings, stride: int) -> Roster:
    """Who takes part when, as [nodes] says it."""
    assert nodes.count is not None
    return Roster(seed, nodes.count, stride, nodes.coupling, nodes.participation, nodes.participants)


def _check_server(settings: Settings) -> None:
    """A step size that theory cannot give is refused with the reason."""
    server = settings.server
    optimizer = parse_optimizer(server.optimizer)
    if server.local_step_size is not None:
        positive("local_step_size in [server]", server.local_step_size)
    if server.step_size != "theory":
        if isinstance(server.step_size, str):
            raise ArgumentError(
                f'step_size in [server] must be a positive number or "theory", got {server.step_size!r}'
            )
        positive("step_size in [server]", server.step_size)
        return
    biased = server.aggregation != "unbiased"
    reasons = {
        "networks have no known smoothness (mast.nn.advise measures it)": settings.network,
        f"there is no statement about the optimizer {server.optimizer!r}": not optimizer.plain,
        f"there is no statement about the aggregation {server.aggregation!r}": biased,
        "there is no statement about several local steps": settings.nodes.local_steps > 1,
        "there is no statement about local steps of another size": server.local_step_size is not None,
    }
    reason = next((words for words, holds in reasons.items() if holds), None)
    if reason is not None:
        raise ArgumentError(f'step_size in [server] cannot be "theory": {reason}. Give a number')


def _check_model(settings: Settings) -> None:
    """[model] and [data], which depend on each other."""
    model, data = settings.model, settings.data
    for section, part, linear, network in (
        ("model", model, ("l2", "kappa", "weight"), ("factory", "keep", "score")),
        ("data", data, ("file", "files", "labels", "n_features"), ("factory", "batch_size")),
    ):
        for key in linear if settings.network else network:
            if getattr(part, key) is not None:
                kind = "a network" if settings.network else "a linear model"
                raise ArgumentError(f"{key} in [{section}] has no meaning for {kind}")
    if settings.network:
        _check_network(settings)
    else:
        _check_linear(settings)
    if model.shift is not None and not (settings.network and model.shift == "start"):
        _check_file("shift in [model]", model.shift, settings)


def _check_network(settings: Settings) -> None:
    model, data = settings.model, settings.data
    _check_function("factory in [model]", model.factory or "", settings)
    _check_function("factory in [data]", data.factory or "", settings)
    loss = model.loss if ":" in model.loss else None
    optional = {"test in [data]": data.test, "score in [model]": model.score, "loss in [model]": loss}
    for key, name in optional.items():
        if name is not None:
            _check_function(key, name, settings)
    if ":" not in model.loss and model.loss not in ("cross_entropy", "mean_squares"):
        raise ArgumentError(
            f'loss in [model] must be "cross_entropy", "mean_squares" or a function such as '
            f'"file.py:loss", got {model.loss!r}'
        )
    if data.batch_size is not None:
        whole("batch_size in [data]", data.batch_size, 1)


def _check_linear(settings: Settings) -> None:
    model, data, count = settings.model, settings.data, settings.nodes.count
    if (data.file is None) == (data.files is None):
        raise ArgumentError("[data] needs file (its rows are shared out) or files (one per node)")
    if data.files is not None and len(data.files) != count:
        raise ArgumentError(f"[data] has {len(data.files)} files for {count} nodes")
    for key, names in (("file", [data.file]), ("files", data.files or []), ("test", [data.test])):
        for name in names:
            if name is not None:
                _check_file(f"{key} in [data]", name, settings)
    if isinstance(data.labels, list) and len(data.labels) != 2:
        raise ArgumentError(f"labels in [data] must be a pair of numbers, got {data.labels!r}")
    nonconvex = model.kind == "nonconvex_logistic"
    if nonconvex != (model.weight is not None) or (nonconvex and (model.l2, model.kappa) != (None, None)):
        raise ArgumentError(
            "[model]: nonconvex_logistic takes a weight; logistic and least_squares take l2 or kappa"
        )
    if model.l2 is not None and model.kappa is not None:
        raise ArgumentError("[model]: give l2 or the condition number kappa, not both")


def _check_file(key: str, name: str, settings: Settings) -> None:
    from mast.data.catalogue import SETS

    if name not in SETS and not settings.path(name).is_file():
        raise ArgumentError(f"{key}: there is no file {str(settings.path(name))!r}")


def _check_function(key: str, name: str, settings: Settings) -> None:
    where, _, function = name.partition(":")
    if not where or not function.isidentifier():
        got = f", got {name!r}" if name else "; it is missing"
        raise ArgumentError(f'{key} must be a function such as "file.py:function" or "module:function"{got}')
    if where.endswith(".py") and not settings.path(where).is_file():
        raise ArgumentError(f"{key}: there is no file {str(settings.path(where))!r}")
