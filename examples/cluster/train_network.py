"""For cluster engineers: nodes of different capacity train one network, each the part that it can hold.

    torchrun --standalone --nproc-per-node 2 --max-restarts 3 train_network.py
    python train_network.py        the same bits, in one process

Two nodes hold a quarter of the hidden units, one half, one all of them. Today every node holds
everything: that is run afterwards, and compared by accuracy, by bytes, and by what a node has to hold.
"""

import argparse

import torch
from sklearn.datasets import load_digits
from torch import nn

import mast.cluster
from mast.nn.nodes import NodeRows, VectorLayout, cross_entropy, torch_seeded
from mast.randomness import Key

SETTINGS = {
    "what each can hold": ["neurons:.25", "neurons:.25", "neurons:.5", "identity"],
    "everybody everything": ["identity"] * 4,
}


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
    mine = everything[::5] if node is None else [i for i in everything if i % 5][node::4]
    return torch.tensor(digits.data[mine] / 16, dtype=torch.float32), torch.tensor(digits.target[mine])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rounds", type=int, default=300)
    parser.add_argument("--checkpoint", default="network.mast")
    options = parser.parse_args()
    mine = mast.cluster.my_nodes(4)
    lines = []
    for number, (name, capacities) in enumerate(SETTINGS.items()):
        network = model()
        server = mast.cluster.server_for(
            network, capacities, optimizer="adam", step_size=0.002, local_steps=4, local_step_size=0.05
        )
        workers = {
            node: mast.cluster.NetworkWorker(
                server.capacities[node], model(), cross_entropy, NodeRows(*rows(node), batch_size=32)
            )
            for node in mine
        }
        checkpoint = f"{options.checkpoint}.{number}" if number else options.checkpoint
        result = mast.cluster.run(
            server, workers, options.rounds, checkpoint=checkpoint, checkpoint_seconds=0.5, timeout=60
        )
        if 0 in mine:  # rank 0, which has the trace
            print(f"{result.status} after {result.steps} rounds\n{result.table()}")
            VectorLayout(network).write(result.x, network)
            inputs, targets = rows(None)
            accuracy = (network(inputs).argmax(-1) == targets).float().mean()
            sent = result.trace["bytes"].iloc[-1] / 1e6
            lines.append(f"{name:22} accuracy {accuracy:.3f}, {sent:6.1f} MB sent")
    if 0 in mine:
        print("\n".join(lines))


if __name__ == "__main__":
    main()
