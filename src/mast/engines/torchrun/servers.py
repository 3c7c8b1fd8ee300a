"""The server of a cluster: of a network, or of problems with the step size that theory allows.

Each rank has the data of its own nodes only. What theory has to know of a node is a few numbers
(`mast.methods.distributed.Facts`): the ranks exchange these, so all of them take the same step size.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from mast.distributed import Capacity, Server
from mast.engines import servers
from mast.engines.torchrun.wire import Wire, this_rank
from mast.errors import ArgumentError, DataError, MastError, NoGuaranteeError, StepSizeWarning
from mast.methods.distributed import Facts, guarantee_of
from mast.problem import Nodes, Problem
from mast.sketches import Sketch
from mast.support import files
from mast.support.checks import Array, check_list

UNKNOWN = "the smoothness of this model is not known; of networks mast.nn.advise measures it"


def server_for(
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
        server = servers.server_for(model, capacities, step_size=size, **options)
        server.note = f"no guarantee: {UNKNOWN}"
        return server
    nodes = _checked_nodes(model)
    facts, x0 = _gather_facts(nodes, timeout)
    sketches = [node.sketch if isinstance(node, Problem) else node for node in nodes]
    server = servers.server_for(x0, sketches, step_size=size, **options)
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
        if this_rank()[0] == 0:
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
) -> tuple[list[dict[str, Any] | str], Array]:
    """What theory has to know of each node, whichever rank has it, and where to start."""
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
    shift = np.zeros(by_node[0]["dim"])  # which a rank without a node has no use for
    return [by_node[i]["facts"] for i in range(len(nodes))], next(
        (node.shift for node in nodes if isinstance(node, Problem)), shift
    )


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
