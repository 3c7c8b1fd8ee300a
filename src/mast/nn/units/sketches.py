"""`Neurons` and `Layers`: any diagonal sketch, over hidden units or over residual branches."""

from __future__ import annotations

from mast import sketches
from mast.errors import ArgumentError
from mast.sketches import Sketch
from mast.sketches.composed import Over


class Structured(Over):
    """A sketch whose coordinates are units of a network. As a sketch, it is the one over the units."""

    def __init__(self, sketch: Sketch) -> None:
        if isinstance(sketch, Structured):
            kind = type(self).__name__
            raise ArgumentError(f"{kind} takes a sketch over units, and {sketch!r} is one over a network")
        super().__init__(sketch)


class Neurons(Structured):
    """Hidden units, kept or dropped whole: features of Linear, channels of Conv, heads, units of MLPs.

    Each layer's units have a draw of their own. The scale is on a unit's outgoing weights, so that training
    is that of inverted dropout on units, and a submodel is a smaller dense network.

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

    Parameters
    ----------
    sketch
        The sketch over the units of each layer.
    uniform
        Layers with equally many units have the same draw, so that they keep the same number of units. That
        is what configurations of transformers can express, where they can express it at all.
    loadable
        For models of transformers: besides, units whose number the configuration cannot express, such as
        heads whose size follows from their number, stay whole, and ``print(sk)`` lists them. Then
        `from_pretrained` reads all submodels that `save_pretrained` writes.
    """

    def __init__(self, sketch: Sketch, uniform: bool = False, loadable: bool = False) -> None:
        super().__init__(sketch)
        self.loadable = bool(loadable)
        self.uniform = bool(uniform) or self.loadable


class Layers(Structured):
    """Residual branches, kept or dropped whole, with their last bias. One draw over all branches of a model.

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
    if not rest:
        raise ArgumentError(
            f"the sketch {text!r} does not say what is kept; examples are neurons:.25, "
            "neurons:bernoulli:.5, layers:bernoulli:.8"
        )
    number = rest.strip().removesuffix("%").replace(".", "", 1).isdigit()
    return kind(sketches.parse(f"randk:{rest.strip()}" if number else rest))
