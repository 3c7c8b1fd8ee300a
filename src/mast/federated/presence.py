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
    A client whose partition does not fit is left out; only if none fits, which is a wrong setting, not a
    wrong client, the call fails.
    """

    def __init__(self, nodes: int, gathering: float, least: int = 1) -> None:
        self.nodes, self.gathering, self.least = nodes, gathering, least
        self.known: dict[int, int] = {}  # node id -> partition, the latest to say so last
        self._asked: dict[str, int] = {}  # message id -> node id
        self._misfits: dict[int, str] = {}  # node id -> what is wrong with what it said
        self._doubles: dict[int, int] = {}  # node id -> partition that another one has now
        self._failed = ""  # what the last client that could not answer said
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
            if self._misfits and not (there or self._asked or self._met):
                raise ArgumentError(next(iter(self._misfits.values())))
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
        self._misfits = {node_id: why for node_id, why in self._misfits.items() if node_id in online}
        doubles = {node_id for node_id, its in self._doubles.items() if its in self.known.values()}
        strangers = sorted(
            online - set(self.known) - set(self._misfits) - doubles - set(self._asked.values())
        )
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
                self._failed = reply.error.reason or f"error {reply.error.code}"
                log(WARNING, "A client did not say its partition: %s", self._failed)
                continue
            self._place(node_id, reply.content)

    def _place(self, node_id: int, content: RecordDict) -> None:
        said = content.get(CONFIG)
        said = said if isinstance(said, ConfigRecord) else ConfigRecord()
        partition, partitions = said.get(PARTITION, -1), said.get("num-partitions", self.nodes)
        wrong = self._wrong(partition, partitions)
        if wrong:
            log(WARNING, "A client is left out: %s", wrong)
            self._misfits[node_id] = wrong
            return
        assert isinstance(partition, int)
        for other in [known for known, its in self.known.items() if its == partition]:
            log(
                WARNING,
                "Partition %d is now at another node id: it restarted, or there are two of it",
                partition,
            )
            del self.known[other]
            self._doubles[other] = partition
        self.known[node_id] = partition

    def _wrong(self, partition: object, partitions: object) -> str:
        """Why a client cannot have this partition of so many; empty if it can."""
        if partitions != self.nodes:
            return (
                f"a client says that there are {partitions!r} partitions, but the strategy has {self.nodes} "
                f"nodes: in simulation pass --federation-config 'num-supernodes={self.nodes}', else start "
                f"the SuperNodes with --node-config 'partition-id=... num-partitions={self.nodes}'"
            )
        if not isinstance(partition, int) or not 0 <= partition < self.nodes:
            return f"a client says that its partition-id is {partition!r}; they are 0 .. {self.nodes - 1}"
        return ""

    def _give_up(self, there: dict[int, int]) -> None:
        missing = sorted(set(range(self.nodes)) - set(there))
        if len(there) < self.least:
            raise NoClientsError(
                f"{len(there)} clients came within {self.gathering:g} s, at least {self.least} are needed; "
                f"partitions {_few(missing)} are missing"
                + (f"; a client failed: {self._failed}" if self._failed else "")
            )
        log(WARNING, "Going on without the partitions %s", _few(missing))


def _question(node_id: int, ttl: float) -> Message:
    return Message(RecordDict(), dst_node_id=node_id, message_type=HELLO, ttl=max(ttl, 60.0))


def _few(numbers: list[int]) -> str:
    return ", ".join(map(str, numbers[:8])) + (f" and {len(numbers) - 8} more" if len(numbers) > 8 else "")
