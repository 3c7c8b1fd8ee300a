"""What a model costs: parameters, bytes, floating-point operations, measured time; a table of files."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from timeit import timeit
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from mast.errors import DataError
from mast.nn.tensors.torch_private import BILINEAR, plain_kernels
from mast.nn.units.dependencies.examples import Example

if TYPE_CHECKING:
    import pandas as pd

ROUNDS = 5  # measurements of a time, at least
SECONDS = 0.2  # per job, after which no further round of measurements is begun


@dataclass(frozen=True)
class Cost:
    """What one model costs; `flops` and `seconds` are of one call with an example, if there was one."""

    parameters: int
    bytes: int
    flops: int | None = None
    seconds: float | None = None


def measure(model: nn.Module, example: Any = None) -> Cost:
    """Parameters and bytes of a model, and with an example operations and the best time of several calls.

    An example is what the model is called with: a tensor, a tuple of arguments, or a dict of
    keyword arguments.

    >>> model = nn.Sequential(nn.Linear(10, 20), nn.ReLU(), nn.Linear(20, 5))
    >>> cost = measure(model, torch.ones(8, 10))
    >>> cost.parameters, cost.bytes, cost.flops, cost.seconds > 0
    (325, 1300, 4800, True)
    """
    tensors = {id(t): t for t in model.state_dict(keep_vars=True).values() if isinstance(t, Tensor)}
    size = sum(t.numel() * t.element_size() for t in tensors.values())
    count = sum(p.numel() for p in model.parameters())
    if example is None:
        return Cost(count, size)
    return Cost(count, size, flops(model, example), latencies([model], example)[0])


def flops(model: nn.Module, example: Any) -> int:
    """Multiplications and additions of one call in the model's matrix products, convolutions and attention.

    A multiply-add counts as two. Activations, norms and additions of biases are not counted.

    >>> flops(nn.Conv2d(1, 2, 3, bias=False), torch.ones(1, 1, 5, 5)) == 2 * (2 * 9) * 9
    True
    """
    return count_flops(model, Example.of(example).call)


def count_flops(model: nn.Module, run: Callable[[nn.Module], Any]) -> int:
    """The same, for any way of calling the model."""
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.utils.flop_counter import FlopCounterMode

    def bilinear(left: Any, weight: Any, right: Any, *_: Any, **__: Any) -> int:
        return int(2 * math.prod(left[:-1]) * math.prod(weight))

    counter = FlopCounterMode(display=False, custom_mapping={BILINEAR: bilinear})
    with evaluated(model), plain_kernels(), sdpa_kernel(SDPBackend.MATH), counter:
        run(model)
    return int(counter.get_total_flops())


def latencies(models: Sequence[nn.Module], example: Any) -> list[float]:
    """The best time in seconds of a call of each model with the example; the models take turns."""
    jobs: list[Callable[[], Any]] = [partial(Example.of(example).call, model) for model in models]
    with evaluated(*models):
        return _best(jobs)


def sizes(things: Mapping[str, nn.Module | str | Path], example: Any = None) -> pd.DataFrame:
    """A table of models and model files side by side: bytes, and with an example operations and time.

    A thing is a module, or a file of `save_submodel` or `save_delta`, which cannot be run. The bytes of a
    module are those of its state, the bytes of a file all it has.

    >>> import mast, tempfile
    >>> model = nn.Linear(4, 2)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = mast.nn.save_submodel(model, folder + "/model.safetensors")
    ...     sizes({"in memory": model, "file": path})[["name", "kind", "parameters"]]
            name      kind  parameters
    0  in memory    module          10
    1       file  submodel          10
    """
    import pandas as pd

    table = pd.DataFrame([{"name": name, **_size(thing)} for name, thing in things.items()])
    if example is not None:
        modules = {name: thing for name, thing in things.items() if isinstance(thing, nn.Module)}
        times = dict(zip(modules, latencies(list(modules.values()), example), strict=True))
        counts = [flops(modules[name], example) if name in modules else None for name in things]
        table["flops"] = pd.array(counts, dtype="Int64")
        table["seconds"] = [times.get(name, math.nan) for name in things]
    return table


def _size(thing: nn.Module | str | Path) -> dict[str, Any]:
    """Kind, parameters and bytes of a model or file."""
    from mast.nn.files import deltas, submodels

    if isinstance(thing, nn.Module):
        cost = measure(thing)
        return {"kind": "module", "parameters": cost.parameters, "bytes": cost.bytes}
    path = Path(thing)
    try:
        size = path.stat().st_size
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or error}") from error
    try:
        return {"kind": "submodel", "parameters": submodels.parameters_of(path), "bytes": size}
    except DataError:
        delta = deltas.read_delta(path)
        count = sum(t.numel() for t in (*(part.values for part in delta.parts), *delta.whole.values()))
        return {"kind": "delta", "parameters": count, "bytes": size}


def _best(jobs: Sequence[Callable[[], Any]]) -> list[float]:
    """The shortest time of each job, taking turns after a round that warms up."""
    for job in jobs:
        job()
    times = [math.inf] * len(jobs)
    begun, rounds = time.perf_counter(), 0
    while rounds < ROUNDS or (time.perf_counter() - begun < SECONDS * len(jobs) and rounds < 1000):
        times = [min(best, timeit(job, number=1)) for best, job in zip(times, jobs, strict=True)]
        rounds += 1
    return times


@contextlib.contextmanager
def evaluated(*models: nn.Module) -> Iterator[None]:
    """Models in eval mode and without gradients, and their modes back afterwards."""
    modes = [(m, m.training) for model in models for m in model.modules()]
    try:
        for model in models:
            model.eval()
        with torch.no_grad():
            yield
    finally:
        for module, mode in modes:
            module.training = mode
