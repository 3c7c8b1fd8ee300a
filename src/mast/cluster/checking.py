"""What the types of settings do not say: ranges, names of sketches, files that must be there."""

from __future__ import annotations

import os
from dataclasses import asdict, replace

from mast.cluster.settings import NodesSettings, Settings
from mast.errors import ArgumentError, MastError
from mast.methods.distributed import Roster, parse_optimizer, parse_sketch
from mast.nn.structure.sketches import parse


def check_run(settings: Settings) -> None:
    """[run]."""
    run = settings.run
    _at_least("rounds in [run]", run.rounds, 0)
    _at_least("draws in [run]", run.draws, 0)
    _at_least("threads in [run]", run.threads, 1)
    _at_least("checkpoint_seconds in [run]", run.checkpoint_seconds, 0)
    if not 0 < run.timeout <= 24 * 3600:
        raise ArgumentError(f"timeout in [run] is in seconds, above 0 and at most a day, got {run.timeout}")
    if not 0 <= run.seed < 1 << 64:
        raise ArgumentError(f"seed in [run] must lie in 0 .. 2^64 - 1, got {run.seed}")
    out = settings.out
    if not run.out or not out.parent.is_dir():
        raise ArgumentError(f"out in [run]: the folder {str(out.parent)!r} does not exist")
    if out.exists() and not out.is_dir():
        raise ArgumentError(f"out in [run]: {str(out)!r} is not a folder")
    if not os.access(out if out.exists() else out.parent, os.W_OK | os.X_OK):
        raise ArgumentError(f"out in [run]: {str(out)!r} cannot be written to")


def with_capacities(settings: Settings, ranks: int) -> Settings:
    """The settings with one capacity a node."""
    nodes = settings.nodes
    if (nodes.capacity is None) == (nodes.capacities is None):
        raise ArgumentError("[nodes] needs capacity (one for all nodes) or capacities (one a node)")
    servers_only = 0 if nodes.on_server or ranks == 1 else 1
    count = nodes.count
    if count is None:
        count = ranks - servers_only if nodes.capacities is None else len(nodes.capacities)
    _at_least("count in [nodes]", count, 1)
    if nodes.capacities is not None and len(nodes.capacities) != count:
        raise ArgumentError(f"[nodes] has {len(nodes.capacities)} capacities for {count} nodes")
    spelled = nodes.capacities or [str(nodes.capacity)] * count
    for text in dict.fromkeys(spelled):
        try:
            parse(text) if settings.network else parse_sketch(text)
        except MastError as error:
            key = "capacity" if nodes.capacities is None else f"capacities[{spelled.index(text)}]"
            raise ArgumentError(f"{key} in [nodes]: {error}") from None
    _at_least("local_steps in [nodes]", nodes.local_steps, 1)
    try:
        Roster(settings.run.seed, count, 1, nodes.coupling, nodes.participation, nodes.participants)
    except MastError as error:
        raise ArgumentError(f"[nodes]: {error}") from None
    told = {**asdict(nodes), "count": count, "capacity": None, "capacities": list(spelled)}
    return replace(settings, nodes=NodesSettings(**told))


def check_server(settings: Settings) -> None:
    """[server]; a step size that theory cannot give is refused with the reason."""
    server = settings.server
    optimizer = parse_optimizer(server.optimizer)
    theory = server.step_size == "theory"
    if isinstance(server.step_size, str) and not theory:
        raise ArgumentError(
            f'step_size in [server] must be a positive number or "theory", got {server.step_size!r}'
        )
    for key in ("step_size", "local_step_size"):
        size = getattr(server, key)
        if isinstance(size, int | float) and not 0 < size < float("inf"):
            raise ArgumentError(f"{key} in [server] must be a positive number, got {size}")
    if server.wire not in (None, "float32", "float64"):
        raise ArgumentError(f'wire in [server] must be "float32" or "float64", got {server.wire!r}')
    if server.regime not in (None, "strongly_convex", "convex", "nonconvex"):
        raise ArgumentError(
            f"regime in [server] must be strongly_convex, convex or nonconvex, got {server.regime!r}"
        )
    if not theory:
        return
    reason = (
        "networks have no known smoothness (mast.nn.advise measures it)"
        if settings.network
        else f"there is no statement about the optimizer {server.optimizer!r}"
        if not optimizer.plain
        else "there is no statement about several local steps"
        if settings.nodes.local_steps > 1
        else "there is no statement about local steps of another size"
        if server.local_step_size is not None
        else ""
    )
    if reason:
        raise ArgumentError(f'step_size in [server] cannot be "theory": {reason}. Give a number')


def check_model(settings: Settings) -> None:
    """[model] and [data], which depend on each other."""
    model, data = settings.model, settings.data
    network = settings.network
    for section, part, linear, other in (
        ("model", model, ("l2", "kappa", "weight"), ("factory", "keep", "score")),
        ("data", data, ("file", "files", "labels", "n_features"), ("factory", "batch_size")),
    ):
        for key in linear if network else other:
            if getattr(part, key) is not None:
                kind = "a network" if network else "a linear model"
                raise ArgumentError(f"{key} in [{section}] has no meaning for {kind}")
    if network:
        _check_function("model", "factory", model.factory, settings)
        _check_function("data", "factory", data.factory, settings)
        if data.test is not None:
            _check_function("data", "test", data.test, settings)
        if model.score is not None:
            _check_function("model", "score", model.score, settings)
        if ":" in model.loss:
            _check_function("model", "loss", model.loss, settings)
        elif model.loss not in ("cross_entropy", "mean_squares"):
            raise ArgumentError(
                f'loss in [model] must be "cross_entropy", "mean_squares" or a function such as '
                f'"file.py:loss", got {model.loss!r}'
            )
        if data.batch_size is not None:
            _at_least("batch_size in [data]", data.batch_size, 1)
    else:
        _check_linear(settings)
    if model.shift is not None and not (network and model.shift == "start"):
        _check_file("shift in [model]", model.shift, settings)


def _check_linear(settings: Settings) -> None:
    model, data = settings.model, settings.data
    if (data.file is None) == (data.files is None):
        raise ArgumentError("[data] needs file (its rows are shared out) or files (one a node)")
    count = settings.nodes.count
    if data.files is not None and len(data.files) != count:
        raise ArgumentError(f"[data] has {len(data.files)} files for {count} nodes")
    for key, names in (("file", [data.file]), ("files", data.files or []), ("test", [data.test])):
        for name in names:
            if name is not None:
                _check_file(f"{key} in [data]", name, settings)
    if isinstance(data.labels, str) and data.labels not in ("binary", "raw"):
        raise ArgumentError(
            f'labels in [data] must be "binary", "raw" or a pair of numbers, got {data.labels!r}'
        )
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


def _check_function(section: str, key: str, name: str | None, settings: Settings) -> None:
    said = f'{key} in [{section}] must be a function such as "file.py:function" or "module:function"'
    if name is None:
        raise ArgumentError(f"{said}; it is missing")
    where, _, function = name.partition(":")
    if not where or not function.isidentifier():
        raise ArgumentError(f"{said}, got {name!r}")
    if where.endswith(".py") and not settings.path(where).is_file():
        raise ArgumentError(f"{key} in [{section}]: there is no file {str(settings.path(where))!r}")


def _at_least(key: str, value: float, least: float) -> None:
    if not value >= least:
        raise ArgumentError(f"{key} must be at least {least}, got {value}")
