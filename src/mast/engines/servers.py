"""The server of a cluster or a federation, from a model and a few words."""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Real
from typing import Any

import numpy as np

from mast.distributed import (
    Capacity,
    Roster,
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
        Who takes part in a round and draws what: `mast.distributed.Roster`.
    scheme
        A scheme by its name, such as "heterofl": it says what a share holds, and decides `coupling` and
        `aggregation`. For shares "mast_balanced" is assumed, the best that was measured where bytes are
        few; scale a fresh model by `mast.nn.nodes.scale_fronts` first. For long runs take "mast_nested".
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
    names: Any = capacities
    shares = [isinstance(own, Real) for own in names]
    if not shares:
        raise ArgumentError("a federation has at least one client: capacities has one entry for each")
    if scheme is None and any(shares):
        if not all(shares):
            raise ArgumentError(
                "capacities are all shares of the model, such as 0.25, or none of them is: the sketch of a "
                'share is "neurons:0.25"'
            )
        scheme = DEFAULT
    if scheme is not None:
        made = scheme_of(scheme)
        decided = {"coupling": made.coupling, "aggregation": made.aggregation}
        said = None if coupling == "independent" else coupling  # which is the default
        for name, given in {"coupling": said, "aggregation": options.get("aggregation")}.items():
            if given not in (None, decided[name]):
                raise ArgumentError(
                    f"the scheme {scheme!r} has the {name} {decided[name]!r}, not {given!r}: leave {name} "
                    "out, or name the capacities instead of a scheme"
                )
        if len(made.clients(names)) < len(names):
            raise ArgumentError(
                f"in {made.title} only clients that hold everything take part: give their shares only"
            )
        coupling, options["aggregation"] = made.coupling, made.aggregation
    if hasattr(model, "named_parameters"):
        from mast.nn.nodes import VectorLayout, capacities_of, capacity_of, module_identity

        x0, about = VectorLayout(model).read(model), module_identity(model)
        names = names if scheme is None else capacities_of(model, scheme, names, example=example)
        made_of: dict[Any, Capacity] = {}  # clients with the same text or sketch share what it remembers
        for own in names:
            if not isinstance(own, Capacity) and own not in made_of:
                made_of[own] = capacity_of(model, own, example=example)
        held = [own if isinstance(own, Capacity) else made_of[own] for own in names]
    else:
        x0, about = np.asarray(model), {}
        names = names if scheme is None else made.sketches(names)
        sketches = [own if isinstance(own, Capacity | Sketch) else parse_sketch(own) for own in names]
        held = [VectorCapacity(own, x0.size) if isinstance(own, Sketch) else own for own in sketches]
    options["about"] = about | options.get("about", {})
    roster = Roster(
        seed, len(held), stride_of(held), coupling, participation=participation, participants=participants
    )
    return Server(x0, held, roster, step_size=step_size, **options)
