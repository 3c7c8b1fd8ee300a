"""`elastic`: a pretrained network in every size, from one short run.

Its units are sorted, most important first, and training then draws prefixes of them at scale 1. The largest
size is the given network from the first step on, and stays the network in memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from numpy.typing import ArrayLike
from torch import nn

from mast.nn.batches import Loss, with_first
from mast.nn.importance import Importance
from mast.nn.sorting import SortedUnits, refuse_unsortable, sort_by_scores
from mast.nn.sparsifier import Sparsifier
from mast.nn.tensors.torch_private import Conv
from mast.nn.tensors.weights import Where, unwrapped
from mast.nn.units import Neurons, find_units
from mast.nn.units.dependencies.examples import Example
from mast.nn.units.dependencies.recording import Recording
from mast.nn.units.dependencies.residual import residual_weights
from mast.randomness import Key
from mast.sketches import Nested

PROBES = 8  #: sets of random signs for each batch
STREAM = "the residual stream, which elastic leaves whole; keep={} lets it be cut"
POOLER = "the pooler, a part of the head, which elastic leaves whole; keep={} lets it be cut"


def elastic(
    model: nn.Module,
    sizes: ArrayLike,
    batches: Iterable[Any],
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
    step the largest size computes what the given network does, to rounding; ``model.eval()`` is the largest
    size at any time (where there is BatchNorm, after `recalibrate`), and ``sk.submodel(member=0)`` the
    smallest, as a plain network. ``with sk.member(i):`` uses one size in forward passes.

    Parameters
    ----------
    model
        A trained network, in place.
    sizes, weights
        The shares of units, ascending, and how often each is drawn.
    batches
        A few hundred rows that stand for the data, for the scores: inputs, or pairs of inputs and targets.
        Inputs are a tensor, a tuple of arguments or a dict of keyword arguments.
    score, loss
        As in `sort_units`; "taylor" needs a loss.
    keep, where
        As in `sparsify`. Without `keep`, the residual stream stays whole, so that only units within branches
        are cut, and so does the pooler of a model of transformers, which is a part of its head.
        ``keep={}`` lets both be cut too.
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
    first, batches, count = with_first("elastic", batches)
    given = first.plain() if example is None else Example.of(example)
    unit_map = find_units(model, sketch, _keep_whole if keep is None else keep, where, example=given)
    if keep is None:
        poolers = _poolers(model)
        for name in [n for n, reason in unit_map.excluded.items() if reason.startswith("keep = 1")]:
            unit_map.excluded[name] = POOLER if name in poolers else STREAM
    sk = Sparsifier(model, sketch, unit_map, unit_map.selection(model), None, Key(seed))
    try:
        sk.checks_submodels = True
        orders = {}
        if sort:
            scores = Importance(model, unit_map.groups, score=score, loss=loss, probes=PROBES, seed=seed)
            orders = sort_by_scores(model, unit_map, scores.of(batches, count))
        sk.sorting = SortedUnits(model, unit_map.groups, orders)
    except BaseException:
        sk.remove()
        raise
    return sk


def _poolers(model: nn.Module) -> list[str]:
    """Weights of poolers, which lie between the residual stream and the classifier."""
    named = model.named_parameters()
    return [name for name, p in named if "pooler" in name.split(".")[:-1] and p.dim() > 1]


def _keep_whole(record: Recording) -> dict[str, float]:
    """Poolers, and weights that write to a residual stream, to be kept whole with it."""
    found = dict.fromkeys(_poolers(record.model), 1.0)
    for name in residual_weights(record):
        owner = record.model.get_submodule(name.rpartition(".")[0])
        # keep = 1 of all parameters of another kind of module would leave the module out as a whole.
        if isinstance(owner, nn.Linear | Conv) or len(list(owner.parameters(recurse=False))) > 1:
            found[name] = 1.0
    return found
