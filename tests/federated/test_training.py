"""Networks on Flower: whole units or single weights on each client, trained by any function."""

import numpy as np
import pytest

pytest.importorskip("flwr", reason="the extra `federated` is not installed")
pytest.importorskip("torch")

import torch
from flwr.app import ConfigRecord
from torch import nn

import mast
from mast.distributed import Participation, Server, run_in_process, stride_of
from mast.engines.flower.training import TrainingWorker
from mast.errors import ArgumentError
from mast.federated import Client, LocalGrid, MastStrategy, client, server_for
from mast.nn.nodes import (
    NetworkWorker,
    NodeRows,
    VectorLayout,
    capacities_of,
    capacity_of,
    cross_entropy,
)
from mast.randomness import Key, normal

CAPACITIES = ["neurons:0.25", "neurons:1.0", "bernoulli:0.5", "permk:4"]
SIZE = 40


def network() -> nn.Module:
    model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 3))
    with torch.no_grad():
        for i, p in enumerate(model.parameters()):
            p.copy_(torch.from_numpy(normal(Key(3, i), 0, p.numel()) / 3).view_as(p))
    return model


def rows(node: int) -> tuple[torch.Tensor, torch.Tensor]:
    inputs = torch.from_numpy(normal(Key(11, node), 0, SIZE * 6)).view(SIZE, 6).float()
    return inputs, (inputs[:, 0] > 0).long() + (inputs[:, 1] > 0.5).long()


def server(capacities, **options) -> Server:
    model = network()
    participation = Participation(5, len(capacities), stride_of(capacities))
    return Server(VectorLayout(model).read(model), capacities, participation, **{"step_size": 0.2} | options)


def sgd(batches):
    """A training function: plain gradient steps of the size that the server names."""

    def train(model, assignment):
        optimizer = torch.optim.SGD(model.parameters(), lr=assignment.step_size)
        for step in range(assignment.local_steps):
            optimizer.zero_grad()
            loss = cross_entropy(model, batches(assignment.key(step)))
            loss.backward()
            optimizer.step()
        return {"loss": loss.item()}

    return train


def workers(kind) -> list:
    found = []
    for node, text in enumerate(CAPACITIES):
        model, batches = network(), NodeRows(*rows(node), batch_size=16)
        capacity = capacity_of(model, text)
        if kind is TrainingWorker:
            found.append(TrainingWorker(capacity, model, sgd(batches)))
        else:
            found.append(NetworkWorker(capacity, model, cross_entropy, batches))
    return found


def start(own, made, **options):
    strategy = MastStrategy(own)
    app = client(lambda context: made[context.node_config["partition-id"]])
    return strategy, strategy.start(LocalGrid(app, len(made)), **options)


def test_the_same_as_in_one_process():
    expected, made = (
        server([w.capacity for w in workers(NetworkWorker)], local_steps=3),
        workers(NetworkWorker),
    )
    run_in_process(expected, made, 5)
    strategy, result = start(server([w.capacity for w in made], local_steps=3), made, num_rounds=5)
    np.testing.assert_array_equal(strategy.server.x, expected.x)
    model = network()
    model.load_state_dict(result.arrays.to_torch_state_dict())
    np.testing.assert_array_equal(VectorLayout(model).read(model), expected.x)


@pytest.mark.parametrize("node", range(len(CAPACITIES)), ids=CAPACITIES)
def test_one_step_of_a_training_function_is_the_gradient(node):
    """S' (y before - y after) / step size = S' grad f(y), up to the rounding of float32 weights."""
    mine, exact = workers(TrainingWorker)[node], workers(NetworkWorker)[node]
    message = list(server([w.capacity for w in workers(TrainingWorker)]).messages())[node]
    one, other = mine.answer(message).values, exact.answer(message).values
    assert np.abs(other).max() > 0.01
    # A weight of size w keeps w * 2^-24 of rounding, which is divided by the step size and scaled by S.
    np.testing.assert_allclose(one, other, rtol=1e-4, atol=4 * 4 * 2**-24 / 0.2)


def test_weights_that_are_not_kept_stay_where_they_are():
    model = network()
    capacity = capacity_of(model, "bernoulli:0.5")
    seen = {}

    def train(own, assignment):
        before = [p.detach().clone() for p in own.parameters()]
        sgd(NodeRows(*rows(0)))(own, assignment)
        seen["moved"] = [
            bool(((p == 0) | (b != 0)).all()) for p, b in zip(own.parameters(), before, strict=True)
        ]
        seen["config"] = dict(assignment.config)

    made = [TrainingWorker(capacity, model, train)]
    config = ConfigRecord({"epochs": 2})
    strategy, _ = start(server([capacity], local_steps=3), made, num_rounds=1, train_config=config)
    assert strategy.rows[0]["nodes"] == 1
    assert seen["moved"] == [True] * 6
    assert seen["config"] == {"epochs": 2}
    assert not any(p._backward_hooks for p in model.parameters())


def test_clients_score_their_submodels():
    made = workers(NetworkWorker)
    modes = []

    def evaluate(model):
        modes.append(model.training)
        return {
            "units": float(model[0].out_features),
            "first": float(model[0].weight.detach()[0, 0]),
        }

    own = server([w.capacity for w in made])
    strategy = MastStrategy(own, evaluate_draws=6)
    app = client(lambda context: Client(made[context.node_config["partition-id"]], evaluate))
    result = strategy.start(LocalGrid(app, len(made)), num_rounds=1)
    assert not any(modes)
    scores = {node: [row["units"] for row in rows] for node, rows in strategy.scores.items()}
    assert [len(rows) for rows in scores.values()] == [6] * 4
    assert scores[1] == scores[2] == scores[3] == [16.0] * 6
    assert scores[0] == [4.0] * 6
    assert len({row["first"] for row in strategy.scores[0]}) > 1  # draws that differ
    assert result.evaluate_metrics_clientapp[1]["units"] == np.mean(
        [v for rows in scores.values() for v in rows]
    )
    assert made[2].model.training  # as it was
    by_capacity = strategy.result().by_capacity()
    assert [row["draws"] for row in by_capacity] == [6] * 4


def test_a_step_size_is_needed():
    model = network()
    capacity = capacity_of(model, "identity")
    message = next(server([capacity]).messages())
    from dataclasses import replace

    worker = TrainingWorker(capacity, model, lambda own, assignment: None)
    message.header = replace(message.header, step_size=0.0)
    with pytest.raises(ArgumentError, match="step size"):
        worker.answer(message)


def test_the_result_is_written_and_drawn(tmp_path):
    made = workers(NetworkWorker)
    strategy, _ = start(server([w.capacity for w in made]), made, num_rounds=3)
    result = strategy.result()
    again = mast.Result.load(result.save(tmp_path))
    assert (again.x == result.x).all()
    assert again.rows == result.rows
    assert again.nodes == result.nodes
    pytest.importorskip("matplotlib").use("agg")
    figure = again.plot().figure
    assert [axes.get_title() for axes in figure.axes][1:] == ["Traffic of a node", "Time of a round"]
    assert again.plot("took").get_ylabel() == "took"


def test_clients_score_what_they_will_run():
    """In training sizes are drawn; in the end every client has the largest prefix that it can hold."""
    shares = [1, 0.5, 0.25]
    model = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 3))
    held = capacities_of(model, "mast_balanced", shares)
    rows = NodeRows(torch.ones(6, 4), torch.arange(6) % 3)

    def make(context):
        worker = NetworkWorker(held[context.node_config["partition-id"]], model, cross_entropy, rows)
        return Client(worker, lambda small: {"units": small[0].out_features})

    strategy = MastStrategy(server_for(model, shares, step_size=0.1), evaluate_draws=3)
    strategy.start(LocalGrid(client(make), 3), num_rounds=1)
    assert strategy.scores == {i: [{"units": n}] * 3 for i, n in enumerate((16.0, 8.0, 4.0))}
