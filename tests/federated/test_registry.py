"""Who is there: clients that come late, never, twice, or under a wrong number."""

import numpy as np
import pytest

pytest.importorskip("flwr", reason="the extra `federated` is not installed")

from flwr.app import Context, RecordDict

from federated.samples import NODES, Dropping, maker, problems, server
from mast.engines.flower.clients import partition_of
from mast.engines.flower.registry import ClientRegistry, NoClientsError
from mast.errors import ArgumentError
from mast.federated import LocalGrid, MastStrategy, client


def test_clients_that_never_come_are_not_waited_for():
    class Few(LocalGrid):
        def get_node_ids(self):
            return [i for i, c in self.contexts.items() if c.node_config["partition-id"] in (0, 3)]

    nodes = problems()
    strategy = MastStrategy(server(nodes), gathering=0.05)
    strategy.start(Few(client(maker(nodes)), NODES), num_rounds=2)
    assert [row["nodes"] for row in strategy.rows] == [2, 2]
    assert [row["invited"] for row in strategy.rows] == [NODES, NODES]
    with pytest.raises(NoClientsError, match="1, 2 are missing"):
        MastStrategy(server(nodes), gathering=0.05, least=3).start(
            Few(client(maker(nodes)), NODES), num_rounds=2
        )


def test_who_comes_back_takes_part_again():
    class Leaving(LocalGrid):
        """Client 1 is away in rounds 2 and 3, and comes back under another node id."""

        calls = 0

        def get_node_ids(self):
            self.calls += 1
            mine = next(i for i, c in self.contexts.items() if c.node_config["partition-id"] == 1)
            if self.calls == 4:
                self.contexts[mine + 1] = self.contexts.pop(mine)
            return [i for i in self.contexts if i != mine or self.calls not in (2, 3)]

    nodes = problems()
    strategy = MastStrategy(server(nodes))
    strategy.start(Leaving(client(maker(nodes)), NODES), num_rounds=5)
    assert [row["nodes"] for row in strategy.rows] == [4, 3, 3, 4, 4]


def test_the_number_of_simulated_nodes_has_to_fit():
    nodes = problems()
    with pytest.raises(ArgumentError, match="num-supernodes=4"):
        MastStrategy(server(nodes)).start(LocalGrid(client(maker(nodes)), 2), num_rounds=1)


def test_a_client_without_partition_says_what_to_do():
    context = Context(1, 5, {}, RecordDict(), {})
    with pytest.raises(ArgumentError, match="--node-config 'partition-id=0"):
        partition_of(context)


def renumbered(by):
    """A grid whose clients say other partitions than their own."""
    grid = LocalGrid(client(maker(problems())), NODES)
    for context in grid.contexts.values():
        context.node_config["partition-id"] = by(context.node_config["partition-id"])
    return grid


def test_partitions_that_do_not_exist_are_refused():
    with pytest.raises(ArgumentError, match=r"they are 0 \.\. 3"):
        ClientRegistry(NODES, 60.0).connected(renumbered(lambda i: i + NODES))


def test_one_client_with_a_wrong_partition_does_not_stop_the_others():
    there = ClientRegistry(NODES, 0.05).connected(renumbered(lambda i: i if i < 3 else 17))
    assert sorted(there) == [0, 1, 2]


def test_a_stranger_who_comes_later_does_not_stop_the_run():
    """A node of another federation, with another number of partitions, joins in round 3."""

    class Joined(LocalGrid):
        def push_messages(self, messages):
            if len(self.contexts) == NODES and strategy.server.t == 2:
                config = {"partition-id": 1, "num-partitions": 9}
                self.contexts[12345] = Context(1, 12345, config, RecordDict(), {})
            return super().push_messages(messages)

    nodes = problems()
    strategy = MastStrategy(server(nodes))
    grid = Joined(client(maker(nodes)), NODES)
    strategy.start(grid, num_rounds=6)
    assert len(grid.contexts) == NODES + 1
    assert [row["nodes"] for row in strategy.rows] == [NODES] * 6


def test_of_two_with_one_partition_one_takes_part():
    """Both stay; each is asked once, and the one that was first has the partition."""
    asked = []

    class Counted(LocalGrid):
        def push_messages(self, messages):
            messages = list(messages)
            asked.extend(m for m in messages if m.metadata.message_type.startswith("query"))
            return super().push_messages(messages)

    nodes = problems()
    grid = Counted(client(maker(nodes)), NODES)
    config = {"partition-id": 1, "num-partitions": NODES}
    grid.contexts[12345] = Context(1, 12345, config, RecordDict(), {})
    strategy, straight = MastStrategy(server(nodes)), MastStrategy(server(nodes))
    strategy.start(grid, num_rounds=4)
    straight.start(LocalGrid(client(maker(nodes)), NODES), num_rounds=4)
    assert len(asked) == NODES + 1
    np.testing.assert_array_equal(strategy.server.x, straight.server.x)


def test_clients_that_cannot_start_are_quoted():
    grid = Dropping(client(maker(problems())), NODES, lambda partition, message: False)
    with pytest.raises(NoClientsError, match=r"client \d dropped out"):
        ClientRegistry(NODES, 0.05).connected(grid)


def test_a_trained_model_is_kept_if_nobody_is_left_to_score_it(tmp_path):
    class Leaving(LocalGrid):
        def get_node_ids(self):
            return [] if strategy.server.t == 3 else super().get_node_ids()

    nodes = problems()
    strategy = MastStrategy(server(nodes), gathering=0.05, checkpoint=tmp_path / "new" / "run.mast")
    result = strategy.start(Leaving(client(maker(nodes)), NODES), num_rounds=3)
    assert result.arrays["x"].numpy().shape == strategy.server.x.shape
    assert not result.evaluate_metrics_clientapp
    assert (tmp_path / "new" / "run.mast").exists()
