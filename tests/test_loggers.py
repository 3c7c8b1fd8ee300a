"""Numbers of a run reach TensorBoard, MLflow, Weights & Biases and functions, step by step."""

import math

import numpy as np
import pytest

import mast
from mast.errors import ArgumentError

PROBLEM = mast.Problem(mast.Quadratic([[2.0, 1.0], [1.0, 2.0]], [3.0, 3.0]), mast.PermK(2))


class Seen(list):
    def __call__(self, step, numbers):
        self.append((step, dict(numbers)))


def test_a_function_gets_each_row_of_the_trace_as_it_is_measured():
    seen = Seen()
    result = mast.minimize(PROBLEM, "dsgd", steps=20, trace=5, log=seen)
    assert [step for step, _ in seen] == [0, 5, 10, 15, 20]
    assert [numbers["f_D"] for _, numbers in seen] == result.trace["f_D"].tolist()
    replayed = Seen()
    result.log(replayed)
    assert replayed == seen


def test_what_is_no_finite_number_is_left_out():
    seen = Seen()
    write = mast.logger(seen)
    write(np.int64(1), {"a": np.float32(2), "b": math.inf, "c": "text", "d": None})
    write(2, {"b": math.nan})
    assert seen == [(1, {"a": 2.0})]


def test_a_target_that_cannot_log_is_refused_before_the_run():
    with pytest.raises(ArgumentError, match="a function of a step and a mapping of numbers, got int"):
        mast.minimize(PROBLEM, "dsgd", steps=1, log=3)


def test_mlflow_and_weights_and_biases_get_what_their_functions_take():
    """Their real forms, as far as it can be said without them: the calls of their documentation."""
    calls = []

    class Mlflow:
        @staticmethod
        def log_metrics(metrics, step=None):
            calls.append((metrics, step))

    class Run:
        def log(self, data, step=None):
            calls.append((data, step))

    mast.logger(Mlflow)(1, {"loss": 0.5})
    mast.logger(Run())(2, {"loss": 0.25})
    assert calls == [({"loss": 0.5}, 1), ({"loss": 0.25}, 2)]


@pytest.mark.filterwarnings("ignore")  # of the other package
def test_mlflow_itself(tmp_path):
    mlflow = pytest.importorskip("mlflow", reason="MLflow is not installed")
    mlflow.set_tracking_uri(f"sqlite:///{tmp_path}/runs.db")
    with mlflow.start_run() as run:
        result = mast.minimize(PROBLEM, "dsgd", steps=8, trace=4, log=mlflow)
    history = mlflow.MlflowClient().get_metric_history(run.info.run_id, "f_D")
    assert [(m.step, m.value) for m in history] == list(zip([0, 4, 8], result.trace["f_D"], strict=True))


@pytest.mark.filterwarnings("ignore")
def test_weights_and_biases_itself(tmp_path):
    wandb = pytest.importorskip("wandb", reason="Weights & Biases is not installed")
    with wandb.init(mode="offline", dir=tmp_path, project="mast") as run:
        result = mast.minimize(PROBLEM, "dsgd", steps=8, trace=4, log=run)
    assert run.summary["f_D"] == result.trace["f_D"].iloc[-1]  # the last step is written when the run ends


def events(folder):
    accumulator = pytest.importorskip(
        "tensorboard.backend.event_processing.event_accumulator", reason="TensorBoard is not installed"
    )
    events = accumulator.EventAccumulator(str(folder))
    events.Reload()
    return {tag: [(e.step, e.value) for e in events.Scalars(tag)] for tag in events.Tags()["scalars"]}


@pytest.fixture
def writer(tmp_path):
    pytest.importorskip("tensorboard", reason="TensorBoard is not installed")
    from torch.utils.tensorboard import SummaryWriter

    with SummaryWriter(tmp_path) as writer:
        yield writer


def test_tensorboard_itself(writer, tmp_path):
    result = mast.minimize(PROBLEM, "dsgd", steps=20, trace=10, log=writer)
    writer.flush()
    steps, values = zip(*events(tmp_path)["f_D"], strict=True)
    assert steps == (0, 10, 20)
    np.testing.assert_allclose(values, result.trace["f_D"], rtol=1e-6)  # events hold float32


def test_a_network_logs_its_numbers_at_its_own_step(writer, tmp_path):
    import torch

    torch.manual_seed(0)
    model = torch.nn.Linear(4, 2)
    sk = mast.nn.sparsify(model, mast.Bernoulli(0.25))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        loss = model(torch.ones(1, 4)).square().sum()
        loss.backward()
        sk.log(writer, loss=loss.item())
        optimizer.step()
    writer.flush()
    seen = events(tmp_path)
    assert [step for step, _ in seen["loss"]] == [0, 1, 2]
    assert {value for _, value in seen["density"]} == {0.25}


def test_a_federation_logs_each_round():
    pytest.importorskip("flwr")
    from mast.federated import LocalGrid, MastStrategy, client
    from mast.methods.distributed import ProblemWorker, Roster, Server, VectorCapacity

    app = client(lambda context: ProblemWorker(mast.Problem(PROBLEM.objective, mast.RandK(1))))
    server = Server(np.zeros(2), [VectorCapacity(mast.RandK(1), 2)] * 3, Roster(0, nodes=3), step_size=0.1)
    seen = Seen()
    strategy = MastStrategy(server, log=seen)
    strategy.start(LocalGrid(app, 3), num_rounds=2)
    assert [step for step, _ in seen] == strategy.result().trace["step"].tolist() == [1, 2]
    assert [numbers["nodes"] for _, numbers in seen] == [3, 3]


def test_a_cluster_logs_each_round(tmp_path):
    from mast.cluster import run

    seen = Seen()
    settings = {
        "run": {"rounds": 3, "out": str(tmp_path / "run"), "progress": False},
        "nodes": {"count": 2, "capacity": "permk:2"},
        "model": {"kind": "logistic", "l2": 0.1},
        "data": {"file": "a1a"},
    }
    result = run(settings, log=seen)
    assert [step for step, _ in seen] == result.trace["step"].tolist() == [1, 2, 3]
    assert all(numbers["bytes"] > 0 for _, numbers in seen)
