"""Which replies are answers: the others are logged and count as clients that did not answer."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from logging import WARNING

import numpy as np
from flwr.app import Message as Carried
from flwr.supercore import log

from mast.errors import ArgumentError, MastError
from mast.exchange import Message, Server
from mast.federated.accounts import Accounts
from mast.federated.records import METRICS, numbers, payload, unpack


def valid_answers(
    replies: Iterable[Carried], server: Server, where: Mapping[int, int], accounts: Accounts
) -> dict[int, Message]:
    """The answers of this round by node; `where` has the node id of each client that was asked.

    An error, a foreign or damaged answer, one in another's name and NaN count as none. If nobody has
    anything but NaN, the run has diverged.
    """
    answers: dict[int, Message] = {}
    broken = 0
    for reply in replies:
        try:
            answer = _checked(reply, server, where)
        except MastError as error:
            log(WARNING, "A client failed in round %d: %s", server.t + 1, error)
            continue
        node = answer.header.node
        accounts.came_from(node, payload(reply.content), numbers(reply.content.get(METRICS, {})))
        if np.isfinite(answer.values).all():
            answers[node] = answer
        else:
            log(WARNING, "Client %d answered with NaN or infinity in round %d", node, server.t + 1)
            broken += 1
    if broken and not answers:
        server.diverged = True
    return answers


def _checked(reply: Carried, server: Server, where: Mapping[int, int]) -> Message:
    if reply.has_error():
        raise ArgumentError(reply.error.reason or f"error {reply.error.code}")
    answer, *more = unpack(reply.content)
    node = answer.header.node
    if more:
        raise ArgumentError(f"client {node} sent {1 + len(more)} answers instead of one")
    if where.get(node) != reply.metadata.src_node_id:
        raise ArgumentError(f"an answer in the name of client {node} came from another client")
    return answer.expect(server.expected(node))
