"""The clients: each answers with what its part of the model learnt from its own rows."""

from flwr.app import Context, Message, MetricRecord, RecordDict

from mast.federated import Client, client
from mast_federation.tasks import task_of


def make(context: Context) -> Client:
    """The client of a partition."""
    return task_of(context.run_config).client(int(context.node_config["partition-id"]))


app = client(make)


@app.train("whole")
def whole(message: Message, context: Context) -> Message:
    """For comparison: FedAvg's client, which trains the whole model."""
    config, node = message.content["config"], int(context.node_config["partition-id"])
    arrays, rows = task_of(context.run_config).whole(
        node, message.content["arrays"], config["step-size"], config["local-steps"]
    )
    metrics = MetricRecord({"num-examples": rows})
    return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)
