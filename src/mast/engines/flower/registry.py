"""The clients as the server sees them: who is there, and which of their replies count as answers.

Flower's node ids are random, so clients are asked once for their partition.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from logging import WARNING
from typing import Any

import numpy as np
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.serverapp import Grid
from flwr.supercore import log

from mast.distributed import Message as Answer
from mast.distributed import Server
from mast.distributed.messages import Values, finite
from mast.engines.flower.records import (
    CONFIG,
    HELLO,
    IDENTITY,
    LONGEST_NAME,
    MOST_METRICS,
    PARTITION,
    unpack_messages,
)
from mast.errors import ArgumentError, MastError

PAUSE = 0.5  # seconds between two looks at who is there
ENOUGH = 3  # answers of a round whose median one bad client cannot move
REMEMBERED = 64  # norms of accepted answers
ALONE = 1e4  # times `norm_limit`: what one answer may move x by, in lengths of x, where nothing is known


class NoClientsError(MastError, TimeoutError):
    """No client came within the time that the strategy waits."""


class ClientRegistry:
    """Which node id has which partition, of the clients that are connected now.

    A partition belongs to whoever was first to claim it, as long as Flower sees that node; another one that
    claims it is left out until then. `node_ids` says which node has which partition, where SuperNodes are
    authenticated and so keep their ids: then nobody else ever gets it.

    The first call waits until all are there, at most `gathering` seconds; later ones do not wait, unless
    everybody is gone: who comes back is asked for its partition while the round runs, and is in the next one.
    A client whose partition does not fit, or that is another one than `identities` says, is left out; only if
    none fits, which is a wrong setting, not a wrong client, the call fails.
    """

    def __init__(
        self, nodes: int, gathering: float, least: int = 1, node_ids: Mapping[int, int] | None = None
    ) -> None:
        self.nodes, self.gathering, self.least = nodes, gathering, least
        self.node_ids = dict(node_ids or {})  # partition -> node id
        #: partition -> digests by name of what the client is, which a checkpoint keeps; None: nobody asks
        self.identities: dict[int, dict[str, str]] | None = None
        self._asked: dict[str, int] = {}  # message id -> node id
        self._claims: dict[int, int | str] = {}  # node id -> its partition, or why it is left out
        self._failed = ""  # what the last client that could not answer said
        self._gathered = False

    def connected(self, grid: Grid) -> dict[int, int]:
        """The node id of each partition that is there."""
        deadline = time.monotonic() + self.gathering
        while True:
            self._update(grid)
            there = self._owners()
            if len(there) >= (self.least if self._gathered else self.nodes):
                break
            wrong = [claim for claim in self._claims.values() if isinstance(claim, str)]
            if wrong and not (there or self._asked or self._gathered):
                raise ArgumentError(wrong[0])
            if time.monotonic() > deadline:
                self._give_up(there)
                break
            time.sleep(PAUSE)
        self._gathered = True
        return there

    def _owners(self) -> dict[int, int]:
        """The node id of each partition: of several that claim it, the first one's."""
        there: dict[int, int] = {}
        for node_id, partition in self._claims.items():
            if not isinstance(partition, str):
                there.setdefault(partition, node_id)
        return there

    def _update(self, grid: Grid) -> None:
        """Take in what was answered, forget who is gone, ask who is new."""
        online = set(grid.get_node_ids())
        self._read_replies(grid)
        self._claims = {node_id: claim for node_id, claim in self._claims.items() if node_id in online}
        self._asked = {asked: node_id for asked, node_id in self._asked.items() if node_id in online}
        strangers = sorted(online - set(self._claims) - set(self._asked.values()))
        if strangers:
            ttl = max(self.gathering, 60.0)
            wanted: dict[str, Any] = (
                {} if self.identities is None else {IDENTITY: ConfigRecord({"wanted": True})}
            )
            questions = [Message(RecordDict(wanted), node_id, HELLO, ttl=ttl) for node_id in strangers]
            pushed = zip(grid.push_messages(questions), strangers, strict=False)
            self._asked |= {asked: node_id for asked, node_id in pushed if asked}
            self._read_replies(grid)

    def _read_replies(self, grid: Grid) -> None:
        for reply in grid.pull_messages(list(self._asked)) if self._asked else ():
            node_id = self._asked.pop(reply.metadata.reply_to_message_id, None)
            if node_id is None:
                continue
            if reply.has_error():
                self._failed = reply.error.reason or f"error {reply.error.code}"
                log(WARNING, "A client did not say its partition: %s", self._failed)
                continue
            config = reply.content.get(CONFIG)
            config = config if isinstance(config, ConfigRecord) else ConfigRecord()
            partition: Any = config.get(PARTITION, -1)
            identity = _identity(reply)
            why = self._wrong(partition, config.get("num-partitions", self.nodes), node_id)
            why = why or self._changed(partition, identity)
            self._claims[node_id] = why or partition
            if not why and self._owners()[partition] != node_id:
                why = f"partition {partition} belongs to another one that is there"
            if why:
                log(WARNING, "A client is left out: %s", why)
            elif self.identities is not None and identity:
                self.identities[partition] = identity

    def _wrong(self, partition: object, partitions: object, node_id: int) -> str:
        """Why a client cannot have this partition, of `partitions`; empty if it can."""
        if partitions != self.nodes:
            return (
                f"a client says that there are {partitions!r} partitions, but the strategy has {self.nodes} "
                f"nodes: in simulation pass --federation-config 'num-supernodes={self.nodes}', else start "
                f"the SuperNodes with --node-config 'partition-id=... num-partitions={self.nodes}'"
            )
        if not isinstance(partition, int) or not 0 <= partition < self.nodes:
            return f"a client says that its partition-id is {partition!r}; they are 0 .. {self.nodes - 1}"
        if self.node_ids.get(partition, node_id) != node_id:
            owner = self.node_ids[partition]
            return f"node {node_id} claims partition {partition}, which belongs to node {owner}"
        return ""

    def _changed(self, partition: int, identity: Mapping[str, str]) -> str:
        """Why a client is not the one that began the run; empty if it is, or if one of them is not known."""
        begun = (self.identities or {}).get(partition, {})
        names = [name for name in {**begun, **identity} if begun.get(name) != identity.get(name)]
        if not (begun and identity and names):
            return ""
        return (
            f"client {partition} is not the one that the checkpoint's run began with: it has another "
            f"{', another '.join(names)}; use another checkpoint, or delete this one"
        )

    def _give_up(self, there: dict[int, int]) -> None:
        missing = sorted(set(range(self.nodes)) - set(there))
        if len(there) < self.least:
            raise NoClientsError(
                f"{len(there)} clients came within {self.gathering:g} s, at least {self.least} are needed; "
                f"partitions {_few(missing)} are missing"
                + (f"; a client failed: {self._failed}" if self._failed else "")
            )
        log(WARNING, "Going on without the partitions %s", _few(missing))


def _identity(reply: Message) -> dict[str, str]:
    """What a client says that it is: names and digests, as many and as long as can be true."""
    record = reply.content.get(IDENTITY)
    record = record if isinstance(record, ConfigRecord) and len(record) <= MOST_METRICS else ConfigRecord()
    fits = all(len(name) <= LONGEST_NAME and len(str(text)) <= LONGEST_NAME for name, text in record.items())
    return {name: str(text) for name, text in record.items()} if fits else {}


def _few(numbers: list[int]) -> str:
    return ", ".join(map(str, numbers[:8])) + (f" and {len(numbers) - 8} more" if len(numbers) > 8 else "")


# ---- replies ---------------------------------------------------------------------------------------------


class NormLimit:
    """Which answers are too long: those of more than `limit` times the running median of accepted ones.

    Where three or more answer in a round their own median counts too, so that all may grow together. Zeros
    tell nothing about the length of others. At the start, when there is no median yet, the model is the
    measure: the longer of two answers is refused if it is `limit` times as long as the other and would move x
    by more than its length. One answer alone cannot be judged well, which is said once: it is refused if it
    would move x by more than `limit` times `ALONE` of its lengths.

    >>> norms = NormLimit(10.0)
    >>> [norms.too_long({0: 1.0, 1: 2.0, 2: 1e30}), norms.too_long({0: 1.0, 1: 19.0})]
    [[2], [1]]
    >>> NormLimit(10.0).too_long({0: 1.0, 1: 1e30}, length=3.0)
    [1]
    """

    def __init__(self, limit: float | None) -> None:
        self.limit = limit
        self.accepted: list[float] = []  # the last norms, which a checkpoint keeps
        self._warned = False

    def too_long(self, norms: Mapping[int, float], length: float = 0.0) -> list[int]:
        """The nodes whose answers are refused; the norms of the others are remembered.

        `length` is the norm of an answer that would move x by its own length.
        """
        most = self._most([norm for norm in norms.values() if norm > 0], length)
        known = [norm for norm in norms.values() if 0 < norm <= most]
        self.accepted = [*self.accepted, *known][-REMEMBERED:]
        return [node for node, norm in norms.items() if norm > most]

    def _most(self, norms: Sequence[float], length: float) -> float:
        """The largest norm that is accepted, of these and those before."""
        if self.limit is None or not norms:
            return math.inf
        if self.accepted or len(norms) >= ENOUGH:
            samples = [self.accepted or norms, norms if len(norms) >= ENOUGH else self.accepted]
            return self.limit * max(map(statistics.median, samples))
        if len(norms) > 1:
            return max(self.limit * min(norms), length)
        if not self._warned:
            self._warned = True
            words = "One client answered, and there is nothing to compare its answer with"
            log(WARNING, "%s: it counts unless it is beyond all measure", words)
        return self.limit * ALONE * length


def length_of(server: Server) -> float:
    """The norm of an answer that would move x by its own length, with the nodes' step size.

    A model that is short, as a linear one that starts at 0, counts as one of ones.
    """
    length = max(_norm(server.x), math.sqrt(server.x.size))
    return length / (server.local_step_size * server.decay)


def _norm(values: Values) -> float:
    return float(np.sqrt(np.einsum("i,i->", values, values, dtype=np.float64)))  # squares of float32 overflow


def valid_answers(
    replies: Iterable[Message],
    server: Server,
    node_ids: Mapping[int, int],
    invited: Collection[int],
    limit: NormLimit,
) -> dict[int, tuple[Answer, Message]]:
    """The answers of this round by node, and the replies they came in; `node_ids` has who is there.

    An error, a foreign or damaged answer, one in another's name, of somebody who was not invited, a second
    one, NaN, and one that is too long are logged and count as none.
    """
    answers: dict[int, tuple[Answer, Message]] = {}
    names = {node_id: f"client {node}" for node, node_id in node_ids.items()}
    for reply in replies:
        try:
            answer = _checked(reply, server, node_ids)
            node = answer.header.node
            if node not in invited or node in answers:
                raise ArgumentError(f"client {node} answered twice, or was not invited")
            if not finite(answer.values):
                raise ArgumentError("it answered with NaN, infinity or numbers beyond all measure")
            answers[node] = answer, reply
        except Exception as error:  # whatever one client sends, the others' round goes on
            words = str(error) if isinstance(error, MastError) else f"{type(error).__name__}: {error}"
            who = names.get(reply.metadata.src_node_id, "an unknown client")
            log(WARNING, "Round %d goes on without %s: %s", server.t + 1, who, words)
    norms = {node: _norm(answers[node][0].values) for node in sorted(answers)}
    for node in limit.too_long(norms, 0.0 if limit.accepted else length_of(server)):
        del answers[node]
        words = f"its answer of norm {norms[node]:.3g} is more than `norm_limit` = {limit.limit:g} times"
        log(WARNING, "Round %d goes on without client %d: %s as long as usual", server.t + 1, node, words)
    return answers


def _checked(reply: Message, server: Server, node_ids: Mapping[int, int]) -> Answer:
    if reply.has_error():
        raise ArgumentError(reply.error.reason or f"error {reply.error.code}")
    answer, *more = unpack_messages(reply.content)
    node = answer.header.node
    if more:
        raise ArgumentError(f"client {node} sent {1 + len(more)} answers instead of one")
    if node_ids.get(node) != reply.metadata.src_node_id:
        raise ArgumentError(f"an answer in the name of client {node} came from another client")
    return answer.expect(server.header(node).reply())
