"""A training step on a submodel against the dense step; inference against a hand-built one; finding units."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from _bench import Row, best, processor_times, versus
from _networks import resnet50

TITLE = "Networks: submodels"


def rows() -> Iterator[Row]:
    try:
        import torch
    except ImportError:
        return  # the extra is not installed
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        torch.manual_seed(0)
        yield from _training()
        yield from _adamw()
        yield from _inference()
        yield from _finding_units()
    finally:
        torch.set_num_threads(threads)


def _training() -> Iterator[Row]:
    import torch

    x, images = torch.randn(128, 2048), torch.randn(128, 1, 28, 28)
    y = torch.randint(0, 10, (128,))
    for name, make, inputs, goals, tries in (
        ("MLP 2048-1024-10, batch 128", mlp, x, ((0.5, 0.60), (0.25, 0.33), (0.1, 0.18)), 60),
        ("CNN (32-64 conv + linear), batch 128", cnn, images, ((0.5, 0.48), (0.25, 0.27)), 10),
    ):
        shares = [share for share, _ in goals]
        plain, *rest = best(
            dense(make(1.0), inputs, y),
            *(small(make, inputs, y, share) for share in shares),
            *(dense(make(share), inputs, y) for share in shares),
            tries=tries,
        )
        for (share, target), took, alone in zip(goals, rest, rest[len(goals) :], strict=False):
            detail = f"a plain small model {alone / plain:.2f}"
            job = f"{name}, step on {share:.0%} of the units"
            yield versus(job, took, "plain dense step", plain, target, detail=detail)


def _adamw() -> Iterator[Row]:
    """The state of AdamW is moved in the same pass as the weights."""
    import torch

    x, y, digits = torch.randn(128, 2048), torch.randint(0, 10, (128,)), torch.randn(128, 64)
    for name, make, inputs, goals in (
        ("MLP 2048-1024-10, batch 128", mlp, x, ((0.5, 0.66), (1.0, 1.1))),
        ("MLP 64-256-256-10 (85,000 weights), batch 128", little_mlp, digits, ((0.25, 1.0),)),
    ):
        plain, *rest = best(
            dense(make(1.0), inputs, y, torch.optim.AdamW),
            *(small(make, inputs, y, share, torch.optim.AdamW) for share, _ in goals),
            tries=60,
        )
        for (share, target), took in zip(goals, rest, strict=True):
            job = f"{name}, AdamW step on {share:.0%} of the units"
            yield versus(job, took, "plain dense step", plain, target)


def _inference() -> Iterator[Row]:
    import torch

    import mast

    images, x = torch.randn(128, 1, 28, 28), torch.randn(128, 2048)
    for name, make, inputs in (("MLP", mlp, x), ("CNN", cnn, images)):
        sk = mast.nn.sparsify(make(1.0), mast.nn.Neurons(mast.RandK(0.25)))
        sub, peer = best(forward(sk.submodel(0), inputs), forward(make(0.25), inputs), tries=100)
        job = f"{name}, inference of an extracted submodel with 25 % of the units"
        yield versus(job, sub, "hand-built small model", peer, 1.02)


def _finding_units() -> Iterator[Row]:
    """What `sparsify` does once: it runs the model to find its units, and a small model to prove them."""
    import torch

    import mast

    model, photos = resnet50(), torch.randn(2, 3, 224, 224)

    def job() -> None:
        mast.nn.sparsify(model, mast.nn.Neurons(mast.RandK(0.5)), example=photos).remove()

    [took] = processor_times(job, tries=2)
    yield versus(
        "sparsify(ResNet-50, Neurons(...), example=) with 2 photos of 224 x 224, processor time",
        took, "five seconds", 5.0, 1,
    )  # fmt: skip


def dense(model, inputs, targets, kind=None) -> Callable[[], None]:
    """One step of SGD or another optimizer, forward, backward and update, as a job."""
    import torch

    optimizer = (kind or torch.optim.SGD)(model.parameters(), lr=1e-4)

    def job() -> None:
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(inputs), targets).backward()
        optimizer.step()

    return job


def small(make, inputs, targets, share, kind=None) -> Callable[[], None]:
    """The same on the submodel of each step's draw."""
    import torch

    import mast

    sk = mast.nn.sparsify(make(1.0), mast.nn.Neurons(mast.RandK(share)))
    optimizer = mast.nn.RowOptimizer(sk, kind or torch.optim.SGD, lr=1e-4)

    def job() -> None:
        with optimizer.submodel() as model:
            torch.nn.functional.cross_entropy(model(inputs), targets).backward()
        optimizer.step()

    return job


def forward(model, inputs) -> Callable[[], None]:
    import torch

    model.eval()

    def job() -> None:
        with torch.no_grad():
            model(inputs)

    return job


def mlp(share: float):
    from torch import nn

    width = max(1, int(share * 1024 + 0.5))
    return nn.Sequential(nn.Linear(2048, width), nn.ReLU(), nn.Linear(width, 10))


def little_mlp(share: float):
    from torch import nn

    width = max(1, int(share * 256 + 0.5))
    return nn.Sequential(
        nn.Linear(64, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 10)
    )


def cnn(share: float):
    from torch import nn

    a, b = int(share * 32 + 0.5), int(share * 64 + 0.5)
    return nn.Sequential(
        nn.Conv2d(1, a, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(a, b, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(b * 49, 10),
    )  # fmt: skip
