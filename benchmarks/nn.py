"""A training step with sketched weights, against the plain dense step of the same run, on one thread."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from _bench import Row, arithmetic, best, versus

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


def step(model, inputs, targets, sketch=None, shift=None) -> Callable[[], None]:
    """One step of SGD, forward, backward and update, as a job."""
    import torch

    import mast

    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    if sketch is not None:
        mast.nn.sparsify(model, sketch, shift=shift)

    def job() -> None:
        optimizer.zero_grad()
        out = model(inputs)
        torch.nn.functional.cross_entropy(out.flatten(0, -2), targets.flatten()).backward()
        optimizer.step()

    return job


def cnn():
    from torch import nn

    return nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(64 * 49, 10),
    )  # fmt: skip


def transformer():
    from torch import nn

    width = 256
    layer = nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.0, batch_first=True)
    return nn.Sequential(
        nn.Embedding(4096, width),
        nn.TransformerEncoder(layer, 10, enable_nested_tensor=False),
        nn.Linear(width, 4096),
    )
