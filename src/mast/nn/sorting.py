"""`sort_units`: the units of a network, most important first, so that its sizes are prefixes.

Permuting the units of one group together with everything that reads or writes them leaves the function of the
network as it is, to rounding. Sorted by what dropping each of them costs, the first units are the ones to
keep, whatever the sizes are and however often each is used.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from mast.errors import ArgumentError, MastError
from mast.nn.batches import Loss, with_first
from mast.nn.importance import Importance
from mast.nn.tensors.weights import deep_copy, refuse_sharded, unwrapped
from mast.nn.units import Neurons, UnitGroup, UnitMap, find_units
from mast.nn.units.dependencies.examples import Example, compare_outputs, fork_generators
from mast.sketches import RandK
from mast.support.checks import Indices, check_int

Orders = dict[str, Indices]  # by group: the unit that stands at each place
_NEARLY = {torch.float64: 1e-9, torch.float32: 1e-4}  # differences of scores that are rounding


def sort_units(
    model: nn.Module,
    batches: Iterable[Any],
    loss: Loss | None = None,
    *,
    score: str = "activation",
    probes: int = 8,
    example: Any = None,
    optimizer: Optimizer | None = None,
    seed: int = 0,
) -> Orders:
    """Permute the units of every group in place, most important first; the model computes what it did.

    Everything that belongs to a unit moves along: rows and columns of weights, biases, BatchNorm's parameters
    and statistics, grouped heads, halves of gated MLPs, `.grad`, and the state of an optimizer. That a
    permuted copy computes the same is checked on the example, in both modes, before anything is moved. Units
    that are equally important stay in their order, so sorting twice changes nothing.

    Parameters
    ----------
    model
        A plain network with its weights; sort it before `sparsify`, or let `elastic` do both.
    batches
        Inputs, or pairs of inputs and targets: a few hundred rows that stand for the data. Inputs are a
        tensor, a tuple of arguments or a dict of keyword arguments.
    loss
        For "taylor": a function of outputs and targets.
    score
        "activation" is what a unit adds to the next layer's sum, E |W_u z_u|²; it takes forward passes only.
        "output" is the squared derivative of the network's output by a factor on the unit, estimated with
        random signs. "taylor" is the squared derivative of the mean loss by it, and needs labels.
    probes
        How many sets of random signs each batch is looked at with, where signs are needed.
    example
        What the model is called with when its groups are found; the first batch's inputs by default.
    optimizer
        Whose state moves along.
    seed
        Of the random signs.

    Returns the orders by group: the numbers that the units had before. Under `torch.distributed` scores are
    averaged over ranks.

    >>> import mast, torch
    >>> model = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.ReLU(), torch.nn.Linear(3, 1))
    >>> _ = model[2].weight.data.copy_(torch.tensor([[0.0, 9.0, 1.0]]))
    >>> _ = model[0].weight.data.fill_(1.0), model[0].bias.data.fill_(0.0)
    >>> mast.nn.sort_units(model, [torch.ones(4, 2)])
    {'0.weight': array([1, 2, 0])}
    >>> model[2].weight.data
    tensor([[9., 1., 0.]])
    """
    model = unwrapped(model)
    refuse_unsortable(model)
    check_int("probes", probes, 1)
    _check_optimizer(optimizer, model)
    with fork_generators():  # which loaders draw from, too
        first, batches, count = with_first("sort_units", batches)
        given = first.plain() if example is None else Example.of(example)
        unit_map = find_units(model, Neurons(RandK(1.0)), example=given)
        importance = Importance(model, unit_map.groups, score=score, loss=loss, probes=probes, seed=seed)
        return sort_by_scores(model, unit_map, importance.of(batches, count), optimizer)


def _check_optimizer(optimizer: Any, model: nn.Module) -> None:
    """An error for what is no optimizer of this model."""
    if optimizer is not None and not isinstance(optimizer, Optimizer):
        raise ArgumentError(f"the optimizer must be a torch optimizer, got {type(optimizer).__name__}")
    held = set() if optimizer is None else {p for group in optimizer.param_groups for p in group["params"]}
    if optimizer is not None and held.isdisjoint(model.parameters()):
        raise ArgumentError(
            f"this {type(optimizer).__name__} holds no parameter of the model, so its state does not belong "
            "to the units: pass the optimizer of this model, made from its parameters as they are now"
        )


def refuse_unsortable(model: nn.Module) -> None:
    """An error for a model whose weights are not all here, or that is sparsified or compiled."""
    for name, p in model.named_parameters():
        refuse_sharded(name, p)
        if p.is_meta:
            raise ArgumentError(
                f"the parameter {name!r} is on the meta device: units are sorted by their weights, so load "
                "them first"
            )
    if any(module._compiled_call_impl is not None for module in model.modules()):
        raise ArgumentError(
            "the model is compiled or already sparsified: sort its units before that, or let mast.nn.elastic "
            "do both"
        )


def sort_by_scores(
    model: nn.Module,
    unit_map: UnitMap,
    scores: Mapping[str, Any],
    optimizer: Optimizer | None = None,
) -> Orders:
    """Permute the units of a model by falling scores, and check that the model computes the same."""
    nearly = _NEARLY.get(next(model.parameters()).dtype, 5e-2)
    orders = {group.name: _order(scores[group.name], nearly) for group in unit_map.groups}
    moved = {name: o for name, o in orders.items() if not np.array_equal(o, np.arange(len(o)))}
    groups = [group for group in unit_map.groups if group.name in moved]
    if not groups:
        return orders
    states = _states(optimizer, model, groups)
    if problem := _permutation_problem(model, unit_map, groups, moved):
        for group in groups:
            if own := _permutation_problem(model, unit_map, [group], moved):
                raise MastError(
                    f"the units of {group.name!r} cannot be sorted: {own}, because something tells them "
                    "apart by their number. Nothing was changed. mast.nn.elastic leaves them out with "
                    f"keep={{{group.name!r}: 1}}"
                )
        raise MastError(
            f"the units of {type(model).__name__} cannot be sorted: {problem}. Nothing was changed"
        )
    permute(model, groups, moved, states)
    return orders


def _permutation_problem(
    model: nn.Module, unit_map: UnitMap, groups: Sequence[UnitGroup], orders: Orders
) -> str:
    """What is wrong with a copy of the model whose units are permuted, if anything is."""
    permuted = deep_copy(model)
    permute(permuted, groups, orders)
    examples = [example.to(model) for example in unit_map.examples]
    gap, message = compare_outputs(model, {}, permuted, examples, unit_map.modes, random=False)
    return f"the output differs by {gap:.1%} of its largest entry" if message else ""


def _order(scores: Any, nearly: float) -> Indices:
    """By falling score; what falls already, to rounding, and equal scores stay.

    Each score is compared with all before it: of two neighbours one could be larger by rounding every time.
    """
    if (scores <= np.minimum.accumulate(scores) * (1 + nearly)).all():
        return np.arange(len(scores))
    return np.argsort(-scores, kind="stable")


def _inverse(orders: Orders) -> Orders:
    return {name: np.argsort(order) for name, order in orders.items()}


# ---- permutations --------------------------------------------------------------------------------


def _sources(
    groups: Sequence[UnitGroup], orders: Orders, shapes: Mapping[str, Any]
) -> dict[str, dict[int, Tensor]]:
    """Where the entries of each tensor come from, by dimension."""
    found: dict[str, dict[int, Tensor]] = {}
    for group in groups:
        for a in group.slices:
            index = found.setdefault(a.tensor, {})
            along = index.setdefault(a.dim, torch.arange(shapes[a.tensor][a.dim]))
            own = torch.from_numpy(a.entries(orders[group.name]))
            along[a.offset : a.offset + group.units * a.run] = own.reshape(-1)
    return found


def permute(
    model: nn.Module,
    groups: Sequence[UnitGroup],
    orders: Orders,
    states: Mapping[str, Sequence[Tensor]] | None = None,
) -> None:
    """Move all slices of units in place: parameters, buffers, gradients and states."""
    tensors: dict[str, Tensor] = {**dict(model.named_buffers()), **dict(model.named_parameters())}
    indices = _sources(groups, orders, {name: t.shape for name, t in tensors.items()})
    with torch.no_grad():
        for name, dims in indices.items():
            t = tensors[name]
            if t.grad is not None and t.grad.layout is not torch.strided:
                t.grad = t.grad.to_dense()
            for own in (t, t.grad, *(states or {}).get(name, ())):
                if own is not None:
                    _move(own, dims)


def _move(t: Tensor, dims: Mapping[int, Tensor]) -> None:
    moved = t
    for dim, index in dims.items():
        if t.shape[dim] == len(index):  # factored states have some dimensions only
            moved = moved.index_select(dim, index.to(t.device))
    t.copy_(moved)


def _states(
    optimizer: Optimizer | None, model: nn.Module, groups: Sequence[UnitGroup]
) -> dict[str, list[Tensor]]:
    """The tensors of an optimizer's state that belong to entries of parameters."""
    if optimizer is None:
        return {}
    moved = {a.tensor for group in groups for a in group.slices}
    found: dict[str, list[Tensor]] = {}
    for name, p in model.named_parameters():
        for key, value in optimizer.state.get(p, {}).items():
            if isinstance(value, Tensor) and value.dim() == p.dim() and value.dim() and name in moved:
                found.setdefault(name, []).append(value)
            elif isinstance(value, list | tuple) or (
                isinstance(value, Tensor) and value.dim() and name in moved
            ):
                raise ArgumentError(
                    f"the state {key!r} of {type(optimizer).__name__} does not have the shape of its "
                    f"parameter {name!r}, so it cannot be sorted: sort units before the first step"
                )
    return found


# ---- resumed runs ----------------------------------------------------------------------------------


class SortedUnits:
    """That the units of a model were sorted, and how: what a resumed run needs to know.

    The state of a run has a digest of its weights. If a model had these weights before its units were sorted,
    they had been sorted already, in the run that goes on: the second sorting is undone.
    """

    def __init__(self, model: nn.Module, groups: Sequence[UnitGroup], orders: Orders) -> None:
        self.model, self.groups, self.orders = model, list(groups), orders
        self._then, self._unknown = self._versions(), False

    def came_after(self, optimizer: Optimizer) -> bool:
        """Whether an optimizer has a state of the units as they were before, if nothing was loaded since."""
        moved = any(not np.array_equal(order, np.arange(len(order))) for order in self.orders.values())
        states = (optimizer.state.get(p, {}) for _, p in self._parameters())
        known = any(isinstance(t, Tensor) and t.dim() for state in states for t in state.values())
        return moved and known and self._versions() == self._then

    def state(self) -> dict[str, Any]:
        """A digest of the weights as they are."""
        return {"weights": self._digest()}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Undo the sorting, if it came on top of that of the run that goes on."""
        orders, self.orders = self.orders, {}
        if not orders or self._digest() == state["weights"]:
            return
        permute(self.model, self.groups, _inverse(orders))
        if self._digest() != state["weights"]:  # other weights, which will perhaps be loaded later
            permute(self.model, self.groups, orders)
            self._then, self._unknown = self._versions(), True

    @property
    def is_in_doubt(self) -> bool:
        """Whether a sorting stands that the run that goes on did not make, as it had other weights."""
        return self._unknown and self._versions() == self._then

    def _parameters(self) -> list[tuple[str, nn.Parameter]]:
        names = {a.tensor for group in self.groups for a in group.slices}
        return [(name, p) for name, p in self.model.named_parameters() if name in names]

    def _versions(self) -> list[tuple[int, int]]:
        return [(id(p), p._version) for _, p in self._parameters()]

    def _digest(self) -> str:
        found = hashlib.blake2b(digest_size=16)
        for _, p in self._parameters():
            found.update(p.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
        return found.hexdigest()
