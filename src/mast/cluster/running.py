"""`run`: from settings to a result, on every rank."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from mast.cluster import settings as reading
from mast.cluster.agreement import step_size_of, token_of
from mast.cluster.faults import end_with_parent, told
from mast.cluster.results import Result
from mast.cluster.settings import Settings
from mast.cluster.tasks import Task
from mast.cluster.training import Rank
from mast.cluster.wire import LostRankError, Wire, my_nodes, under_torchrun
from mast.errors import ArgumentError, DataError, MastError
from mast.methods.distributed import Roster, stride_of

MakeTask = Callable[[Settings, Wire, Sequence[int]], Task]


def run(
    source: str | Path | Mapping[str, Any],
    ranks: int | None = None,
    *,
    max_restarts: int = 3,
    task: MakeTask | None = None,
    folder: str | Path = ".",
) -> Result:
    """Train on several processes, each of which has nodes with data, sketches and capacities of their own.

    Parameters
    ----------
    source
        A TOML file, or the same as a dict of sections; see `mast.cluster.settings`.
    ranks
        None: this process is one of those that torchrun started, or the only one. A number: start so many
        processes on this machine with torchrun, wait for them, and return what they wrote.
    max_restarts
        With `ranks`: how often torchrun may start all of them again after one died or hung.
    task
        What is trained, instead of what the settings' [model] and [data] say: a function of the settings,
        the wire and the nodes of this rank that makes a `mast.cluster.Task`.
    folder
        Where paths in a dict are relative to.

    Returns
    -------
    Result
        On rank 0, and for `ranks`; on the other ranks one without scores, whose x is empty.

    >>> result = run(
    ...     {"run": {"rounds": 20, "out": tempfile.mkdtemp(), "progress": False},
    ...      "nodes": {"count": 4, "capacity": "permk:4"},
    ...      "model": {"kind": "logistic", "l2": 0.1}, "data": {"file": "a1a"}})
    >>> result.status, result.rounds, len(result.scores)
    ('finished', 20, 4)
    """
    if ranks is not None:
        if task is not None:
            raise ArgumentError(
                "a task cannot be sent to new processes: call run() in a script under torchrun"
            )
        return _started(source, Path(folder), ranks, max_restarts)
    if under_torchrun():
        end_with_parent()
    wire = Wire()
    try:
        settings = _first(source, Path(folder), wire)
        _threads(settings)
        wire.start(settings.run.timeout)
        return _rank(settings, wire, task or _task)
    except LostRankError:
        raise
    except Exception as error:
        wire.confess(told(error))
        raise
    finally:
        wire.close()


def _first(source: str | Path | Mapping[str, Any], folder: Path, wire: Wire) -> Settings:
    """The settings, read and checked on rank 0 before anything starts; all ranks hear the outcome."""
    word: dict[str, Any] = {}
    failure: MastError | None = None
    if wire.rank == 0:
        try:
            content, folder = _content(source, folder)
            reading.settings_of(content, folder, wire.ranks)
            word = {"content": content, "folder": str(folder.resolve())}
        except MastError as error:
            failure = error
            word = {"error": str(error)}
    word = wire.first_word(word)
    if failure is not None:
        raise failure
    if "error" in word:
        raise DataError(word["error"])
    return reading.settings_of(word["content"], Path(word["folder"]), wire.ranks)


def _content(source: str | Path | Mapping[str, Any], folder: Path) -> tuple[dict[str, Any], Path]:
    if isinstance(source, Mapping):
        return dict(source), folder
    return reading.read(source), Path(source).parent


def _threads(settings: Settings) -> None:
    import torch
    from threadpoolctl import threadpool_limits

    torch.set_num_threads(settings.run.threads)
    threadpool_limits(settings.run.threads)


def _task(settings: Settings, wire: Wire, mine: Sequence[int]) -> Task:
    if settings.network:
        from mast.cluster.network import NetworkTask

        return NetworkTask(settings, wire, mine)
    from mast.cluster.linear import LinearTask

    return LinearTask(settings, wire, mine)


def _rank(settings: Settings, wire: Wire, make: MakeTask) -> Result:
    """One rank, once the wire is there."""
    nodes = settings.nodes
    assert nodes.count is not None
    mine = my_nodes(wire.rank, nodes.count, wire.ranks, nodes.on_server)
    task = make(settings, wire, mine)
    roster = Roster(
        settings.run.seed,
        nodes.count,
        stride_of(task.sketches),
        nodes.coupling,
        nodes.participation,
        nodes.participants,
    )
    token, about = token_of(wire, task, roster, mine)
    workers, error = {}, None
    try:
        workers = {node: task.worker(node, token) for node in mine}
    except MastError as failure:
        error = str(failure)
    wire.agree(error)
    size, note = step_size_of(settings, wire, task, roster, mine)
    return Rank(settings, wire, task, roster, workers, token, about, size, note).train()


# ---- from Python, without torchrun ------------------------------------------------------------------


def _started(source: str | Path | Mapping[str, Any], folder: Path, ranks: int, max_restarts: int) -> Result:
    """Start torchrun with so many processes, and read what they wrote."""
    if under_torchrun():
        raise ArgumentError("this process was started by torchrun already: call run() without ranks")
    if ranks < 1:
        raise ArgumentError(f"ranks must be at least 1, got {ranks}")
    content, folder = _content(source, folder)
    settings = reading.settings_of(content, folder, ranks)  # refuse before anything starts
    with tempfile.TemporaryDirectory() as temporary:
        path = Path(source) if not isinstance(source, Mapping) else Path(temporary) / "train.json"
        if isinstance(source, Mapping):
            import json

            path.write_text(json.dumps({"content": content, "folder": str(folder.resolve())}))
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
        command += [f"--nproc-per-node={ranks}", f"--max-restarts={max_restarts}", "-m", "mast.cluster"]
        done = subprocess.run([*command, str(path)], env=_environment(), check=False)
    if done.returncode:
        raise DataError(f"the processes ended with code {done.returncode}: see what they printed")
    return Result.load(settings.out)


def _environment() -> dict[str, str]:
    """What the processes see; each has one thread for OpenMP, unless told otherwise."""
    return {"OMP_NUM_THREADS": "1", **os.environ, "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
