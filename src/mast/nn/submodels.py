"""Submodels: plain modules with the weights of one draw."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from mast.errors import ArgumentError, MastError
from mast.nn.structure import UnitDraw
from mast.nn.structure.drawing import UnitDrawing
from mast.nn.tensors.drawing import Drawing
from mast.nn.tensors.scaling import sparsify
from mast.nn.tensors.torch_private import BatchNorm
from mast.nn.tensors.weights import Batches
from mast.randomness import Key
from mast.sketches.kept import Grid, KeptTensors

if TYPE_CHECKING:
    from mast.nn.sparsifier import Sparsifier


def submodel(
    sk: Sparsifier,
    which: int | Key | UnitDraw,
    calibrate: Batches,
    density: float | None = None,
    budget: str | float | None = None,
) -> nn.Module:
    """A plain copy of the model with the weights v + S(x - v) of a draw, in eval mode; smaller, of units."""
    if sk._calls.inside:
        raise MastError(
            "submodel() cannot be called inside a forward pass or sk.sample(), where the parameters hold "
            "sparsified weights: call it outside"
        )
    sk._calls.check()
    if calibrate is None:
        warn_of_batch_norm(sk)
    drawing, key = sk.drawing, key_of(which)
    if density is not None or budget is not None:
        from mast.nn.choices import drawing_for  # which makes submodels to see what they cost

        if isinstance(which, UnitDraw):
            raise ArgumentError("a draw of units has its density: give its seed or key instead")
        drawing = drawing_for(sk, key, density, budget)
    if sk.structure is not None:
        assert isinstance(drawing, UnitDrawing)
        draw = which if isinstance(which, UnitDraw) else drawing.draw(key)
        model = smaller(sk, draw)
        sk.structure.adapt(model, draw)
        if stay := sk.structure.remaining(draw):
            warnings.warn(
                f"{len(stay)} dropped branches, such as {stay[0]!r}, could not be taken out of the submodel: "
                "it still has them, times 0"
                + ("" if sk.checks_submodels else ". Pass example= to sparsify(), and more can be taken out"),
                stacklevel=3,
            )
        if sk.checks_submodels:
            sk.structure.check(sk.model, draw, model, sk.shift)
    elif isinstance(which, UnitDraw):
        raise ArgumentError(f"a draw of units belongs to a structured sketch, and this is {sk.sketch!r}")
    else:
        model = plain_copy(sk)
        put_draw(sk, drawing, key, model)
    model.eval()
    if calibrate is not None and calibrate is not False:
        recalibrate(model, calibrate)
    return model


def key_of(which: int | Key | UnitDraw) -> Key:
    """The key of a draw; that of a seed is at step 0 of node 0."""
    return which.key if isinstance(which, UnitDraw) else which if isinstance(which, Key) else Key(which)


def smaller(sk: Sparsifier, draw: UnitDraw, source: nn.Module | None = None) -> nn.Module:
    """The kept units (of `source`, if given) as a model of their own, the scale in the outgoing weights."""
    assert sk.structure is not None
    source = sk.model if source is None else source
    sk.structure.follow(source)
    cut = sk.structure.cut(draw)
    y = cut.gather(source)
    if sk.shift is None:
        y = cut.scaled(y)
    else:
        for name, v in sk.shift.items():
            _shift(name, cut.parameters, v.to(y), y)
    return cut.pour(y, cut.gather_buffers(source))


def _shift(name: str, parameters: KeptTensors, v: Tensor, y: Tensor) -> None:
    """v + S(x - v) on the kept entries; an error if v is not 0 on dropped ones, which are gone."""
    kept = parameters.get(name)
    if kept is None:
        lost = bool(torch.count_nonzero(v))
    else:
        base = kept.gather(v)
        lost = False
        if isinstance(kept, Grid):  # only what the sketch itself drops has to be 0, not the rows of producers
            rows = Grid(v.shape, {dim: i for dim, i in kept.indices.items() if dim not in kept.scales})
            lost = bool(torch.count_nonzero(rows.gather(v)) != torch.count_nonzero(base))
    if lost:
        raise ArgumentError(
            f"the shift of {name!r} is not 0 on what this draw drops, so the sparsified model is not a "
            "smaller one: with a shift a submodel is the base v plus a delta; write it with save_delta()"
        )
    if kept is not None:
        small = parameters.of(y, name)
        small.sub_(base)
        kept.scale(small)
        small.add_(base)


def plain_copy(sk: Sparsifier) -> nn.Module:
    """A copy of the model with the weights x and no trace of `sparsify`."""
    model = copy.deepcopy(sk.model)
    if sk._calls.guard is not None:
        model._forward_pre_hooks.pop(sk._calls.guard.id, None)
    return model


def put_draw(
    sk: Sparsifier, drawing: Drawing, key: Key, model: nn.Module, source: nn.Module | None = None
) -> None:
    """Write v + S(x - v) of one draw into a copy of the model; x is that of `source`, if it is given."""
    parameters = dict(model.named_parameters())
    points = {} if source is None else dict(source.named_parameters())
    with torch.no_grad():
        for i, w in enumerate(sk.weights):
            x = points.get(w.name, w.parameter).detach()
            parameters[w.name].copy_(sparsify(drawing.kept(i, key, x), x, sk._values.v(i, x)))


def warn_of_batch_norm(sk: Sparsifier) -> None:
    """A warning, once, if submodels have statistics of BatchNorm that are averages over all draws."""
    if any(isinstance(m, BatchNorm) and m.track_running_stats for m in sk.model.modules()):
        sk._warn_once(
            "the model has BatchNorm layers, whose statistics are averages over draws and fit no submodel: "
            "pass calibrate=batches, or calibrate=False if they are taken anew later"
        )


def recalibrate(model: nn.Module, batches: Iterable[Any]) -> nn.Module:
    """Take the statistics of BatchNorm layers anew from batches: a submodel needs its own.

    A batch is what the model takes, or a pair of that and targets, or keyword arguments in a dict.

    >>> import torch
    >>> model = torch.nn.BatchNorm1d(1)
    >>> recalibrate(model, [torch.tensor([[1.0], [3.0]])]).running_mean
    tensor([2.])
    """
    norms = [m for m in model.modules() if isinstance(m, BatchNorm) and m.track_running_stats]
    if not norms:
        return model
    modes = {m: m.training for m in model.modules()}
    momenta = {m: m.momentum for m in norms}
    model.eval()
    try:
        for norm in norms:
            norm.reset_running_stats()
            norm.momentum = None  # a plain average over all batches
            norm.train()
        if not run_batches(model, batches):
            raise ArgumentError(
                "BatchNorm layers were to be calibrated, but there was no batch to do it with"
            )
    finally:
        for norm in norms:
            norm.momentum = momenta[norm]
        for module, mode in modes.items():
            module.training = mode
    return model


def run_batches(model: nn.Module, batches: Iterable[Any]) -> int:
    """Call the model with batches: an input, a pair of that and targets, or a dict of keyword arguments."""
    count = 0
    with torch.no_grad():
        for batch in batches:
            count += 1
            if isinstance(batch, dict):
                model(**batch)
            else:
                model(batch[0] if isinstance(batch, tuple | list) else batch)
    return count
