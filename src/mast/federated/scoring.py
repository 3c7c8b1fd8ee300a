"""Scores of submodels: each client gets draws of its own capacity that training has not seen."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from logging import WARNING

from flwr.app import Message as Carried
from flwr.app import MetricRecord
from flwr.supercore import log

from mast.federated.accounts import means_of
from mast.federated.records import METRICS, metric_record, numbers
from mast.methods.distributed import Header, Kind, Message, Server
from mast.randomness import Key, Purpose


def submodel(server: Server, node: int, draw: int) -> Message:
    """A client's submodel of the present x, of a draw with a seed of its own, which training never uses."""
    key = Key(Key(server.roster.seed).child(0, Purpose.ESTIMATE).seed, draw, node)
    part = server.capacities[node].part(key)
    header = Header(
        Kind.VALUES,
        node,
        key,
        part.count,
        server.wire,
        server.run,
        server.local_steps,
        server.local_step_size,
    )
    message = Message(header)
    part.gather(server.x, message.values)
    return message


@dataclass
class Scores:
    """What the clients said of their submodels: for each client one row of numbers a draw."""

    of: dict[int, list[dict[str, float]]] = field(default_factory=dict)

    @classmethod
    def heard(cls, replies: Iterable[Carried], nodes: Mapping[int, int]) -> Scores:
        """From replies; `nodes` says which partition a node id has. Failures are logged and left out."""
        found: dict[int, list[dict[str, float]]] = {}
        for reply in replies:
            if reply.has_error():
                log(WARNING, "A client could not score its submodels: %s", reply.error.reason)
                continue
            node = nodes.get(reply.metadata.src_node_id)
            names = sorted(name for name in reply.content if name.startswith(METRICS))
            rows = [numbers(reply.content[name]) for name in names]
            if node is not None and any(rows):
                found[node] = [row for row in rows if row]
        return cls(dict(sorted(found.items())))

    def mean(self) -> MetricRecord | None:
        """The means over all clients and draws."""
        means = means_of([row for rows in self.of.values() for row in rows])
        return metric_record(means) if means else None
