"""DistributedDataParallel on two gloo processes, with equal and with per-rank sketches."""

from __future__ import annotations

import copy
import os
import socket
import subprocess
import sys

import pytest

import mast

torch = pytest.importorskip("torch", reason="mast.nn needs PyTorch")
if not torch.distributed.is_available():
    pytest.skip("this torch has no torch.distributed", allow_module_level=True)
from torch import nn  # noqa: E402

CASES = [  # sketch, per rank?, sparsified before or after wrapping, batches a step, gradients as views?
    ("mast.Bernoulli(0.6)", False, "before", 1, False),
    ("mast.Bernoulli(0.6)", True, "after", 2, True),
    ("mast.PermK(2)", True, "before", 1, True),
    ("mast.RandK(0.4)", False, "after", 2, False),
]
WORKER = """
import datetime, sys
import torch, torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
import mast

folder, cases = sys.argv[1], eval(sys.argv[2])
torch.set_num_threads(1)
dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=60))
rank = dist.get_rank()
for case, (sketch, per_rank, order, accumulate, as_view) in enumerate(cases):
    model, inputs, targets = torch.load(f"{folder}/start.pt", weights_only=False)
    node = rank if per_rank else 0
    if order == "before":
        sk = mast.nn.sparsify(model, eval(sketch), seed=3, node=node)
    ddp = DistributedDataParallel(model, gradient_as_bucket_view=as_view, bucket_cap_mb=0.0001)
    if order == "after":
        sk = mast.nn.sparsify(ddp, eval(sketch), seed=3, node=node)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1, momentum=0.9)
    for step in range(3):
        for part in range(accumulate):
            x, y = inputs[step, part, rank], targets[step, part, rank]
            loss = lambda: nn.functional.cross_entropy(ddp(x), y) / accumulate
            if part < accumulate - 1:
                with ddp.no_sync():
                    loss().backward()
            else:
                loss().backward()
        optimizer.step()
        optimizer.zero_grad()
    assert sk.step == 3
    torch.save(model.state_dict(), f"{folder}/end{case}{rank}.pt")
dist.destroy_process_group()
"""


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """The folder in which two processes on loopback left their results; a hang ends after two minutes."""
    folder = tmp_path_factory.mktemp("ddp")
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 3)).double()
    inputs = torch.randn(3, 2, 2, 6, 5, dtype=torch.float64)
    torch.save((model, inputs, torch.randint(0, 3, (3, 2, 2, 6))), folder / "start.pt")
    (folder / "worker.py").write_text(WORKER)
    common = {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
        "WORLD_SIZE": "2",
        "OMP_NUM_THREADS": "1",
    }
    processes = [
        subprocess.Popen(
            [sys.executable, str(folder / "worker.py"), str(folder), repr(CASES)],
            env=os.environ | common | {"RANK": str(rank)},
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )
        for rank in range(2)
    ]  # fmt: skip
    try:
        for process in processes:
            output, _ = process.communicate(timeout=120)
            assert process.returncode == 0, output
    finally:
        for process in processes:
            process.kill()
            process.wait()
    return folder


@pytest.mark.parametrize("case", range(len(CASES)))
def test_data_parallel_training(trained, reference, diagonal, same, case):
    sketch, per_rank, _, accumulate, _ = CASES[case]
    model, inputs, targets = torch.load(trained / "start.pt", weights_only=False)
    sk = mast.nn.sparsify(copy.deepcopy(model), eval(sketch), seed=3)
    ref = reference(sk, model, lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9))
    for step in range(3):
        gradients = []
        for rank in range(2):
            losses = [
                lambda m, s=step, a=part, r=rank: (
                    nn.functional.cross_entropy(m(inputs[s, a, r]), targets[s, a, r]) / accumulate
                )
                for part in range(accumulate)
            ]
            ref.gradient(step, losses, diagonal(sk, step, node=rank if per_rank else 0))
            gradients.append([p.grad for p in ref.x.parameters()])
            ref.optimizer.zero_grad()
        for p, *g in zip(ref.x.parameters(), *gradients, strict=True):
            p.grad = (g[0] + g[1]) / 2
        ref.optimizer.step()
        ref.optimizer.zero_grad()
    for rank in range(2):
        end = copy.deepcopy(ref.x)
        end.load_state_dict(torch.load(trained / f"end{case}{rank}.pt"))
        same(end, ref.x, atol=1e-13)  # the reduction may round in another order
