"""The server of a federation or a cluster, from a model and a few words.

On a cluster each rank has the data of its own nodes only. What theory has to know of a node is a few numbers
(`mast.methods.distributed.Facts`): the ranks exchange these, so all of them take the same step size.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import asdict
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
from mast.errors import ArgumentError, DataError, MastError, NoGuaranteeError, StepSizeWarning
from mast.methods.distributed import Facts, guarantee_of
from mast.problem import Nodes, Problem
from mast.sketches import Sketch
from mast.support import files
from mast.support.checks import Array, check_list

UNKNOWN = "the smoothness of this model is not known; of networks mast.nn.advise measures it"


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


# ---- clusters: the step size that theory allows --------------------------------------------------------


def cluster_server_for(
    model: Any,
    capacities: Sequence[Capacity | Sketch | str | float] | None = None,
    *,
    step_size: float | str,
    rounds: int | None = None,
    regime: str | None = None,
    timeout: float = 120.0,
    **options: Any,
) -> Server:
    """The server of a cluster, which every rank makes: where to start, and what each node can hold.

    Parameters
    ----------
    model
        An `nn.Module` whose trainable parameters are the start, with `capacities`. Or, without them, the
        nodes of a linear model (or of any other objective), one entry for each: its `mast.Problem` on the
        rank that has its data, its sketch on the others. They start at their shift. `mast.Nodes` will do.
    capacities
        One for each node: the share of the model that it can hold, text such as "neurons:0.25", a sketch, or
        a `Capacity`.
    step_size
        A number; or, for problems, "theory": the largest that the statement about these nodes allows. A
        number above that is warned of.
    rounds, regime
        The length of the run, where the limit depends on it, and "strongly_convex", "convex" or
        "nonconvex"; the strongest that holds if None.
    timeout
        Seconds after which a rank that says nothing of its problems counts as lost.
    **options
        Those of `mast.federated.server_for`: `seed`, `coupling`, `participation`, `participants`, `scheme`,
        `example`, `optimizer`, `local_steps`, `local_step_size`, `cosine`, `aggregation`, `wire`, `run`,
        `about`.

    >>> import mast
    >>> from mast.cluster import server_for
    >>> f = mast.Quadratic([[2.0, 0.0], [0.0, 4.0]], [1.0, 1.0])
    >>> nodes = [mast.Problem(f, mast.RandK(1)), mast.Problem(f, mast.Identity())]
    >>> server = server_for(nodes, step_size="theory")
    >>> print(server.note)
    Theorem 15, Corollary 9, corrected: distributed, strongly convex, independent nodes
    """
    theory = isinstance(step_size, str)
    size: Any = 1.0 if theory else step_size  # until theory has spoken
    if theory and step_size != "theory":
        raise ArgumentError(f'step_size must be a positive number or "theory", got {step_size!r}')
    if capacities is not None:
        if theory:
            raise ArgumentError(f'step_size cannot be "theory": {UNKNOWN}. Give a number')
        server = server_for(model, capacities, step_size=size, **options)
        server.note = f"no guarantee: {UNKNOWN}"
        return server
    nodes = _checked_nodes(model)
    rank, facts, x0 = _gather_facts(nodes, timeout)
    sketches = [node.sketch if isinstance(node, Problem) else node for node in nodes]
    server = server_for(x0, sketches, step_size=size, **options)
    limit = math.nan
    try:
        known = [_known(fact) for fact in facts]
        _refuse_what_theory_lacks(server)
        server.guarantee = guarantee_of(
            sketches, x0.size, known, server.participation, server.local_steps, regime
        )
        server.note = server.guarantee.statement
        limit = float(server.guarantee.max_step_size(T=rounds))
    except MastError as error:
        if theory:
            raise
        server.note = str(error)
    if theory:
        server.step_size = server.local_step_size = limit
    elif server.step_size > limit * (1 + 1e-9):
        times = f"{server.step_size / limit:.3g} times the limit {limit:.4g}"
        server.note = f"no guarantee: step size {server.step_size:.4g} is {times} of {server.note}"
        if rank == 0:
            warnings.warn(server.note, StepSizeWarning, stacklevel=2)
    return server


def _checked_nodes(nodes: Any) -> list[Problem | Sketch]:
    """One problem or sketch for each node."""
    if hasattr(nodes, "named_parameters"):
        raise ArgumentError("a network takes capacities, one for each node: shares, text, sketches")
    entries: list[Any] = nodes.problems if isinstance(nodes, Nodes) else check_list("nodes", nodes)
    for i, node in enumerate(entries):
        if not isinstance(node, Problem | Sketch):
            raise ArgumentError(
                f"node {i} is a mast.Problem where this rank has its data, and its sketch elsewhere; got "
                f"{type(node).__name__}"
            )
    if not entries:
        raise ArgumentError("a cluster has at least one node")
    return entries


def _gather_facts(
    nodes: Sequence[Problem | Sketch], timeout: float
) -> tuple[int, list[dict[str, Any] | str], Array]:
    """The rank of this process, what theory has to know of each node, on any rank, and where to start."""
    from mast.engines.torchrun.wire import Wire

    with Wire(timeout) as wire:
        own = {
            str(i): {"dim": node.dim, "shift": files.digest(node.shift), "facts": _facts(node)}
            for i, node in enumerate(nodes)
            if isinstance(node, Problem)
        }
        gathered = wire.all_gather([len(nodes), own])
    by_node: dict[int, dict[str, Any]] = {}
    for rank, (count, part) in enumerate(gathered):
        if count != len(nodes):
            raise DataError(f"rank {rank} has {count} nodes, rank {wire.rank} has {len(nodes)}")
        for i, fact in part.items():
            by_node.setdefault(int(i), fact | {"rank": rank})
    for i in range(len(nodes)):
        if i not in by_node:
            raise DataError(f"no rank has the problem of node {i}: all gave its sketch only")
        for name, words in (("dim", "number of variables"), ("shift", "shift")):
            if by_node[i][name] != by_node[0][name]:
                raise DataError(
                    f"node {i} on rank {by_node[i]['rank']} has another {words} than node 0 on rank "
                    f"{by_node[0]['rank']}: all nodes share one"
                )
    # a rank without a node has no use for the shift
    shifts = [node.shift for node in nodes if isinstance(node, Problem)] or [np.zeros(by_node[0]["dim"])]
    return wire.rank, [by_node[i]["facts"] for i in range(len(nodes))], shifts[0]


def _facts(problem: Problem) -> dict[str, Any] | str:
    """What theory has to know of a problem, as JSON; or why it cannot."""
    try:
        return asdict(Facts.of(problem.objective))
    except MastError as error:
        return str(error)


def _known(fact: dict[str, Any] | str) -> Facts:
    if isinstance(fact, str):
        raise NoGuaranteeError(fact)
    return Facts(**fact)


def _refuse_what_theory_lacks(server: Server) -> None:
    label, aggregation = server.optimizer.label, server.aggregation
    reasons = {
        f"the optimizer {label!r}": not server.optimizer.plain,
        f"the aggregation {aggregation!r}": aggregation != "unbiased",
        "several local steps": server.local_steps > 1,
        "local steps of another size": server.local_step_size != server.step_size,
        "step sizes that fall": server.cosine is not None,
    }
    for words, holds in reasons.items():
        if holds:
            raise NoGuaranteeError(f"no guarantee: there is no statement about {words}: give a step size")
