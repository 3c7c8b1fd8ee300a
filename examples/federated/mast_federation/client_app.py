"""The clients: each answers with what its part of the model learnt from its own rows."""

import functools
from typing import Any

from flwr.app import Context, Message, MetricRecord, RecordDict

from mast.federated import Client, client
from mast_federation.tasks import Whole, task_of


def make(context: Context) -> Client:
    """The client of a partition."""
    return task_of(context.run_config).client(int(context.node_config["partition-id"]))


app = client(make)


@app.train("whole")
def whole(message: Message, context: Context) -> Message:
    """For comparison: FedAvg's client, which trains the whole model."""
    train = trainer(tuple(sorted(context.run_config.items())), int(context.node_config["partition-id"]))
    config = message.content["config"]
    arrays, rows = train(message.content["arrays"], config["step-size"], config["local-steps"])
    metrics = MetricRecord({"num-examples": rows})
    return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)


@functools.lru_cache(maxsize=16)
def trainer(config: tuple[tuple[str, Any], ...], node: int) -> Whole:
    """Made once in a process, as the clients of MAST are."""
    return task_of(dict(config)).whole(node)
