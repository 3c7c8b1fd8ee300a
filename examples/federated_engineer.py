"""For federated engineers: clients of different capacity train one model, at equal bytes.

    python examples/federated_engineer.py        about half a minute, needs Flower

Eight clients with digits of their own hold all, half, a quarter or an eighth of a network's hidden units.
FedAvg, in which weak clients cannot take part, and HeteroFL are compared with MAST's default. All have one
step size; docs/studies/federated.md tunes each. The strategy and the clients are Flower's, and LocalGrid
carries the messages in one process; examples/federated is a complete app.
"""

import logging

import torch
from flwr.app import Context
from sklearn.datasets import load_digits
from torch import nn

from mast.federated import Client, LocalGrid, MastStrategy, client, server_for
from mast.nn.nodes import NetworkWorker, NodeRows, capacities_of, cross_entropy, scale_prefixes, submodel_of

SHARES = [1.0, 0.5, 0.25, 0.125] * 2
MEGABYTES = 12.0  # all clients together, both ways
IMAGES, LABELS = (torch.tensor(part) for part in load_digits(return_X_y=True))
IMAGES, TEST = IMAGES.float() / 16, slice(1400, None)


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 10))


@torch.no_grad()
def accuracy(model: nn.Module) -> float:
    return (model(IMAGES[TEST]).argmax(1) == LABELS[TEST]).float().mean().item()


def train(scheme: str) -> tuple[nn.Module, int]:
    """A federation that runs until it has sent its megabytes; the whole model, and the rounds."""
    clients = [i for i, share in enumerate(SHARES) if share == 1 or scheme != "fedavg"]
    shares = [SHARES[i] for i in clients]
    model = network()
    if scheme == "mast_balanced":
        scale_prefixes(model, scheme, shares)  # units that few clients hold begin small
    held = capacities_of(model, scheme, shares)

    def make(context: Context) -> Client:
        number = int(context.node_config["partition-id"])
        rows = slice(clients[number], TEST.start, len(SHARES))
        data = NodeRows(IMAGES[rows], LABELS[rows], 32)
        return Client(NetworkWorker(held[number], model, cross_entropy, data))

    strategy = MastStrategy(server_for(model, shares, scheme=scheme, step_size=0.2, local_steps=5))
    grid, rounds, sent = LocalGrid(client(make), len(shares)), 0, 0.0
    while sent < MEGABYTES:
        rounds += 5
        result = strategy.start(grid, num_rounds=rounds)
        sent = strategy.result().trace["bytes"].iloc[-1] / 1e6
    model.load_state_dict(result.arrays.to_torch_state_dict())
    return model, rounds


def main() -> None:
    logging.getLogger("flwr").setLevel(logging.WARNING)
    sizes = SHARES[:4]
    print(f"{'test accuracy':16} rounds " + " ".join(f"{share:>7.1%}" for share in sizes) + "  of the units")
    for scheme in ("fedavg", "heterofl", "mast_balanced"):
        model, rounds = train(scheme)
        cut = "heterofl" if scheme == "fedavg" else scheme  # FedAvg's model is cut as HeteroFL's would be
        scores = [accuracy(submodel_of(model, cut, share)) for share in sizes]
        print(f"{scheme:16} {rounds:6} " + " ".join(f"{score:7.3f}" for score in scores))


if __name__ == "__main__":
    main()
