"""Many clients of which few take part: memory and checkpoints follow those who do."""

import copy
from itertools import pairwise

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from mast.distributed import Participation, Server, run_in_process, scheme_of, stride_of  # noqa: E402
from mast.nn.nodes import NetworkWorker, NodeRows, VectorLayout, capacities_of, cross_entropy  # noqa: E402
from mast.randomness import Key, normal  # noqa: E402

SHARES = (1.0, 0.5, 0.25, 0.125, 0.0625)


def federation(clients, taking_part, widths, scheme="mast_nested"):
    """A server and the workers of all clients, who share one model to work in."""
    torch.manual_seed(0)
    layers = [nn.Linear(a, b) for a, b in pairwise(widths)]
    model = nn.Sequential(*(part for layer in layers for part in (layer, nn.ReLU())))[:-1]
    shares, made = [SHARES[i % 5] for i in range(clients)], scheme_of(scheme)
    capacities = capacities_of(model, made, shares)
    inputs = torch.from_numpy(normal(Key(1), 0, 100 * widths[0]).reshape(100, -1)).float()
    rows = [NodeRows(inputs[i::50], torch.arange(100)[i::50] % 10) for i in range(50)]
    workers = [NetworkWorker(c, model, cross_entropy, rows[i % 50]) for i, c in enumerate(capacities)]
    participation = Participation(0, clients, stride_of(capacities), made.coupling, participants=taking_part)
    x = VectorLayout(copy.deepcopy(model)).read(model)
    server = Server(x, capacities, participation, step_size=0.05, local_steps=2, aggregation=made.aggregation)
    return server, workers


def should_continue(server, workers, rounds, path):
    """After a tenth of the rounds the checkpoint is as large as after all; nobody else worked."""
    start = server.x.copy()
    sizes = []
    for end in (rounds // 10, rounds):
        run_in_process(server, workers, end)
        server.save(path)
        sizes.append(path.stat().st_size)
    assert server.t == rounds
    assert abs(sizes[1] - sizes[0]) <= 0.01 * sizes[0] + 1000
    assert int(server.state.answered.sum()) == rounds * server.participation.participants
    assert np.isfinite(server.x).all()
    assert (server.x != start).mean() > 0.5


@pytest.mark.parametrize("scheme", ["mast_nested", "fedrolex"])
def test_a_thousand_clients(tmp_path, scheme):
    server, workers = federation(1000, 10, (20, 40, 10), scheme)
    should_continue(server, workers, 20, tmp_path / "checkpoint.mast")


@pytest.mark.slow
def test_ten_thousand_clients_and_a_million_weights(tmp_path):
    server, workers = federation(10_000, 100, (500, 1000, 480, 10))
    assert server.x.size > 980_000
    should_continue(server, workers, 50, tmp_path / "checkpoint.mast")
