"""A training step with sketched weights, against the plain dense step of the same run, on one thread."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from functools import partial

from _bench import Row, arithmetic, best, versus
from _networks import MEMORY, cnn, encoder, gpt2, resnet18, transformer

TITLE = "Networks: sketched weights"


def rows() -> Iterator[Row]:
    try:
        import torch
    except ImportError:
        return  # the extra is not installed
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield from _rows()
    finally:
        torch.set_num_threads(threads)


def _rows() -> Iterator[Row]:
    import torch
    from torch import nn

    import mast

    torch.manual_seed(0)
    x, y = torch.randn(128, 2048), torch.randint(0, 10, (128,))
    half = mast.Bernoulli(0.5)
    mlp = lambda: nn.Sequential(nn.Linear(2048, 1024), nn.ReLU(), nn.Linear(1024, 10))  # noqa: E731
    dropout = lambda: nn.Sequential(  # noqa: E731
        nn.Dropout(), nn.Linear(2048, 1024), nn.ReLU(), nn.Dropout(), nn.Linear(1024, 10)
    )
    jobs = [
        step(mlp(), x, y),
        step(mlp(), x, y, half),
        step(mlp(), x, y, half, "init"),
        step(mlp(), x, y, mast.PermK(10)),
        step(mlp(), x, y, mast.RandK(0.1)),
        step(dropout(), x, y),
    ]
    plain, masked, shifted, perm_k, rand_k, dropped = best(*jobs, tries=60)
    name = "MLP 2048-1024-10, batch 128"
    flops = 128 * 1024 * (4 * 2048 + 6 * 10)  # nothing goes back into the input
    for what, took, target in (
        ("Bernoulli(.5)", masked, 1.4),
        ("Bernoulli(.5) with a shift", shifted, 1.6),
        ("PermK(10)", perm_k, 1.7),
        ("RandK(.1)", rand_k, 2.4),
    ):
        yield versus(
            f"{name}, {what}",
            took,
            "plain dense step",
            plain,
            target,
            limit=flops / arithmetic(single=True),
            limit_of="arithmetic",
            detail=f"nn.Dropout {dropped / plain:.2f}",
        )

    images = torch.randn(128, 1, 28, 28)
    plain, masked = best(step(cnn(), images, y), step(cnn(), images, y, half), tries=10)
    yield versus(
        "CNN (32-64 conv + linear), batch 128, Bernoulli(.5)", masked, "plain dense step", plain, 1.08
    )
    tokens = torch.randint(0, 4096, (8, 128))
    plain, masked = best(
        step(transformer(), tokens, tokens), step(transformer(), tokens, tokens, half), tries=5
    )
    yield versus(
        "transformer, 10^7 parameters, 8 x 128 tokens, Bernoulli(.5)", masked, "plain dense step", plain, 1.05
    )
    adamw = torch.optim.AdamW
    photos = torch.randn(16, 3, 32, 32)
    for job, make, inputs, targets, target, tries in (
        (f"{name}, AdamW", mlp, x, y, 1.35, 40),
        ("resnet18 for 16 photos of 32 x 32, AdamW", resnet18, photos, y[:16], 1.08, 4),
        ("GPT-2 in small (4 layers of 128), 8 x 128 tokens, AdamW", gpt2, tokens, tokens, 1.06, 8),
    ):
        plain, masked = best(
            step(make(), inputs, targets, optimizer=adamw),
            step(make(), inputs, targets, half, optimizer=adamw),
            tries=tries,
        )
        yield versus(f"{job}, Bernoulli(.5)", masked, "plain dense step", plain, target)
    yield from _sizes()
    yield from _memory()


def _sizes() -> Iterator[Row]:
    """An encoder of MiniLM's shape in four sizes, heads and MLP units cut together, AdamW."""
    import torch

    import mast

    model, batch, targets = encoder()
    plain = encoder()[0]
    sk = mast.nn.elastic(model, [0.25, 0.5, 0.75, 1.0], [batch])
    dense = sizes_step(plain.train(), torch.optim.AdamW(plain.parameters(), lr=1e-6), batch, targets)
    optimizer = torch.optim.AdamW(model.train().parameters(), lr=1e-6)
    plain_loop = [sizes_step(model, optimizer, batch, targets, partial(sk.member, i)) for i in range(4)]
    took, *sizes = best(dense, *plain_loop, tries=5)
    mean = sum(sizes) / 4
    name = "6 layers of 384, 32 x 28 tokens, AdamW"
    each = ", ".join(f"{size / took:.2f}" for size in sizes)
    yield versus(f"{name}, plain loop of four sizes", mean, "plain dense step", took, 0.75, detail=each)
    rows = sk.optimizer(torch.optim.AdamW, lr=1e-6)

    def small() -> None:
        with sk.member(0), sk.small() as net:
            torch.nn.functional.cross_entropy(net(**batch).logits, targets).backward()
        rows.step()

    took, quarter = best(dense, small, tries=5)
    yield versus(f"{name}, sk.small() of a quarter", quarter, "plain dense step", took, 0.50)


def sizes_step(model, optimizer, batch, targets, member=nullcontext) -> Callable[[], None]:
    import torch

    def job() -> None:
        with member():
            torch.nn.functional.cross_entropy(model(**batch).logits, targets).backward()
        optimizer.step()
        optimizer.zero_grad()

    return job


def _memory() -> Iterator[Row]:
    """In processes of their own that give back at once what they free."""
    if not os.path.exists("/proc/self/status"):
        return  # only Linux says how much memory was in use
    weights = 20 * 1000**2 * 4
    for sketch, target in (("mast.Bernoulli(.5)", 1.5), ("mast.PermK(10)", 2.5)):
        printed = subprocess.run(
            [sys.executable, "-c", MEMORY.replace("{sketch}", sketch)],
            check=True, capture_output=True, text=True,
            env=os.environ | {"MALLOC_MMAP_THRESHOLD_": "65536"},
        )  # fmt: skip
        job = f"extra memory of {sketch.removeprefix('mast.')}, 20 layers of 10^6 weights"
        yield versus(job, float(printed.stdout), "the weights", weights, target, unit="B")


def step(model, inputs, targets, sketch=None, shift=None, optimizer=None) -> Callable[[], None]:
    """One step of SGD or another optimizer, forward, backward and update, as a job."""
    import torch

    import mast

    optimizer = (optimizer or torch.optim.SGD)(model.parameters(), lr=1e-4)
    if sketch is not None:
        mast.nn.sparsify(model, sketch, shift=shift)

    def job() -> None:
        optimizer.zero_grad()
        out = model(inputs)
        torch.nn.functional.cross_entropy(out.flatten(0, -2), targets.flatten()).backward()
        optimizer.step()

    return job
