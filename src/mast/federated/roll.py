"""Who is there: Flower's node ids are random, so clients are asked once for their partition."""

from __future__ import annotations

import time
from collections.abc import Iterable
from logging import WARNING

from flwr.app import ConfigRecord, Message, RecordDict
from flwr.serverapp import Grid
from flwr.supercore import log

from mast.errors import ArgumentError, MastError
from mast.federated.records import CONFIG, HELLO, PARTITION

PAUSE = 0.5  # seconds between two looks at who is there


class NoClientsError(MastError, TimeoutError):
    """No client came within the time that the strategy waits."""


class RollCall:
    """Which node id has which partition, of the clients that are connected now.

    The first call waits until all are there, at most `gathering` seconds; later ones do not wait, unless
    everybody is gone: who comes back is asked for its partition while the round runs, and is in the next one.
    """

    def __init__(self, nodes: int, gathering: float, least: int = 1) -> None:
        self.nodes, self.gathering, self.least = nodes, gathering, least
        self.known: dict[int, int] = {}  # node id -> partition, the latest to say so last
        self._asked: dict[str, int] = {}  # message id -> node id
        self._met = False

    def call(self, grid: Grid) -> dict[int, int]:
        """The node id of each partition that is there."""
        deadline = time.monotonic() + self.gathering
        while True:
            self._look(grid)
            there = {partition: node_id for node_id, partition in self.known.items()}
            enough = self.least if self._met else self.nodes
            if len(there) >= enough:
                break
            if time.monotonic() > deadline:
                self._give_up(there)
                break
            time.sleep(PAUSE)
        self._met = True
        return there

    def _look(self, grid: Grid) -> None:
        """Forget who is gone, take in what was answered, ask who is new."""
        online = set(grid.get_node_ids())
        self.known = {node_id: partition for node_id, partition in self.known.items() if node_id in online}
        if self._asked:
            self._hear(grid.pull_messages(list(self._asked)))
        self._asked = {asked: node_id for asked, node_id in self._asked.items() if node_id in online}
        strangers = sorted(online - set(self.known) - set(self._asked.values()))
        if strangers:
            questions = [_question(node_id, self.gathering) for node_id in strangers]
            for asked, node_id in zip(grid.push_messages(questions), strangers, strict=False):
                if asked:
                    self._asked[asked] = node_id
            self._hear(grid.pull_messages(list(self._asked)))

    def _hear(self, replies: Iterable[Message]) -> None:
        for reply in replies:
            node_id = self._asked.pop(reply.metadata.reply_to_message_id, None)
            if node_id is None:
                continue
            if reply.has_error():
                log(WARNING, "A client did not say its partition: %s", reply.error.reason)
                continue
            self._place(node_id, reply.content)

    def _place(self, node_id: int, content: RecordDict) -> None:
        said = content.get(CONFIG)
        said = said if isinstance(said, ConfigRecord) else ConfigRecord()
        partition, partitions = said.get(PARTITION, -1), said.get("num-partitions", self.nodes)
        if partitions != self.nodes:
            raise ArgumentError(
                f"a client says that there are {partitions!r} partitions, but the strategy has {self.nodes} "
                f"nodes: in simulation pass --federation-config 'num-supernodes={self.nodes}', else start "
                f"the SuperNodes with --node-config 'partition-id=... num-partitions={self.nodes}'"
            )
        if not isinstance(partition, int) or not 0 <= partition < self.nodes:
            raise ArgumentError(
                f"a client says that its partition-id is {partition!r}; they are 0 .. {self.nodes - 1}"
            )
        for other in [known for known, its in self.known.items() if its == partition]:
            log(
                WARNING,
                "Partition %d is now at another node id: it restarted, or there are two of it",
                partition,
            )
            del self.known[other]
        self.known[node_id] = partition

    def _give_up(self, there: dict[int, int]) -> None:
        missing = sorted(set(range(self.nodes)) - set(there))
        if len(there) < self.least:
            raise NoClientsError(
                f"{len(there)} clients came within {self.gathering:g} s, at least {self.least} are needed; "
                f"partitions {_few(missing)} are missing"
            )
        log(WARNING, "Going on without the partitions %s", _few(missing))


def _question(node_id: int, ttl: float) -> Message:
    return Message(RecordDict(), dst_node_id=node_id, message_type=HELLO, ttl=max(ttl, 60.0))


def _few(numbers: list[int]) -> str:
    return ", ".join(map(str, numbers[:8])) + (f" and {len(numbers) - 8} more" if len(numbers) > 8 else "")
