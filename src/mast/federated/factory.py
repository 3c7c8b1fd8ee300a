"""The server of a federation from a model and a few words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from mast.errors import ArgumentError
from mast.methods.distributed import (
    Capacity,
    Roster,
    Scheme,
    Server,
    VectorCapacity,
    parse_sketch,
    scheme_of,
    stride_of,
)
from mast.sketches import Sketch


def server_for(
    model: Any,
    capacities: Sequence[Capacity | Sketch | str],
    *,
    step_size: float,
    seed: int = 0,
    coupling: str = "independent",
    participation: Any = 1.0,
    participants: int | None = None,
    scheme: str | None = None,
    **options: Any,
) -> Server:
    """The server of a federation: where to start, and what each client can hold.

    Parameters
    ----------
    model
        An `nn.Module`, whose trainable parameters are the start; or a vector, for a linear model.
    capacities
        One for each partition: text (``neurons:0.25``, ``bernoulli:0.5``), a sketch, or a `Capacity`.
        With a `scheme`: the share of the model that the client can hold.
    seed, coupling, participation, participants
        Who takes part in a round and draws what: `mast.methods.distributed.Roster`.
    scheme
        A scheme by its name, such as "mast_nested" or "heterofl": it says what a share holds, and decides
        `coupling` and `aggregation`. Workers get the same from `mast.nn.nodes.capacities_of`.
    step_size, **options
        Those of `mast.methods.distributed.Server`: `optimizer`, `local_steps`, `local_step_size`, `wire`,
        `aggregation`, `run`, `about`. A checkpoint knows the modules of the model: another one is refused
        by name.

    >>> server = server_for(np.zeros(10), ["bernoulli:0.9", "permk:2"], step_size=0.1)
    >>> server.capacities[1].label
    'PermK(2, seed=0): keeps 50 %, one of 2 blocks'
    >>> server_for(np.zeros(8), [1, 0.25], scheme="fedrolex", step_size=0.1).aggregation
    'mean'
    """
    if scheme is not None:
        given = {"coupling": coupling, "aggregation": options.get("aggregation")}
        capacities, coupling, options["aggregation"] = _by_scheme(model, scheme_of(scheme), capacities)
        _refuse_others(scheme, given, {"coupling": coupling, "aggregation": options["aggregation"]})
    x0, held, about = _start(model, capacities)
    options["about"] = about | options.get("about", {})
    roster = Roster(
        seed, len(held), stride_of(held), coupling, participation=participation, participants=participants
    )
    return Server(x0, held, roster, step_size=step_size, **options)


def _refuse_others(scheme: str, given: dict[str, Any], decided: dict[str, str]) -> None:
    """An error where somebody asks for another sum or coupling than the scheme has."""
    for name, value in given.items():
        if value not in (None, "independent", decided[name]):
            raise ArgumentError(
                f"the scheme {scheme!r} has the {name} {decided[name]!r}, not {value!r}: leave {name} out, "
                "or name the capacities instead of a scheme"
            )


def _by_scheme(model: Any, scheme: Scheme, shares: Sequence[Any]) -> tuple[Sequence[Any], str, str]:
    """What clients of these shares hold, the coupling and the aggregation."""
    if len(scheme.clients(shares)) < len(shares):
        raise ArgumentError(
            f"in {scheme.title} only clients that hold everything take part: give their shares only"
        )
    if not hasattr(model, "named_parameters"):
        return scheme.sketches(shares), scheme.coupling, scheme.aggregation
    from mast.nn.nodes import capacities_of

    return capacities_of(model, scheme, shares), scheme.coupling, scheme.aggregation


def _start(model: Any, capacities: Sequence[Any]) -> tuple[Any, list[Capacity], dict[str, str]]:
    """The vector x, every client's capacity, and what tells the model from others."""
    if hasattr(model, "named_parameters"):
        from mast.nn.nodes import VectorLayout, capacity_of, module_identity

        held = [own if isinstance(own, Capacity) else capacity_of(model, own) for own in capacities]
        return VectorLayout(model).read(model), held, module_identity(model)
    x0 = np.asarray(model)
    return x0, [_of_vector(own, x0.size) for own in capacities], {}


def _of_vector(own: Any, dim: int) -> Capacity:
    if isinstance(own, Capacity):
        return own
    return VectorCapacity(own if isinstance(own, Sketch) else parse_sketch(own), dim)
