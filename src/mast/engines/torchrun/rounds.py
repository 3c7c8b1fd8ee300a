"""The engine: rounds of messages between the server on rank 0 and the nodes of all ranks.

Everything that is random is known to all ranks beforehand (`Roster`), so a node makes the indices of its
next draw, and is ready to receive exactly as many bytes as will come, while the server still works.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np

from mast.distributed import SIZE, Message, Part, Roster, Server, Worker
from mast.engines.torchrun.wire import Buffers, Bytes, Transfer, Wire, in_one_line
from mast.errors import ArgumentError, DataError, MastError

WORTH_A_THREAD = 1 << 18  #: coordinates from which on a helper draws ahead
END = -1  #: instead of a round's number: there is no other
GO = 1 << 30  #: tag of what begins a round, and of x at the end; other tags are numbers of nodes
Row = dict[str, Any]  #: of the trace


@contextlib.contextmanager
def blamed(node: int, when: str) -> Iterator[None]:
    """Turn whatever the user's functions raise into an error that names the node, and the line."""
    try:
        yield
    except MastError:
        raise
    except Exception as error:
        raise ArgumentError(f"node {node} failed {when}: {in_one_line(error)}") from error


class NodesRank:
    """The nodes of a rank other than the server's."""

    def __init__(self, wire: Wire, roster: Roster, workers: Mapping[int, Worker], itemsize: int) -> None:
        self.wire, self.roster, self.workers, self.itemsize = wire, roster, workers, itemsize
        self.buffers = Buffers()

    def serve(self, t: int, rounds: int) -> None:
        """Answer the server's messages from round t on, until it says that there are no more."""
        pending = self._prepare(t) if t < rounds else []
        number = np.zeros(1, dtype=np.int64)
        while True:
            self.wire.when = f"before round {t}"
            self.wire.receive(number.view(np.uint8), 0, GO).wait()
            if number[0] == END:
                return
            if number[0] != t:
                raise DataError(f"the server is in round {number[0]}, rank {self.wire.rank} in round {t}")
            self.wire.when = f"in round {t}"
            sending = [self._answer(*message) for message in pending]
            t += 1
            pending = self._prepare(t) if t < rounds else []
            for transfer in sending:
                transfer.wait()

    def _prepare(self, t: int) -> list[tuple[int, Part, Bytes, Transfer]]:
        """Make the draws of round t, and be ready for the values: nodes, parts, buffers, what arrives."""
        found = []
        for node, _ in self.roster.taking_part(t):
            if node in self.workers:
                part = self.workers[node].capacity.part(self.roster.key(t, node))
                buffer = self.buffers.take((node, "in", t % 2), SIZE + part.count * self.itemsize)
                found.append((node, part, buffer, self.wire.receive(buffer, 0, node)))
        return found

    def _answer(self, node: int, part: Part, buffer: Bytes, arriving: Transfer) -> Transfer:
        arriving.wait()
        message = Message.decode(buffer)
        if message.header.node != node:
            raise DataError(f"node {node} got a message for node {message.header.node}")
        reply = message.header.answered()
        into = Message(reply, self.buffers.take((node, "out"), reply.size))
        with blamed(node, f"in round {message.header.round}"):
            answer = self.workers[node].answer(message, part, into)
        part.release()
        return self.wire.send(answer.buffer, 0, node)


class ServerRank:
    """The server's rank: it sends, lets its own nodes work, and sums up in the order of the nodes."""

    def __init__(
        self, wire: Wire, server: Server, workers: Mapping[int, Worker], ranks: Sequence[int]
    ) -> None:
        """`ranks` has the rank of each node."""
        self.wire, self.server, self.workers, self.ranks = wire, server, workers, ranks
        self.buffers, self.rounds = Buffers(), 0
        self._helper: ThreadPoolExecutor
        self._ahead: Future[None] | None = None

    def serve(self, rounds: int, after: Callable[[Row], None]) -> None:
        """Rounds server.t .. rounds-1, with a row of the trace after each; stops when x diverges."""
        self.rounds = rounds
        with ThreadPoolExecutor(1, thread_name_prefix="mast-draws") as self._helper:
            while self.server.goes_on(rounds):
                self.wire.when = f"in round {self.server.t}"
                after(self._round())
            self._drawn()
        self.wire.when = "at the end"
        for transfer in self._go(END):
            transfer.wait()

    def _go(self, t: int) -> list[Transfer]:
        """Say to all other ranks which round begins, or that there is none."""
        number = np.array([t], dtype=np.int64).view(np.uint8)
        return [self.wire.send(number, rank, GO) for rank in range(1, self.wire.ranks)]

    def _drawn(self) -> None:
        """Wait for the draws that the helper makes: nothing else may draw meanwhile."""
        if self._ahead is not None:
            self._ahead.result()
            self._ahead = None

    def _message(self, node: int) -> Message:
        return self.server.message(node, lambda size: self.buffers.take((node, "out"), size))

    def _round(self) -> Row:
        """One round, and its row of the trace with the seconds of its four parts.

        `broadcast` is making and handing over the server's messages, `compute` the work of the slowest node,
        `update` what the server does with the answers, and `gather` the rest: the wire, and waiting.
        """
        server, wire, clock = self.server, self.wire, time.perf_counter
        begun = clock()
        t = server.t
        sending = self._go(t)
        self._drawn()
        nodes = list(server.weights())
        away = [node for node in nodes if self.ranks[node] != 0]
        arriving, answers = {}, {}
        for node in away:
            header = server.expected(node)
            buffer = self.buffers.take((node, "in"), header.size)
            arriving[node] = (buffer, wire.receive(buffer, self.ranks[node], node))
            sending.append(wire.send(self._message(node).buffer, self.ranks[node], node))
        own = [self._message(node) for node in nodes if self.ranks[node] == 0]
        sent = clock()
        if t + 1 < self.rounds and server.x.size >= WORTH_A_THREAD:
            # all draws of this round are made: those of the next are, while others work
            self._ahead = self._helper.submit(server.prepare, t + 1)
        for message in own:
            node, reply = message.header.node, message.header.answered()
            into = Message(reply, self.buffers.take((node, "in"), reply.size))
            with blamed(node, f"in round {t}"):
                answers[node] = self.workers[node].answer(message, server.part(node), into)
        compute, updated = clock() - sent, 0.0
        for node in nodes:
            if node in arriving:
                arriving[node][1].wait()
                answers[node] = Message.decode(arriving[node][0])
            start = clock()
            answer = answers.pop(node)
            compute = max(compute, answer.header.seconds)
            server.absorb(answer)
            updated += clock() - start
        for transfer in sending:
            transfer.wait()
        start = clock()
        server.close()
        updated += clock() - start
        took, broadcast = clock() - begun, sent - begun
        return server.row(
            took,
            nodes=len(nodes),
            broadcast=broadcast,
            compute=compute,
            gather=max(0.0, took - broadcast - compute - updated),
            update=updated,
        )
