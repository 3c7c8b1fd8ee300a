"""The distributed method under torchrun: nodes of different capacity train one model.

Every process that torchrun starts, a rank, runs the same script. Each makes the same server and has workers
for its own nodes only, with their data; rank 0 leads::

    import mast.cluster

    A, b = mast.data.load("a1a")
    sketches = [mast.PermK(4), mast.PermK(4), mast.PermK(2), mast.Identity()]
    mine = mast.cluster.my_nodes(4)
    problems = {i: mast.Problem(mast.Logistic(A[i::4], b[i::4], l2=1e-3), sketches[i]) for i in mine}

    server = mast.cluster.server_for([problems.get(i, sketches[i]) for i in range(4)], step_size="theory")
    workers = {i: mast.cluster.ProblemWorker(problems[i]) for i in mine}
    result = mast.cluster.run(server, workers, rounds=200, checkpoint="run.mast")

``torchrun --standalone --nproc-per-node 2 train.py`` runs it in two processes, ``python train.py`` in one,
with the same bits: sums go in the order of the nodes' numbers, whatever rank they are on. With
``--max-restarts 3`` torchrun starts all ranks again when one dies, and they continue from the checkpoint.

The source is in `mast.engines.torchrun`.
"""

from __future__ import annotations

try:
    import torch  # noqa: F401
except ImportError as error:
    raise ImportError('mast.cluster needs PyTorch: pip install "mast-train[cluster]"') from error

from mast.distributed import ProblemWorker
from mast.engines.servers import cluster_server_for as server_for
from mast.engines.torchrun.run import run
from mast.engines.torchrun.wire import LostRankError, my_nodes
from mast.nn.nodes import NetworkWorker

__all__ = ["LostRankError", "NetworkWorker", "ProblemWorker", "my_nodes", "run", "server_for"]
