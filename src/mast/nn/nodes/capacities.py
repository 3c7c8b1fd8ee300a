"""What a node can hold of a network: single weights, or the units of a smaller model. Needs torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from numbers import Real
from typing import Any

import numpy as np
import torch
from numba import njit, uint64
from torch import nn

from mast.distributed.nodes import Capacity, Part
from mast.distributed.schemes import Scheme, largest_prefix, scheme_of
from mast.errors import ArgumentError
from mast.nn.nodes.models import SmallModel, VectorLayout, made_of
from mast.nn.start import scale_start
from mast.nn.tensors.bound import bind
from mast.nn.tensors.selection import choose
from mast.nn.tensors.weights import Where
from mast.nn.units.cuts import Cut
from mast.nn.units.dependencies.search import find_units
from mast.nn.units.groups import UnitDraw
from mast.nn.units.sketches import Neurons, Structured, parse
from mast.nn.units.unit_map import UnitMap
from mast.randomness import Key, Purpose
from mast.sketches import Sketch
from mast.sketches.draws import DiagonalDraw, Draw, FullDraw, ModelDraw
from mast.sketches.independent import Entry
from mast.support.philox import words

_ON_CPU = torch.empty(0, dtype=torch.float64)


def capacity_of(model: nn.Module, text: Any, *, example: Any = None, **options: Any) -> Capacity:
    """The capacity that a text or a sketch names, for a model: ``bernoulli:0.9``, ``neurons:0.25``.

    Options are those of `mast.nn.sparsify`: `where` and `keep`, and for units the `example`.

    >>> model = nn.Sequential(nn.Linear(10, 8), nn.ReLU(), nn.Linear(8, 2))
    >>> [capacity_of(model, text).part(Key(0)).count for text in ("neurons:.25", "identity")]
    [28, 106]
    """
    sketch = parse(text) if isinstance(text, str) else text
    if isinstance(sketch, Real):
        raise ArgumentError(
            f"a share, {sketch!r}, does not say which units: capacities_of(model, scheme, shares) makes the "
            f'capacities of a scheme, for the server and for workers; a sketch is "neurons:{sketch}"'
        )
    if isinstance(sketch, Structured):
        return UnitCapacity(model, sketch, example=example, **options)
    return WeightCapacity(model, sketch, **options)


def capacities_of(
    model: nn.Module, scheme: Scheme | str, shares: Sequence[float], *, example: Any = None
) -> list[Capacity]:
    """What clients of these shares hold of a network's hidden units, by a scheme such as "heterofl".

    One for each of ``scheme.clients(shares)``, the same on the server and for workers. The `example` is that
    of `mast.nn.sparsify`.

    >>> model = nn.Sequential(nn.Linear(10, 8), nn.ReLU(), nn.Linear(8, 2))
    >>> [capacity.part(Key(0)).count for capacity in capacities_of(model, "heterofl", [1, 0.25])]
    [106, 28]
    """
    scheme = scheme_of(scheme) if isinstance(scheme, str) else scheme
    own = [float(shares[i]) for i in scheme.clients(shares)]
    made: dict[float, UnitCapacity] = {}
    for share, sketch in zip(own, scheme.sketches(shares), strict=True):
        if share not in made:
            like = next(iter(made.values()), None)
            own_weights = scheme.aggregation == "mean"
            units = UnitCapacity(model, Neurons(sketch), own_weights=own_weights, like=like, example=example)
            units.label = f"{share:g} of the units, {scheme.title}"
            made[share] = units
    return [made[share] for share in own]


def scale_prefixes(
    model: nn.Module, scheme: Scheme | str, shares: Sequence[float], *, example: Any = None
) -> str:
    """Scale fresh weights in place for a scheme of prefixes, on the server, and say what was done.

    What a hidden unit gives is multiplied by the chance that a client holds the unit in a round. The units
    that few clients train thus begin small, and do not drown what the many have learned in noise.

    >>> model = nn.Sequential(nn.Linear(10, 8), nn.ReLU(), nn.Linear(8, 2))
    >>> scale_prefixes(model, "heterofl", [1, 0.5, 0.5, 0.25])
    '1 weight was multiplied by 0.25 to 1'
    """
    scheme = scheme_of(scheme) if isinstance(scheme, str) else scheme
    return scale_start(model, Neurons(scheme.prefixes(shares)), example=example)


def submodel_of(
    model: nn.Module,
    scheme: str,
    share: float,
    key: Key = Key(0),  # noqa: B008
    *,
    example: Any = None,
) -> nn.Module:
    """What a client of a share runs when the model is trained: a small dense model, in evaluation mode.

    In schemes of prefixes it is the largest that the client holds. In schemes of random units `key` says
    which draw. BatchNorm's statistics are those of the model: take them anew with `mast.nn.recalibrate`.

    >>> model = nn.Sequential(nn.Linear(10, 8), nn.ReLU(), nn.Linear(8, 2))
    >>> submodel_of(model, "mast_balanced", 0.25)
    Sequential(
      (0): Linear(in_features=10, out_features=2, bias=True)
      (1): ReLU()
      (2): Linear(in_features=2, out_features=2, bias=True)
    )
    """
    (capacity,) = capacities_of(model, scheme, [share], example=example)
    layout = VectorLayout(model)
    part = capacity.largest_part(key)
    held = SmallModel(model, layout, keeps_statistics=True)
    return held.module(part, part.gather(layout.read(model))).eval()


class WeightCapacity(Capacity):
    """A sketch of the single weights of a model.

    What is sketched, and each draw, is as in ``mast.nn.sparsify(model, sketch, where=, keep=)``:
    parameters of at least two dimensions; the others travel whole.

    >>> import mast
    >>> model = nn.Sequential(nn.Linear(8, 4), nn.Linear(4, 2))
    >>> WeightCapacity(model, mast.RandK(10)).part(Key(0)).count  # ten weights and all six biases
    16
    """

    def __init__(
        self,
        model: nn.Module,
        sketch: Sketch,
        *,
        where: Where | None = None,
        keep: Mapping[str, float] | None = None,
    ) -> None:
        self.layout = VectorLayout(model)
        self.dim = self.layout.dim
        self.sketch = sketch
        self.weights = choose(model, where, keep or {})[0]
        self.bound = bind(sketch, self.weights)
        self.stride = sketch.stride
        self.label = f"{repr(sketch).strip('<>')}, single weights"
        self.model = made_of(model, self.layout)
        self._number = {w.name: i for i, w in enumerate(self.weights)}

    def part(self, key: Key) -> Part:
        """The weights that the draw keeps."""
        kept = ModelDraw({name: self._kept(name, key) for name in self.layout.slices})
        return Part(kept, kept, self.layout.arrays)

    def _kept(self, name: str, key: Key) -> Draw:
        number = self._number.get(name)
        if number is None:
            return FullDraw(self.layout.shapes[name])
        entry = self.bound.entries[number]
        if entry is not None and not entry.sigma:
            return self._mask_entries(entry, number, key)
        return self.bound.kept(number, key, _ON_CPU)

    def _mask_entries(self, entry: Entry, number: int, key: Key) -> DiagonalDraw:
        """The positions that a mask keeps, without the mask; `bound.kept` is the readable form."""
        shape, n = self.weights[number].shape, self.weights[number].count
        of_mask = self.bound.key_of(number, key).words(Purpose.MASK)
        # torch takes no narrow positions, and those of a vector are handed to it as they are
        out = np.empty(n + ROOM, np.uint32 if n < 1 << 32 and len(shape) > 1 else np.int64)
        count = int(kept_positions(of_mask, np.uint64(entry.threshold), n, out))
        return DiagonalDraw(shape, out[:count], entry.scale)


class UnitCapacity(Capacity):
    """A sketch of whole units of a model (`mast.nn.Neurons`, `mast.nn.Layers`): slices of its parameters.

    The draw of a part is a `mast.nn.units.Cut`, which makes the small model. A node of this capacity
    needs the model's skeleton only: it may be on the meta device.

    Parameters
    ----------
    own_weights
        The node is sent the weights y = S x of its small model, and its local steps are steps of y; what
        comes back is brought to the coordinates of x by undoing the scale. So a step has the same length
        for every capacity, as in FedRolex and Federated Dropout; but the answer is no gradient in x.
        Otherwise local steps are x <- x - g S'grad, which a scale of 1/p makes 1/p² times as long.
    like
        Another capacity of the same model over units of the same kind: they need not be found again.
    where, keep, example
        As in `mast.nn.sparsify`.

    >>> import mast
    >>> model = nn.Sequential(nn.Linear(10, 8), nn.ReLU(), nn.Linear(8, 2))
    >>> UnitCapacity(model, mast.nn.Neurons(mast.RandK(2))).part(Key(0)).count  # 2 x 10 + 2, and 2 x 2 + 2
    28
    """

    def __init__(
        self,
        model: nn.Module,
        sketch: Structured,
        *,
        where: Where | None = None,
        keep: Mapping[str, float] | None = None,
        own_weights: bool = False,
        like: UnitCapacity | None = None,
        example: Any = None,
    ) -> None:
        self.layout = VectorLayout(model)
        self.dim = self.layout.dim
        self.own_weights = own_weights
        self.unit_map: UnitMap = (
            find_units(model, sketch, keep, where, example=example) if like is None else like.unit_map
        )
        self.bound = self.unit_map.bind(sketch)
        largest = largest_prefix(sketch)
        self._largest = self.bound if largest is sketch else self.unit_map.bind(largest)
        self.stride = sketch.stride
        self.label = repr(sketch).strip("<>") + ", own weights" * own_weights
        self.model = made_of(model, self.layout) if like is None else like.model

    def part(self, key: Key) -> Part:
        """The slices that the draw leaves of the trainable parameters."""
        return self._kept(self.bound.draw(key))

    def largest_part(self, key: Key) -> Part:
        """The same; of prefixes of several sizes, the largest."""
        return self._kept(self._largest.draw(key))

    def _kept(self, draw: UnitDraw) -> Part:
        cut = self.unit_map.cut(draw)
        if not self.own_weights:
            return Part(self._trained(cut), cut, self.layout.tensors)
        plain = {name: kept.with_scales(np.ones(kept.count)) for name, kept in draw.items()}
        small = self.unit_map.cut(UnitDraw(plain, draw.key))
        return Part(self._trained(small), small, self.layout.tensors, scales=self._trained(cut))

    def _trained(self, cut: Cut) -> ModelDraw[Draw]:
        """What is kept of the parameters that are trained."""
        return ModelDraw({n: kept for n, kept in cut.parameters.items() if n in self.layout.slices})


# ---- the positions that a Bernoulli draw keeps, compiled: without the mask and without branches -----------

_PIECE = 4096  # coordinates whose mask is made at once, a multiple of 8
ROOM = 8  #: entries that `kept_positions` needs beyond the last position
_BITS = np.arange(256)[:, None] >> np.arange(8) & 1
_COUNT = _BITS.sum(axis=1).astype(np.uint64)  # of the bits of a byte
# the places of a byte's ones, then those of its zeros: eight entries per byte
_PLACES = np.argsort(1 - _BITS, axis=1, kind="stable").astype(np.uint32).reshape(-1)
_PACK = np.uint64(0x0102040810204080)  # times eight bytes of 0 or 1: their bits, in the highest byte


@njit(cache=True, nogil=True)
def kept_positions(key: Any, threshold: Any, n: int, out: Any) -> Any:
    """Fill `out` (of at least n + ROOM entries) with the i < n whose word is below the threshold; how many.

    Like ``np.flatnonzero(randomness.bernoulli(key, threshold, 0, n))``. The mask is made in small pieces,
    several words at once; then the positions of a byte of it are looked up and written together, so that
    there is hardly a branch that the processor could guess wrong.
    """
    kept = np.empty(_PIECE, dtype=np.uint8)
    eights = kept.view(np.uint64)
    count = uint64(0)  # unsigned: indices that might be negative take twice as long
    for first in range(0, n, _PIECE):
        words(key, threshold, first, kept)
        if n - first < _PIECE:
            kept[n - first :] = 0
        for q in range(min(_PIECE, n - first + 7) >> 3):
            byte = (eights[q] * _PACK) >> uint64(56)
            row, base = byte << uint64(3), first + 8 * q
            for r in range(4):
                out[count + uint64(r)] = base + _PLACES[row + uint64(r)]
            if _COUNT[byte] > uint64(4):
                for r in range(4, 8):
                    out[count + uint64(r)] = base + _PLACES[row + uint64(r)]
            count += _COUNT[byte]
    return count
