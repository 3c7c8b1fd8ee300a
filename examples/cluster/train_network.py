"""Four nodes train one network: two hold a quarter of its hidden units, one half, one all of them.

torchrun --standalone --nproc-per-node 2 train_network.py
"""

import argparse

import torch
from sklearn.datasets import load_digits
from torch import nn

import mast.cluster
from mast.nn.nodes import NodeRows, VectorLayout, cross_entropy, torch_seeded
from mast.randomness import Key

CAPACITIES = ["neurons:.25", "neurons:.25", "neurons:.5", "identity"]


def model() -> nn.Module:
    """The same start on every rank."""
    with torch_seeded(Key(0)):
        return nn.Sequential(
            nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 128), nn.ReLU(), nn.Linear(128, 10)
        )


def rows(node: int | None) -> tuple[torch.Tensor, torch.Tensor]:
    """The rows of one node; every fifth row is left out for testing (None), the others are dealt in turn."""
    digits = load_digits()
    everything = range(len(digits.target))
    mine = everything[::5] if node is None else [i for i in everything if i % 5][node :: len(CAPACITIES)]
    return torch.tensor(digits.data[mine] / 16, dtype=torch.float32), torch.tensor(digits.target[mine])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=300)
    parser.add_argument("--checkpoint", default="network.mast")
    options = parser.parse_args()

    network = model()
    server = mast.cluster.server_for(
        network, CAPACITIES, optimizer="adam", step_size=0.002, local_steps=4, local_step_size=0.05
    )
    workers = {
        node: mast.cluster.NetworkWorker(
            server.capacities[node], model(), cross_entropy, NodeRows(*rows(node), batch_size=32)
        )
        for node in mast.cluster.my_nodes(len(CAPACITIES))
    }
    result = mast.cluster.run(
        server, workers, options.rounds, checkpoint=options.checkpoint, checkpoint_seconds=0.5, timeout=60
    )
    if 0 in workers:  # rank 0
        VectorLayout(network).write(result.x, network)
        inputs, targets = rows(None)
        accuracy = (network(inputs).argmax(-1) == targets).float().mean()
        print(f"{result.status} after {result.steps} rounds")
        print(result.table())
        print(f"accuracy {accuracy:.3f}, {result.trace['bytes'].iloc[-1] / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
