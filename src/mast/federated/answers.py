"""Which replies are answers: the others are logged and count as clients that did not answer."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from logging import WARNING

from flwr.app import Message as Carried
from flwr.supercore import log

from mast.errors import ArgumentError, MastError
from mast.federated.accounts import Accounts
from mast.federated.records import METRICS, numbers, payload, unpack
from mast.methods.distributed import Message, Server
from mast.methods.distributed.server import finite


def valid_answers(
    replies: Iterable[Carried],
    server: Server,
    asked: Mapping[int, int],
    invited: Collection[int],
    accounts: Accounts,
) -> dict[int, Message]:
    """The answers of this round by node; `asked` has the node id of each client that is there.

    An error, a foreign or damaged answer, one in another's name, of somebody who was not invited, a second
    one, and NaN count as none. If nobody has anything but NaN, the run has diverged.
    """
    answers: dict[int, Message] = {}
    broken: set[int] = set()
    names = {node_id: f"client {node}" for node, node_id in asked.items()}
    for reply in replies:
        try:
            answer = _checked(reply, server, asked)
            node = answer.header.node
            if node not in invited or node in answers or node in broken:
                raise ArgumentError(f"client {node} answered twice, or was not invited")
        except Exception as error:  # whatever one client sends, the others' round goes on
            words = str(error) if isinstance(error, MastError) else f"{type(error).__name__}: {error}"
            who = names.get(reply.metadata.src_node_id, "an unknown client")
            log(WARNING, "Round %d goes on without %s: %s", server.t + 1, who, words)
            continue
        said = reply.content.get(METRICS)
        accounts.came_from(node, payload(reply.content), {} if said is None else numbers(said))
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
    said = [answer.header.seconds for answer in answers]
    return max((s for s in said if math.isfinite(s) and s > 0), default=0.0)


def _checked(reply: Carried, server: Server, asked: Mapping[int, int]) -> Message:
    if reply.has_error():
        raise ArgumentError(reply.error.reason or f"error {reply.error.code}")
    answer, *more = unpack(reply.content)
    node = answer.header.node
    if more:
        raise ArgumentError(f"client {node} sent {1 + len(more)} answers instead of one")
    if asked.get(node) != reply.metadata.src_node_id:
        raise ArgumentError(f"an answer in the name of client {node} came from another client")
    return answer.expect(server.expected(node))
