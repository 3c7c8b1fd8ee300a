"""For cluster engineers: four nodes of different capacity train one linear model, at the step size of
theory.

    torchrun --standalone --nproc-per-node 2 --max-restarts 3 train_linear.py
    python train_linear.py        the same bits, in one process

Each node has a quarter of a1a's rows and a sketch of its own, and two sit out some rounds. Today every
node holds the whole model: that is run afterwards.
"""

import argparse

import numpy as np

import mast
import mast.cluster

SKETCHES = ["bernoulli:.9", "bernoulli:.5", "randk:25%", "identity"]
PARTICIPATION = [1.0, 1.0, 0.5, 0.75]  # of the rounds; answers are weighted so that the mean stays right


def problem(node: int, sketch: str) -> mast.Problem:
    """The node's own rows and sketch; in earnest, each rank reads the files of its nodes only."""
    A, b = mast.data.load("a1a")
    mine = slice(node, None, len(SKETCHES))
    return mast.Problem(mast.Logistic(A[mine], b[mine], kappa=1000), mast.sketches.parse(sketch))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rounds", type=int, default=2000)
    parser.add_argument("--checkpoint", default="linear.mast")
    options = parser.parse_args()
    lines = []
    for name, sketches in (("what each can hold", SKETCHES), ("everybody everything", ["identity"] * 4)):
        mine = {node: problem(node, sketches[node]) for node in mast.cluster.my_nodes(len(SKETCHES))}
        # The data of the other nodes are on other ranks: here, only their sketches are known.
        nodes = [mine.get(i) or mast.sketches.parse(text) for i, text in enumerate(sketches)]
        # The largest step size that Theorem 15 allows these sketches, from the nodes' own constants.
        server = mast.cluster.server_for(nodes, step_size="theory", participation=PARTICIPATION)
        workers = {node: mast.cluster.ProblemWorker(own) for node, own in mine.items()}
        checkpoint = options.checkpoint if sketches is SKETCHES else f"{options.checkpoint}.everything"
        result = mast.cluster.run(
            server, workers, options.rounds, checkpoint=checkpoint, checkpoint_seconds=0.5, timeout=60
        )
        if 0 in mine:  # rank 0, which has the trace
            print(f"{result.status} after {result.steps} rounds, step size {result.step_size:.4g}")
            print(f"{result.note}\n{result.table()}\n")
            A, b = mast.data.load("a1a")
            accuracy = np.mean(np.where(A @ result.x > 0, 1, -1) == b)
            sent = result.trace["bytes"].iloc[-1] / 1e6
            lines.append(f"{name:22} accuracy {accuracy:.3f}, {sent:6.1f} MB sent")
    if 0 in mine:
        print("\n".join(lines))


if __name__ == "__main__":
    main()
