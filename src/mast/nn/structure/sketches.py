"""`Neurons` and `Layers`: any diagonal sketch, over hidden units or over residual branches."""

from __future__ import annotations

from collections.abc import Iterator

from mast import sketches
from mast.arrays import Array
from mast.errors import ArgumentError, NotDiagonalError
from mast.randomness import Key
from mast.sketches import Constants, Draw, RandK, Sketch


class Structured(Sketch):
    """A sketch whose coordinates are units of a network. As a sketch, it is the one over the units."""

    def __init__(self, sketch: Sketch) -> None:
        own = type(self).__name__
        if not isinstance(sketch, Sketch):
            raise ArgumentError(f"{own} takes a sketch such as mast.Bernoulli(0.5), got {sketch!r}")
        if isinstance(sketch, Structured):
            raise ArgumentError(f"{own} takes a sketch over units, and {sketch!r} is one over a network")
        if not sketch.diagonal:
            raise NotDiagonalError(f"{own} needs a diagonal sketch, {sketch!r} is not one")
        self.sketch = sketch

    @property
    def unbiased(self) -> bool:  # type: ignore[override]
        """As the sketch over the units."""
        return self.sketch.unbiased

    def sample(self, d: int, key: Key) -> Draw:
        """The draw over d units."""
        return self.sketch.sample(d, key)

    def mean(self, d: int) -> Array:
        """As the sketch over the units."""
        return self.sketch.mean(d)

    def _constants(self, d: int) -> Constants:
        return self.sketch._constants(d)

    def expected_square(self, d: int) -> Array:
        """As the sketch over the units."""
        return self.sketch.expected_square(d)

    def second_moment(self, d: int) -> Array:
        """As the sketch over the units."""
        return self.sketch.second_moment(d)

    def support_size(self, d: int) -> int | None:
        """As the sketch over the units."""
        return self.sketch.support_size(d)

    def _support(self, d: int) -> Iterator[tuple[float, Draw]]:
        return self.sketch._support(d)

    @property
    def stride(self) -> int:
        """As the sketch over the units."""
        return self.sketch.stride

    def same_partition(self, other: Sketch) -> bool:
        """As the sketches over the units, if both are of one kind."""
        return isinstance(other, type(self)) and self.sketch.same_partition(other.sketch)

    def _check(self, d: int) -> int:
        return self.sketch._check(d)

    def _label(self) -> str:
        return f"{type(self).__name__}({self.sketch._label()})"


class Neurons(Structured):
    """Hidden units live or die whole: features of Linear, channels of Conv, heads and MLP units of attention.

    Each layer's units have a draw of their own. The scale is on a unit's outgoing weights, so that training
    is that of
    inverted dropout on units, and a submodel is a smaller dense network.

    >>> import mast, torch
    >>> from torch import nn
    >>> model = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 2))
    >>> sk = mast.nn.sparsify(model, mast.nn.Neurons(mast.RandK(0.25)))
    >>> sk.submodel(seed=7)
    Sequential(
      (0): Linear(in_features=3, out_features=2, bias=True)
      (1): ReLU()
      (2): Linear(in_features=2, out_features=2, bias=True)
    )
    """


class Layers(Structured):
    """Residual branches live or die whole, with their last bias. One draw over all branches of the model.

    The scale is on what comes last in a branch: its last weight and bias, or its last affine norm.

    >>> import mast
    >>> mast.nn.Layers(mast.Bernoulli(0.8))
    <Layers(Bernoulli(0.8): keeps 80 %)>
    """


def parse(text: str) -> Sketch:
    """The sketch that a text names: structured ones, and all of `mast.sketches.parse`.

    >>> parse("neurons:.25"), parse("neurons:bernoulli:.5"), parse("layers:bernoulli:80%"), parse("permk:4")
    (<Neurons(RandK(0.25): keeps 25 %)>, <Neurons(Bernoulli(0.5): keeps 50 %)>,
    <Layers(Bernoulli(0.8): keeps 80 %)>, <PermK(4, seed=0): keeps 25 %, one of 4 blocks>)
    """
    if not isinstance(text, str):
        return sketches.parse(text)  # which says what a text is
    name, _, rest = text.strip().partition(":")
    kinds: dict[str, type[Structured]] = {"neurons": Neurons, "layers": Layers}
    kind = kinds.get(name.lower())
    if kind is None:
        return sketches.parse(text)
    share = rest.strip().removesuffix("%")
    try:
        number = float(share) / (100 if rest.strip().endswith("%") else 1)
    except ValueError:
        if not rest:
            raise ArgumentError(
                f"the sketch {text!r} does not say what is kept; examples are neurons:.25, "
                "neurons:bernoulli:.5, layers:bernoulli:.8"
            ) from None
        return kind(sketches.parse(rest))
    return kind(RandK(int(number) if share.isdigit() and not rest.endswith("%") else number))
