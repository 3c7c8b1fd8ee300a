"""Before training: `keep_probabilities`, which weights to keep how often; `scale_start`, for fresh weights.

A layer z = (Sw)'a with independent masks has E|Sw|² = |w|²/q, so L sketched layers multiply the variance of
the output by q^-L, and training would start from outputs that are far too large. Times sqrt(q) the layers
start as they were meant to.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from mast.allocation import allocate
from mast.errors import ArgumentError
from mast.nn.batches import run_batches
from mast.nn.costs import evaluated
from mast.nn.factory import sparsify
from mast.nn.files.tensor_files import digest
from mast.nn.sparsifier import Sparsifier
from mast.nn.tensors.bound import BoundSketch, BoundWeights
from mast.nn.tensors.selection import choose
from mast.nn.tensors.top_share import TopShare
from mast.nn.tensors.torch_private import Conv
from mast.nn.tensors.weights import Shift, Where, unwrapped
from mast.nn.units import BoundUnits, parse
from mast.nn.units.dependencies.examples import Example
from mast.nn.units.dependencies.residual import normalised_weights
from mast.nn.units.dependencies.search import guess_examples
from mast.nn.validation import scaled_starts, sparsifier_of
from mast.sketches import Mixture, Nested, Sampled, Sketch, UnscaledBernoulli
from mast.sketches.lists import member_key
from mast.support.checks import Array


def scale_start(
    model: nn.Module,
    sketch: Sketch | TopShare | str,
    *,
    shift: Shift = None,
    keep: Mapping[str, Any] | None = None,
    where: Where | None = None,
    example: Any = None,
) -> str:
    """Scale fresh weights in place, so that sketched outputs vary as much as plain ones; says what it did.

    Coordinate i is multiplied by the square root of q_i, the probability that it is kept; with `Nested` by
    q_i itself, so that the whole draw is the ordinary start. A weight with one factor for all of its entries
    stays as it is where a norm takes what it makes and nothing else, which makes its size irrelevant; not
    where a residual is added before the norm. All weights stay where there is a shift, because a pretrained
    model is no fresh start, and where the sketch has scale 1. Weights that were scaled before stay too, until
    they are made anew.

    Parameters
    ----------
    model, sketch, shift, keep, where
        As in `sparsify`, which may be called before or after.
    example
        What the model is called with, as in `sparsify`: it shows where a norm follows. Without one, the input
        of MLPs and of networks for images is guessed; of other models all weights are scaled, which is
        no mistake, as a norm undoes it.

    >>> import mast, torch
    >>> model = torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
    >>> mast.nn.scale_start(model, mast.Bernoulli(0.25))
    '2 weights were multiplied by 0.5'
    """
    sketch = parse(sketch) if isinstance(sketch, str) else sketch
    own = sparsifier_of(unwrapped(model))
    if shift is not None or (own is not None and own.shift is not None):
        return "nothing was changed: with a shift the start is a pretrained model"
    if isinstance(sketch, TopShare):
        return "nothing was changed: TopShare leaves what it keeps as it is"
    if _unscaled(sketch):
        return "nothing was changed: the sketch has scale 1, so what it keeps is the ordinary start"
    if own is not None and own.sketch is not sketch and repr(own.sketch) != repr(sketch):
        raise ArgumentError(f"the model is sparsified with {own.sketch!r}, not with {sketch!r}")
    sk = own or sparsify(model, sketch, keep=keep, where=where, example=example)
    try:
        return _scale(sk, _normalised(sk, example))
    finally:
        if own is None:
            sk.remove()


def _unscaled(sketch: Sketch) -> bool:
    """Whether what is kept stays as it is."""
    if isinstance(sketch, Mixture):
        return all(_unscaled(part) for _, part in sketch.components)
    inner = getattr(sketch, "sketch", None)
    if isinstance(inner, Sketch):
        return _unscaled(inner) and not (isinstance(sketch, Sampled) and sketch.corrected)
    return isinstance(sketch, UnscaledBernoulli) or (isinstance(sketch, Nested) and not sketch.scaled)


def _normalised(sk: Sparsifier, example: Any) -> set[str]:
    """The weights behind which a norm follows, as far as that can be seen."""
    if example is not None:
        return normalised_weights(sk.model, Example.of(example))
    try:
        examples = guess_examples(sk.model) if sk.unit_map is None else sk.unit_map.examples
    except ArgumentError:
        return set()
    return set.intersection(*(normalised_weights(sk.model, each) for each in examples))


def _scale(sk: Sparsifier, normalised: set[str]) -> str:
    used, lines = [], list[str]()
    known = scaled_starts.setdefault(sk.model, {})
    before = {w.name for w in sk.weights if w.name in known and known[w.name][0] == digest(w.parameter)}
    for name in before:
        if known[name][1] != repr(sk.sketch):
            raise ArgumentError(
                f"{name!r} was scaled for {known[name][1]} before, and would be too small for both: give the "
                "model fresh weights first"
            )
    with torch.no_grad():
        for number, w in enumerate(sk.weights):
            factors = start_factors(sk.bound, number, tuple(w.shape))
            irrelevant = w.name in normalised and np.ptp(factors) <= 1e-6 * np.max(factors)
            if not irrelevant and w.name not in before:
                w.parameter.mul_(torch.as_tensor(factors, device=w.parameter.device).to(w.parameter.dtype))
                used.append(factors)
                if np.any(factors != 1):
                    known[w.name] = (digest(w.parameter), repr(sk.sketch))
    sk.values.forget_all()
    if used:
        low, high = min(float(np.min(f)) for f in used), max(float(np.max(f)) for f in used)
        size = f"{low:.3g}" if high - low < 1e-6 * high else f"{low:.3g} to {high:.3g}"
        lines.append(f"{len(used)} weight{'s were' if len(used) > 1 else ' was'} multiplied by {size}")
    left = {
        "a norm follows": len(sk.weights) - len(used) - len(before),
        "{} scaled before": len(before),
    }
    for reason, count in left.items():
        if count:
            weights, were = ("weight", "it was") if count == 1 else ("weights", "they were")
            lines.append(f"{count} {weights} left as {were}, because {reason.format(were)}")
    return "; ".join(lines)


def start_factors(bound: BoundSketch, number: int, shape: tuple[int, ...]) -> Array:
    """What the entries of a weight are multiplied with at the start, in a shape that fits it."""
    if isinstance(bound, BoundUnits):
        scaled = bound.scaled[number]
        factors = [factors_of(bound.sketches[i], group.units) for i, group in enumerate(bound.groups)]
        if scaled.dim is None:
            return np.asarray(factors[scaled.group][scaled.unit])
        along = [1] * len(shape)
        along[scaled.dim] = shape[scaled.dim]
        each = [
            np.repeat(np.ones(1) if p.group is None else factors[p.group], p.run) for p in scaled.segments
        ]
        return np.concatenate(each).reshape(along)
    assert isinstance(bound, BoundWeights)
    if bound.members is not None:
        if not bound.sketch.corrected:
            return start_factors(bound.members, number, shape)
        square, like = np.zeros(math.prod(shape)), torch.empty(0, dtype=torch.float64)
        for i in range(bound.sketch.n):
            kept = bound.kept(number, member_key(bound.sketch, i), like)
            square[kept.positions] += np.square(kept.each_scale()) / bound.sketch.n
        return (1 / np.sqrt(np.where(square > 0, square, 1.0))).reshape(shape)
    if bound.joint:
        part = slice(bound.borders[number], bound.borders[number + 1])
        return factors_of(bound.sketch, bound.dim)[part].reshape(shape)
    return factors_of(bound.sketches[number], math.prod(shape)).reshape(shape)


def factors_of(sketch: Sketch, d: int) -> Array:
    """1/sqrt(E[c²]), which is sqrt(q) where what is kept is scaled by 1/q; q itself for nested orders.

    A list of draws has the factors of its sketch, unless it is corrected: what it keeps more often is scaled
    no less.
    """
    if isinstance(sketch, Sampled) and not sketch.corrected:
        return factors_of(sketch.sketch, d)
    square = sketch.expected_square(d)
    ever = np.where(square > 0, square, 1.0)
    if isinstance(sketch, Nested):
        return np.where(square > 0, 1 / ever, 0.0)  # what is in no prefix is never trained
    return np.asarray(1 / np.sqrt(ever))


# ---- keep probabilities --------------------------------------------------------------------------------


def keep_probabilities(
    model: nn.Module,
    batches: Iterable[Any],
    *,
    budget: float = 0.2,
    floor: float = 0.02,
    where: Where | None = None,
) -> dict[str, Tensor]:
    """Keep probabilities for every entry of the sketched weights: p = clip(c |W_ij - V_ij| |X_j|, floor, 1).

    |X_j| is the norm of input j over the batches; for a linear layer and squared loss the score is the square
    root of the curvature times the weight. Every weight gets the budget for itself. Modules other than linear
    and convolutional ones have |X_j| = 1.

    Parameters
    ----------
    model
        As it is, or sparsified; then its shift is V.
    batches
        Inputs, or pairs of inputs and targets; inputs are tensors, tuples of arguments, or dicts of keywords.
    budget, floor
        The mean of the probabilities of a weight, and the least of them.
    where
        Which parameters, as in `sparsify`.

    >>> import mast, torch
    >>> model = torch.nn.Linear(3, 1)
    >>> _ = model.weight.data.copy_(torch.tensor([[1.0, 2.0, 1.0]]))
    >>> mast.nn.keep_probabilities(model, [torch.tensor([[1.0, 1.0, 4.0]])], budget=0.35)["weight"]
    tensor([[0.1500, 0.3000, 0.6000]])
    """
    model = unwrapped(model)
    sk = sparsifier_of(model)
    weights = choose(model, where, {})[0] if sk is None else sk.weights
    shift = None if sk is None else sk.shift
    with _input_squares(model) as squares, evaluated(model):
        if not run_batches("keep_probabilities", model, batches):
            raise ArgumentError("keep_probabilities needs at least one batch")
    result = {}
    for w in weights:
        x = w.parameter.detach()
        score = (x if shift is None else x - shift[w.name].to(x)).abs().double().cpu()
        owner, _, kind = w.name.rpartition(".")
        if owner in squares and kind == "weight":
            score *= _input_norms(model.get_submodule(owner), squares[owner].cpu().sqrt())
        if not bool(score.isfinite().all()):
            raise ArgumentError(f"{w.name!r}, or what it is given in the batches, holds NaN or infinity")
        p = allocate(score.reshape(-1).numpy(), budget, floor)
        result[w.name] = torch.from_numpy(p.reshape(x.shape)).to(x.device, torch.get_default_dtype())
    return result


@contextmanager
def _input_squares(model: nn.Module) -> Iterator[dict[str, Tensor]]:
    """The sum of squares of every input of linear and convolutional modules, by their names."""
    squares: dict[str, Tensor] = {}

    def see(name: str, module: Any, inputs: tuple[Any, ...], options: dict[str, Any]) -> None:
        x = (*inputs, *options.values())[0].detach().double()
        if not isinstance(module, nn.Linear):
            x = (x if x.dim() == module.weight.dim() else x[None]).movedim(1, -1)
        squares[name] = squares.get(name, 0) + x.flatten(0, -2).square().sum(0)

    with ExitStack() as stack:
        for name, module in model.named_modules():
            if isinstance(module, nn.Linear | Conv):
                stack.enter_context(module.register_forward_pre_hook(partial(see, name), with_kwargs=True))
        yield squares


def _input_norms(module: Any, size: Tensor) -> Tensor:
    """The sizes of the inputs in a shape that fits the weight."""
    if isinstance(module, nn.Linear):
        return size
    spatial = [1] * (module.weight.dim() - 2)
    if module.transposed:
        return size.reshape(-1, 1, *spatial)
    outputs = module.out_channels // module.groups  # those of a group see its inputs only
    each = size.reshape(module.groups, -1).repeat_interleave(outputs, 0)
    return each.reshape(module.out_channels, -1, *spatial)
