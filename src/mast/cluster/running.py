"""`run`: from settings to a result, on every rank."""

from __future__ import annotations

import contextlib
import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from mast import files, locks
from mast.cluster import settings as reading
from mast.cluster.engine import Hub, Nodes
from mast.cluster.progress import ProgressLine
from mast.cluster.results import CHECKPOINT, TRACE, Result
from mast.cluster.settings import Settings
from mast.cluster.tasks import Task
from mast.cluster.tracing import Row, Trace
from mast.cluster.wire import Wire, my_nodes, say, under_torchrun
from mast.errors import ArgumentError, DataError, MastError
from mast.exchange import Roster, Server, Worker, digest_of_run, fingerprints_of, stride_of

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
    wire = Wire()
    try:
        settings = _first(source, Path(folder), wire)
        _threads(settings)
        wire.start(settings.run.timeout)
        return _rank(settings, wire, task or _task)
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
    token, about = _token(wire, task, roster, mine)
    workers, error = {}, None
    try:
        workers = {node: task.worker(node, token) for node in mine}
    except MastError as failure:
        error = str(failure)
    wire.agree(error)
    size, note = _step_size(settings, wire, task, roster, mine)
    return _Rank(settings, wire, task, roster, workers, token, about, size, note).train()


def _token(wire: Wire, task: Task, roster: Roster, mine: Sequence[int]) -> tuple[int, dict[str, str]]:
    """The digest that every message of the run bears, and what its checkpoint must agree in.

    All ranks must speak of the same model first.
    """
    identity = task.identity()
    _compare(wire.collect(identity))
    prints = fingerprints_of({node: task.capacity(node) for node in mine})
    error, told = None, wire.collect([[node, text, task.data(node)] for node, text in prints.items()])
    about = {name: value for name, value in identity.items() if not name.startswith("version")}
    data, token = ["" for _ in range(roster.nodes)], 0
    if wire.rank == 0:
        here = fingerprints_of({node: task.capacity(node) for node in range(roster.nodes)})
        for rank, part in enumerate(told):
            for node, text, rows in part:
                data[node] = rows
                if here[node] != text:
                    error = f"rank {rank} has another sketch for node {node} than rank 0"
        token = digest_of_run(*sorted(about.items()), *here.values(), roster)
    wire.agree(error)
    return int(wire.tell(str(token))), about | {"data": files.digest(*data)}


def _compare(identities: Sequence[dict[str, str]]) -> None:
    """All ranks must speak of the same model."""
    for rank, identity in enumerate(identities):
        for name, value in identity.items():
            if value != identities[0].get(name):
                raise DataError(
                    f"rank {rank} has another {name} than rank 0 ({value}, not {identities[0].get(name)}): "
                    "all nodes must share it"
                )


def _step_size(
    settings: Settings, wire: Wire, task: Task, roster: Roster, mine: Sequence[int]
) -> tuple[float, str]:
    """The step size, and the statement behind it, or why there is none."""
    told, error = {}, None
    try:
        told = {str(node): task.facts(node) for node in mine}
    except MastError as failure:
        error = str(failure)
    given = settings.server.step_size
    if given == "theory":
        wire.agree(error)
    merged: dict[str, Any] = {}
    for part in wire.collect(told):
        merged |= part
    facts = [merged.get(str(node)) for node in range(roster.nodes)]
    limit, note = math.nan, error or ""
    try:
        if any(fact is None for fact in facts):
            facts = []
        guarantee = task.guarantee(facts, roster, settings)
        limit = float(guarantee.max_step_size(T=max(settings.run.rounds, 1)))
        note = guarantee.statement
    except MastError as failure:
        if given == "theory":
            raise
        note = str(failure)
    if given == "theory":
        return limit, note
    size = float(given)
    if size > limit * (1 + 1e-9):
        note = (
            f"no guarantee: step size {size:.4g} is {size / limit:.3g} times the limit {limit:.4g} of {note}"
        )
        if wire.rank == 0:
            say(note)
    return size, note


class _Rank:
    """A rank that trains."""

    def __init__(
        self,
        settings: Settings,
        wire: Wire,
        task: Task,
        roster: Roster,
        workers: Mapping[int, Worker],
        token: int,
        about: Mapping[str, str],
        step_size: float,
        note: str,
    ) -> None:
        self.settings, self.wire, self.task, self.roster = settings, wire, task, roster
        self.workers, self.token, self.about = workers, token, about
        self.step_size, self.note = step_size, note

    def train(self) -> Result:
        """All rounds, then the scores; meanwhile no other run may write to the same folder."""
        with contextlib.ExitStack() as held:
            return self._train(held)

    def _train(self, held: contextlib.ExitStack) -> Result:
        server, error, start = None, None, {}
        if self.wire.rank == 0:
            try:
                self.settings.out.mkdir(exist_ok=True)
                held.enter_context(locks.exclusive(self.settings.out / CHECKPOINT))
                server = self._server()
                start = {"t": server.t, "itemsize": server.wire.itemsize}
            except MastError as failure:
                error = str(failure)
        self.wire.agree(error)
        start = self.wire.tell(start)
        if server is None:
            nodes = Nodes(self.wire, self.roster, self.workers, start["itemsize"])
            nodes.serve(start["t"], self.settings.run.rounds)
            return self._end(None)
        self._lead(server)
        return self._end(server)

    def _server(self) -> Server:
        """The server, where the last checkpoint left it."""
        settings, server = self.settings, self.settings.server
        files.clear_leftovers(settings.out)
        checkpoint = settings.out / CHECKPOINT
        if server.step_size == "theory" and checkpoint.exists():
            # a longer run continues with the step size that it began with
            self.step_size = float(files.load(checkpoint)[0]["extra"]["step_size"])
        made = Server(
            self.task.start(),
            [self.task.capacity(node) for node in range(self.roster.nodes)],
            self.roster,
            step_size=self.step_size,
            optimizer=server.optimizer,
            local_steps=settings.nodes.local_steps,
            local_step_size=server.local_step_size,
            wire=server.wire,
            run=self.token,
            about=self.about,
        )
        made.load(checkpoint)
        if made.t > settings.run.rounds:
            raise ArgumentError(
                f"{checkpoint} is at round {made.t} already, beyond rounds = {settings.run.rounds}: ask more"
            )
        made.save(checkpoint, {"step_size": made.step_size})
        return made

    def _lead(self, server: Server) -> None:
        settings = self.settings
        checkpoint, every = settings.out / CHECKPOINT, settings.run.checkpoint_seconds
        line = ProgressLine(settings.run.rounds, server.t, settings.run.progress)
        saved = time.monotonic()
        with Trace(settings.out / TRACE, server.t) as trace:

            def save() -> None:
                nonlocal saved
                trace.flush()
                server.save(checkpoint, {"step_size": server.step_size})
                saved = time.monotonic()

            def after(row: Row) -> None:
                trace.add(row)
                line.advance(row)
                if time.monotonic() - saved >= every:
                    save()

            Hub(self.wire, server, self.workers, settings.nodes.on_server).serve(settings.run.rounds, after)
            save()
        line.end()

    # ---- the end ---------------------------------------------------------------------------

    def _end(self, server: Server | None) -> Result:
        """Every rank scores the submodels of its nodes; rank 0 gathers."""
        wire, draws = self.wire, self.settings.run.draws
        told = wire.tell(None if server is None else {"diverged": server.diverged, "rounds": server.t})
        x = self._point(server)
        rows, error = [], None
        try:
            if not told["diverged"]:
                rows = [self._row(node, x, draws) for node in sorted(self.workers)]
        except MastError as failure:
            error = str(failure)
        wire.agree(error)
        gathered = [row for part in wire.collect(rows) for row in part]
        result = Result(
            x=np.empty(0) if server is None else server.x.copy(),
            status="diverged" if told["diverged"] else "finished",
            rounds=told["rounds"],
            step_size=self.step_size,
            note=self.note,
            metric=self.task.metric,
            score=math.nan,
            scores=[],
            folder=self.settings.out,
        )
        if server is not None:
            count = max(server.t, 1)
            result.scores = [
                row
                | {"down": float(server.received[row["node"]]) / count}
                | {"up": float(server.sent[row["node"]]) / count}
                for row in sorted(gathered, key=lambda row: row["node"])
            ]
            if result.scores:
                result.score = float(np.mean([row["whole"] for row in result.scores]))
            self.task.save(server.x, self.settings.out)
            result.save()
        return result

    def _row(self, node: int, x: Any, draws: int) -> dict[str, Any]:
        capacity = self.task.capacity(node)
        scores = self.task.scores(node, x, draws, self.settings.run.seed)
        kept = [capacity.part(self.roster.key(t, node)).count for t in range(max(draws, 1))]
        return {
            "node": node,
            "capacity": (self.settings.nodes.capacities or [""])[node],
            "keeps": float(np.mean(kept)) / capacity.dim,
            "draws": draws,
            "mean": float(np.mean(scores)) if scores else math.nan,
            "lowest": min(scores, default=math.nan),
            "highest": max(scores, default=math.nan),
            "whole": self.task.full_score(node, x) if draws else math.nan,
        }

    def _point(self, server: Server | None) -> Any:
        """The last point, on every rank, for the scores."""
        said = self.wire.tell(None if server is None else [server.x.dtype.str, server.x.size])
        x = np.empty(said[1], dtype=said[0]) if server is None else server.x
        self.wire.spread(x.view(np.uint8))
        return x


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
