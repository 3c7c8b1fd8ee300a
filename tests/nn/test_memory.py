"""What sparsified training takes beside the model, its gradients and its activations."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

TRAIN = """
import torch
from torch import nn

import mast

WIDTH, LAYERS = 1000, 8


def peak():
    status = open("/proc/self/status").read()
    return 1024 * int(status.partition("VmHWM:")[2].split()[0])


def network(width, layers):
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Linear(width, width, bias=False) for _ in range(layers)))


def train(model, steps):
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    x = torch.ones(2, model[0].in_features)
    for _ in range(steps):
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()


torch.set_num_threads(1)
warm = network(400, 10)  # loads what is needed, and compiles the kernels
mast.nn.sparsify(warm, {sketch})
train(warm, 2)
model = network(WIDTH, LAYERS)
train(model, 2)
plain = peak()
mast.nn.sparsify(model, {sketch})
train(model, 12)
print((peak() - plain) / (4 * WIDTH**2 * LAYERS))
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="Linux says how much memory was in use")
@pytest.mark.parametrize(
    ("sketch", "bound"),
    [
        # as `make bench` measures it 1.3 and 2.4; another processor's libraries need other buffers
        ("mast.Bernoulli(0.5)", 1.9),  # y, one byte per mask entry, and the gradient of one layer
        ("mast.PermK(10)", 3.2),  # y, four bytes per entry of the partition, a draw, and the last one
    ],
)
def test_a_sketched_step_takes_little_memory_beside_the_plain_one(sketch, bound):
    environment = os.environ | {"MALLOC_MMAP_THRESHOLD_": "65536"}  # what is freed is given back at once
    printed = subprocess.run(
        [sys.executable, "-c", TRAIN.replace("{sketch}", sketch)],
        check=True, capture_output=True, text=True, env=environment,
    )  # fmt: skip
    extra = float(printed.stdout)
    assert 1 < extra <= bound
