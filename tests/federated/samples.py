"""A small federation of linear models that tests share: three quadratics, three different sketches."""

from __future__ import annotations

from flwr.app import Error, Message

import mast
from mast.distributed import Participation, ProblemWorker, Server, VectorCapacity, digest_of_run, stride_of
from mast.federated import LocalGrid, MastStrategy, client
from mast.randomness import Key, normal

DIM, NODES, ROUNDS = 8, 4, 5
RUN = digest_of_run("the tests' federation")


def problems() -> list[mast.Problem]:
    """Four nodes with their own data, sketches and one shift."""
    shift = normal(Key(99), 0, DIM)
    sketches = [mast.Bernoulli(0.9), mast.RandK(3), mast.PermK(2, seed=1), mast.PermK(4, seed=2)]
    found = []
    for i, sketch in enumerate(sketches):
        B = normal(Key(i), 0, 3 * DIM * DIM).reshape(3 * DIM, DIM)
        H = B.T @ B / (3 * DIM)
        found.append(mast.Problem(mast.Quadratic(H, normal(Key(i, 1), 0, DIM)), sketch, shift))
    return found


def server(nodes: list[mast.Problem], participation: dict | None = None, **options) -> Server:
    capacities = [VectorCapacity(problem.sketch, problem.dim) for problem in nodes]
    found = Participation(7, len(nodes), stride_of(capacities), **(participation or {}))
    return Server(nodes[0].shift, capacities, found, **{"step_size": 0.02, "run": RUN} | options)


def maker(nodes: list[mast.Problem], run=RUN):
    """How the clients of these problems are made."""

    def make(context):
        return ProblemWorker(nodes[context.node_config["partition-id"]], run)

    return make


class Dropping(LocalGrid):
    """A grid whose clients may drop out: `answers(partition, message)` says whether one answers."""

    def __init__(self, app, nodes, answers):
        super().__init__(app, nodes)
        self.answers = answers

    def _answer(self, message):
        partition = self.contexts[message.metadata.dst_node_id].node_config["partition-id"]
        if self.answers(partition, message):
            return super()._answer(message)
        return Message(Error(code=0, reason=f"client {partition} dropped out"), reply_to=message)


def trains(message) -> bool:
    return message.metadata.message_type == "train"


def without(node) -> MastStrategy:
    """The run in which a client never takes part in the sum, of all the same invitations."""
    nodes = problems()
    strategy = MastStrategy(server(nodes))
    grid = Dropping(client(maker(nodes)), NODES, lambda p, m: p != node or not trains(m))
    strategy.start(grid, num_rounds=ROUNDS)
    return strategy
