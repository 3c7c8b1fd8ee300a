"""A user's script: five nodes with a shift, some of which sit out rounds; what torchrun starts in tests.

Only the problems of this rank's nodes are made: `python script.py ROUNDS CHECKPOINT TIMEOUT`.
"""

import functools
import sys

import mast
import mast.cluster
from mast.randomness import Key, normal

SKETCHES = ["bernoulli:.9", "randk:30", "permk:4", "identity", "permk:4"]
SHARES = [0.5, 1.0, 0.75, 1.0, 1.0]
SEED, STEP_SIZE = 5, 0.05


@functools.cache
def problem(node, l2=0.01):
    A, b = mast.data.load("a1a")
    mine = slice(node, None, len(SKETCHES))
    shift = 0.1 * normal(Key(1), 0, 123)
    return mast.Problem(mast.Logistic(A[mine], b[mine], l2=l2), mast.sketches.parse(SKETCHES[node]), shift)


def made(problems, **options):
    """The server for these problems of this rank, and the workers."""
    nodes = [problems.get(i) or mast.sketches.parse(text) for i, text in enumerate(SKETCHES)]
    options = {"step_size": STEP_SIZE, "seed": SEED, "participation": SHARES} | options
    workers = {node: mast.cluster.ProblemWorker(own) for node, own in problems.items()}
    return mast.cluster.server_for(nodes, **options), workers


def mine():
    return {node: problem(node) for node in mast.cluster.my_nodes(len(SKETCHES))}


def main(rounds, checkpoint, timeout):
    server, workers = made(mine())
    result = mast.cluster.run(
        server, workers, rounds, checkpoint=checkpoint, checkpoint_seconds=0.0, timeout=timeout, progress=True
    )
    if 0 in workers:
        result.save(f"{checkpoint}.result")


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], float(sys.argv[3]))
