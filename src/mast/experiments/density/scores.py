"""How good a trained network is at each density: cut at random, by magnitude, or along a nested order."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor, nn

from mast.arrays import Array
from mast.experiments.density.data import ClassRows
from mast.experiments.density.networks import Chain, accuracy, count
from mast.experiments.density.sketches import NestedDensities, kept, over
from mast.nn import recalibrate, sparsify
from mast.randomness import Key, Purpose
from mast.sketches import Sketch


class Scorer:
    """Accuracies of submodels on some rows; BatchNorm statistics are always taken anew from training rows."""

    def __init__(self, rows: ClassRows, calibrate: Tensor, design: Chain, seed: int) -> None:
        self.rows, self.calibrate, self.design, self.seed = rows, [calibrate], design, seed

    def curve(
        self, model: nn.Sequential, structure: str, way: str, densities: Sequence[float], draws: int
    ) -> Array:
        """One row of accuracies per density: one for each draw, or just one where nothing is random."""
        width = draws if way in ("random", "unscaled") else 1

        def scores(density: float) -> list[float]:
            if density == 1:
                return [self.score(copy.deepcopy(model))]
            if way == "nested":
                return self.submodels(model, over(structure, NestedDensities([density], self.seed)), 1)
            if way == "random":
                return self.submodels(model, kept(structure, density), draws)
            if way == "unscaled":
                sketch = kept(structure, density, scaled=structure == "neurons")
                return self.submodels(model, sketch, draws, unscaled=structure == "neurons")
            if structure == "neurons":
                return [self.score(keep_largest_units(model, self.design, density))]
            return [self.score(keep_largest(model, density, way.removeprefix("magnitude_")))]

        return np.array([np.resize(scores(density), width) for density in densities])

    def submodels(
        self,
        model: nn.Sequential,
        sketch: Sketch,
        draws: int,
        shift: Mapping[str, Tensor] | None = None,
        unscaled: bool = False,
    ) -> list[float]:
        """Accuracies of the submodels of a sketch."""
        sk = sparsify(copy.deepcopy(model), sketch, shift=shift)
        scores = []
        for i in range(draws):
            seed = Key(self.seed).child(i, Purpose.ESTIMATE).seed
            small = sk.submodel(seed, calibrate=False)  # `score` does it
            if unscaled:
                self._unscale(small)
            scores.append(self.score(small))
        sk.remove()
        return scores

    def score(self, model: nn.Module) -> float:
        """With fresh BatchNorm statistics."""
        return accuracy(recalibrate(model, self.calibrate), self.rows)

    def _unscale(self, small: nn.Module) -> None:
        """Take the scale (units before over units now) off the outgoing weights of a smaller network."""
        with torch.no_grad():
            for width, consumer in zip(self.design.widths, self.design.consumers, strict=True):
                weight = small.get_submodule(consumer).weight
                assert isinstance(weight, Tensor)
                weight.mul_(weight.shape[1] / width)


def keep_largest(model: nn.Module, density: float, scope: str, base: nn.Module | None = None) -> nn.Module:
    """A copy in which the smallest weights are 0; with a base, the smallest changes to it are undone.

    >>> model = nn.Linear(2, 2, bias=False)
    >>> _ = model.weight.data.copy_(torch.tensor([[1.0, -4.0], [3.0, 2.0]]))
    >>> keep_largest(model, 0.5, "layer").weight.tolist()
    [[0.0, -4.0], [3.0, 0.0]]
    """
    pruned = copy.deepcopy(model)
    origin = {} if base is None else dict(base.named_parameters())
    matrices = [(name, p) for name, p in pruned.named_parameters() if p.dim() > 1]
    with torch.no_grad():
        changes = [p - origin[name] if origin else p.clone() for name, p in matrices]
        together = _threshold(torch.cat([u.flatten() for u in changes]), density)
        for (name, p), u in zip(matrices, changes, strict=True):
            bound = together if scope == "global" else _threshold(u, density)
            small = u.abs() < bound
            p.copy_(torch.where(small, origin[name] if origin else torch.zeros_like(p), p))
    return pruned


def _threshold(values: Tensor, density: float) -> Tensor:
    """The magnitude of the smallest value that stays."""
    kept = count(values.numel(), density)
    return values.abs().flatten().kthvalue(values.numel() - kept + 1).values


def keep_largest_units(model: nn.Sequential, design: Chain, density: float) -> nn.Module:
    """A copy in which the units of smallest weight feed nothing: in every hidden layer the same share stays.

    A unit's size is the norm of its incoming weights times that of its outgoing ones; after
    BatchNorm, whose output does not depend on the first, it is the norm's factor instead.
    """
    pruned = copy.deepcopy(model)
    weights = {name: p.detach() for name, p in pruned.named_parameters()}
    sizes = []
    for i, consumer in enumerate(design.consumers):
        incoming = weights.get(f"norm{i}.weight")
        if incoming is None:
            incoming = weights[f"layer{i}.weight"].flatten(1).norm(dim=1)
        sizes.append(incoming.abs() * weights[f"{consumer}.weight"].transpose(0, 1).flatten(1).norm(dim=1))
    for size, consumer in zip(sizes, design.consumers, strict=True):
        dropped = size.argsort(descending=True, stable=True)[count(len(size), density) :]
        weights[f"{consumer}.weight"][:, dropped] = 0
    return pruned
