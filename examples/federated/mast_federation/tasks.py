"""The two models of this app, and the data of each client: rows client, client + nodes, ... of one set."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord

import mast
from mast.distributed import (
    ProblemWorker,
    Scheme,
    VectorCapacity,
    digest_of_run,
    parse_sketch,
    scheme_of,
)
from mast.federated import Client

CAPACITIES = {
    "linear": ["bernoulli:0.9", "bernoulli:0.5", "permk:2", "permk:4"],
    "network": ["neurons:1.0", "neurons:0.75", "neurons:0.5", "neurons:0.25"],
}
SHARES = ["1.0", "0.75", "0.5", "0.25"]  # of the model, which clients hold by a scheme

Whole = Callable[
    [ArrayRecord, float, int], tuple[ArrayRecord, int]
]  #: the new model, and how many rows it saw


def task_of(config: dict[str, Any]) -> Linear | Network:
    """The task that a run's configuration names."""
    kinds = {"linear": Linear, "network": Network}
    if config["task"] not in kinds:
        raise ValueError(f"task must be one of {sorted(kinds)}, got {config['task']!r}")
    return kinds[config["task"]](config)


class Task:
    """What server and clients both know: capacities, and a digest of what they must have in common."""

    def __init__(self, config: dict[str, Any]) -> None:
        self.nodes = int(config["nodes"])
        name = config.get("scheme", "")
        self.scheme = scheme_of(name) if name else None
        texts = str(config["capacities"]).split() or (SHARES if self.scheme else CAPACITIES[config["task"]])
        self.texts = [texts[i % len(texts)] for i in range(self.nodes)]
        self.run = digest_of_run(config["task"], self.texts, config["seed"], *[name] * bool(name))
        self.seed = int(config["seed"])


class Linear(Task):
    """Logistic regression on a1a; every client has its own sketch of the weights."""

    default_step_size = 0.5

    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__(config)
        self.dim = 123
        if self.scheme is None:
            self.sketches = [parse_sketch(text) for text in self.texts]
        else:
            self.sketches = self.scheme.sketches([float(text) for text in self.texts])
        self.capacities = [VectorCapacity(sketch, self.dim) for sketch in self.sketches]
        self.shapes = {"x": (self.dim,)}

    def start(self, scheme: Scheme | None = None) -> np.ndarray:
        """Where the server starts."""
        return np.zeros(self.dim)

    def problem(self, node: int) -> mast.Problem:
        """The objective and the sketch of a client."""
        A, b = mast.data.load("a1a")
        rows = np.arange(node, len(b), self.nodes)
        return mast.Problem(mast.Logistic(A[rows], b[rows], l2=0.001), self.sketches[node])

    def score(self, x: np.ndarray) -> tuple[float, float]:
        """The accuracy of a whole model, and that of the largest class, which every model has to beat."""
        A, b = mast.data.load("a1a")
        return float(np.mean(np.where(A @ x > 0, 1, -1) == b)), float(max(np.mean(b > 0), np.mean(b < 0)))

    def client(self, node: int) -> Client:
        """A client: its own rows, and the accuracy of a submodel on all of a1a."""
        A, b = mast.data.load("a1a")

        def evaluate(weights: np.ndarray) -> dict[str, float]:
            return {"accuracy": float(np.mean(np.where(A @ weights > 0, 1, -1) == b))}

        return Client(ProblemWorker(self.problem(node), self.run), evaluate)

    def whole(self, node: int) -> Whole:
        """FedAvg's client: gradient steps on the whole model."""
        f = self.problem(node).objective

        def train(arrays: ArrayRecord, step_size: float, steps: int) -> tuple[ArrayRecord, int]:
            x = arrays["x"].numpy()
            for _ in range(steps):
                x = x - step_size * f.gradient(x)
            return ArrayRecord({"x": Array(x)}), f.terms

        return train


class Network(Task):
    """A perceptron on scikit-learn's handwritten digits; clients hold some of its hidden units."""

    default_step_size = 0.1

    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__(config)
        from mast.nn.nodes import VectorLayout, capacities_of, capacity_of

        self.widths = (64, *map(int, str(config["hidden"]).split()), 10)
        self.layout = VectorLayout(self.model())
        self.shapes = self.layout.shapes
        if self.scheme is None:
            self.capacities = [capacity_of(self.model(), text) for text in self.texts]
        else:
            self.capacities = capacities_of(self.model(), self.scheme, [float(text) for text in self.texts])

    def model(self) -> Any:
        """The whole network, the same on every machine."""
        import torch
        from torch import nn

        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)
            layers: list[nn.Module] = []
            for inputs, outputs in zip(self.widths, self.widths[1:], strict=False):
                layers += [nn.Linear(inputs, outputs), nn.ReLU()]
            return nn.Sequential(*layers[:-1])

    def start(self, scheme: Scheme | None = None) -> np.ndarray:
        """Where the server starts; some schemes begin with small weights where few clients hold them."""
        model = self.model()
        if scheme is not None and scheme.scaled_start:
            from mast.nn.nodes import scale_prefixes

            scale_prefixes(model, scheme, [float(text) for text in self.texts])
        return self.layout.read(model)

    def rows(self, node: int | None) -> tuple[Any, Any]:
        """The rows of a client, or those that all keep for tests (every fifth)."""
        import torch
        from sklearn.datasets import load_digits

        images, labels = load_digits(return_X_y=True)
        keep = np.arange(len(labels)) % 5 == 0
        chosen = np.flatnonzero(keep) if node is None else np.flatnonzero(~keep)[node :: self.nodes]
        return torch.tensor(images[chosen] / 16, dtype=torch.float32), torch.tensor(labels[chosen])

    def score(self, x: np.ndarray) -> tuple[float, float]:
        """The accuracy of a whole model on the test rows, and that of the largest class."""
        model, (inputs, labels) = self.model(), self.rows(None)
        self.layout.write(x, model)
        right = model(inputs).argmax(1) == labels
        return float(right.double().mean()), float(labels.bincount().max() / len(labels))

    def client(self, node: int) -> Client:
        """A client: a loss on batches of its own rows, and the accuracy on the test rows."""
        import torch

        from mast.nn.nodes import NetworkWorker, NodeRows, cross_entropy

        torch.set_num_threads(1)
        batches = NodeRows(*self.rows(node), batch_size=64)
        inputs, labels = self.rows(None)

        def evaluate(model: Any) -> dict[str, float]:
            with torch.no_grad():
                return {"accuracy": float((model(inputs).argmax(1) == labels).double().mean())}

        worker = NetworkWorker(self.capacities[node], self.model(), cross_entropy, batches, run=self.run)
        return Client(worker, evaluate)

    def whole(self, node: int) -> Whole:
        """FedAvg's client: gradient steps on the whole model."""
        import torch

        from mast.nn.nodes import NodeRows, cross_entropy
        from mast.randomness import Key

        torch.set_num_threads(1)
        model, batches = self.model(), NodeRows(*self.rows(node), batch_size=64)

        def train(arrays: ArrayRecord, step_size: float, steps: int) -> tuple[ArrayRecord, int]:
            model.load_state_dict(arrays.to_torch_state_dict())
            optimizer = torch.optim.SGD(model.parameters(), lr=step_size)
            for step in range(steps):
                optimizer.zero_grad()
                cross_entropy(model, batches(Key(self.seed, 0, node, step))).backward()
                optimizer.step()
            return ArrayRecord(model.state_dict()), len(batches.targets)

        return train
