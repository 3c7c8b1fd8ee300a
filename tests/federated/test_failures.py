"""What clients, networks and people do wrong: rounds go on, and errors say what would be right."""

import numpy as np
import pytest

pytest.importorskip("flwr", reason="the extra `federated` is not installed")

from flwr.app import Array, ArrayRecord, Context, Message, RecordDict

import mast
from federated.samples import NODES, RUN, maker, problems, server
from mast.errors import ArgumentError, DataError
from mast.exchange import ProblemWorker
from mast.federated import LocalGrid, MastStrategy, client
from mast.federated.carrying import send
from mast.federated.clients import partition_of
from mast.federated.records import pack, unpack
from mast.federated.roll import NoClientsError, RollCall
from mast.locks import InUseError

ROUNDS = 5


def without(node):
    """The run in which a client never takes part in the sum, of all the same invitations."""
    nodes = problems()
    strategy = MastStrategy(server(nodes))
    app = client(maker(nodes))
    strategy.start(
        LocalGrid(app, NODES, answers=lambda p, m: p != node or m.metadata.message_type != "train"),
        num_rounds=ROUNDS,
    )
    return strategy


def spoiled(node, spoil, nodes=None):
    """The run in which what a client answers is spoiled."""

    class Grid(LocalGrid):
        def _answer(self, message):
            reply = super()._answer(message)
            partition = self.contexts[message.metadata.dst_node_id].node_config["partition-id"]
            if partition == node and message.metadata.message_type == "train":
                spoil(reply, self)
            return reply

    strategy = MastStrategy(server(nodes or problems()))
    strategy.start(Grid(client(maker(nodes or problems())), NODES), num_rounds=ROUNDS)
    return strategy


def replaced(reply, raw):
    reply.content["mast"] = ArrayRecord({"0": Array(raw)})


def cut(reply, grid):
    replaced(reply, reply.content["mast"]["0"].numpy()[:-8])


def not_a_number(reply, grid):
    raw = reply.content["mast"]["0"].numpy()
    raw[64:72].view(np.float64)[...] = np.nan
    replaced(reply, raw)


def of_another_round(reply, grid):
    raw = reply.content["mast"]["0"].numpy()
    raw[24] += 1
    replaced(reply, raw)


def of_another_run(reply, grid):
    raw = reply.content["mast"]["0"].numpy()
    raw[8] ^= 1
    replaced(reply, raw)


def in_anothers_name(reply, grid):
    raw = reply.content["mast"]["0"].numpy()
    raw[40] = 0
    replaced(reply, raw)


def no_records(reply, grid):
    del reply.content["mast"]


def text(reply, grid):
    replaced(
        reply,
        np.frombuffer(
            b"not a message of MAST's at all, but long enough for a header of one, surely", np.uint8
        ),
    )


def numbers(reply, grid):
    replaced(reply, np.zeros((3, 3)))


def twice(reply, grid):
    [answer] = unpack(reply.content)
    reply.content["mast"] = pack(answer, answer)["mast"]


@pytest.mark.parametrize(
    "spoil",
    [cut, not_a_number, of_another_round, of_another_run, in_anothers_name, no_records, text, numbers, twice],
    ids=lambda f: f.__name__,
)
def test_a_wrong_answer_counts_as_none(spoil):
    strategy, expected = spoiled(2, spoil), without(2)
    np.testing.assert_array_equal(strategy.server.x, expected.server.x)
    assert [row.answered for row in strategy.accounts.rows] == [NODES - 1] * ROUNDS
    assert strategy.accounts.answers == [ROUNDS, ROUNDS, 0, ROUNDS]


def test_an_exception_in_a_client_does_not_stop_the_round():
    nodes = problems()
    own = maker(nodes)

    def make(context):
        if partition_of(context) == 2:
            raise OSError("the disk of this client is broken")
        return own(context)

    strategy = MastStrategy(server(nodes))
    strategy.start(LocalGrid(client(make), NODES), num_rounds=ROUNDS)
    np.testing.assert_array_equal(strategy.server.x, without(2).server.x)


def test_a_client_of_another_run_or_sketch_refuses():
    nodes = problems()
    others = [
        ProblemWorker(nodes[0], RUN + 1),
        ProblemWorker(mast.Problem(nodes[0].objective, mast.RandK(1)), RUN),
    ]
    for worker, words in zip(others, ["another run", "different sketches"], strict=True):
        grid = LocalGrid(client(lambda context, worker=worker: worker), NODES)
        strategy = MastStrategy(server(nodes))
        messages = strategy.configure_train(1, ArrayRecord(), {}, grid)
        replies = send(grid, messages[:1], 5.0)
        assert words in replies[0].error.reason


def test_a_round_without_answers_does_not_move_x():
    nodes = problems()
    strategy = MastStrategy(server(nodes))
    start = strategy.server.x.copy()
    silent = LocalGrid(client(maker(nodes)), NODES, answers=lambda p, m: m.metadata.message_type != "train")
    strategy.start(silent, num_rounds=3)
    np.testing.assert_array_equal(strategy.server.x, start)
    assert strategy.server.t == 3


class Deaf(LocalGrid):
    """Clients that never answer, as if the wire were cut: nothing comes back, not even an error."""

    def pull_messages(self, message_ids):
        replies = super().pull_messages(message_ids)
        return [reply for reply in replies if reply.metadata.message_type != "train"]


def test_a_round_waits_no_longer_than_its_timeout():
    nodes = problems()
    strategy = MastStrategy(server(nodes))
    strategy.start(Deaf(client(maker(nodes)), NODES), num_rounds=2, timeout=0.05)
    assert [row.answered for row in strategy.accounts.rows] == [0, 0]


def test_clients_that_never_come_are_not_waited_for():
    class Few(LocalGrid):
        def get_node_ids(self):
            return [i for i, c in self.contexts.items() if c.node_config["partition-id"] in (0, 3)]

    nodes = problems()
    strategy = MastStrategy(server(nodes), gathering=0.05)
    strategy.start(Few(client(maker(nodes)), NODES), num_rounds=2)
    assert [row.answered for row in strategy.accounts.rows] == [2, 2]
    assert [row.invited for row in strategy.accounts.rows] == [NODES, NODES]
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
    assert [row.answered for row in strategy.accounts.rows] == [4, 3, 3, 4, 4]


def test_the_number_of_simulated_nodes_has_to_fit():
    nodes = problems()
    with pytest.raises(ArgumentError, match="num-supernodes=4"):
        MastStrategy(server(nodes)).start(LocalGrid(client(maker(nodes)), 2), num_rounds=1)


def test_a_client_without_partition_says_what_to_do():
    context = Context(1, 5, {}, RecordDict(), {})
    with pytest.raises(ArgumentError, match="--node-config 'partition-id=0"):
        partition_of(context)


def test_a_partition_that_does_not_exist_is_refused():
    roll = RollCall(NODES, 1.0)
    grid = LocalGrid(client(maker(problems())), NODES)
    for context in grid.contexts.values():
        context.node_config["partition-id"] += 1
    with pytest.raises(ArgumentError, match=r"they are 0 \.\. 3"):
        roll.call(grid)


@pytest.mark.parametrize("timeout", [0, -1, float("inf"), None, "soon"])
def test_times_are_finite(timeout):
    nodes = problems()
    grid = LocalGrid(client(maker(nodes)), NODES)
    with pytest.raises(ArgumentError, match="finite number of seconds"):
        MastStrategy(server(nodes)).start(grid, num_rounds=1, timeout=timeout)
    with pytest.raises(ArgumentError, match="finite number of seconds"):
        MastStrategy(server(nodes), gathering=timeout)


def test_one_server_at_a_time_on_a_checkpoint(tmp_path):
    nodes = problems()
    app = client(maker(nodes))

    class Second(LocalGrid):
        def get_node_ids(self):
            with pytest.raises(InUseError):
                MastStrategy(server(nodes), checkpoint=tmp_path / "c.mast").start(
                    LocalGrid(app, NODES), num_rounds=1
                )
            return super().get_node_ids()

    MastStrategy(server(nodes), checkpoint=tmp_path / "c.mast").start(Second(app, NODES), num_rounds=1)


def test_messages_of_others_are_refused():
    with pytest.raises(DataError, match="no message"):
        unpack(RecordDict())
    with pytest.raises(DataError, match="no message"):
        unpack(RecordDict({"mast": ArrayRecord()}))
    wrong = Message(RecordDict(), dst_node_id=1, message_type="train")
    with pytest.raises(DataError, match="no message"):
        unpack(wrong.content)
