"""`run`: from settings to a result, on every rank."""

from __future__ import annotations

import contextlib
import json
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from mast import files
from mast.checks import whole
from mast.cluster.processes import end_stopped_siblings, end_with_parent, in_one_line, launch
from mast.cluster.settings import Settings, read, settings_of
from mast.cluster.tasks import Task
from mast.cluster.training import MakeTask, Rank
from mast.cluster.wire import LostRankError, Wire, under_torchrun
from mast.errors import ArgumentError, DataError, MastError
from mast.results import Result

Source = str | Path | Mapping[str, Any]


def run(
    source: Source,
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
        processes on this machine with torchrun, on 127.0.0.1, wait for them, and return what they wrote.
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
        On rank 0, and for `ranks`; on the other ranks one without nodes, whose x is empty.

    >>> result = run(
    ...     {"run": {"rounds": 20, "out": tempfile.mkdtemp(), "progress": False},
    ...      "nodes": {"count": 4, "capacity": "permk:4"},
    ...      "model": {"kind": "logistic", "l2": 0.1}, "data": {"file": "a1a"}})
    >>> result.status, result.steps, len(result.nodes)
    ('finished', 20, 4)
    """
    if ranks is not None:
        if task is not None:
            raise ArgumentError(
                "a task cannot be sent to new processes: call run() in a script under torchrun"
            )
        code, out = start(source, Path(folder), ranks, max_restarts)
        if code:
            raise DataError(f"the processes ended with code {code}: see what they printed")
        return Result.load(out)
    if under_torchrun():
        end_with_parent("mast.cluster: torchrun is gone, so this rank ends")
    wire = Wire()
    try:
        settings = _settings(source, Path(folder), wire)
        with _threads(settings.run.threads):
            wire.start(settings.run.timeout)
            return Rank(settings, wire, task or _task).train()
    except LostRankError:
        end_stopped_siblings()
        raise
    except Exception as error:
        wire.confess(in_one_line(error))
        raise
    finally:
        wire.close()


def _settings(source: Source, folder: Path, wire: Wire) -> Settings:
    """The settings, which every rank reads for itself: what another one says names no file and no function.

    All ranks hear whether all could read the same.
    """
    settings, digest, failure = None, "", None
    try:
        content, folder = _content(source, folder)
        settings, digest = settings_of(content, folder, wire.ranks), files.digest(content)
    except MastError as error:
        failure = error
    words = wire.first_words([digest, None if failure is None else str(failure)])
    if failure is not None:
        raise failure
    for rank, (other, fault) in enumerate(words):
        if fault is not None:
            raise DataError(fault if rank == 0 else f"rank {rank}: {fault}")
        if other != digest:
            raise DataError(f"rank {rank} has other settings than rank {wire.rank}: all must read the same")
    assert settings is not None
    return settings


def _content(source: Source, folder: Path) -> tuple[dict[str, Any], Path]:
    if isinstance(source, Mapping):
        return dict(source), folder
    if str(source).endswith(".json"):  # what `start` wrote
        stored = json.loads(Path(source).read_text(encoding="utf-8"))
        return stored["content"], Path(stored["folder"])
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


def start(
    source: Source,
    folder: Path,
    ranks: int,
    max_restarts: int,
    launch: Callable[[Path, int, int], int] = launch,
) -> tuple[int, Path]:
    """Start so many processes and wait for them; their exit code, and the folder of what they wrote."""
    if under_torchrun():
        raise ArgumentError("this process was started by torchrun already: call run() without ranks")
    whole("ranks", ranks, 1)
    whole("max_restarts", max_restarts, 0)
    content, folder = _content(source, folder)
    settings = settings_of(content, folder, ranks)  # refuse before anything starts
    with tempfile.TemporaryDirectory() as temporary:
        path = Path(temporary) / "train.json"
        path.write_text(json.dumps({"content": content, "folder": str(folder.resolve())}))
        return launch(path, ranks, max_restarts), settings.out
