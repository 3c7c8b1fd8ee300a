"""`validate(model, optimizer)`: every known trap of sparsified training in this model, each with its fix."""

from __future__ import annotations

import inspect
import math
import warnings
import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.optim import Optimizer

from mast.errors import ArgumentError
from mast.nn.batches import Batch
from mast.nn.calls import Call
from mast.nn.optimizers import DECAY_KNOWN, decay_to_shift, decays_to_zero
from mast.nn.submodels import warn_of_sorting
from mast.nn.tensors.torch_private import BatchNorm, tree_leaves
from mast.nn.tensors.weights import unwrapped
from mast.nn.units.configurations import configurable
from mast.nn.units.groups import OUTPUT
from mast.sketches import Nested
from mast.sketches.base import percent
from mast.sketches.composed import Over

if TYPE_CHECKING:
    from mast.nn.sparsifier import Sparsifier

FACTOR = 3.0  #: sparsified outputs that vary this many times more than plain ones are a bad start
_DRAWS = 8
#: models whose start was scaled: x itself then has smaller outputs than its submodels, on purpose. By name of
#: a weight: a digest of what became of it, and for which sketch
scaled_starts: weakref.WeakKeyDictionary[nn.Module, dict[str, tuple[str, str]]] = weakref.WeakKeyDictionary()


@dataclass(frozen=True)
class Finding:
    """One trap. `fixed` says whether ``fix=True`` has removed it, `certain` whether it always does harm."""

    where: str
    problem: str
    fix: str
    fixed: bool = False
    certain: bool = False

    def __str__(self) -> str:
        done = " (done)" if self.fixed else ""
        return f"{self.where}: {self.problem}. Fix{done}: {self.fix}."


def validate(
    model: nn.Module, optimizer: Optimizer | None = None, *, fix: bool = False, batch: Any = None
) -> list[Finding]:
    """Find the traps in a model, sparsified or about to be, and in its optimizer; repair what can be.

    With a batch (an input, or a pair of inputs and targets) the outputs of a few submodels are compared with
    those of the model itself: a start at which they vary several times more is a bad one.

    It runs by itself at an optimizer's first step on a sparsified model, and warns of what is certain.

    >>> import mast, torch
    >>> model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2))
    >>> for finding in mast.nn.validate(model):
    ...     print(finding)
    1 (BatchNorm1d): its statistics are averages over draws, and fit neither a submodel nor x itself.
    Fix: pass calibrate=batches to submodel() and report(), or call mast.nn.recalibrate(model, batches).
    """
    if optimizer is not None and not isinstance(optimizer, Optimizer):
        raise ArgumentError(f"the optimizer must be a torch optimizer, got {type(optimizer).__name__}")
    if type(model).__name__ == "OptimizedModule":
        return [_COMPILED]
    model = unwrapped(model)
    sk = sparsifier_of(model)
    findings = [*_modules(model, sk), *_sizes(sk), *_head(sk), *_clipping(sk)]
    if batch is not None and sk is not None:
        findings += _outputs(sk, batch)
    if optimizer is not None and sk is not None:
        findings += _optimizer(sk, optimizer, fix)
    return findings


def warn_at_first_step(sk: Sparsifier, optimizer: Optimizer) -> None:
    """One warning for each trap that certainly does harm."""
    warn_of_sorting(sk)
    for finding in [*_modules(sk.model, sk), *_sizes(sk), *_optimizer(sk, optimizer, fix=False)]:
        if finding.certain:
            warnings.warn(str(finding), stacklevel=6)


def warn_of_checkpoints(sk: Sparsifier) -> None:
    """One warning for each module whose checkpoints may read sketched parameters themselves."""
    for finding in _modules(sk.model, sk):
        if (finding.problem, finding.fix) == _READS_ITSELF:
            warnings.warn(str(finding), stacklevel=4)


def sparsifier_of(model: nn.Module) -> Sparsifier | None:
    """The handle of a sparsified model."""
    call = model._compiled_call_impl
    if not isinstance(call, Call):
        return None
    owner: Sparsifier = call.calls.sk
    return owner


_COMPILED = Finding(
    "the model",
    "it is compiled, and sparsify() needs the original module",
    "sparsify the original; then call the compiled one inside `with sk.sample(step):`, or train "
    "uncompiled: on the CPU the masks are compiled anyway, and drawing them inside a compiled graph is "
    "several times slower",
)


# A checkpointed function is run again during backward(). Modules that it calls find the same y as before,
# because every call of a module is watched. A parameter that the function reads by itself is x by then.
_READS_ITSELF = (
    "it uses activation checkpointing and owns sketched parameters. Modules that it calls in a checkpoint "
    "are recomputed with the right draw; parameters that it reads there itself (self.weight) are not",
    "let it call a module, leave the parameters out with keep= or where=, or train with sk.sample(step)",
)


def _modules(model: nn.Module, sk: Sparsifier | None) -> Iterator[Finding]:
    every = [p for p in model.parameters() if p.ndim > 1]
    sketched = set(map(id, every if sk is None else [w.parameter for w in sk.weights]))
    yield from _statistics(model)
    for name, module in model.named_modules():
        where = f"{name or 'the model'} ({type(module).__name__})"
        if isinstance(module, nn.Embedding) and module.max_norm is not None and id(module.weight) in sketched:
            yield Finding(
                where,
                "max_norm rescales rows in place during the forward pass, of the sparsified copy: x is "
                "never renormed",
                f"set max_norm=None, or leave it out with keep={{'{name}.weight': 1}}",
                certain=True,
            )
        intercepted = module._compiled_call_impl
        if intercepted is not None and not isinstance(intercepted, Call):
            yield _COMPILED
        in_source = _mentions_checkpoints(type(module))  # type: ignore[arg-type]
        if in_source and any(id(p) in sketched for p in module._parameters.values()):
            yield Finding(where, *_READS_ITSELF)
        elif in_source or getattr(module, "gradient_checkpointing", False):
            yield Finding(
                where,
                "it uses activation checkpointing: modules that are called inside a checkpoint are "
                "recomputed with the right draw",
                "nothing, as long as the checkpointed function calls modules",
            )


def _statistics(model: nn.Module) -> Iterator[Finding]:
    """One finding for all layers that keep statistics."""
    norms: dict[str, list[str]] = {}
    for name, module in model.named_modules():
        if isinstance(module, BatchNorm) and module.track_running_stats:
            norms.setdefault(type(module).__name__, []).append(name or "the model")
    if norms:
        count = sum(map(len, norms.values()))
        yield Finding(
            "; ".join(f"{', '.join(names)} ({kind})" for kind, names in norms.items()),
            f"{'its' if count == 1 else 'their'} statistics are averages over draws, and fit neither a "
            "submodel nor x itself",
            "pass calibrate=batches to submodel() and report(), or call mast.nn.recalibrate(model, batches)",
        )


def signs_of_training(model: nn.Module) -> str:
    """Why the weights of a model look trained; an empty text if nothing says so.

    >>> model = nn.BatchNorm1d(1)
    >>> _ = model(torch.ones(2, 1))
    >>> signs_of_training(model)
    'its BatchNorm layers have seen batches'
    """
    if name := getattr(getattr(model, "config", None), "_name_or_path", ""):
        return f"its configuration was loaded from {str(name)!r}"
    for module in model.modules():
        mean = module.running_mean if isinstance(module, BatchNorm) else None
        if mean is not None and not mean.is_meta and mean.any():  # old files have no counts of batches
            return "its BatchNorm layers have seen batches"
    return ""


def _sizes(sk: Sparsifier | None) -> Iterator[Finding]:
    """What one has to know of nested sizes if x is none of them: with scales, or without the size 1."""
    sketch = None if sk is None else sk.sketch
    while isinstance(sketch, Over):
        sketch = sketch.sketch
    if sk is None or not isinstance(sketch, Nested):
        return
    last, largest = len(sketch.shares) - 1, float(sketch.shares[-1])
    scaled = sketch.scaled and last > 0
    if not scaled and largest == 1:
        return
    if scaled and sk.step == 0 and sk.shift is None and sk.model not in scaled_starts:
        signs = f". These look trained: {sk.trained}" if sk.trained else ""
        yield Finding(
            "the start",
            "with the scale 1/q no size computes what the weights in memory do, the whole one neither, so "
            f"pretrained weights are lost{signs}",
            "for pretrained weights take Nested(..., scaled=False), as mast.nn.elastic does; for fresh ones "
            "call mast.nn.scale_start(model, sketch) before training",
            certain=bool(sk.trained),
        )
    yield Finding(
        "evaluation",
        "model.eval() computes with x, which is none of the sizes: "
        + ("what a size keeps is scaled by 1/q" if scaled else f"the largest keeps {percent(largest)} of it"),
        f"score sk.submodel(member={last}), the {'whole' if largest == 1 else 'largest'} size, or evaluate "
        f"inside `with sk.member({last}):`",
    )


def _head(sk: Sparsifier | None) -> Iterator[Finding]:
    """Poolers and their like of transformers: units that only the last layer takes."""
    if sk is None or sk.unit_map is None or not configurable(sk.model):
        return
    excluded = sk.unit_map.excluded
    for group in sk.unit_map.groups:
        if {excluded.get(a.tensor) for a in group.consumers} == {OUTPUT}:
            yield Finding(
                group.name,
                f"its {group.units} units are cut, and only what makes the output takes them: they are the "
                "model's head, not its body",
                f"leave them whole with keep={{{group.name!r}: 1.0}}, as mast.nn.elastic does with poolers",
            )


@lru_cache(maxsize=1024)
def _mentions_checkpoints(kind: type[nn.Module]) -> bool:
    if kind.__module__.startswith(("torch.", "transformers.")):
        return False
    try:
        return "checkpoint(" in inspect.getsource(kind)
    except (OSError, TypeError):
        return False


def _outputs(sk: Sparsifier, batch: Any) -> Iterator[Finding]:
    """Whether sparsified outputs vary more than three times as much, or as little, as those of x."""
    if sk.model in scaled_starts:
        return
    plain = _output_deviation(sk.watched.plain_copy().eval(), batch)
    draws = [_output_deviation(sk.submodel(seed, calibrate=False), batch) for seed in range(_DRAWS)]
    ratio = math.sqrt(sum(s**2 for s in draws) / len(draws)) / plain if plain > 0 else 1.0
    if not 1 / FACTOR <= ratio <= FACTOR:
        too_large = sk.shift is None and ratio > 1  # a start that scale_start makes smaller
        yield Finding(
            "outputs",
            f"those of sparsified models vary {ratio:.3g} times as much as those of the model itself",
            "before training, call mast.nn.scale_start(model, sketch) once"
            if too_large
            else "keep a larger share, or train with a smaller learning rate at first",
        )


def _output_deviation(model: nn.Module, batch: Any) -> float:
    """The standard deviation of a model's outputs."""
    with torch.no_grad():
        outputs = tree_leaves(Batch.of(batch).call(model))
    numbers = [t for t in outputs if isinstance(t, torch.Tensor) and t.is_floating_point()]
    return float(torch.cat([t.double().flatten() for t in numbers]).std(correction=0))  # 0 for one number


def _clipping(sk: Sparsifier | None) -> Iterator[Finding]:
    constants = None if sk is None else sk.constants
    if constants is not None and constants.L_D > 1:
        grow = math.sqrt(constants.L_D)
        yield Finding(
            "gradient clipping",
            f"norms of sketched gradients are about sqrt(L_D) = {grow:.3g} times larger, so a threshold "
            "tuned on plain training clips almost every step",
            f"multiply clipping thresholds by {grow:.3g}, if you clip",
        )


def _optimizer(sk: Sparsifier, optimizer: Optimizer, fix: bool) -> Iterator[Finding]:
    name = type(optimizer).__name__
    if not sk.optimizer_steps.concern(optimizer):
        yield Finding(
            name,
            "it holds no sketched parameter of this model, so its steps do not advance the draw",
            "make the optimizer from model.parameters(), after parameters were replaced or loaded with "
            "assign=True",
        )
        return
    held = {id(p) for group in optimizer.param_groups for p in group["params"]}
    if strays := len(held - set(map(id, sk.model.parameters()))):
        yield Finding(
            name,
            f"{strays} of its parameters are not in this model",
            "make the optimizer from this model's parameters, unless it trains other modules too",
        )
    trained = [w for w in sk.weights if w.parameter.requires_grad]
    mine = sum(id(w.parameter) in held for w in trained)
    if mine < len(trained):
        yield Finding(
            name,
            f"it holds {mine} of the {len(trained)} sketched parameters, and when other optimizers step "
            "cannot be known here. Those that step after one forward pass are one step with one draw; a "
            "training forward pass between two of them has a draw of its own",
            "step all optimizers of the model after the same backward pass, one after the other",
        )
    if sk.sorting is not None and sk.sorting.came_after(optimizer):
        yield Finding(
            name,
            "its state was made before elastic() sorted the units, and belongs to others now",
            "make a new optimizer after elastic(), or sort with mast.nn.sort_units(..., optimizer=optimizer) "
            "and pass sort=False",
            certain=True,
        )
    if sk.shift is not None and decays_to_zero(sk, optimizer):
        can = type(optimizer) in DECAY_KNOWN
        if fix and can:
            decay_to_shift(sk, optimizer)
        yield Finding(
            name,
            "weight decay pulls x towards 0, but with a shift v the neutral point is v",
            "validate(model, optimizer, fix=True) makes it decay x - v"
            if can
            else "set weight_decay=0 for the sketched parameters and add the penalty on x - v to the loss",
            fixed=fix and can,
            certain=True,
        )
