"""`run`: all rounds of a server with its nodes, on every rank, from agreement to result."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch

from mast.distributed import Server, Worker
from mast.engines.runs import Row, RunFiles, node_table, result_of
from mast.engines.torchrun.rounds import ROUND_TAG, ServerRank, WorkerRank
from mast.engines.torchrun.wire import Wire
from mast.errors import ArgumentError, DataError
from mast.results import Result
from mast.support.checks import check_int, check_nonnegative

LOCK_SECONDS = 5.0  # seconds in which the ranks of a torchrun that was killed may yet leave a checkpoint
#: what all workers must have in common: they train one model
COMMON = ("loss", "model", "frozen parameters and buffers", "shift", "batch_norm")


def run(
    server: Server,
    workers: Mapping[int, Worker],
    rounds: int,
    *,
    checkpoint: str | Path | None = None,
    checkpoint_seconds: float = 5.0,
    timeout: float = 120.0,
    progress: bool | None = None,
) -> Result:
    """Train until `rounds` rounds are done in all, those of the checkpoint included. Every rank calls this.

    Parameters
    ----------
    server
        What `server_for` made, the same on every rank; rank 0's leads.
    workers
        The workers of this rank's nodes, by their numbers; `my_nodes` says which these should be.
    checkpoint
        A file, on rank 0's machine, to save to and to continue from. The trace stands beside it, in a file
        with the ending ``.trace.jsonl``. The checkpoint knows the server's options, and of each node the
        data, the sketch, the loss and the model (`Worker.identity`): another one is refused by name.
    checkpoint_seconds
        The least time between two checkpoints; 0: one after every round.
    timeout
        Seconds after which a rank that is silent counts as lost. It has to be longer than any round.
    progress
        Whether rank 0 shows how far it is: None does so on a terminal.

    Returns
    -------
    Result
        On every rank, with x and the nodes' table; the trace is rank 0's. `server.x` is x, too.

    Raises
    ------
    LostRankError
        Another rank died, or was silent for too long; the message names it.
    DataError
        Another rank raised an error, which the message tells, or ranks do not fit together.

    >>> import mast
    >>> from mast.cluster import ProblemWorker, server_for
    >>> f = mast.Quadratic([[2.0, 0.0], [0.0, 4.0]], [1.0, 1.0])
    >>> nodes = [mast.Problem(f, mast.RandK(1)), mast.Problem(f, mast.Identity())]
    >>> server = server_for(nodes, step_size="theory")
    >>> result = run(server, {i: ProblemWorker(node) for i, node in enumerate(nodes)}, rounds=300)
    >>> result.status, result.x.round(2), len(result.nodes)
    ('finished', array([0.32, 0.17]), 2)
    """
    check_int("rounds", rounds, 0)
    check_nonnegative("checkpoint_seconds", checkpoint_seconds)
    saved = RunFiles(server, checkpoint)
    rows: list[Row] = []
    with Wire(timeout) as wire, contextlib.ExitStack() as held:
        ranks = _ranks_of_nodes(wire, server, workers, rounds)
        if wire.rank == 0 and saved.checkpoint is not None:
            # ranks of a torchrun that was killed may need a moment to end
            held.enter_context(saved.locked(LOCK_SECONDS if "TORCHELASTIC_RUN_ID" in os.environ else 0.0))
            _resume(saved, rounds)
        wire.connect()
        start = wire.broadcast(server.t)
        if wire.rank == 0:
            ServerRank(wire, server, workers, ranks).train(rounds, saved, checkpoint_seconds, progress)
            rows = saved.rows
        else:
            WorkerRank(wire, server.participation, workers, server.wire.itemsize).serve(start, rounds)
        nodes = _share_result(wire, server)
    return result_of(server, rows, nodes, server.note, server.guarantee)


def _ranks_of_nodes(wire: Wire, server: Server, workers: Mapping[int, Worker], rounds: int) -> list[int]:
    """The rank of each node. All ranks must speak of the same run, and each node be on one of them.

    What tells the nodes from others becomes part of what the checkpoint must agree in.
    """
    for node, worker in workers.items():
        if not isinstance(worker, Worker):
            raise ArgumentError(f"workers has one Worker for each node, got {worker!r} for node {node!r}")
        check_int("a node in workers", node, 0, server.participation.nodes - 1)
    shared = server.identity() | {"rounds": str(rounds), "version of torch": torch.__version__}
    gathered = wire.all_gather([shared, {str(node): worker.identity() for node, worker in workers.items()}])
    for rank, (identity, _) in enumerate(gathered):
        for name in {**gathered[0][0], **identity}:
            _same(name, rank, identity.get(name), 0, gathered[0][0].get(name))
    holders: dict[int, int] = {}
    common: dict[str, tuple[int, str]] = {}
    about: dict[str, str] = {}
    for rank, (_, nodes) in enumerate(gathered):
        for node, fields in ((int(number), fields) for number, fields in nodes.items()):
            if node in holders:
                raise DataError(f"node {node} has a worker on rank {holders[node]} and one on rank {rank}")
            holders[node] = rank
            for name, value in fields.items():
                if name in COMMON:
                    _same(name, rank, value, *common.setdefault(name, (rank, value)))
                    about[name] = value
                else:
                    about[f"{name} of node {node}"] = value
            if fields.get("sketch") != server.capacities[node].fingerprint():
                raise DataError(
                    f"the worker of node {node} on rank {rank} has another sketch than the server"
                )
    absent = [node for node in range(server.participation.nodes) if node not in holders]
    if absent:
        given = f"mast.cluster.my_nodes({server.participation.nodes})"
        raise DataError(f"node {absent[0]} has no worker: every rank gives those of {given}")
    server.about |= about
    return [holders[node] for node in range(server.participation.nodes)]


def _same(name: str, rank: int, here: str | None, other: int, there: str | None) -> None:
    if here != there:
        raise DataError(
            f"rank {rank} differs from rank {other} in its {name} ({here}, not {there}): all ranks must "
            "share it"
        )


def _resume(saved: RunFiles, rounds: int) -> None:
    """Bring the server and the trace to where the checkpoint left them."""
    saved.load()
    t = saved.server.t
    if t > rounds:
        raise ArgumentError(
            f"{saved.checkpoint} is at round {t} already, beyond rounds = {rounds}: ask for more"
        )
    saved.save()
    saved.truncate_trace()


def _share_result(wire: Wire, server: Server) -> list[Row]:
    """Rank 0's last point and round for the servers of all ranks, and its table of the nodes."""
    server.state.t, nodes = wire.broadcast([server.t, node_table(server)])
    x = server.x.view(np.uint8)
    if wire.rank:
        wire.receive(x, 0, ROUND_TAG)()
    else:
        for wait in [wire.send(x, rank, ROUND_TAG) for rank in range(1, wire.ranks)]:
            wait()
    return list(nodes)
