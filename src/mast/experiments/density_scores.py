"""How good a trained network is at each density: at random, by magnitude, or along a nested order."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor, nn

from mast.arrays import Array
from mast.experiments.density_data import Rows
from mast.experiments.density_networks import Design
from mast.experiments.density_pruning import keep_largest, keep_largest_units
from mast.experiments.density_sketches import Nested, kept, over
from mast.experiments.density_training import accuracy
from mast.nn import recalibrate, sparsify
from mast.randomness import Key, Purpose
from mast.sketches import Sketch


class Scorer:
    """Accuracies of submodels on some rows; BatchNorm statistics are always taken anew from training rows."""

    def __init__(self, rows: Rows, calibrate: Tensor, design: Design, seed: int) -> None:
        self.rows, self.calibrate, self.design, self.seed = rows, [calibrate], design, seed

    def curve(
        self, model: nn.Sequential, structure: str, way: str, densities: Sequence[float], draws: int
    ) -> Array:
        """A row of accuracies a density: one for each draw, or just one where nothing is random."""
        rows = []
        for density in densities:
            if density == 1:
                scores = [self.score(copy.deepcopy(model))]
            elif way in ("random", "unscaled", "nested"):
                scores = self.drawn(model, structure, way, density, draws if way != "nested" else 1)
            elif structure == "neurons":
                scores = [self.score(keep_largest_units(model, self.design, density))]
            else:
                scores = [self.score(keep_largest(model, density, way.removeprefix("magnitude_")))]
            width = draws if way in ("random", "unscaled") else 1
            rows.append(np.resize(scores, width))
        return np.array(rows)

    def drawn(
        self, model: nn.Sequential, structure: str, way: str, density: float, draws: int
    ) -> list[float]:
        """Accuracies of random submodels, or of the one of a nested order."""
        if way == "nested":
            sketch = over(structure, Nested([density], self.seed))
        else:
            sketch = kept(structure, density, scaled=way == "random" or structure == "neurons")
        return self.submodels(model, sketch, draws, unscaled=way == "unscaled" and structure == "neurons")

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
            small = sk.submodel(seed=Key(self.seed).child(i, Purpose.ESTIMATE).seed)
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
