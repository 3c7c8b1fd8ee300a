"""Local statistics of BatchNorm outlive the process that a client's last message found."""

# ruff: noqa: E402

import pytest

torch = pytest.importorskip("torch")

from mast.engines.flower import clients as module
from mast.federated import Client, LocalGrid, MastStrategy, client, server_for
from mast.nn.nodes import NetworkWorker, NodeRows, capacities_of, cross_entropy


def network():
    torch.manual_seed(0)
    nn = torch.nn
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2))


@pytest.mark.parametrize("kind", ["units", "single weights"])
def test_clients_that_are_made_anew_keep_their_statistics(kind, monkeypatch):
    inputs, shares = torch.randn(30, 4) + 3, [1, 0.5, 0.5]

    def run(most):
        monkeypatch.setattr(module, "MOST", most)
        units = capacities_of(network(), "heterofl", shares)
        held = units if kind == "units" else ["bernoulli:0.9"] * 3

        def make(context):
            i = context.node_config["partition-id"]
            rows = NodeRows(inputs[i::3], torch.arange(10) % 2)
            worker = NetworkWorker(held[i], network(), cross_entropy, rows, batch_norm="local")
            return Client(worker, lambda m: {"mean": float(m[1].running_mean.abs().sum())})

        options = {"scheme": "heterofl"} if kind == "units" else {}
        server = server_for(network(), shares if kind == "units" else held, step_size=0.1, **options)
        strategy = MastStrategy(server, evaluate_draws=1)
        strategy.start(LocalGrid(client(make), 3), num_rounds=4)
        return [row["mean"] for row in strategy.result().by_capacity()]

    scores = run(16), run(1)
    assert scores[0] == scores[1]
    assert min(scores[0]) > 0


def test_means_over_all_batches_count_all_rounds():
    """With ``momentum=None`` the statistics are plain means over the batches of all rounds."""
    model = network()
    model[1].momentum = None
    inputs = torch.randn(24, 4, generator=torch.Generator().manual_seed(1)) + 3
    rows = NodeRows(inputs, torch.arange(24) % 2, 6)
    (held,) = capacities_of(model, "heterofl", [1])
    worker = NetworkWorker(held, model, cross_entropy, rows, batch_norm="local")
    server = server_for(model, [1], scheme="heterofl", step_size=0.0001)
    seen = []
    handle = torch.nn.modules.module.register_module_forward_pre_hook(
        lambda module, args: (
            seen.append(args[0].mean(dim=0)) if isinstance(module, torch.nn.BatchNorm1d) else None
        )
    )
    try:
        for _ in range(5):
            (message,) = server.messages()
            server.aggregate(worker.answer(message, server.part(0)))
            server.finish_round()
    finally:
        handle.remove()
    assert len(seen) == 5
    torch.testing.assert_close(worker.statistics["1.running_mean"], torch.stack(seen).mean(dim=0))
