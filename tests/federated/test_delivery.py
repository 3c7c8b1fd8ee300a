"""Answers that are none: damaged, foreign, doubled, not numbers. The round goes on with the others."""

import io

import numpy as np
import pytest

pytest.importorskip("flwr", reason="the extra `federated` is not installed")

from flwr.app import Array, ArrayRecord, MetricRecord

from federated.samples import NODES, ROUNDS, maker, problems, server, without
from mast.engines.flower.records import pack_messages, unpack_messages
from mast.federated import LocalGrid, MastStrategy, client


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
    [answer] = unpack_messages(reply.content)
    reply.content["mast"] = pack_messages(answer, answer)["mast"]


def claimed(reply, data):
    """Bytes that say of themselves that they are a vector of bytes."""
    lie = Array(dtype="uint8", shape=(80,), stype="numpy.ndarray", data=data)
    reply.content["mast"] = ArrayRecord({"0": lie})


def floats_that_claim_to_be_bytes(reply, grid):
    file = io.BytesIO()
    np.save(file, np.zeros(80))
    claimed(reply, file.getvalue())


def larger_than_any_memory(reply, grid):
    file = io.BytesIO()
    head = {"descr": "|u1", "fortran_order": False, "shape": (10**15,)}
    np.lib.format.write_array_header_1_0(file, head)
    claimed(reply, file.getvalue())


def half_a_zip_file(reply, grid):
    file = io.BytesIO()
    np.savez(file, x=np.zeros(3))
    claimed(reply, file.getvalue()[:50])


def beyond_measure(reply, grid):
    raw = reply.content["mast"]["0"].numpy()
    raw[64:72].view(np.float64)[...] = 1e200
    replaced(reply, raw)


SPOILED = [
    cut, not_a_number, beyond_measure, of_another_round, of_another_run, in_anothers_name, no_records, text,
    numbers, twice, floats_that_claim_to_be_bytes, larger_than_any_memory, half_a_zip_file,
]  # fmt: skip


@pytest.mark.parametrize("spoil", SPOILED, ids=lambda f: f.__name__)
def test_a_wrong_answer_counts_as_none(spoil):
    strategy, expected = spoiled(2, spoil), without(2)
    np.testing.assert_array_equal(strategy.server.x, expected.server.x)
    assert [row["nodes"] for row in strategy.rows] == [NODES - 1] * ROUNDS
    assert strategy.server.state.answered.tolist() == [ROUNDS, ROUNDS, 0, ROUNDS]


def test_numbers_beside_the_answer_may_be_anything():
    """An hour that never ends, a loss that is no number: the answer itself counts."""

    def strange(reply, grid):
        raw = reply.content["mast"]["0"].numpy()
        raw[48:56].view(np.float64)[...] = np.inf  # the seconds that it worked
        replaced(reply, raw)
        reply.content["metrics"] = MetricRecord({"loss": float("nan"), "rows": [1, 2]})

    strategy, straight = spoiled(2, strange), MastStrategy(server(problems()))
    straight.start(LocalGrid(client(maker(problems())), NODES), num_rounds=ROUNDS)
    np.testing.assert_array_equal(strategy.server.x, straight.server.x)
    assert all(row["compute"] < 60 for row in strategy.rows)


def test_a_second_answer_and_one_of_a_guest_count_as_none():
    """As if the wire doubled every reply, and somebody answered who was not invited in this round."""
    nodes = problems()
    grid = LocalGrid(client(maker(nodes)), NODES)
    participation = {"participants": 2}
    strategy, straight = (
        MastStrategy(server(nodes, participation)),
        MastStrategy(server(nodes, participation)),
    )
    straight.start(grid, num_rounds=ROUNDS)
    for t in range(ROUNDS):
        messages = strategy.configure_train(t + 1, ArrayRecord(), {}, grid)
        invited = {unpack_messages(message.content)[0].header.node for message in messages}
        guest = min(set(range(NODES)) - invited)
        extra = strategy._addressed(pack_messages(strategy.server.message(guest)), guest, "train")
        replies = grid.send_and_receive([*messages, extra])
        strategy.aggregate_train(t + 1, [reply for reply in replies for _ in range(2)])
    np.testing.assert_array_equal(strategy.server.x, straight.server.x)
    assert strategy.server.state.answered.tolist() == straight.server.state.answered.tolist()
    assert strategy.server.state.sent.tolist() == straight.server.state.sent.tolist()


def test_a_round_of_nothing_but_nan_is_one_without_answers(tmp_path):
    """Whatever clients reply, x decides whether a run has diverged, and a later run goes on."""

    class Broken(LocalGrid):
        def _answer(self, message):
            reply = super()._answer(message)
            if message.metadata.message_type == "train":
                not_a_number(reply, self)
            return reply

    strategy = MastStrategy(server(problems()), checkpoint=tmp_path / "run.mast")
    strategy.start(Broken(client(maker(problems())), NODES), num_rounds=ROUNDS)
    assert strategy.server.t == ROUNDS
    assert not strategy.server.diverged
    np.testing.assert_array_equal(strategy.server.x, problems()[0].shift)
    again = MastStrategy(server(problems()), checkpoint=tmp_path / "run.mast")
    again.start(LocalGrid(client(maker(problems())), NODES), num_rounds=2 * ROUNDS)
    assert (again.server.x != strategy.server.x).all()
