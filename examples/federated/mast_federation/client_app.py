"""The clients: each answers with what its part of the model learnt from its own rows."""

from flwr.app import Context

from mast.federated import Client, client
from mast_federation.tasks import task_of


def make(context: Context) -> Client:
    """The client of a partition."""
    return task_of(context.run_config).client(int(context.node_config["partition-id"]))


app = client(make)
