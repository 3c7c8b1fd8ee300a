"""The engine: rounds of messages between the server on rank 0 and the nodes of all ranks.

Everything that is random is known to all ranks beforehand (`Participation`), so a node makes the indices of
its next draw, and is ready to receive exactly as many bytes as will come, while the server still works.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np

from mast.distributed import SIZE, Message, Part, Participation, Server, Worker
from mast.engines.runs import Row, RunFiles
from mast.engines.torchrun.wire import Buffers, Bytes, Wait, Wire, in_one_line
from mast.errors import ArgumentError, DataError, MastError
from mast.support.progress import Progress, size_of

WORTH_A_THREAD = 1 << 18  #: coordinates from which on a helper draws ahead
END = -1  #: instead of a round's number: there is no other
ROUND_TAG = 1 << 30  #: tag of what begins a round, and of x at the end; other tags are numbers of nodes


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


class WorkerRank:
    """The nodes of a rank other than the server's."""

    def __init__(
        self, wire: Wire, participation: Participation, workers: Mapping[int, Worker], itemsize: int
    ) -> None:
        self.wire, self.participation, self.workers, self.itemsize = wire, participation, workers, itemsize
        self.buffers = Buffers()

    def serve(self, t: int, rounds: int) -> None:
        """Answer the server's messages from round t on, until it says that there are no more."""
        pending = self._prepare(t) if t < rounds else []
        number = np.zeros(1, dtype=np.int64)
        while True:
            self.wire.phase = f"before round {t}"
            self.wire.receive(number.view(np.uint8), 0, ROUND_TAG)()
            if number[0] == END:
                return
            if number[0] != t:
                raise DataError(f"the server is in round {number[0]}, rank {self.wire.rank} in round {t}")
            self.wire.phase = f"in round {t}"
            sending = [self._answer(*message) for message in pending]
            t += 1
            pending = self._prepare(t) if t < rounds else []
            for wait in sending:
                wait()

    def _prepare(self, t: int) -> list[tuple[int, Part, Bytes, Wait]]:
        """Make the draws of round t, and be ready for the values: nodes, parts, buffers, what arrives."""
        found = []
        for node in self.participation.sample(t):
            if node in self.workers:
                part = self.workers[node].capacity.part(self.participation.key(t, node))
                buffer = self.buffers.take((node, "in", t % 2), SIZE + part.count * self.itemsize)
                found.append((node, part, buffer, self.wire.receive(buffer, 0, node)))
        return found

    def _answer(self, node: int, part: Part, buffer: Bytes, wait: Wait) -> Wait:
        wait()
        message = Message.decode(buffer)
        if message.header.node != node:
            raise DataError(f"node {node} got a message for node {message.header.node}")
        answer = answer_in(self.buffers.take((node, "out"), message.size), self.workers[node], message, part)
        return self.wire.send(answer.buffer, 0, node)


class ServerRank:
    """The server's rank: it sends, lets its own nodes work, and sums up in the order of the nodes."""

    def __init__(
        self, wire: Wire, server: Server, workers: Mapping[int, Worker], ranks: Sequence[int]
    ) -> None:
        """`ranks` has the rank of each node."""
        self.wire, self.server, self.workers, self.ranks = wire, server, workers, ranks
        self.buffers, self.rounds = Buffers(), 0
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
                buffer = self.buffers.take((node, "in"), self.server.header(node).size)
                arriving[node] = (buffer, self.wire.receive(buffer, rank, node))
                sending.append(self.wire.send(self._message(node).buffer, rank, node))
        return arriving

    def _answer(self, message: Message) -> Message:
        """The answer of a node of this rank."""
        node = message.header.node
        buffer = self.buffers.take((node, "in"), message.size)
        return answer_in(buffer, self.workers[node], message, self.server.part(node))

    def _message(self, node: int) -> Message:
        return self.server.message(node, lambda size: self.buffers.take((node, "out"), size))

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
