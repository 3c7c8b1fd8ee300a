"""The handle of a model: `sparsify` makes it, `elastic` for a pretrained network in every size.

`sparsify` says which weights or units are sketched; the callbacks of both trainers call it when training
begins. `elastic` sorts the units, most important first, and training then draws prefixes of them at scale 1.
The largest size is the given network from the first step on, and stays the network in memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from numpy.typing import ArrayLike
from torch import nn

from mast.errors import ArgumentError, MastError
from mast.nn.batches import Batch, Loss, with_first
from mast.nn.importance import Importance
from mast.nn.sorting import SortedUnits, refuse_unsortable, sort_by_scores
from mast.nn.sparsifier import Sparsifier
from mast.nn.tensors.selection import choose
from mast.nn.tensors.top_share import TopShare
from mast.nn.tensors.weights import Keep, Shift, Where, refuse_sharded, unwrapped
from mast.nn.units import Neurons, Structured, UnitMap, find_units, parse
from mast.nn.units.dependencies.examples import fork_generators
from mast.nn.units.dependencies.recording import Recording
from mast.nn.units.dependencies.residual import residual_weights
from mast.randomness import Key
from mast.sketches import Nested, Sketch

PROBES = 8  #: sets of random signs for each batch
STREAM = "the residual stream, which elastic leaves whole; keep={} lets it be cut"
POOLER = "the pooler, a part of the head, which elastic leaves whole; keep={} lets it be cut"


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


def elastic(
    model: nn.Module,
    sizes: ArrayLike,
    batches: Iterable[Any] | None,
    *,
    loss: Loss | None = None,
    score: str = "activation",
    weights: ArrayLike | None = None,
    keep: Mapping[str, float] | None = None,
    where: Where | None = None,
    example: Any = None,
    sort: bool = True,
    loadable: bool = False,
    seed: int = 0,
) -> Sparsifier:
    """Make a trained network elastic: its units are sorted, and training steps draw one of the sizes.

    It is `sort_units`, then ``sparsify(model, Neurons(Nested(sizes, weights, scaled=False)))``. At the first
    step the size 1 computes what the given network does, to rounding; ``model.eval()`` is that size at any
    time (where there is BatchNorm, after `recalibrate`), and ``sk.submodel(member=0)`` the smallest, as a
    plain network. ``with sk.member(i):`` uses one size in forward passes.

    Parameters
    ----------
    model
        A trained network, in place.
    sizes, weights
        The shares of units, ascending, and how often each is drawn. Let the largest be 1: if it is less,
        ``model.eval()`` is none of the sizes, as it computes with all units, also those that no size trains.
    batches
        A few hundred rows that stand for the data, for the scores: inputs, or pairs of inputs and targets.
        Inputs are a tensor, a tuple of arguments or a dict of keyword arguments. None will do if there is an
        `example`, and nothing is sorted.
    score, loss
        As in `sort_units`; "taylor" needs a loss.
    keep, where
        As in `sparsify`. The residual stream stays whole, so that only units within branches are cut, and so
        does the pooler of a model of transformers, which is a part of its head. ``keep={}`` lets both be cut
        too, and `where` says which units then; a keep that names other units leaves both whole.
    example
        What the model is called with when its units are found; the first batch's inputs by default.
    sort
        Whether units are sorted; False if they are sorted already. In a resumed run it does not matter:
        ``sk.load_state_dict`` undoes a second sorting of weights that were loaded before.
    loadable
        For models of transformers: units whose number the configuration cannot express stay whole, so that
        `from_pretrained` reads the submodels.
    seed
        Of the draws, and of random signs.

    >>> import copy, mast, torch
    >>> model = torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
    >>> x = torch.linspace(-1, 1, 48).view(16, 3)
    >>> given = copy.deepcopy(model)
    >>> sk = mast.nn.elastic(model, [0.25, 0.5, 1.0], [x])
    >>> with sk.member(2):
    ...     torch.allclose(model(x), given(x), atol=1e-6)
    True
    >>> sk.submodel(member=0)[0]
    Linear(in_features=3, out_features=2, bias=True)
    """
    model = unwrapped(model)
    refuse_unsortable(model)
    sketch = Neurons(Nested(sizes, weights, scaled=False), loadable=loadable)
    scored: Iterator[Batch] = iter(())
    count = 0
    with fork_generators():  # which loaders draw from, too
        if sort or example is None:
            first, scored, count = with_first("elastic", batches)
            example = first.plain() if example is None else example
        whole = _whole if keep is None or keep else None
        unit_map = find_units(model, sketch, keep, where, example=example, whole=whole)
        sk = Sparsifier(model, sketch, unit_map, unit_map.selection(model), None, Key(seed))
        try:
            sk.checks_submodels = True
            orders = {}
            if sort:
                scores = Importance(model, unit_map.groups, score=score, loss=loss, probes=PROBES, seed=seed)
                orders = sort_by_scores(model, unit_map, scores.of(scored, count))
            sk.sorting = SortedUnits(model, unit_map.groups, orders)
        except BaseException:
            sk.remove()
            raise
        return sk


def _poolers(model: nn.Module) -> list[str]:
    """Weights of poolers, which lie between the residual stream and the classifier."""
    named = model.named_parameters()
    return [name for name, p in named if "pooler" in name.split(".")[:-1] and p.dim() > 1]


def _whole(record: Recording) -> dict[str, str]:
    """Weights that write to a residual stream, and poolers, whose units stay whole, and why."""
    return dict.fromkeys(residual_weights(record), STREAM) | dict.fromkeys(_poolers(record.model), POOLER)


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
