"""Training functions as people write them: epochs of Adam, frozen layers, BatchNorm, models in disorder."""

import json
import logging

import numpy as np
import pytest

pytest.importorskip("flwr", reason="the extra `federated` is not installed")
pytest.importorskip("torch")

import torch
from torch import nn

import mast
from mast.distributed import Participation, Server, VectorCapacity, stride_of
from mast.errors import ArgumentError
from mast.federated import Client, LocalGrid, MastStrategy, TrainingWorker, client, server_for
from mast.randomness import Key, normal

CAPACITIES = ["neurons:0.5", "neurons:1.0", "bernoulli:0.5", "permk:2"]
INPUTS = torch.from_numpy(normal(Key(21), 0, 240 * 6)).view(240, 6).float()
CLASSES = (INPUTS[:, 0] > 0).long() + (INPUTS[:, 1] > 0.5).long()


def network(frozen: bool = False) -> nn.Module:
    model = nn.Sequential(
        nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 3)
    )
    with torch.no_grad():
        for i, p in enumerate(model.parameters()):
            p.copy_(torch.from_numpy(normal(Key(3, i), 0, p.numel()) / 3).view_as(p))
    model[0].weight.requires_grad_(not frozen)
    return model


def epochs_of_adam(model, assignment):
    """Two epochs, then whatever a program leaves behind: evaluation mode, frozen layers, gradients."""
    rows = slice(assignment.node, None, 4)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=0.01)
    for _ in range(2):
        for inputs, classes in zip(INPUTS[rows].split(20), CLASSES[rows].split(20), strict=True):
            assert model.training
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(inputs), classes)
            loss.backward()
            optimizer.step()
    for p in model[3].parameters():
        p.requires_grad_(False)
    model.eval()
    return {"loss": loss.item()}


def run(train, *, frozen=False, rounds=3, evaluate=None, calibrate=None, **options):
    made = [TrainingWorker(text, network(frozen), train) for text in CAPACITIES]
    own = server_for(network(frozen), CAPACITIES, step_size=0.02, local_step_size=0.1, **options)
    strategy = MastStrategy(own, evaluate_draws=2 if evaluate else 0)

    def make(context):
        return Client(made[context.node_config["partition-id"]], evaluate, calibrate)

    return strategy, strategy.start(LocalGrid(client(make), 4), num_rounds=rounds), made


def test_what_a_function_leaves_behind_does_not_matter():
    strategy, _, made = run(epochs_of_adam)
    assert [row["nodes"] for row in strategy.rows] == [4] * 3
    assert all(p.requires_grad for worker in made for p in worker.model.parameters())


def test_two_runs_are_one():
    """Everything random is keyed, also where the client's memory of earlier rounds differs."""
    ends = [run(epochs_of_adam, optimizer="adam")[0].server.x for _ in range(2)]
    np.testing.assert_array_equal(*ends)


def loss_of(model):
    """Of the whole model, with statistics of its own."""
    mast.nn.recalibrate(model, [INPUTS]).eval()
    return nn.functional.cross_entropy(model(INPUTS), CLASSES).item()


def test_it_trains():
    _, result, _ = run(epochs_of_adam, rounds=20, optimizer="adam")
    model = network()
    model.load_state_dict(result.arrays.to_torch_state_dict(), strict=False)  # buffers do not travel
    assert loss_of(model) < 0.8 * loss_of(network())
    assert set(result.train_metrics_clientapp[20]) >= {"loss", "nodes", "down"}


def test_frozen_parameters_do_not_travel():
    seen = []

    def train(model, assignment):
        seen.append(float(model[0].weight.detach().abs().sum()))
        assert not model[0].weight.requires_grad
        return epochs_of_adam(model, assignment)

    strategy, result, _ = run(train, frozen=True)
    assert [row["nodes"] for row in strategy.rows] == [4] * 3
    assert "0.weight" not in result.arrays
    assert strategy.server.x.size == sum(p.numel() for p in network().parameters()) - 96
    whole = float(network()[0].weight.detach().abs().sum())
    assert {round(s, 4) for i, s in enumerate(seen) if i % 4} == {
        round(whole, 4)
    }  # the client's own, unscaled


def score(model):
    with torch.no_grad():
        model(INPUTS)
    return {"mean": float(model[1].running_mean.abs().sum()), "units": model[1].num_features}


def test_statistics_of_batchnorm_are_taken_anew_for_each_submodel():
    strategy, _, _ = run(epochs_of_adam, evaluate=score, calibrate=[INPUTS])
    assert all(row["mean"] > 0.1 for rows in strategy.scores.values() for row in rows)
    assert [rows[0]["units"] for rows in strategy.scores.values()] == [8, 16, 16, 16]


def test_stale_statistics_are_said(monkeypatch):
    said = []
    monkeypatch.setattr(logging.getLogger("flwr"), "handle", lambda record: said.append(record.getMessage()))
    run(epochs_of_adam, evaluate=score, rounds=1)
    assert any("calibrate=batches" in text for text in said)


def test_a_server_in_a_few_words_is_the_same_server():
    texts = ["bernoulli:0.9", mast.PermK(2), VectorCapacity(mast.RandK(3), 10)]
    made = server_for(np.zeros(10), texts, step_size=0.1, seed=3, participation=0.5, optimizer="adam")
    capacities = [VectorCapacity(s, 10) for s in (mast.Bernoulli(0.9), mast.PermK(2), mast.RandK(3))]
    participation = Participation(3, 3, stride_of(capacities), participation=0.5)
    expected = Server(np.zeros(10), capacities, participation, step_size=0.1, optimizer="adam")
    assert made.identity() == expected.identity()
    with pytest.raises(ArgumentError, match="whole units"):
        server_for(np.zeros(10), ["neurons:0.5"], step_size=0.1)


@pytest.mark.parametrize("other", [{"aggregation": "unbiased"}, {"coupling": "disjoint"}])
def test_a_scheme_decides_how_to_sum(other):
    assert server_for(np.zeros(8), [1, 0.5], scheme="fjord", step_size=0.1, aggregation="mean").t == 0
    assumed = server_for(np.zeros(8), [1, 0.5, np.float64(0.25)], step_size=0.1)
    named = server_for(np.zeros(8), [1, 0.5, 0.25], scheme="mast_balanced", step_size=0.1)
    assert [own.label for own in assumed.capacities] == [own.label for own in named.capacities]
    with pytest.raises(ArgumentError, match="aggregation"):
        server_for(np.zeros(8), [1, 0.5], scheme="fjord", step_size=0.1, aggregation="independent")
    with pytest.raises(ArgumentError, match="all shares"):
        server_for(np.zeros(8), [1, "bernoulli:0.5"], step_size=0.1)
    with pytest.raises(mast.MastError, match="the scheme 'fjord' has the"):
        server_for(np.zeros(8), [1, 0.5], scheme="fjord", step_size=0.1, **other)


def test_a_loss_that_is_no_number_leaves_a_readable_report(tmp_path):
    strategy, _, _ = run(lambda model, assignment: {"loss": float("nan")}, rounds=1)
    strategy.result().save(str(tmp_path))

    def refused(text):
        raise AssertionError(f"{text} is no JSON")

    [row] = (tmp_path / "trace.jsonl").read_text().splitlines()
    assert json.loads(row, parse_constant=refused)["loss"] is None
    nodes = json.loads((tmp_path / "result.json").read_text(), parse_constant=refused)["nodes"]
    assert 0 < nodes[0]["keeps"] < nodes[1]["keeps"] == 1
