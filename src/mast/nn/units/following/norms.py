"""Weights whose size does not matter, because a norm takes what they make and nothing else."""

from __future__ import annotations

from torch import nn

from mast.nn.units.following.examples import Example
from mast.nn.units.following.recording import NORMS, SUMS, Recording
from mast.nn.units.resizing import shadow


def normalised_weights(model: nn.Module, example: Example) -> set[str]:
    """The weights all of whose products go into a norm, with nothing but a bias added before.

    >>> import torch
    >>> block = nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.ReLU(), nn.Linear(8, 2))
    >>> normalised_weights(block, Example.of(torch.ones(3, 4)))
    {'0.weight'}

    A sum with another value, as in ``norm(x + dense(h))``, is no such case: its parts are weighed there.

    >>> layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    >>> normalised_weights(layer, Example.of(torch.ones(2, 3, 8)))
    set()
    """
    record = Recording(shadow(model).eval())
    record.run(example.to(model))
    inside = set()  # the steps of modules that normalise
    for visit in record.visits:
        if "Norm" in type(model.get_submodule(visit.module)).__name__:
            inside |= set(range(visit.first, visit.last))

    def normalised(number: int) -> bool:
        """Whether all that becomes of a value is its norm."""
        users = set(record.steps[number].users)
        return bool(users) and number not in record.outputs and all(map(ends_in_norm, users))

    def ends_in_norm(number: int) -> bool:
        step = record.steps[number]
        if number in inside or step.packet in NORMS:
            return True
        adds_bias = step.packet in SUMS and len(step.inputs) == 1 and number in biased
        return (step.moves or adds_bias) and normalised(number)

    rank = {name: p.dim() for name, p in model.named_parameters()}
    biased = {number for name, steps in record.uses.items() if rank[name] == 1 for number in steps}
    return {name for name, steps in record.uses.items() if rank[name] > 1 and all(map(normalised, steps))}
