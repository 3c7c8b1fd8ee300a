"""What a node can hold of a network, which is one vector: single weights, or the units of a smaller model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from numbers import Real
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from mast.distributed.messages import Values
from mast.distributed.nodes import Capacity, Part
from mast.distributed.schemes import Scheme, largest_prefix, scheme_of
from mast.errors import ArgumentError
from mast.nn.start import scale_start
from mast.nn.tensors.bound import bind
from mast.nn.tensors.selection import choose
from mast.nn.tensors.weights import Where
from mast.nn.units.cuts import Cut
from mast.nn.units.dependencies.search import find_units
from mast.nn.units.drawing import UnitDraw
from mast.nn.units.sketches import Neurons, Structured, parse
from mast.nn.units.unit_map import UnitMap
from mast.randomness import Key, Purpose
from mast.sketches import Sketch
from mast.sketches.draws import DiagonalDraw, Draw, FullDraw, ModelDraw
from mast.sketches.laws import Entry
from mast.support.checkpoint import describe

_WORTH_KEEPING = 1 << 14  # positions
_ON_CPU = torch.empty(0, dtype=torch.float64)


class VectorLayout:
    """The trainable parameters of a model, in the order of `named_parameters`, as one vector.

    The model may be on the meta device: only names, shapes and types are looked at. Frozen parameters
    and buffers are no part of x: they are what every node's own copy of the model holds.

    >>> model = nn.Linear(3, 2)
    >>> layout = VectorLayout(model)
    >>> layout.dim, layout.slices
    (8, {'weight': slice(0, 6, None), 'bias': slice(6, 8, None)})
    """

    def __init__(self, model: nn.Module) -> None:
        self.shapes: dict[str, torch.Size] = {}
        self.slices: dict[str, slice] = {}
        kinds = set()
        offset = 0
        for name, p in model.named_parameters():
            if not p.requires_grad:
                continue
            if not p.is_floating_point() or isinstance(p, nn.parameter.UninitializedParameter):
                raise ArgumentError(f"the parameter {name!r} is not made of real numbers in a known shape")
            self.shapes[name] = p.shape
            self.slices[name] = slice(offset, offset + p.numel())
            kinds.add(p.dtype)
            offset += p.numel()
        if not offset:
            raise ArgumentError("the model has no trainable parameters")
        self.dim = offset
        #: float64 only if the model has such parameters; half precision is summed in float32
        self.dtype: np.dtype[Any] = np.dtype("<f8" if torch.float64 in kinds else "<f4")

    def read(self, model: nn.Module) -> Values:
        """The model's parameters as a new vector."""
        x = np.empty(self.dim, dtype=self.dtype)
        tensors = self.tensors(x)
        with torch.no_grad():
            for name, p in self.parameters(model).items():
                tensors[name].copy_(p)
        return x

    def write(self, x: Values, model: nn.Module) -> None:
        """Give the model the parameters of the vector x."""
        tensors = self.tensors(x)
        with torch.no_grad():
            for name, p in self.parameters(model).items():
                p.copy_(tensors[name])

    def arrays(self, x: Values) -> dict[str, Values]:
        """The pieces of x in their shapes; they share its memory."""
        if x.shape != (self.dim,) or not x.flags.c_contiguous:
            raise ArgumentError(f"x is a contiguous vector of {self.dim} numbers, got shape {x.shape}")
        return {name: x[part].reshape(self.shapes[name]) for name, part in self.slices.items()}

    def tensors(self, x: Values) -> dict[str, Tensor]:
        """The same as tensors."""
        return {name: torch.from_numpy(array) for name, array in self.arrays(x).items()}

    def parameters(self, model: nn.Module) -> Mapping[str, nn.Parameter]:
        """The parameters of a model that are pieces of x; a model of other shapes is refused."""
        named = {name: p for name, p in model.named_parameters() if name in self.slices}
        for name, shape in self.shapes.items():
            if name not in named or named[name].shape != shape:
                raise ArgumentError(f"the model has no parameter {name!r} of shape {tuple(shape)}")
        return named


_PLAIN = (bool, int, float, str, tuple, list, torch.dtype, type(None))


def module_identity(model: nn.Module) -> dict[str, str]:
    """What tells the modules of a model from others, one field per module: its kind and its options.

    Of classes of the user's own the source counts too. Values of parameters do not.

    >>> module_identity(nn.Sequential(nn.Linear(3, 2), nn.ReLU()))["module 1"]
    "torch.nn.modules.activation.ReLU({'inplace': False})"
    """
    names = {id(m): name for name, m in model.named_modules(remove_duplicate=False)}
    fields = {f"module {name or '(the model)'}": _described(m) for name, m in model.named_modules()}
    shared = [(name, names[id(m)]) for name, m in model.named_modules(remove_duplicate=False)]
    return fields | {"modules that are used twice": describe([pair for pair in shared if pair[0] != pair[1]])}


def _described(module: nn.Module) -> str:
    kind = type(module)
    options = {
        name: value
        for name, value in vars(module).items()
        if name != "training" and not name.startswith("_") and (isinstance(value, _PLAIN) or callable(value))
    }
    return f"{describe(kind)}({describe(options)})"


def _made_of(model: nn.Module, layout: VectorLayout) -> str:
    """What server and nodes must have alike of a model: the shapes of x, and torch's modules.

    Classes of the user's own may be written in two ways: they do not count.
    """
    modules = model.named_modules()
    own = {name: _described(m) for name, m in modules if type(m).__module__.startswith("torch.")}
    return describe([dict(layout.shapes), own])


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


def scale_fronts(
    model: nn.Module, scheme: Scheme | str, shares: Sequence[float], *, example: Any = None
) -> str:
    """Scale fresh weights in place for a scheme of fronts, on the server, and say what was done.

    What a hidden unit gives is multiplied by the chance that a client holds the unit in a round. The units
    that few clients train thus begin small, and do not drown what the many have learned in noise.

    >>> model = nn.Sequential(nn.Linear(10, 8), nn.ReLU(), nn.Linear(8, 2))
    >>> scale_fronts(model, "heterofl", [1, 0.5, 0.5, 0.25])
    '1 weight was multiplied by 0.25 to 1'
    """
    scheme = scheme_of(scheme) if isinstance(scheme, str) else scheme
    return scale_start(model, Neurons(scheme.prefixes(shares)), example=example)


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
        self.weights = choose(model, where, keep or {}).weights
        self.bound = bind(sketch, self.weights)
        self.stride = sketch.stride
        self.label = f"{repr(sketch).strip('<>')}, single weights"
        self.model = _made_of(model, self.layout)
        self._memory: list[NDArray[Any]] = []  # lent to the positions of one part after the other
        self._number = {w.name: i for i, w in enumerate(self.weights)}

    def part(self, key: Key) -> Part:
        """The weights that the draw keeps."""
        kept = ModelDraw({name: self._kept(name, key) for name in self.layout.slices})
        return Part(kept, kept, self.layout.arrays, self._release)

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
        from mast.nn.nodes import kernels

        shape, n = self.weights[number].shape, self.weights[number].count
        words = self.bound.key_of(number, key).words(Purpose.MASK)
        # torch takes no narrow positions, and those of a vector are handed to it as they are
        memory = self._lent(n + kernels.ROOM, np.uint32 if n < 1 << 32 and len(shape) > 1 else np.int64)
        count = int(kernels.kept_positions(words, np.uint64(entry.threshold), n, memory))
        return DiagonalDraw(shape, memory[:count], entry.scale)

    def _lent(self, size: int, kind: Any) -> NDArray[Any]:
        """Memory for positions: that of a part which is gone, or new, which comes as it is filled."""
        for i, memory in enumerate(self._memory):
            if memory.size == size and memory.dtype == kind:
                return self._memory.pop(i)
        return np.empty(size, dtype=kind)

    def _release(self, part: Part) -> None:
        """Take the memory of long lists of positions back."""
        for kept in part.draw.values():
            listed = isinstance(kept, DiagonalDraw) and kept.count > _WORTH_KEEPING
            if listed and kept.indices.base is not None:
                self._memory.append(kept.indices.base)


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
        front = largest_prefix(sketch)
        self._front = self.bound if front is sketch else self.unit_map.bind(front)
        self.stride = sketch.stride
        self.label = repr(sketch).strip("<>") + ", own weights" * own_weights
        self.model = _made_of(model, self.layout) if like is None else like.model

    def part(self, key: Key) -> Part:
        """The slices that the draw leaves of the trainable parameters."""
        return self._kept(self.bound.draw(key))

    def largest(self, key: Key) -> Part:
        """The same; of fronts of several sizes, the largest."""
        return self._kept(self._front.draw(key))

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
