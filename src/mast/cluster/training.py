"""A rank that trains: it leads or serves the rounds, then scores the submodels of its nodes."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Mapping
from typing import Any

import numpy as np

from mast import files, locks
from mast.cluster.engine import Hub, Nodes
from mast.cluster.faults import told
from mast.cluster.progress import ProgressLine
from mast.cluster.results import CHECKPOINT, TRACE, Result
from mast.cluster.settings import Settings
from mast.cluster.tasks import Task
from mast.cluster.tracing import Row, Trace
from mast.cluster.wire import Wire, under_torchrun
from mast.errors import ArgumentError, CheckpointError, DataError, MastError
from mast.methods.distributed import Roster, Server, Worker

MOMENT = 5.0  # seconds in which another run may yet leave the folder


class Rank:
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
                self._hold(held)
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

    def _hold(self, held: contextlib.ExitStack) -> None:
        """Make the folder and lock it; ranks of a torchrun that was killed may need a moment to end."""
        out, end = self.settings.out, time.monotonic() + (MOMENT if under_torchrun() else 0.0)
        try:
            out.mkdir(exist_ok=True)
        except OSError as error:
            raise DataError(f"out in [run]: {out} cannot be made: {error.strerror or error}") from None
        while True:
            try:
                held.enter_context(locks.exclusive(out / CHECKPOINT))
                return
            except locks.InUseError:
                if time.monotonic() > end:
                    raise
                time.sleep(0.1)

    def _server(self) -> Server:
        """The server, where the last checkpoint left it."""
        settings, server = self.settings, self.settings.server
        files.clear_leftovers(settings.out)
        checkpoint = settings.out / CHECKPOINT
        if server.step_size == "theory" and checkpoint.exists():
            # a longer run continues with the step size that it began with
            try:
                self.step_size = float(files.load(checkpoint)[0]["extra"]["step_size"])
            except (KeyError, TypeError, ValueError):
                raise CheckpointError(f"{checkpoint} is not the checkpoint of a cluster") from None
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
        ended = wire.tell(None if server is None else {"diverged": server.diverged, "rounds": server.t})
        x = self._point(server)
        rows, error = [], None
        try:
            if not ended["diverged"]:
                rows = [self._row(node, x, draws) for node in sorted(self.workers)]
        except Exception as failure:  # the user's model or score may fail on a submodel
            error = f"the scores: {told(failure)}"
        wire.agree(error)
        gathered = [row for part in wire.collect(rows) for row in part]
        result = Result(
            x=np.empty(0) if server is None else server.x.copy(),
            status="diverged" if ended["diverged"] else "finished",
            rounds=ended["rounds"],
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
