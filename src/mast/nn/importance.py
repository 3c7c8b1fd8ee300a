"""How important each unit of a model is: what dropping it costs, in a model of f that is additive over units.

===============  ==========================================================================================
"activation"     E |W_u z_u|², what a unit adds to the next layer's sum: forward passes only, no labels
"output"         E |d output / d a_u|², where a_u = 1 multiplies the unit: random signs, a few backward passes
"taylor"         (E d loss / d a_u)²: needs labels, and vanishes on memorised rows
===============  ==========================================================================================

The derivative by a_u of any function of a network is the sum of weight times gradient over the unit's
outgoing weights, so no code of the model has to be touched. Modules are run in eval mode.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_pre_hook

from mast.errors import ArgumentError
from mast.nn.batches import Batch, Loss, check_loss
from mast.nn.costs import evaluated
from mast.nn.tensors.torch_private import without_fast_path
from mast.nn.units.cuts import is_conv1d
from mast.nn.units.dependencies.examples import fork_generators, tensors_in
from mast.nn.units.groups import UnitGroup
from mast.nn.units.stand_ins import HeadsAttention
from mast.randomness import Key, Purpose, words
from mast.support.checks import Array, check_choice
from mast.support.progress import Progress

SCORES = ("activation", "output", "taylor")
_ROOM = 1 << 23  # numbers that may be held at a time for inputs side by side
_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
_TRANSPOSED = {
    nn.ConvTranspose1d: F.conv_transpose1d,
    nn.ConvTranspose2d: F.conv_transpose2d,
    nn.ConvTranspose3d: F.conv_transpose3d,
}


@dataclass(frozen=True)
class OutgoingWeights:
    """The outgoing weights of a group's units in one tensor: entries[u] are those of unit u along `dim`."""

    group: str
    tensor: str
    dim: int
    entries: Tensor

    def sums(self, values: Tensor) -> Tensor:
        """The sum of values like the tensor's over the outgoing weights of each unit."""
        along = values.double().movedim(self.dim, 0).flatten(1).sum(1)
        return along[self.entries.to(along.device)].sum(1)


Places = dict[nn.Module, list[OutgoingWeights]]


def outgoing(groups: Sequence[UnitGroup]) -> list[OutgoingWeights]:
    """All consumers of all groups, one for each tensor."""
    found = []
    for group in groups:
        for tensor in dict.fromkeys(a.tensor for a in group.consumers):
            slices = [a for a in group.consumers if a.tensor == tensor]
            entries = np.hstack([a.entries(np.arange(group.units)) for a in slices])
            found.append(OutgoingWeights(group.name, tensor, slices[0].dim, torch.from_numpy(entries)))
    return found


class Importance:
    """The scores of the units of groups, summed over batches."""

    def __init__(
        self,
        model: nn.Module,
        groups: Sequence[UnitGroup],
        *,
        score: str,
        loss: Loss | None,
        probes: int,
        seed: int,
    ) -> None:
        self.model, self.loss, self.probes = model, loss, probes
        self.score = check_choice("score", score, SCORES)
        check_loss(loss)
        self.parts = outgoing(groups)
        parameters = dict(model.named_parameters())
        self.weights = {part.tensor: parameters[part.tensor] for part in self.parts}
        self.totals = {group.name: torch.zeros(group.units, dtype=torch.float64) for group in groups}
        self._seed, self._signs = Key(seed).seed, 0  # how many sets of random signs were used
        self._places: tuple[Places, Places, Places] | None = None  # where outgoing weights meet their units

    def of(self, batches: Iterable[Batch], count: int) -> dict[str, Array]:
        """The mean scores over `count` batches, and over ranks where there are several."""
        observe = {"activation": self._activation, "output": self._output, "taylor": self._taylor}[self.score]
        with (
            evaluated(self.model),
            fork_generators(),
            without_fast_path(),
            Progress(count, "scores of units") as bar,
        ):
            seen = 0
            for seen, batch in enumerate(batches, 1):
                observe(batch)
                bar.advance(seen)
        means = _over_ranks({name: t / max(seen, 1) for name, t in self.totals.items()}, self.model)
        for name, mean in means.items():
            if not np.isfinite(mean).all():
                raise ArgumentError(
                    f"the scores of the units of {name!r} are not finite: NaN or infinity appears"
                )
        return {n: np.square(mean) for n, mean in means.items()} if self.score == "taylor" else means

    def _output(self, batch: Batch) -> None:
        with _only(self.model, self.weights.values()):
            output = batch.output(self.model)
            if not output.requires_grad:
                raise ArgumentError("the model's output has no gradient, which score='output' looks at")
            for probe in range(self.probes):
                products = self._products(
                    self._signed_sum(output), list(self.weights), probe < self.probes - 1
                )
                self._add_squares(products, self.parts)

    def _taylor(self, batch: Batch) -> None:
        with _only(self.model, self.weights.values()):
            products = self._products(batch.loss(self.model, self.loss), list(self.weights), False)
        for name, slope in _slopes(products, self.parts).items():
            self.totals[name] += slope

    def _activation(self, batch: Batch) -> None:
        if self._places is None:
            self._places = _places(self.model, self.parts, _called(self.model, batch))
        direct, heads, indirect = self._places
        with ExitStack() as stack:
            for look, places in ((_add_contributions, direct), (_add_contributions_of_heads, heads)):
                for module, parts in places.items():
                    hook = partial(look, parts, self.totals)
                    stack.enter_context(module.register_forward_pre_hook(hook, with_kwargs=True))
            for module, parts in indirect.items():
                stack.enter_context(module.register_forward_hook(partial(self._estimate, parts)))
            trained = {part.tensor for parts in indirect.values() for part in parts}
            stack.enter_context(_only(self.model, [self.weights[name] for name in trained]))
            batch.call(self.model)

    def _estimate(self, parts: Sequence[OutgoingWeights], module: nn.Module, args: Any, output: Any) -> None:
        """What units add to the output of a module that uses their outgoing weights, by random signs."""
        made = [t for t in tensors_in(output) if t.requires_grad]
        names = list(dict.fromkeys(part.tensor for part in parts))
        for _ in range(self.probes if made else 0):
            value = torch.stack([self._signed_sum(t) for t in made]).sum()
            products = self._products(value, names, True)
            for part in parts:  # each is a layer of its own
                self._add_squares(products, [part])

    def _signed_sum(self, y: Tensor) -> Tensor:
        """The sum of y times a new set of random signs, which are keyed: no generator of torch is touched.

        They belong to columns by their size, so that units of y that are sorted take their signs along.
        """
        key = Key(self._seed, self._signs)
        self._signs += 1
        bits = np.unpackbits(words(key, Purpose.ESTIMATE, 0, -(-y.numel() // 32)).view(np.uint8))
        signs = torch.from_numpy(bits[: y.numel()]).to(y.device).view(y.shape)
        y = y.to(torch.promote_types(y.dtype, torch.float32))
        for dim in range(1, y.dim()):
            others = [d for d in range(y.dim()) if d != dim]
            sizes = torch.linalg.vector_norm(y.detach(), dim=others)
            signs = signs.index_select(dim, sizes.argsort(stable=True).argsort())
        return (y * (signs.to(y.dtype) * 2 - 1)).sum()

    def _products(self, value: Tensor, names: Sequence[str], again: bool) -> dict[str, Tensor]:
        """Weight times gradient, by name."""
        weights = [self.weights[name] for name in names]
        found = torch.autograd.grad(value, weights, retain_graph=again, allow_unused=True)
        triples = zip(names, weights, found, strict=True)
        return {name: w.detach() * g for name, w, g in triples if g is not None}

    def _add_squares(self, products: Mapping[str, Tensor], parts: Sequence[OutgoingWeights]) -> None:
        for name, slope in _slopes(products, parts).items():
            self.totals[name] += slope.square() / self.probes


def _slopes(products: Mapping[str, Tensor], parts: Sequence[OutgoingWeights]) -> dict[str, Tensor]:
    """d/da_u for the units of each group, from weight times gradient: the sum over its consumers."""
    slopes: dict[str, Tensor] = {}
    for part in parts:
        if part.tensor in products:
            own = part.sums(products[part.tensor]).cpu()
            slopes[part.group] = slopes[part.group] + own if part.group in slopes else own
    return slopes


@contextmanager
def _only(model: nn.Module, weights: Iterable[Tensor]) -> Iterator[None]:
    """With gradients for these parameters only, also if they are frozen; for none, without gradients."""
    wanted = {id(w) for w in weights}
    if wanted and torch.is_inference_mode_enabled():
        raise ArgumentError("these scores need gradients, which there are none of in torch.inference_mode()")
    before = [(p, p.requires_grad) for p in model.parameters()]
    try:
        for p, _ in before:
            p.requires_grad_(id(p) in wanted)
        with torch.set_grad_enabled(bool(wanted)):
            yield
    finally:
        for p, required in before:
            p.requires_grad_(required)


def _over_ranks(scores: Mapping[str, Tensor], model: nn.Module) -> dict[str, Array]:
    """The mean over the ranks of torch.distributed, if it is in use."""
    flat = torch.cat(list(scores.values()))
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        device = next(model.parameters()).device
        flat = flat.to(device).contiguous()  # gloo corrupts what is not
        torch.distributed.all_reduce(flat)
        flat = flat.cpu() / torch.distributed.get_world_size()
    parts = torch.split(flat, [t.numel() for t in scores.values()])
    return {name: part.numpy().copy() for name, part in zip(scores, parts, strict=True)}


# ---- what units add to the next layer's sum ------------------------------------------------------


def _called(model: nn.Module, batch: Batch) -> set[int]:
    """The modules, by identity, that a forward pass calls: parents look into others."""
    called: set[int] = set()
    handle = register_module_forward_pre_hook(lambda module, _: called.add(id(module)))
    try:
        batch.call(model)
    finally:
        handle.remove()
    return called


def _places(
    model: nn.Module, parts: Sequence[OutgoingWeights], called: set[int]
) -> tuple[Places, Places, Places]:
    """Layers of a known form that are called; attention, which does not call its last layer; and all others.

    Of all other weights it is the nearest called module around them.
    """
    modules, parameters = dict(model.named_modules()), dict(model.named_parameters())
    direct: Places = {}
    heads: Places = {}
    indirect: Places = {}
    for part in parts:
        weight = parameters[part.tensor]
        for name, module in modules.items():
            if not any(p is weight for p in module._parameters.values()):
                continue
            if id(module) in called and _known(module, weight, part.dim):
                direct.setdefault(module, []).append(part)
                continue
            name = name.partition(".parametrizations")[0]
            while name and id(modules[name]) not in called:
                name = name.rpartition(".")[0]
            outer = modules[name]
            attends = type(outer).forward is nn.MultiheadAttention.forward
            places = heads if attends and outer.out_proj is module else indirect
            places.setdefault(outer, []).append(part)
    return direct, heads, indirect


def _known(module: nn.Module, weight: Tensor, dim: int) -> bool:
    """Whether a layer multiplies its input with this weight, along this dimension, and does nothing else."""
    if getattr(module, "weight", None) is not weight:
        return False
    kinds: tuple[type[Any], ...] = (nn.Linear, *_CONVOLUTIONS, *_TRANSPOSED)
    if not is_conv1d(module) and all(type(module).forward is not kind.forward for kind in kinds):
        return False
    along = 0 if is_conv1d(module) or isinstance(module, tuple(_TRANSPOSED)) else 1
    return dim == along and getattr(module, "groups", 1) == 1


def _add_contributions(
    parts: Sequence[OutgoingWeights], totals: Mapping[str, Tensor], module: nn.Module, args: Any, options: Any
) -> None:
    """Add sum |W_u z_u|² over what a layer is called with, from the second moments of its inputs."""
    x: Tensor = args[0] if args else next(iter(options.values()))
    wide = torch.promote_types(x.dtype, torch.float32)
    weight = module.weight.detach().to(wide)  # type: ignore[operator]
    if isinstance(module, tuple(_TRANSPOSED)):
        for part in parts:
            totals[part.group].add_(
                _contributions_of_transposed(module, x.detach().to(wide), weight, part.entries)
            )
        return
    if isinstance(module, _CONVOLUTIONS):
        inputs = _padded(module, x.detach().to(wide)).transpose(0, 1).contiguous()
        outward = weight.flatten(2).movedim(1, 0)  # inputs x outputs x kernel
    else:
        inputs = x.detach().to(wide).reshape(-1, x.shape[-1]).T.contiguous()
        outward = (weight if is_conv1d(module) else weight.T)[:, :, None]
    kernel = outward.shape[2]
    for part in parts:
        entries = part.entries.to(x.device)
        width = entries.shape[1] * kernel
        at_once = max(1, _ROOM // max(1, inputs[:1].numel() * width))
        for first in range(0, len(entries), at_once):
            some = entries[first : first + at_once]
            z = inputs[some.reshape(-1)]
            if isinstance(module, _CONVOLUTIONS):
                z = _windows(module, z)
            z = z.reshape(len(some), width, -1)  # units x entries x places
            w = outward[some].transpose(2, 3).reshape(len(some), width, -1)  # units x entries x outputs
            totals[part.group][first : first + at_once] += _inner(z, w).cpu()


def _add_contributions_of_heads(
    parts: Sequence[OutgoingWeights], totals: Mapping[str, Tensor], attention: Any, args: Any, options: Any
) -> None:
    """The same for the last layer of nn.MultiheadAttention: a twin of it does call that."""
    twin = HeadsAttention(attention)
    look = partial(_add_contributions, parts, totals)
    twin.out_proj.register_forward_pre_hook(look, with_kwargs=True)
    twin(*args, **options)


def _inner(z: Tensor, w: Tensor) -> Tensor:
    """|w_u' z_u|² for each unit u."""
    if z.shape[1] == 1:
        z, w = (t.square().sum((1, 2), dtype=torch.float64) for t in (z, w))
        return z * w
    return ((z @ z.mT).double() * (w @ w.mT).double()).sum((1, 2))


def _contributions_of_transposed(module: Any, x: Tensor, weight: Tensor, entries: Tensor) -> Tensor:
    """The same for a transposed convolution: the contribution of each unit is computed by itself."""
    rank = len(module.kernel_size)
    x = x if x.dim() == rank + 2 else x[None]
    function = next(f for kind, f in _TRANSPOSED.items() if isinstance(module, kind))
    found = []
    at_once = max(1, _ROOM // (x[:, 0].numel() * weight.shape[1]))
    for some in torch.split(entries.to(x.device), at_once):
        options = module.stride, module.padding, module.output_padding, len(some), module.dilation
        own = function(x[:, some.reshape(-1)], weight[some.reshape(-1)], None, *options)
        squares = own.double().square().reshape(len(own), len(some), -1)
        found.append(squares.sum((0, 2)))
    return torch.cat(found).cpu()


def _padded(module: Any, x: Tensor) -> Tensor:
    """The input of a convolution with what the layer puts around it."""
    rank = len(module.kernel_size)
    x = x if x.dim() == rank + 2 else x[None]
    around: list[int] = []
    for d in reversed(range(rank)):
        size, dilation = module.kernel_size[d], module.dilation[d]
        if isinstance(module.padding, str):
            total = dilation * (size - 1) if module.padding == "same" else 0
            around += [total // 2, total - total // 2]
        else:
            around += [module.padding[d]] * 2
    if not any(around):
        return x
    return F.pad(x, around, "constant" if module.padding_mode == "zeros" else module.padding_mode)


def _windows(module: Any, x: Tensor) -> Tensor:
    """What a convolution sees of channels x batch x padded places: channels x kernel x batch x places."""
    rank = len(module.kernel_size)
    for d in range(rank):
        reach = module.dilation[d] * (module.kernel_size[d] - 1) + 1
        x = x.unfold(2 + d, reach, module.stride[d])[..., :: module.dilation[d]]
    return x.permute(0, *range(2 + rank, 2 + 2 * rank), 1, *range(2, 2 + rank))
