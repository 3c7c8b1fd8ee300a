"""Four nodes of different capacity train one logistic regression on a quarter of a1a's rows each.

torchrun --standalone --nproc-per-node 2 train_linear.py
"""

import argparse

import numpy as np

import mast
import mast.cluster

SKETCHES = ["bernoulli:.9", "bernoulli:.5", "randk:25%", "identity"]
PARTICIPATION = [1.0, 1.0, 0.5, 0.75]  # of the rounds; answers are weighted so that the mean stays right


def problem(node: int) -> mast.Problem:
    """The node's own rows and sketch; in earnest, each rank reads the files of its nodes only."""
    A, b = mast.data.load("a1a")
    mine = slice(node, None, len(SKETCHES))
    return mast.Problem(mast.Logistic(A[mine], b[mine], kappa=1000), mast.sketches.parse(SKETCHES[node]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=2000)
    parser.add_argument("--checkpoint", default="linear.mast")
    options = parser.parse_args()

    mine = {node: problem(node) for node in mast.cluster.my_nodes(len(SKETCHES))}
    # The data of the other nodes are on other ranks: here, only their sketches are known.
    nodes = [mine.get(i) or mast.sketches.parse(text) for i, text in enumerate(SKETCHES)]
    # The largest step size that Theorem 15 allows these sketches, from the nodes' own constants.
    server = mast.cluster.server_for(nodes, step_size="theory", participation=PARTICIPATION)
    workers = {node: mast.cluster.ProblemWorker(own) for node, own in mine.items()}
    result = mast.cluster.run(
        server, workers, options.rounds, checkpoint=options.checkpoint, checkpoint_seconds=0.5, timeout=60
    )
    if 0 in mine:  # rank 0
        A, b = mast.data.load("a1a")
        accuracy = np.mean(np.where(A @ result.x > 0, 1, -1) == b)
        print(f"{result.status} after {result.steps} rounds, step size {result.step_size:.4g}")
        print(result.note)
        print(result.table())
        print(f"accuracy {accuracy:.3f}, {result.trace['bytes'].iloc[-1] / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
