"""`run`: from settings to a result, on every rank."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from mast.checks import whole
from mast.cluster.faults import end_with_parent, in_one_line
from mast.cluster.results import ClusterResult
from mast.cluster.settings import Settings, read, settings_of
from mast.cluster.tasks import Task
from mast.cluster.training import MakeTask, Rank
from mast.cluster.wire import LostRankError, Wire, under_torchrun
from mast.errors import ArgumentError, DataError, MastError

Source = str | Path | Mapping[str, Any]


def run(
    source: Source,
    ranks: int | None = None,
    *,
    max_restarts: int = 3,
    task: MakeTask | None = None,
    folder: str | Path = ".",
) -> ClusterResult:
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
    ClusterResult
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
        settings = _settings(source, Path(folder), wire)
        with _threads(settings.run.threads):
            wire.start(settings.run.timeout)
            return Rank(settings, wire, task or _task).train()
    except LostRankError:
        raise
    except Exception as error:
        wire.confess(in_one_line(error))
        raise
    finally:
        wire.close()


def _settings(source: Source, folder: Path, wire: Wire) -> Settings:
    """The settings, read and checked on rank 0 before anything starts; all ranks hear the outcome."""
    word: dict[str, Any] = {}
    failure: MastError | None = None
    if wire.rank == 0:
        try:
            content, folder = _content(source, folder)
            settings_of(content, folder, wire.ranks)
            word = {"content": content, "folder": str(folder.resolve())}
        except MastError as error:
            failure = error
            word = {"error": str(error)}
    word = wire.first_word(word)
    if failure is not None:
        raise failure
    if "error" in word:
        raise DataError(word["error"])
    return settings_of(word["content"], Path(word["folder"]), wire.ranks)


def _content(source: Source, folder: Path) -> tuple[dict[str, Any], Path]:
    if isinstance(source, Mapping):
        return dict(source), folder
    return read(source), Path(source).parent


@contextlib.contextmanager
def _threads(count: int) -> Iterator[None]:
    """So many threads for torch and BLAS; afterwards as many as before."""
    import torch
    from threadpoolctl import threadpool_limits

    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        with threadpool_limits(count):
            yield
    finally:
        torch.set_num_threads(before)


def _task(settings: Settings, wire: Wire, mine: Sequence[int]) -> Task:
    if settings.network:
        from mast.cluster.network import NetworkTask

        return NetworkTask(settings, wire, mine)
    from mast.cluster.linear import LinearTask

    return LinearTask(settings, wire, mine)


# ---- from Python, without torchrun ------------------------------------------------------------------


def _started(source: Source, folder: Path, ranks: int, max_restarts: int) -> ClusterResult:
    """Start torchrun with so many processes, and read what they wrote."""
    if under_torchrun():
        raise ArgumentError("this process was started by torchrun already: call run() without ranks")
    whole("ranks", ranks, 1)
    content, folder = _content(source, folder)
    settings = settings_of(content, folder, ranks)  # refuse before anything starts
    with tempfile.TemporaryDirectory() as temporary:
        path = Path(temporary) / "train.json"
        path.write_text(json.dumps({"content": content, "folder": str(folder.resolve())}))
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
        command += [f"--nproc-per-node={ranks}", f"--max-restarts={max_restarts}", "-m", "mast.cluster"]
        environment = {"OMP_NUM_THREADS": "1", **os.environ, "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
        done = subprocess.run([*command, str(path)], env=environment, check=False)
    if done.returncode:
        raise DataError(f"the processes ended with code {done.returncode}: see what they printed")
    return ClusterResult.load(settings.out)
