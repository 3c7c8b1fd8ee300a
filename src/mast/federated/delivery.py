"""Messages there and replies back, within a finite time; and which replies are answers."""

from __future__ import annotations

import math
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from logging import WARNING

from flwr.app import Message as FlowerMessage
from flwr.serverapp import Grid
from flwr.supercore import log

from mast.errors import ArgumentError, MastError
from mast.federated.records import METRICS, numbers, payload, unpack
from mast.federated.report import Accounts
from mast.methods.distributed import Message, Server
from mast.methods.distributed.server import finite

FIRST_LOOK, LAST_LOOK = 0.02, 0.5  # seconds between two looks for replies, less and less often


def send(grid: Grid, messages: Sequence[FlowerMessage], timeout: float) -> list[FlowerMessage]:
    """Send messages and wait for the replies, at most `timeout` seconds.

    Flower's own ``grid.send_and_receive`` looks for replies every three seconds only.
    """
    waiting = {name for name in grid.push_messages(messages) if name} if messages else set()
    deadline, pause = time.monotonic() + timeout, FIRST_LOOK
    replies: list[FlowerMessage] = []
    while waiting:
        new = list(grid.pull_messages(list(waiting)))
        replies += new
        waiting -= {reply.metadata.reply_to_message_id for reply in new}
        if not waiting or time.monotonic() > deadline:
            break
        time.sleep(pause)
        pause = min(1.3 * pause, LAST_LOOK)
    return replies


def valid_answers(
    replies: Iterable[FlowerMessage],
    server: Server,
    node_ids: Mapping[int, int],
    invited: Collection[int],
    accounts: Accounts,
) -> dict[int, Message]:
    """The answers of this round by node; `node_ids` has the node id of each client that is there.

    An error, a foreign or damaged answer, one in another's name, of somebody who was not invited, a second
    one, and NaN are logged and count as none. If nobody has anything but NaN, the run has diverged.
    """
    answers: dict[int, Message] = {}
    broken: set[int] = set()
    names = {node_id: f"client {node}" for node, node_id in node_ids.items()}
    for reply in replies:
        try:
            answer = _checked(reply, server, node_ids)
            node = answer.header.node
            if node not in invited or node in answers or node in broken:
                raise ArgumentError(f"client {node} answered twice, or was not invited")
        except Exception as error:  # whatever one client sends, the others' round goes on
            words = str(error) if isinstance(error, MastError) else f"{type(error).__name__}: {error}"
            who = names.get(reply.metadata.src_node_id, "an unknown client")
            log(WARNING, "Round %d goes on without %s: %s", server.t + 1, who, words)
            continue
        metrics = reply.content.get(METRICS)
        accounts.came_from(node, payload(reply.content), {} if metrics is None else numbers(metrics))
        if finite(answer.values):
            answers[node] = answer
        else:
            log(WARNING, "Client %d answered with NaN or infinity in round %d", node, server.t + 1)
            broken.add(node)
    if broken and not answers:
        server.diverged = True
    return answers


def longest(answers: Iterable[Message]) -> float:
    """The seconds that the slowest client worked, as far as they say so."""
    seconds = [answer.header.seconds for answer in answers]
    return max((s for s in seconds if math.isfinite(s) and s > 0), default=0.0)


def _checked(reply: FlowerMessage, server: Server, node_ids: Mapping[int, int]) -> Message:
    if reply.has_error():
        raise ArgumentError(reply.error.reason or f"error {reply.error.code}")
    answer, *more = unpack(reply.content)
    node = answer.header.node
    if more:
        raise ArgumentError(f"client {node} sent {1 + len(more)} answers instead of one")
    if node_ids.get(node) != reply.metadata.src_node_id:
        raise ArgumentError(f"an answer in the name of client {node} came from another client")
    return answer.expect(server.expected(node))
