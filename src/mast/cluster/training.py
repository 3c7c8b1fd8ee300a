"""A rank that trains: it agrees with the others, leads or serves the rounds, then scores submodels."""

from __future__ import annotations

import contextlib
import math
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from mast import __version__, checkpoint, files
from mast.cluster.engine import NodesRank, Row, ServerRank
from mast.cluster.settings import Settings, roster_of
from mast.cluster.tasks import Task
from mast.cluster.wire import Wire, rank_of, under_torchrun
from mast.errors import ArgumentError, CheckpointError, DataError, MastError
from mast.methods.distributed import Server, digest_of_run, stride_of
from mast.progress import Progress, size_of
from mast.randomness import LAYOUT
from mast.results import TRACE, Result, score_columns
from mast.theory import Guarantee
from mast.trace import TraceFile

CHECKPOINT = "checkpoint.mast"
MOMENT = 5.0  # seconds in which another run may yet leave the folder
MakeTask = Callable[[Settings, Wire, Sequence[int]], Task]


class Rank:
    """One process of the run, with its nodes. All ranks make theirs together, and train together."""

    def __init__(self, settings: Settings, wire: Wire, make: MakeTask) -> None:
        nodes = settings.nodes
        assert nodes.count is not None
        self.settings, self.wire = settings, wire
        ranks = [rank_of(i, nodes.count, wire.ranks, nodes.on_server) for i in range(nodes.count)]
        self.mine = [node for node, rank in enumerate(ranks) if rank == wire.rank]
        self.task = make(settings, wire, self.mine)
        self.roster = roster_of(settings.run.seed, nodes, stride_of(self.task.sketches))
        self.run, self.about = self._agree()
        with wire.together():
            self.workers = {node: self.task.worker(node, self.run) for node in self.mine}
        self.guarantee: Guarantee | None = None
        self.step_size, self.note = self._step_size()

    # ---- what the ranks settle before the first round --------------------------------------

    def _agree(self) -> tuple[int, dict[str, str]]:
        """The digest that every message of the run bears, and what its checkpoint must agree in.

        All ranks must speak of the same model first.
        """
        wire, task, nodes = self.wire, self.task, range(self.roster.nodes)
        identity = task.identity() | {"layout of keys": str(LAYOUT), "version of MAST": __version__}
        _compare(wire.collect(identity))
        mine = [[node, task.capacity(node).fingerprint(), task.data(node)] for node in self.mine]
        by_rank = wire.collect(mine)
        about = {name: value for name, value in identity.items() if not name.startswith("version")}
        data, digest = ["" for _ in nodes], 0
        with wire.together():
            if wire.rank == 0:
                expected = [task.capacity(node).fingerprint() for node in nodes]
                for rank, rows in enumerate(by_rank):
                    for node, text, digest_of_data in rows:
                        data[node] = digest_of_data
                        if expected[node] != text:
                            raise DataError(f"rank {rank} has another sketch for node {node} than rank 0")
                digest = digest_of_run(*sorted(about.items()), *expected, self.roster)
        return int(wire.tell(str(digest))), about | {"data": files.digest(*data)}

    def _step_size(self) -> tuple[float, str]:
        """The step size, and the statement behind it, or why there is none."""
        settings, given = self.settings, self.settings.server.step_size
        known, error = {}, None
        try:
            known = {str(node): self.task.facts(node) for node in self.mine}
        except MastError as failure:
            error = str(failure)
        if given == "theory":
            self.wire.agree(error)
        merged = {node: fact for part in self.wire.collect(known) for node, fact in part.items()}
        facts = [merged.get(str(node)) for node in range(self.roster.nodes)]
        try:
            facts = [] if any(fact is None for fact in facts) else facts
            self.guarantee = self.task.guarantee(facts, self.roster, settings)
            limit = float(self.guarantee.max_step_size(T=max(settings.run.rounds, 1)))
            note = self.guarantee.statement
        except MastError as failure:
            if given == "theory":
                raise
            limit, note = math.nan, str(failure)
        size = limit if given == "theory" else float(given)
        if size > limit * (1 + 1e-9):
            times = f"{size / limit:.3g} times the limit {limit:.4g}"
            note = f"no guarantee: step size {size:.4g} is {times} of {note}"
            if self.wire.rank == 0:
                print(note, file=sys.stderr, flush=True)
        return size, note

    # ---- the rounds ------------------------------------------------------------------------

    def train(self) -> Result:
        """All rounds, then the scores; meanwhile no other run may write to the same folder."""
        with contextlib.ExitStack() as held:
            server, start = None, {}
            with self.wire.together():
                if self.wire.rank == 0:
                    held.enter_context(self._folder())
                    server = self._server()
                    start = {"t": server.t, "itemsize": server.wire.itemsize}
            start = self.wire.tell(start)
            if server is None:
                nodes = NodesRank(self.wire, self.roster, self.workers, start["itemsize"])
                nodes.serve(start["t"], self.settings.run.rounds)
            else:
                self._lead(server)
            return self._end(server)

    def _folder(self) -> contextlib.AbstractContextManager[None]:
        """Make the folder and lock it; ranks of a torchrun that was killed may need a moment to end."""
        out = self.settings.out
        try:
            out.mkdir(exist_ok=True)
        except OSError as error:
            raise DataError(f"out in [run]: {out} cannot be made: {error.strerror or error}") from None
        return files.exclusive(out / CHECKPOINT, wait=MOMENT if under_torchrun() else 0.0)

    def _server(self) -> Server:
        """The server, where the last checkpoint left it."""
        settings, server = self.settings, self.settings.server
        path = settings.out / CHECKPOINT
        stored = checkpoint.load(path, "server")
        if server.step_size == "theory" and stored is not None:
            try:  # a longer run continues with the step size that it began with
                self.step_size = float(stored[1]["extra"]["step_size"])
            except (KeyError, TypeError, ValueError):
                raise CheckpointError(f"{path} is not the checkpoint of a cluster") from None
        made = Server(
            self.task.start(),
            [self.task.capacity(node) for node in range(self.roster.nodes)],
            self.roster,
            step_size=self.step_size,
            optimizer=server.optimizer,
            local_steps=settings.nodes.local_steps,
            local_step_size=server.local_step_size,
            aggregation=server.aggregation,
            wire=server.wire,
            run=self.run,
            about=self.about,
        )
        made.load(path)
        if made.t > settings.run.rounds:
            raise ArgumentError(
                f"{path} is at round {made.t} already, beyond rounds = {settings.run.rounds}: ask for more"
            )
        made.save(path, {"step_size": made.step_size})
        return made

    def _lead(self, server: Server) -> None:
        """All rounds, with a row of the trace after each, and a checkpoint now and then."""
        run, out = self.settings.run, self.settings.out
        trace, saved = TraceFile(out / TRACE), time.monotonic()
        trace.go_on(server.t)

        def after(row: Row) -> None:
            nonlocal saved
            due = time.monotonic() - saved >= run.checkpoint_seconds or not server.goes_on(run.rounds)
            trace.add(row, durable=due)
            progress.advance(row["step"], note=f"{size_of(row['down'] + row['up'])} per round")
            if due:
                server.save(out / CHECKPOINT, {"step_size": server.step_size})
                saved = time.monotonic()

        with Progress(run.rounds, "training", run.progress, unit="rounds", first=server.t) as progress:
            ServerRank(self.wire, server, self.workers, self.settings.nodes.on_server).serve(
                run.rounds, after
            )

    # ---- the end ---------------------------------------------------------------------------

    def _end(self, server: Server | None) -> Result:
        """Every rank scores the submodels of its nodes; rank 0 gathers."""
        wire = self.wire
        x, end = np.empty(0), Row()
        if server is not None:
            x, end = server.x, {"diverged": server.diverged, "rounds": server.t}
        end = wire.tell(end | {"size": x.size, "dtype": x.dtype.str})
        x = x if server is not None else np.empty(end["size"], end["dtype"])
        wire.spread(x.view(np.uint8))  # the scores need the last point on every rank
        rows: list[Row] = []
        with wire.together("the scores"):  # the user's model or score may fail on a submodel
            if not end["diverged"]:
                rows = [self._scores(node, x) for node in self.mine]
        scores = {row.pop("node"): row for part in wire.collect(rows) for row in part}
        result = Result(
            x=np.empty(0) if server is None else server.x.copy(),
            status="diverged" if end["diverged"] else "finished",
            steps=end["rounds"],
            step_size=self.step_size,
            guarantee=self.guarantee,
            note=self.note,
            method="distributed",
            rows=[],
            metric=self.task.metric,
            folder=self.settings.out,
        )
        if server is not None:
            result.rows = TraceFile(self.settings.out / TRACE).rows()
            result.nodes = [row | scores.get(row["node"], {}) for row in server.node_rows()]
            whole = [row[f"{self.task.metric} whole"] for row in scores.values() if len(row) > 1]
            result.score = float(np.mean(whole)) if whole else math.nan
            self.task.save(server.x, self.settings.out)
            result.save()
        return result

    def _scores(self, node: int, x: Any) -> Row:
        """The scores of submodels of a node's capacity, and of the whole model on the same rows."""
        run, metric = self.settings.run, self.task.metric
        row: Row = {"node": node, "capacity": self.settings.capacities[node]}
        if not run.draws:
            return row
        scores = self.task.scores(node, x, run.draws, run.seed)
        return row | score_columns(metric, scores) | {f"{metric} whole": self.task.full_score(node, x)}


def _compare(identities: Sequence[dict[str, str]]) -> None:
    """All ranks must speak of the same model."""
    first = identities[0]
    for rank, identity in enumerate(identities):
        for name in {**first, **identity}:
            here, there = identity.get(name), first.get(name)
            if here != there:
                raise DataError(
                    f"rank {rank} differs from rank 0 in its {name} ({here}, not {there}): "
                    "all nodes must share it"
                )
