"""Examples of a model's input: those of a user, or guessed from the model's layers.

What a layer takes says what the model may take: features of a Linear, channels of a convolution, numbers
for an Embedding. Shapes are tried on a copy of the model until one runs; most fail in the first layer.
A model that is fine with a batch of rows and with a batch of sequences is followed with both, so that its
submodels are right for both.
"""

from __future__ import annotations

import copy
import inspect
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from mast.errors import ArgumentError
from mast.nn.structure.resizing import with_values
from mast.nn.tensors.torch_private import Conv, ConvTranspose, NormBase, same_numbers_after
from mast.randomness import Key, Purpose, normal, words

BATCH, LENGTH = 3, 7
_SIZES = (16, 32, 28, 8, 64, 96, 128, 224, 299)  # of images and series, the usual ones first
_ALL_SIZES = (*_SIZES, *(n for n in range(1, 65) if n not in _SIZES), 112, 160, 192, 256, 384)
_TRIES = 4000
_DIMENSIONS = {  # of what a layer takes besides batch and channels
    nn.Conv1d: 1, nn.Conv2d: 2, nn.Conv3d: 3, nn.BatchNorm2d: 2, nn.BatchNorm3d: 3, nn.InstanceNorm1d: 1,
    nn.InstanceNorm2d: 2, nn.InstanceNorm3d: 3, nn.ConvTranspose1d: 1, nn.ConvTranspose2d: 2,
    nn.ConvTranspose3d: 3,
}  # fmt: skip


@dataclass(frozen=True)
class Example:
    """Arguments that a model can be called with.

    >>> import torch
    >>> Example.of(torch.ones(2, 3)).call(torch.nn.Linear(3, 4)).shape
    torch.Size([2, 4])
    """

    args: tuple[Any, ...]
    options: Mapping[str, Any]

    @classmethod
    def of(cls, batch: Any) -> Example:
        """From a tensor, a tuple or list of arguments, or keyword arguments in a mapping."""
        if isinstance(batch, Example):
            return batch
        if isinstance(batch, Tensor):
            return cls((batch,), {})
        if isinstance(batch, Mapping):
            return cls((), dict(batch))
        if isinstance(batch, tuple | list):
            return cls(tuple(batch), {})
        raise ArgumentError(
            "example must be what the model is called with: a tensor, a tuple of arguments, or a dict of "
            f"keyword arguments; got {type(batch).__name__}"
        )

    def call(self, model: Callable[..., Any]) -> Any:
        """What the model makes of it."""
        return model(*self.args, **self.options)

    def to(self, like: nn.Module, dtype: torch.dtype | None = None) -> Example:
        """On the device of a model; floating-point tensors in another type."""
        first = next(like.parameters(), None)
        device = None if first is None else first.device

        def moved(value: Any) -> Any:
            if isinstance(value, Tensor):
                return value.to(device=device, dtype=dtype if value.is_floating_point() else None)
            if isinstance(value, Mapping):
                return {key: moved(v) for key, v in value.items()}
            return type(value)(moved(v) for v in value) if type(value) in (list, tuple) else value

        return Example(moved(self.args), moved(dict(self.options)))


def first_line(error: Exception) -> str:
    """What an error of a user's model says, in one line."""
    return str(error).splitlines()[0] if str(error) else type(error).__name__


def tensors_in(output: Any) -> Iterator[Tensor]:
    """The tensors of a model's output: in tuples, lists and mappings (ModelOutput is one), not in caches."""
    if isinstance(output, Tensor):
        yield output
    elif isinstance(output, Mapping | list | tuple):
        for value in output.values() if isinstance(output, Mapping) else output:
            yield from tensors_in(value)


@dataclass(frozen=True)
class Spec:
    """What one argument of a model may be: a tensor of this shape, perhaps of numbers below `below`."""

    shape: tuple[int, ...]
    below: int | None = None

    def make(self, like: Tensor) -> Tensor:
        """Such a tensor, always the same one."""
        key, count = Key(0, index=len(self.shape)), math.prod(self.shape)
        if self.below is not None:
            numbers = words(key, Purpose.START, 0, count).astype(np.int64) % self.below
            return torch.from_numpy(numbers).view(self.shape).to(like.device)
        return torch.from_numpy(normal(key, 0, count)).view(self.shape).to(like)


def guess(model: nn.Module) -> list[Example]:
    """Examples that the model can be run on: one, or one of rows and one of sequences.

    >>> [tuple(example.args[0].shape) for example in guess(nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU()))]
    [(3, 1, 16, 16)]
    >>> [tuple(example.args[0].shape) for example in guess(nn.Linear(5, 2))]
    [(3, 5), (3, 7, 5)]
    """
    trial = _Trial(model)
    for specs in itertools.islice(_arguments(model, trial), _TRIES):
        if trial.runs(specs):
            found = [specs]
            if specs and all(len(s.shape) == 2 and s.below is None for s in specs):
                sequences = tuple(Spec((BATCH, LENGTH, s.shape[1])) for s in specs)
                found += [sequences] if trial.runs(sequences) else []
            return [trial.example(some) for some in found]
    raise ArgumentError(
        f"no input that the model ({type(model).__name__}) can be run on could be guessed from its layers "
        f"({trial.problem}): pass example=, a batch as the model is called with"
    )


class _Trial:
    """Runs a copy of a model on guesses."""

    def __init__(self, model: nn.Module) -> None:
        self._copy = copy.deepcopy(with_values(model))  # what it does leaves no trace in the model
        self.inputs, self.names = _inputs(model)
        self.like = next((p for p in self._copy.parameters() if p.is_floating_point()), torch.empty(0))
        self.problem = "it has no layers that say what they take"
        self.flattened: dict[int, tuple[int, int]] = {}  # by size: features that a Linear got and wanted
        self._wanted = (0, 0)
        for module in self._copy.modules():
            if isinstance(module, nn.Linear):
                module.register_forward_pre_hook(self._look)

    def _look(self, module: nn.Module, inputs: Any) -> None:
        assert isinstance(module, nn.Linear)
        if inputs and isinstance(inputs[0], Tensor):
            self._wanted = (inputs[0].shape[-1] if inputs[0].dim() else 0, module.in_features)

    def example(self, specs: Sequence[Spec]) -> Example:
        """The arguments of these shapes."""
        made = [spec.make(self.like) for spec in specs]
        return Example(tuple(made[: self.inputs]), dict(zip(self.names, made[self.inputs :], strict=True)))

    def runs(self, specs: Sequence[Spec]) -> bool:
        """Whether the model takes them, in both modes."""
        example = self.example(specs)
        self._wanted = (0, 0)
        try:
            with torch.no_grad(), same_numbers_after():
                for training in (True, False):
                    self._copy.train(training)
                    example.call(self._copy)
        except Exception as error:  # whatever a model does with an input that does not suit it
            shapes = ", ".join(str(spec.shape) for spec in specs)
            self.problem = f"the last of those that were tried, {shapes}, failed: {first_line(error)}"
            if specs and len(specs[0].shape) == 4 and all(self._wanted):
                self.flattened.setdefault(specs[0].shape[-1], self._wanted)
            return False
        return True


def _inputs(model: nn.Module) -> tuple[int, list[str]]:
    """How many positional arguments a model needs, and the names of others that it needs."""
    try:
        parameters = inspect.signature(model.forward).parameters.values()
    except (TypeError, ValueError):
        return 1, []
    needed = [p for p in parameters if p.default is p.empty]
    places = [p for p in needed if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    names = [p.name for p in needed if p.kind is p.KEYWORD_ONLY]
    return (len(places) if places or names else 1), names


def _arguments(model: nn.Module, trial: _Trial) -> Iterator[tuple[Spec, ...]]:
    """What to try, likely guesses first."""
    count = trial.inputs + len(trial.names)
    likely = list(dict.fromkeys(_specs(model, _SIZES[:5], (LENGTH,))))
    if count == 1:
        for spec in likely:
            yield (spec,)
        lengths = dict.fromkeys([5, 4, 2, 1, *_lengths(model)])
        for spec in dict.fromkeys(_specs(model, _ALL_SIZES, tuple(lengths))):
            yield (spec,)
        for spec in dict.fromkeys([*_oblong(model, trial), *_flat(model)]):
            yield (spec,)
        return
    more = [Spec((BATCH, LENGTH)), Spec((LENGTH, LENGTH)), Spec((BATCH,)), Spec((BATCH, 1)), Spec(())]
    for first in likely:  # all alike, as queries, keys and values are
        yield (first,) * count
    for features in dict.fromkeys(f for m in model.modules() for f in _features(m)):  # side by side
        for part in range(1, min(features, 256)):
            rest, left = divmod(features - part, count - 1)
            if not left:
                yield (Spec((BATCH, part)), *[Spec((BATCH, rest))] * (count - 1))
    yield from itertools.product(likely, *[[*likely, *more]] * (count - 1))


def _specs(model: nn.Module, sizes: Iterable[int], lengths: Sequence[int]) -> Iterator[Spec]:
    """What the layers of a model take, in the order of the layers."""
    tables = [m.num_embeddings for m in model.modules() if isinstance(m, nn.Embedding | nn.EmbeddingBag)]
    for module in model.modules():
        for features in _features(module):
            yield Spec((BATCH, features))
            for length in lengths:
                yield Spec((BATCH, length, features))
        channels = _channels(module)
        if channels is not None:
            for size in sizes:
                yield Spec((BATCH, channels, *[size] * _dimensions(module)))
        if isinstance(module, nn.Embedding | nn.EmbeddingBag):
            for length in lengths:
                yield Spec((BATCH, length), min(tables))
            yield Spec((BATCH,), min(tables))


def _features(module: nn.Module) -> list[int]:
    """How many features a layer takes along the last dimension."""
    if isinstance(module, nn.Linear):
        return [module.in_features]
    if isinstance(module, nn.Bilinear):
        return [module.in1_features, module.in2_features]
    if isinstance(module, nn.RNNBase | nn.RNNCellBase):
        return [int(module.input_size)]
    if isinstance(module, nn.MultiheadAttention):
        return [module.embed_dim, module.kdim, module.vdim]
    if isinstance(module, nn.BatchNorm1d):
        return [module.num_features]
    if isinstance(module, nn.Embedding | NormBase | Conv | nn.GroupNorm):
        return []
    # the parameters of other modules: norms, and weights that forward() uses itself
    own = [p.shape for p in module._parameters.values() if p is not None and p.dim()]
    return [shape[d] for shape in own for d in (0, -1)]


def _channels(module: nn.Module) -> int | None:
    if isinstance(module, Conv):
        return int(module.in_channels)
    if isinstance(module, NormBase) and type(module) is not nn.BatchNorm1d:
        return int(module.num_features)
    return module.num_channels if isinstance(module, nn.GroupNorm) else None


def _dimensions(module: nn.Module) -> int:
    return next((n for kind, n in _DIMENSIONS.items() if isinstance(module, kind)), 2)


def _lengths(model: nn.Module) -> list[int]:
    """Lengths of sequences that a model may insist on: of tables of positions, of layers across positions."""
    own = [p.shape for m in model.modules() for p in m._parameters.values() if p is not None]
    found = [n + d for shape in own if len(shape) > 1 for n in shape for d in (0, -1)]
    return [n for n in dict.fromkeys(found) if 0 < n <= 1024]


def _oblong(model: nn.Module, trial: _Trial) -> Iterator[Spec]:
    """Images of two sizes whose flattened features a Linear takes: f(h) f(w) = wanted^2, if f(h) = c h^2."""
    seen = trial.flattened
    for module in model.modules():
        if isinstance(module, Conv) and not isinstance(module, ConvTranspose) and _dimensions(module) == 2:
            for (a, (got_a, want)), (b, (got_b, _)) in itertools.product(seen.items(), repeat=2):
                if a != b and got_a * got_b == want**2:
                    yield Spec((BATCH, module.in_channels, a, b))


def _flat(model: nn.Module) -> Iterator[Spec]:
    """Images that come as rows, or without their one channel."""
    for module in model.modules():
        if isinstance(module, Conv):
            for size in _SIZES[:5]:
                sizes = [size] * _dimensions(module)
                yield Spec((BATCH, module.in_channels * math.prod(sizes)))
                yield Spec((BATCH, *sizes))
                yield Spec((BATCH, *sizes, module.in_channels))
