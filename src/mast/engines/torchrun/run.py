"""`run`: all rounds of a server with its nodes, on every rank: agreement, rounds of messages, result.

Everything that is random is known to all ranks beforehand (`Participation`), so a node makes the indices of
its next draw, and is ready to receive exactly as many bytes as will come, while the server still works.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import numpy as np
import torch

from mast.distributed import SIZE, Message, Part, Server, Worker
from mast.engines.runs import Row, RunFiles, node_table, result_of
from mast.engines.torchrun.wire import Bytes, Wait, Wire, in_one_line
from mast.errors import ArgumentError, DataError, MastError
from mast.results import Result
from mast.support.checks import check_int, check_nonnegative
from mast.support.progress import Progress, size_of

LOCK_SECONDS = 5.0  # seconds in which the ranks of a torchrun that was killed may yet leave a checkpoint
#: what all workers must have in common: they train one model
COMMON = ("loss", "model", "frozen parameters and buffers", "shift", "batch_norm")
WORTH_A_THREAD = 1 << 18  #: coordinates from which on a helper draws ahead
END = -1  #: instead of a round's number: there is no other
ROUND_TAG = 1 << 30  #: tag of what begins a round, and of x at the end; other tags are numbers of nodes


def run(
    server: Server,
    workers: Mapping[int, Worker],
    rounds: int,
    *,
    checkpoint: str | Path | None = None,
    checkpoint_seconds: float = 5.0,
    timeout: float = 120.0,
    progress: bool | None = None,
) -> Result:
    """Train until `rounds` rounds are done in all, those of the checkpoint included. Every rank calls this.

    Parameters
    ----------
    server
        What `server_for` made, the same on every rank; rank 0's leads.
    workers
        The workers of this rank's nodes, by their numbers; `my_nodes` says which these should be.
    checkpoint
        A file, on rank 0's machine, to save to and to continue from. The trace stands beside it, in a file
        with the ending ``.trace.jsonl``. The checkpoint knows the server's options, and of each node the
        data, the sketch, the loss and the model (`Worker.identity`): another one is refused by name.
    checkpoint_seconds
        The least time between two checkpoints; 0: one after every round.
    timeout
        Seconds after which a rank that is silent counts as lost. It has to be longer than any round.
    progress
        Whether rank 0 shows how far it is: None does so on a terminal.

    Returns
    -------
    Result
        On every rank, with x and the nodes' table; the trace is rank 0's. `server.x` is x, too.

    Raises
    ------
    LostRankError
        Another rank died, or was silent for too long; the message names it.
    DataError
        Another rank raised an error, which the message tells, or ranks do not fit together.

    >>> import mast
    >>> from mast.cluster import ProblemWorker, server_for
    >>> f = mast.Quadratic([[2.0, 0.0], [0.0, 4.0]], [1.0, 1.0])
    >>> nodes = [mast.Problem(f, mast.RandK(1)), mast.Problem(f, mast.Identity())]
    >>> server = server_for(nodes, step_size="theory")
    >>> result = run(server, {i: ProblemWorker(node) for i, node in enumerate(nodes)}, rounds=300)
    >>> result.status, result.x.round(2), len(result.nodes)
    ('finished', array([0.32, 0.17]), 2)
    """
    check_int("rounds", rounds, 0)
    check_nonnegative("checkpoint_seconds", checkpoint_seconds)
    saved = RunFiles(server, checkpoint)
    rows: list[Row] = []
    with Wire(timeout) as wire, contextlib.ExitStack() as held:
        ranks = _ranks_of_nodes(wire, server, workers, rounds)
        if wire.rank == 0 and saved.checkpoint is not None:
            # ranks of a torchrun that was killed may need a moment to end
            held.enter_context(saved.locked(LOCK_SECONDS if "TORCHELASTIC_RUN_ID" in os.environ else 0.0))
            _resume(saved, rounds)
        wire.connect()
        start = wire.broadcast(server.t)
        if wire.rank == 0:
            ServerRank(wire, server, workers, ranks).train(rounds, saved, checkpoint_seconds, progress)
            rows = saved.rows
        else:
            serve_nodes(wire, server, workers, start, rounds)
        nodes = _share_result(wire, server)
    return result_of(server, rows, nodes, server.note, server.guarantee)


def _ranks_of_nodes(wire: Wire, server: Server, workers: Mapping[int, Worker], rounds: int) -> list[int]:
    """The rank of each node. All ranks must speak of the same run, and each node be on one of them.

    What tells the nodes from others becomes part of what the checkpoint must agree in.
    """
    for node, worker in workers.items():
        if not isinstance(worker, Worker):
            raise ArgumentError(f"workers has one Worker for each node, got {worker!r} for node {node!r}")
        check_int("a node in workers", node, 0, server.participation.nodes - 1)
    shared = server.identity() | {"rounds": str(rounds), "version of torch": torch.__version__}
    gathered = wire.all_gather([shared, {str(node): worker.identity() for node, worker in workers.items()}])
    for rank, (identity, _) in enumerate(gathered):
        for name in {**gathered[0][0], **identity}:
            _same(name, rank, identity.get(name), 0, gathered[0][0].get(name))
    holders: dict[int, int] = {}
    common: dict[str, tuple[int, str]] = {}
    about: dict[str, str] = {}
    for rank, (_, nodes) in enumerate(gathered):
        for node, fields in ((int(number), fields) for number, fields in nodes.items()):
            if node in holders:
                raise DataError(f"node {node} has a worker on rank {holders[node]} and one on rank {rank}")
            holders[node] = rank
            for name, value in fields.items():
                if name in COMMON:
                    _same(name, rank, value, *common.setdefault(name, (rank, value)))
                    about[name] = value
                else:
                    about[f"{name} of node {node}"] = value
            if fields.get("sketch") != server.capacities[node].fingerprint():
                raise DataError(
                    f"the worker of node {node} on rank {rank} has another sketch than the server"
                )
    absent = [node for node in range(server.participation.nodes) if node not in holders]
    if absent:
        given = f"mast.cluster.my_nodes({server.participation.nodes})"
        raise DataError(f"node {absent[0]} has no worker: every rank gives those of {given}")
    server.about |= about
    return [holders[node] for node in range(server.participation.nodes)]


def _same(name: str, rank: int, here: str | None, other: int, there: str | None) -> None:
    if here != there:
        raise DataError(
            f"rank {rank} differs from rank {other} in its {name} ({here}, not {there}): all ranks must "
            "share it"
        )


def _resume(saved: RunFiles, rounds: int) -> None:
    """Bring the server and the trace to where the checkpoint left them."""
    saved.load()
    t = saved.server.t
    if t > rounds:
        raise ArgumentError(
            f"{saved.checkpoint} is at round {t} already, beyond rounds = {rounds}: ask for more"
        )
    saved.save()
    saved.truncate_trace()


def _share_result(wire: Wire, server: Server) -> list[Row]:
    """Rank 0's last point and round for the servers of all ranks, and its table of the nodes."""
    server.state.t, nodes = wire.broadcast([server.t, node_table(server)])
    x = server.x.view(np.uint8)
    if wire.rank:
        wire.receive(x, 0, ROUND_TAG)()
    else:
        for wait in [wire.send(x, rank, ROUND_TAG) for rank in range(1, wire.ranks)]:
            wait()
    return list(nodes)


# ---- rounds ----------------------------------------------------------------------------------------------


def answer_in(buffer: Bytes, worker: Worker, message: Message, part: Part) -> Message:
    """A worker's answer, in a buffer; whatever the user's functions raise names the node, and the line."""
    header = message.header
    try:
        return worker.answer(message, part, Message(header.reply(), buffer))
    except MastError:
        raise
    except Exception as error:
        words = f"node {header.node} failed in round {header.round}"
        raise ArgumentError(f"{words}: {in_one_line(error)}") from error


def serve_nodes(wire: Wire, server: Server, workers: Mapping[int, Worker], t: int, rounds: int) -> None:
    """On other ranks than the server's: answer its messages from round t on, until there are no more."""

    def prepare(t: int) -> list[tuple[int, Part, Bytes, Wait]]:
        """Make the draws of round t, and be ready for the values: nodes, parts, buffers, what arrives."""
        found = []
        for node in server.participation.sample(t) if t < rounds else ():
            if node in workers:
                part = workers[node].capacity.part(server.participation.key(t, node))
                buffer = wire.buffer((node, "in", t % 2), SIZE + part.count * server.wire.itemsize)
                found.append((node, part, buffer, wire.receive(buffer, 0, node)))
        return found

    def answer(node: int, part: Part, buffer: Bytes, wait: Wait) -> Wait:
        wait()
        message = Message.decode(buffer)
        if message.header.node != node:
            raise DataError(f"node {node} got a message for node {message.header.node}")
        answer = answer_in(wire.buffer((node, "out"), message.size), workers[node], message, part)
        return wire.send(answer.buffer, 0, node)

    pending = prepare(t)
    number = np.zeros(1, dtype=np.int64)
    while True:
        wire.phase = f"before round {t}"
        wire.receive(number.view(np.uint8), 0, ROUND_TAG)()
        if number[0] == END:
            return
        if number[0] != t:
            raise DataError(f"the server is in round {number[0]}, rank {wire.rank} in round {t}")
        wire.phase = f"in round {t}"
        sending = [answer(*message) for message in pending]
        t += 1
        pending = prepare(t)
        for wait in sending:
            wait()


class ServerRank:
    """The server's rank: it sends, lets its own nodes work, and sums up in the order of the nodes."""

    def __init__(
        self, wire: Wire, server: Server, workers: Mapping[int, Worker], ranks: Sequence[int]
    ) -> None:
        """`ranks` has the rank of each node."""
        self.wire, self.server, self.workers, self.ranks = wire, server, workers, ranks
        self.rounds = 0
        self._drawing: ThreadPoolExecutor
        self._ahead: Future[None] | None = None

    def train(self, rounds: int, saved: RunFiles, checkpoint_seconds: float, show: bool | None) -> None:
        """Rounds server.t .. rounds-1, with a row of the trace after each, and a checkpoint now and then."""
        server, last = self.server, time.monotonic()
        with self.announced(rounds), Progress(rounds, "training", show, unit="rounds", first=server.t) as bar:
            while server.should_continue(rounds):
                seconds, columns = self.round()
                passed = time.monotonic() - last >= checkpoint_seconds
                due = saved.checkpoint is not None and (passed or not server.should_continue(rounds))
                row = saved.add_round(seconds, due, columns)
                bar.advance(row["step"], note=f"{size_of(row['down'] + row['up'])} per round")
                if due:
                    saved.save()
                    last = time.monotonic()

    @contextlib.contextmanager
    def announced(self, rounds: int) -> Iterator[None]:
        """Around all rounds up to number `rounds`: afterwards the other ranks hear that there are no more."""
        self.rounds = rounds
        with ThreadPoolExecutor(1, thread_name_prefix="mast-draws") as self._drawing:
            yield
            self._wait_for_draws()
        self.wire.phase = "at the end"
        for wait in self._announce(END):
            wait()

    def round(self) -> tuple[float, Row]:
        """One round: its seconds, and for the trace how many took part, and the seconds of its four parts.

        `broadcast` is making and handing over the server's messages, `compute` the work of the slowest node,
        `update` what the server does with the answers, and `gather` the rest: the wire, and waiting.
        """
        server, clock = self.server, time.perf_counter
        self.wire.phase = f"in round {server.t}"
        begun = clock()
        sending = self._announce(server.t)
        self._wait_for_draws()
        arriving = self._send_messages(sending)
        own = [self._message(node) for node in server.weights() if self.ranks[node] == 0]
        sent = clock()
        self._draw_ahead(server.t + 1)
        answers = {message.header.node: self._answer(message) for message in own}
        compute, updated = clock() - sent, 0.0
        for node in server.weights():
            if node in arriving:
                buffer, wait = arriving[node]
                wait()
                answers[node] = Message.decode(buffer)
            start = clock()
            answer = answers.pop(node)
            compute = max(compute, answer.header.seconds)
            server.aggregate(answer)
            updated += clock() - start
        for wait in sending:
            wait()
        start = clock()
        nodes = len(server.weights())
        server.finish_round()
        updated += clock() - start
        seconds, broadcast = clock() - begun, sent - begun
        gather = max(0.0, seconds - broadcast - compute - updated)
        times = {"broadcast": broadcast, "compute": compute, "gather": gather, "update": updated}
        return seconds, {"nodes": nodes, **times}

    def _send_messages(self, sending: list[Wait]) -> dict[int, tuple[Bytes, Wait]]:
        """Send the messages to the nodes of other ranks; what will arrive from each of them."""
        arriving = {}
        for node, rank in ((node, self.ranks[node]) for node in self.server.weights()):
            if rank != 0:
                buffer = self.wire.buffer((node, "in"), self.server.header(node).size)
                arriving[node] = (buffer, self.wire.receive(buffer, rank, node))
                sending.append(self.wire.send(self._message(node).buffer, rank, node))
        return arriving

    def _answer(self, message: Message) -> Message:
        """The answer of a node of this rank."""
        node = message.header.node
        buffer = self.wire.buffer((node, "in"), message.size)
        return answer_in(buffer, self.workers[node], message, self.server.part(node))

    def _message(self, node: int) -> Message:
        return self.server.message(node, lambda size: self.wire.buffer((node, "out"), size))

    def _announce(self, t: int) -> list[Wait]:
        """Say to all other ranks which round begins, or that there is none."""
        number = np.array([t], dtype=np.int64).view(np.uint8)
        return [self.wire.send(number, rank, ROUND_TAG) for rank in range(1, self.wire.ranks)]

    def _draw_ahead(self, t: int) -> None:
        """Make the draws of the next round while others work, now that those of this round are made."""
        if t < self.rounds and self.server.x.size >= WORTH_A_THREAD:
            self._ahead = self._drawing.submit(self._draw, t)

    def _draw(self, t: int) -> None:
        for node in self.server.participation.sample(t):
            self.server.part(node, t)

    def _wait_for_draws(self) -> None:
        """Nothing else may draw while the next round's draws are made."""
        if self._ahead is not None:
            self._ahead.result()
            self._ahead = None
