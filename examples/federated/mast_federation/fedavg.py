"""Flower's FedAvg on the same app, to compare with: the whole model to everybody; bytes and seconds."""

import time
from collections.abc import Iterable

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg

from mast.engines.flower.records import payload


class CountedFedAvg(FedAvg):
    """FedAvg, with what each round cost in `rows`."""

    def __init__(self, nodes: int) -> None:
        super().__init__(fraction_evaluate=0.0, min_train_nodes=nodes, min_available_nodes=nodes)
        self.rows: list[dict[str, float]] = []
        self._begun, self._down = 0.0, 0

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> list[Message]:
        """The same records to all."""
        self._begun = time.perf_counter()
        messages = list(super().configure_train(server_round, arrays, config, grid))
        self._down = sum(payload(message.content) for message in messages)
        return messages

    def _construct_messages(
        self, record: RecordDict, node_ids: list[int], message_type: str
    ) -> list[Message]:
        return list(super()._construct_messages(record, node_ids, "train.whole"))

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """The mean, weighted by rows."""
        replies = list(replies)
        found = super().aggregate_train(server_round, replies)
        up = sum(payload(reply.content) for reply in replies if reply.has_content())
        took = time.perf_counter() - self._begun
        self.rows.append({"took": took, "down": self._down, "up": up, "nodes": len(replies)})
        return found
