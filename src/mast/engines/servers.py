"""The server of a cluster or a federation, from a model and a few words."""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Real
from typing import Any

import numpy as np

from mast.distributed import (
    Capacity,
    Participation,
    Scheme,
    Server,
    VectorCapacity,
    parse_sketch,
    scheme_of,
    stride_of,
)
from mast.distributed.schemes import DEFAULT
from mast.errors import ArgumentError
from mast.sketches import Sketch


def server_for(
    model: Any,
    capacities: Sequence[Capacity | Sketch | str | float],
    *,
    step_size: float,
    seed: int = 0,
    coupling: str = "independent",
    participation: Any = 1.0,
    participants: int | None = None,
    scheme: str | None = None,
    example: Any = None,
    **options: Any,
) -> Server:
    """The server of a federation or a cluster: where to start, and what each client, or node, can hold.

    Parameters
    ----------
    model
        An `nn.Module`, whose trainable parameters are the start; or a vector, for a linear model.
    capacities
        One for each client: the share of the model that it can hold; or, without a scheme, text
        (``neurons:0.25``, ``bernoulli:0.5``), a sketch, or a `Capacity`.
    seed, coupling, participation, participants
        Who takes part in a round and draws what: `mast.distributed.Participation`.
    scheme
        A scheme by its name, such as "heterofl": it says what a share holds, and decides `coupling` and
        `aggregation`. For shares "mast_balanced" is assumed, the best that was measured where bytes are
        few; scale a fresh model by `mast.nn.nodes.scale_prefixes` first. For long runs take "mast_nested".
        Workers get the same from `mast.nn.nodes.capacities_of`.
    example
        A batch as the module is called with, to find its units; guessed for MLPs and networks for images.
    step_size, **options
        Those of `mast.distributed.Server`: `optimizer`, `local_steps`, `local_step_size`, `cosine`,
        `wire`, `aggregation`, `run`, `about`. A checkpoint knows the modules of the model: another one is
        refused by name.

    >>> server = server_for(np.zeros(10), ["bernoulli:0.9", "permk:2"], step_size=0.1)
    >>> server.capacities[1].label
    'PermK(2, seed=0): keeps 50 %, one of 2 blocks'
    >>> server_for(np.zeros(8), [1, 0.25], step_size=0.1).aggregation
    'mean'
    """
    chosen = _chosen_scheme(scheme, capacities, coupling, options.get("aggregation"))
    if chosen is not None:
        coupling, options["aggregation"] = chosen.coupling, chosen.aggregation
    if hasattr(model, "named_parameters"):
        x0, held, about = _network(model, capacities, chosen, example)
        options["about"] = about | options.get("about", {})
    else:
        x0 = np.asarray(model)
        held = _vector_capacities(x0.size, capacities, chosen)
    who = Participation(
        seed, len(held), stride_of(held), coupling, participation=participation, participants=participants
    )
    return Server(x0, held, who, step_size=step_size, **options)


def _chosen_scheme(
    name: str | None, capacities: Sequence[Any], coupling: str, aggregation: str | None
) -> Scheme | None:
    """The scheme that shares are meant by, if they are shares; it decides coupling and aggregation."""
    shares = [isinstance(own, Real) for own in capacities]
    if not shares:
        raise ArgumentError("a federation has at least one client: capacities has one entry for each")
    if name is None and any(shares):
        if not all(shares):
            raise ArgumentError(
                "capacities are all shares of the model, such as 0.25, or none of them is: the sketch of a "
                'share is "neurons:0.25"'
            )
        name = DEFAULT
    if name is None:
        return None
    scheme = scheme_of(name)
    given = {"coupling": None if coupling == "independent" else coupling, "aggregation": aggregation}
    for option, value in given.items():  # "independent" is the default
        decided = getattr(scheme, option)
        if value not in (None, decided):
            raise ArgumentError(
                f"the scheme {name!r} has the {option} {decided!r}, not {value!r}: leave {option} "
                "out, or name the capacities instead of a scheme"
            )
    if len(scheme.clients(capacities)) < len(capacities):
        raise ArgumentError(
            f"in {scheme.title} only clients that hold everything take part: give their shares only"
        )
    return scheme


def _network(
    model: Any, capacities: Sequence[Any], scheme: Scheme | None, example: Any
) -> tuple[Any, list[Capacity], dict[str, str]]:
    """The parameters of a network as one vector, the capacities, and what tells its modules from others."""
    from mast.nn.nodes import VectorLayout, capacities_of, capacity_of, module_identity

    x0, about = VectorLayout(model).read(model), module_identity(model)
    if scheme is not None:
        return x0, capacities_of(model, scheme, capacities, example=example), about
    made: dict[Any, Capacity] = {}  # clients with the same text or sketch share what it remembers
    for own in capacities:
        if not isinstance(own, Capacity) and own not in made:
            made[own] = capacity_of(model, own, example=example)
    return x0, [own if isinstance(own, Capacity) else made[own] for own in capacities], about


def _vector_capacities(dim: int, capacities: Sequence[Any], scheme: Scheme | None) -> list[Capacity]:
    named = capacities if scheme is None else scheme.sketches(capacities)
    sketches = [own if isinstance(own, Capacity | Sketch) else parse_sketch(own) for own in named]
    return [VectorCapacity(own, dim) if isinstance(own, Sketch) else own for own in sketches]
