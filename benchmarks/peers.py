"""The same jobs by packages people know: scikit-learn; torch's Dropout, prune, all_reduce; torch-pruning."""

from __future__ import annotations

import copy
import os
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

import mast
from _bench import Row, best, versus
from _machine import bandwidth, loopback

TITLE = "Against packages people know"

FOLDER = Path(os.environ.get("MAST_DATA", Path(__file__).parents[2] / "shared" / "data"))


def rows() -> Iterator[Row]:
    yield from _scikit_learn()
    try:
        import torch
    except ImportError:
        print("peers: torch is not installed, so its rows are left out", file=sys.stderr)
        return
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield from _dropout()
        yield from _prune()
        yield from _torch_pruning()
        yield from _all_reduce()
    finally:
        torch.set_num_threads(threads)


# ---- scikit-learn ----------------------------------------------------------------------------------


def _scikit_learn() -> Iterator[Row]:
    """Our minimiser of f_D for four blocks, to machine precision, against their minimiser of f."""
    from sklearn.linear_model import LogisticRegression

    name = "a5a" if (FOLDER / "libsvm" / "a5a.gz").exists() else "a1a"
    A, b = mast.data.load(name, data_dir=FOLDER if FOLDER.is_dir() else None)
    f = mast.Logistic(A, b, kappa=1000)

    def ours() -> Any:
        return mast.Problem(f, mast.PermK(4)).minimizer()

    for solver, tol, target in (("saga", 1e-4, 1.0), ("lbfgs", 1e-6, 2.0)):
        options = {"C": 1 / (f.l2 * f.terms), "fit_intercept": False, "tol": tol, "max_iter": 1000}
        peer = LogisticRegression(solver=solver, **options)

        def theirs(model: Any = peer) -> None:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # SAGA may stop at max_iter, and says so
                model.fit(A, b)

        mine, their = best(ours, theirs, tries=3)
        x, reached = ours(), f.gradient(peer.coef_[0])
        g = mast.Problem(f, mast.PermK(4)).gradient(x)
        yield versus(
            f"minimise f_D, PermK(4), {name}",
            mine,
            f"minimise f, LogisticRegression({solver}, tol={tol:g})",
            their,
            target,
            detail=f"|grad| {np.linalg.norm(g):.0e} against {np.linalg.norm(reached):.0e}",
        )


# ---- torch -------------------------------------------------------------------------------------------


def _mlp(dropout: bool = False) -> Any:
    from torch import nn

    drop = [nn.Dropout(0.5)] if dropout else []
    return nn.Sequential(nn.Linear(1024, 1024), nn.ReLU(), *drop, nn.Linear(1024, 10))


def _cnn() -> Any:
    from torch import nn

    return nn.Sequential(
        nn.Conv2d(3, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(64, 128, 3, padding=1), nn.BatchNorm2d(128), nn.ReLU(), nn.AdaptiveAvgPool2d(1),
        nn.Flatten(), nn.Linear(128, 256), nn.ReLU(), nn.Linear(256, 10),
    )  # fmt: skip


def _step(model: Any) -> Callable[[], None]:
    import torch

    x, y = torch.ones(128, 1024), torch.arange(128) % 10
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)

    def job() -> None:
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()

    return job


def _dropout() -> Iterator[Row]:
    """Training steps: units dropped by a layer for activations, and by a sketch of the weights."""
    neurons, weights = _mlp(), _mlp()
    mast.nn.sparsify(neurons, mast.nn.Neurons(mast.Bernoulli(0.5)))
    mast.nn.sparsify(weights, mast.Bernoulli(0.5))
    jobs = [_step(_mlp(dropout=True)), _step(neurons), _step(weights)]
    dropped, units, single = best(*jobs, tries=40)
    for what, took, target in (("neurons", units, 1.5), ("single weights", single, 1.5)):
        yield versus(
            f"MLP 1024-1024-10, batch 128: a step, half of the {what}",
            took,
            "with nn.Dropout",
            dropped,
            target,
        )


def _prune() -> Iterator[Row]:
    from torch.nn.utils import prune

    model = _mlp()
    sk = mast.nn.sparsify(_mlp(), mast.RandK(0.1))

    def theirs() -> Any:
        copied = copy.deepcopy(model)
        for layer in (copied[0], copied[2]):
            prune.random_unstructured(layer, "weight", 0.9)
            prune.remove(layer, "weight")
        return copied

    ours, peer = best(lambda: sk.submodel(7), theirs, tries=15)
    moved = 2 * 4 * sum(p.numel() for p in model.parameters())
    yield versus(
        "a submodel with 10 % of the weights, at random",
        ours,
        "copy, prune.random_unstructured, remove",
        peer,
        1.0,
        limit=moved / bandwidth(),
        limit_of="memory",
    )
    masked = _mlp()
    mast.nn.sparsify(masked, mast.Bernoulli(0.1))
    pruned = copy.deepcopy(model)
    for layer in (pruned[0], pruned[2]):
        prune.random_unstructured(layer, "weight", 0.9)
    mine, their = best(_step(masked), _step(pruned), tries=40)
    yield versus(
        "a step with a new mask of the weights", mine, "a step with prune's mask, always the same", their, 1.5
    )


def _torch_pruning() -> Iterator[Row]:
    """A smaller network by dropping whole channels, everything that depends on them following."""
    import torch

    try:
        import torch_pruning
    except ImportError:
        print("peers: torch-pruning is not installed, so its row is left out", file=sys.stderr)
        return
    model, example = _cnn().eval(), torch.ones(1, 3, 16, 16)
    sk = mast.nn.sparsify(_cnn().eval(), mast.nn.Neurons(mast.RandK(0.5)))

    def theirs() -> Any:
        copied = copy.deepcopy(model)
        pruner = torch_pruning.pruner.MetaPruner(
            copied,
            example,
            importance=torch_pruning.importance.RandomImportance(),
            pruning_ratio=0.5,
            ignored_layers=[copied[-1]],
        )
        pruner.step()
        return copied

    ours, peer = best(lambda: sk.submodel(7), theirs, tries=7)
    sizes = [sum(p.numel() for p in m.parameters()) for m in (sk.submodel(7), theirs())]
    yield versus(
        "a CNN with half of its channels",
        ours,
        "torch-pruning, MetaPruner",
        peer,
        1.0,
        detail=f"{sizes[0]:,} and {sizes[1]:,} of {sum(p.numel() for p in model.parameters()):,} parameters",
    )


# ---- all_reduce -----------------------------------------------------------------------------------------

REDUCE = """
import sys, time, torch
import torch.distributed as dist
from datetime import timedelta
rank, file, d = int(sys.argv[1]), sys.argv[2], int(sys.argv[3])
torch.set_num_threads(1)
place = {"init_method": f"file://{file}", "rank": rank, "world_size": 2}
dist.init_process_group("gloo", timeout=timedelta(seconds=60), **place)
gradient = torch.ones(d, dtype=torch.float64)
times = []
for _ in range(12):
    dist.barrier()
    begun = time.perf_counter()
    dist.all_reduce(gradient)
    times.append(time.perf_counter() - begun)
dist.destroy_process_group()
print(min(times[2:]))
"""


def _all_reduce() -> Iterator[Row]:
    """What a round costs beside the gradients: values to two nodes and back, half of the model each."""
    try:
        from mast.distributed import Participation, ProblemWorker, Server, VectorCapacity
    except ImportError:
        return
    d = 10**6
    f = mast.Function(lambda x: (0.0, x), d, smoothness=1.0, strong_convexity=1.0)
    problem = mast.Problem(f, mast.PermK(2))
    parts = [VectorCapacity(problem.sketch, d)] * 2
    participation = Participation(0, nodes=2, coupling="disjoint")
    server = Server(np.ones(d), parts, participation, step_size=1e-3)
    workers = [ProblemWorker(problem) for _ in range(2)]

    def ours() -> None:
        answers = [workers[m.header.node].answer(m) for m in server.messages()]
        for answer in answers:
            server.aggregate(answer)
        server.finish_round()

    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-W", "ignore", "-c", REDUCE]
        ranks = [
            subprocess.Popen([*command, str(r), f"{folder}/meet", str(d)], stdout=subprocess.PIPE, text=True)
            for r in range(2)
        ]
        peer = max(float(rank.communicate(timeout=120)[0]) for rank in ranks)
    (mine,) = best(ours, tries=7)
    yield versus(
        "a round of 2 nodes, d = 10^6, half of the values each, without the wire",
        mine,
        "all_reduce of d numbers, 2 processes, gloo",
        peer,
        4.0,
        limit=2 * 8 * d / loopback(),
        limit_of="wire",
        detail=f"{(server.state.received.sum() + server.state.sent.sum()) / server.t / 1e6:.1f} MB per round",
    )
