"""Rounds of the cluster on loopback, four ranks: against a dense all_reduce, the wire, the full model."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

from _bench import Row, versus

TITLE = "A cluster on one machine"
RANKS = 4
TURNS = 8  # in which every kind has three tries; the best counts
UNITS, INPUTS, OUTPUTS = 4900, 2000, 40  # 10^7 weights, nearly all in the rows of hidden units


def rows() -> Iterator[Row]:
    measured = _measured()
    dense, wire = measured["dense"], measured["wire"]
    for kind, what, target in (("units", "whole units", 0.6), ("weights", "single weights", 1.2)):
        took = measured[kind]
        job = f"a round, each node keeping 25 % of 10^7 float32, {what}"
        yield versus(job, took, "dense all_reduce of the same model", dense, target)
    for kind, what in (("units", "whole units"), ("weights", "single weights")):
        own = measured[f"{kind} node"]
        job = f"a node's own work (indices, gathering), {what}"
        yield versus(job, own, "the wire time of the round", wire, 1.0)
    quarter, full = _training()
    job = "CPU time of a node training 25 % of the units, a round"
    yield versus(job, quarter, "training the full model", full, 0.35)


def _measured() -> dict[str, float]:
    """What four ranks under torchrun measure: the best times in seconds, by name."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={RANKS}"]
    variables = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run([*command, __file__], check=True, capture_output=True, text=True, env=variables)
    measured: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return measured


def _network():  # type: ignore[no-untyped-def]
    from torch import nn

    return nn.Sequential(nn.Linear(INPUTS, UNITS), nn.ReLU(), nn.Linear(UNITS, OUTPUTS))


def _rank() -> None:
    """One of the four: rounds of the engine with nodes that send back what they got, and their peers."""
    import torch

    from mast.engines.torchrun.wire import Wire

    torch.set_num_threads(1)
    with Wire(60) as wire:
        wire.connect()
        best = _rounds(wire)
    if wire.rank == 0:
        print(json.dumps(best))


def _rounds(wire) -> dict[str, float]:  # type: ignore[no-untyped-def]
    """The best seconds of each kind."""
    import numpy as np
    import torch
    import torch.distributed as dist

    from mast.distributed import Participation, Server, Worker
    from mast.engines.torchrun.run import ServerRank, serve_nodes
    from mast.nn.nodes import capacity_of

    class Echo(Worker):
        def gradients(self, part, values, header):  # type: ignore[no-untyped-def]
            return values

    model = _network()
    dim = sum(p.numel() for p in model.parameters())
    dense = torch.zeros(dim)
    best: dict[str, float] = {}

    def note(name: str, took: float) -> None:
        best[name] = min(took, best.get(name, float("inf")))

    engines = {}
    for name, text in (("units", "neurons:.25"), ("weights", "bernoulli:.25")):
        capacity = capacity_of(model, text)
        participation = Participation(0, RANKS)
        workers = {wire.rank: Echo(capacity)}
        server = Server(np.zeros(dim, np.float32), [capacity] * RANKS, participation, step_size=1e-3)
        engines[name] = ServerRank(wire, server, workers, range(RANKS))
    done = 0
    for turn in range(TURNS):
        for name, engine in engines.items():
            dist.barrier()
            if wire.rank == 0:
                with engine.announced(done + 3):
                    while engine.server.should_continue(done + 3):
                        note(name, engine.round()[0])
            else:
                serve_nodes(wire, engine.server, engine.workers, done, done + 3)
            note(f"{name} node", _own_work(engine.server.capacities[0], model, turn, dist.barrier))
        done += 3
        for _ in range(3):
            dist.barrier()
            begun = time.perf_counter()
            dist.all_reduce(dense)
            note("dense", time.perf_counter() - begun)
            dist.barrier()
            note("wire", _wire_time(wire, dim))
    return best


def _own_work(capacity, model, turn, barrier: Callable[[], object]) -> float:  # type: ignore[no-untyped-def]
    """Making the indices of a draw, and gathering the values of the gradient: all ranks at once."""
    import numpy as np

    from mast.nn.nodes import VectorLayout
    from mast.randomness import Key

    gradient = VectorLayout(model).read(model)
    out = np.empty(gradient.size // 3, dtype=np.float32)
    barrier()
    begun = time.perf_counter()
    part = capacity.part(Key(turn))
    part.gather(gradient, out[: part.count])
    return time.perf_counter() - begun


def _wire_time(wire, dim: int) -> float:  # type: ignore[no-untyped-def]
    """A quarter of the model to each other rank and back, and nothing else."""
    import numpy as np

    size = dim // 4 * 4
    buffers = [np.zeros(size, np.uint8) for _ in range(2 * RANKS)]
    begun = time.perf_counter()
    if wire.rank == 0:
        others = range(1, RANKS)
        coming = [wire.receive(buffers[r], r, r) for r in others]
        going = [wire.send(buffers[RANKS + r], r, r) for r in others]
        for work in (*coming, *going):
            work()
    else:
        wire.receive(buffers[0], 0, wire.rank)()
        wire.send(buffers[0], 0, wire.rank)()
    return time.perf_counter() - begun


def _training() -> tuple[float, float]:
    """CPU seconds of a node's round on a network of 2048-1024-10, batch 128, four local steps."""
    import numpy as np
    import torch
    from torch import nn

    from mast.distributed import Participation, Server
    from mast.nn.nodes import NetworkWorker, NodeRows, VectorLayout, capacity_of, cross_entropy

    torch.set_num_threads(1)
    model = nn.Sequential(nn.Linear(2048, 1024), nn.ReLU(), nn.Linear(1024, 10))
    rows = NodeRows(torch.zeros(512, 2048), torch.arange(512) % 10, 128)
    best = []
    for text in ("neurons:.25", "identity"):
        capacity = capacity_of(model, text)
        worker = NetworkWorker(capacity, model, cross_entropy, rows)
        x = VectorLayout(model).read(model).astype(np.float32)
        server = Server(x, [capacity], Participation(0, 1), step_size=1e-3, local_steps=4)
        message = server.message(0)
        times = []
        for _ in range(8):
            begun = time.process_time()
            worker.answer(message)
            times.append(time.process_time() - begun)
        best.append(min(times))
    return best[0], best[1]


if __name__ == "__main__":
    _rank()
