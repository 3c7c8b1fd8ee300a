"""The step size that theory allows a federation: clients tell their smoothness, their data stay with them."""

from __future__ import annotations

from collections.abc import Sequence

from flwr.app import Message, MetricRecord, RecordDict
from flwr.serverapp import Grid

from mast.errors import ArgumentError, NoGuaranteeError
from mast.federated.presence import NoClientsError, RollCall
from mast.federated.records import FACTS, METRICS, send
from mast.methods.distributed import Capacity, Facts, Roster, VectorCapacity, guarantee_of
from mast.theory import Guarantee


def facts(grid: Grid, nodes: int, *, gathering: float = 120.0, timeout: float = 60.0) -> list[Facts]:
    """What theory needs to know of every client, in the order of the partitions; all have to be there."""
    there = RollCall(nodes, gathering, least=nodes).call(grid)
    questions = [Message(RecordDict(), there[node], FACTS, ttl=timeout) for node in range(nodes)]
    told: dict[int, Facts] = {}
    by_id = {node_id: node for node, node_id in there.items()}
    for reply in send(grid, questions, timeout):
        if reply.has_error():
            raise NoGuaranteeError(f"a client could not tell its smoothness: {reply.error.reason}")
        said = reply.content.get(METRICS)
        if not isinstance(said, MetricRecord) or not {"L_f", "mu_f", "convex"} <= set(said):
            raise ArgumentError(f"a client answered with {said} when it was asked for its smoothness")
        L_f, mu_f = float(str(said["L_f"])), float(str(said["mu_f"]))
        told[by_id[reply.metadata.src_node_id]] = Facts(L_f, mu_f, bool(said["convex"]))
    if len(told) < nodes:
        missing = sorted(set(range(nodes)) - set(told))
        raise NoClientsError(f"the clients {missing} did not tell their smoothness within {timeout:g} s")
    return [told[node] for node in range(nodes)]


def guarantee(
    grid: Grid,
    capacities: Sequence[Capacity],
    roster: Roster,
    *,
    local_steps: int = 1,
    regime: str | None = None,
    gathering: float = 120.0,
    timeout: float = 60.0,
) -> Guarantee:
    """The statement about a federation of linear models; its `max_step_size()` is the server's step size.

    The same as ``mast.guarantee(nodes, "distributed")`` where all data are in one place.

    >>> import mast
    >>> from mast.methods.distributed import ProblemWorker
    >>> from mast.federated import LocalGrid, client
    >>> problem = mast.Problem(mast.Quadratic([[2.0, 0.0], [0.0, 4.0]], [1.0, 1.0]), mast.RandK(1))
    >>> grid = LocalGrid(client(lambda context: ProblemWorker(problem)), 3)
    >>> found = guarantee(grid, [VectorCapacity(problem.sketch, 2)] * 3, Roster(0, nodes=3))
    >>> found.max_step_size() == mast.guarantee(mast.Nodes([problem] * 3), "distributed").max_step_size()
    True
    """
    sketches = [capacity.sketch for capacity in capacities if isinstance(capacity, VectorCapacity)]
    if len(sketches) != len(capacities):
        raise NoGuaranteeError(
            "networks have no known smoothness (mast.nn.advise measures it): give the step size a number"
        )
    told = facts(grid, roster.nodes, gathering=gathering, timeout=timeout)
    return guarantee_of(sketches, capacities[0].dim, told, roster, local_steps, regime)
