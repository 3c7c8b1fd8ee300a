"""What the ranks settle before the first round: that they speak of the same model, and the step size."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from mast import files
from mast.cluster.settings import Settings
from mast.cluster.tasks import Task
from mast.cluster.wire import Wire, say
from mast.errors import DataError, MastError
from mast.methods.distributed import Roster, digest_of_run, fingerprints_of


def token_of(wire: Wire, task: Task, roster: Roster, mine: Sequence[int]) -> tuple[int, dict[str, str]]:
    """The digest that every message of the run bears, and what its checkpoint must agree in.

    All ranks must speak of the same model first.
    """
    identity = task.identity()
    _compare(wire.collect(identity))
    prints = fingerprints_of({node: task.capacity(node) for node in mine})
    error, told = None, wire.collect([[node, text, task.data(node)] for node, text in prints.items()])
    about = {name: value for name, value in identity.items() if not name.startswith("version")}
    data, token = ["" for _ in range(roster.nodes)], 0
    if wire.rank == 0:
        here = fingerprints_of({node: task.capacity(node) for node in range(roster.nodes)})
        for rank, part in enumerate(told):
            for node, text, rows in part:
                data[node] = rows
                if here[node] != text:
                    error = f"rank {rank} has another sketch for node {node} than rank 0"
        token = digest_of_run(*sorted(about.items()), *here.values(), roster)
    wire.agree(error)
    return int(wire.tell(str(token))), about | {"data": files.digest(*data)}


def _compare(identities: Sequence[dict[str, str]]) -> None:
    """All ranks must speak of the same model."""
    for rank, identity in enumerate(identities):
        for name, value in identity.items():
            if value != identities[0].get(name):
                raise DataError(
                    f"rank {rank} differs from rank 0 in its {name} ({value}, not "
                    f"{identities[0].get(name)}): all nodes must share it"
                )


def step_size_of(
    settings: Settings, wire: Wire, task: Task, roster: Roster, mine: Sequence[int]
) -> tuple[float, str]:
    """The step size, and the statement behind it, or why there is none."""
    told, error = {}, None
    try:
        told = {str(node): task.facts(node) for node in mine}
    except MastError as failure:
        error = str(failure)
    given = settings.server.step_size
    if given == "theory":
        wire.agree(error)
    merged: dict[str, Any] = {}
    for part in wire.collect(told):
        merged |= part
    facts = [merged.get(str(node)) for node in range(roster.nodes)]
    limit, note = math.nan, error or ""
    try:
        if any(fact is None for fact in facts):
            facts = []
        guarantee = task.guarantee(facts, roster, settings)
        limit = float(guarantee.max_step_size(T=max(settings.run.rounds, 1)))
        note = guarantee.statement
    except MastError as failure:
        if given == "theory":
            raise
        note = str(failure)
    if given == "theory":
        return limit, note
    size = float(given)
    if size > limit * (1 + 1e-9):
        note = (
            f"no guarantee: step size {size:.4g} is {size / limit:.3g} times the limit {limit:.4g} of {note}"
        )
        if wire.rank == 0:
            say(note)
    return size, note
