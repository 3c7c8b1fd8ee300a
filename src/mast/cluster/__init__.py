"""The distributed method on torch.distributed: nodes of different capacity, one server, under torchrun.

::

    python -m mast.cluster train.toml --ranks 4

or from Python ``mast.cluster.run("train.toml", ranks=4)``; both start torchrun on 127.0.0.1. Between
machines torchrun is started on each: ``torchrun --nnodes 2 ... -m mast.cluster train.toml``. The
mathematics, the server and its messages are `mast.methods.distributed`; here gloo carries them, and a run
survives the death of any of its processes: torchrun starts all of them again, and they continue from the
last checkpoint with the same bits. The order of sums is that of the nodes' numbers, whatever rank they are
on and whoever answers first, so the number of ranks does not matter either.

`mast.cluster.settings` has what `train.toml` may say. A `Task` is what is trained: write one for models of
another kind.
"""

from __future__ import annotations

import mast.cluster.processes  # noqa: F401 - first: it notes who started this process

try:
    import torch  # noqa: F401
except ImportError as error:
    raise ImportError('mast.cluster needs PyTorch: pip install "mast-train[cluster]"') from error

from mast.cluster.running import run
from mast.cluster.settings import Settings
from mast.cluster.tasks import Task
from mast.cluster.wire import LostRankError, Wire

__all__ = ["LostRankError", "Settings", "Task", "Wire", "run"]
