"""`sparsify(model, sketch)`: which weights or units of a model are sketched, and the handle for them.

The callbacks of both trainers call it when training begins.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn

from mast.errors import ArgumentError, MastError
from mast.nn.sparsifier import Sparsifier
from mast.nn.tensors.selection import choose
from mast.nn.tensors.top_share import TopShare
from mast.nn.tensors.weights import Keep, Shift, Where, refuse_sharded, unwrapped
from mast.nn.units import Structured, UnitMap, find_units, parse
from mast.randomness import Key
from mast.sketches import Sketch


def sparsify(
    model: nn.Module,
    sketch: Sketch | TopShare | str,
    *,
    shift: Shift = None,
    keep: Mapping[str, Keep] | None = None,
    where: Where | None = None,
    seed: int = 0,
    node: int = 0,
    example: Any = None,
    strict: bool = False,
    check: bool = True,
) -> Sparsifier:
    """Make a model's training forward passes use y = v + S(x - v), a new draw of S for each optimizer step.

    The model is changed in place and stays what it was: same parameters, same `state_dict` keys, same
    type. In training mode its calls compute with y and gradients are S' grad f(y); in
    `eval()` mode they compute with x. Copies of the model are plain models.

    Where S scales what it keeps, x is no draw: the whole size of a `Nested` sketch is its last member,
    ``sk.submodel(member=sk.members - 1)``, and that is x only with ``scaled=False``.

    Parameters
    ----------
    model
        Any module. `DistributedDataParallel` is looked through; sharded parameters are refused.
    sketch
        The distribution of S. Bernoulli and Gaussian sketches act on each weight by itself,
        all others on the sketched weights as one vector, in the order of `named_parameters`. A text is
        read by `mast.nn.parse`: ``"neurons:.5"``.
    shift
        v: None is 0, "init" is a copy of the weights as they are now. A model with the same parameters stands
        for their values, or a mapping has the tensors by name.
    keep
        Keep probabilities of their own for parameters whose names match a pattern (the last match counts);
        1 leaves a parameter out. Other values than 1, and tensors with one probability per entry, such as
        `mast.nn.keep_probabilities` makes, are for Bernoulli sketches.
    where
        Which parameters to sketch: a name pattern, several, or a function of name and parameter. By
        default the trainable weights of linear, convolutional, recurrent, attention and embedding layers, and
        what other layers name as weights: no biases, norms, tokens, tables of positions or scales.
        ``print(sk)`` lists all parameters, and why some are left out. For `Neurons`, `where` and `keep` name
        units by the weight that makes them, as the first table of ``print(sk)`` does; the scales are on the
        weights that take the units.
    seed, node
        Part of the key of every draw. Processes that shall have different sketches pass different nodes.
    example
        For `Neurons` and `Layers`: what the model is called with (a tensor, a tuple, or a dict of keyword
        arguments). The model is run on it to see which weights belong to one unit, so that any model can be
        cut: of transformers, timm, torchvision, with hooks, with branches of Python. What cannot be cut is
        kept whole, and ``print(sk)`` says why. Without an example, the input of MLPs and of networks for
        images of a usual size is guessed.
    strict
        Refuse the model, with the same table, if units stay whole only because they could not be followed.
    check
        With an example: each submodel is compared with the whole model under the same draw, in training and
        in eval mode, before it is returned.

    >>> import mast, torch
    >>> model = torch.nn.Linear(2, 2)
    >>> sk = mast.nn.sparsify(model, mast.Bernoulli(0.5), seed=1)
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    >>> model(torch.ones(1, 2)).sum().backward()
    >>> model.weight.grad
    tensor([[2., 0.],
            [2., 0.]])
    >>> optimizer.step()
    >>> sk.step
    1
    """
    model = unwrapped(model)
    sketch = parse(sketch) if isinstance(sketch, str) else sketch
    keep = keep or {}
    unit_map: UnitMap | None = None
    if isinstance(sketch, Structured):
        for name, parameter in model.named_parameters():
            refuse_sharded(name, parameter)
        unit_map = find_units(model, sketch, keep, where, example=example, strict=strict)
        selection = unit_map.selection(model)
    elif isinstance(within := getattr(sketch, "sketch", None), Structured):
        kind, inner = type(sketch).__name__, type(within).__name__
        raise ArgumentError(f"{inner} goes outside: write {inner}({kind}(...)), not {kind}({inner}(...))")
    else:
        selection = choose(model, where, keep)
    sk = Sparsifier(model, sketch, unit_map, selection, shift, Key(seed, 0, node))
    sk.checks_submodels = check and example is not None
    return sk


class SparsifyingCallback:
    """Sparsifies a trainer's model when training starts, with the arguments of `mast.nn.sparsify`."""

    begins_in = "the trainer's start"  #: where training starts

    def __init__(self, sketch: Sketch | TopShare | str, *, per_rank: bool = False, **options: Any) -> None:
        self.sketch, self.per_rank, self.options = sketch, per_rank, options
        self._sk: Sparsifier | None = None

    @property
    def sk(self) -> Sparsifier:
        """The handle that `sparsify` returned."""
        if self._sk is None:
            raise MastError(f"the model is sparsified in {self.begins_in}; there is no handle before")
        return self._sk

    def _sparsify(self, model: nn.Module, rank: int) -> Sparsifier:
        own: dict[str, Any] = {"node": rank} if self.per_rank else {}
        self._sk = sparsify(model, self.sketch, **self.options, **own)
        return self._sk
