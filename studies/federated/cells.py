"""The cells of the study: one scheme on one data set and split, tuned, then judged on other seeds.

Beside the schemes there are models of one size, which FedAvg trains with all clients that can hold them.

The clients are workers of `mast.nn.nodes`, and the server is that of all engines. A run ends when its bytes
are spent; the step size of the clients falls along a cosine of the bytes. A cell's rate is searched for with
two seeds that serve for nothing else, on rows that no client trains on.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any

import numpy as np
import torch
from scipy.stats import gamma
from torch import Tensor, nn

from mast import randomness
from mast.distributed import Participation, Scheme, Server, scheme_of, stride_of
from mast.distributed.schemes import largest_prefix
from mast.experiments.datasets import one_thread
from mast.experiments.experiment import Request
from mast.nn import Neurons, recalibrate
from mast.nn.costs import flops
from mast.nn.nodes import (
    NetworkWorker,
    NodeRows,
    UnitCapacity,
    VectorLayout,
    capacities_of,
    cross_entropy,
    scale_fronts,
)
from mast.randomness import Key, Purpose
from mast.sketches import Nested, Sketch
from mast.support.checks import Array, Indices
from studies.density.data import ClassRows, Labelled
from studies.density.networks import DESIGNS, Chain, Design, network
from studies.density.search import Setting, climb

CAPACITIES = (1.0, 0.5, 0.25, 0.125, 0.0625)
SPLITS = {"iid": None, "dirichlet": 0.3}  # the concentration of each class over clients; None: IID
OURS = ("mast_balanced", "mast_nested", "mast_fixed", "mast_random")
LEFT_OUT = ("mast_fixed", "mast_random")  # on images, to save time: elsewhere they are behind mast_nested
RIVALS = ("fedavg", "heterofl", "fjord", "fedrolex", "federated_dropout")
# Models of one size: all five for the bytes of one scheme, or all these bytes for each of them
SHARED, ALONE = "a model for each size", "a model of this size only"
USES = ("whole", "sizes")  # what a rate is chosen for: the whole model, or the mean over all capacities
CHOOSING = (100, 101)  # seeds that rates are chosen with, and nothing else
MARKS = 4  # how often a run is scored
DRAWS = 5  # submodels per capacity, where they are random
CALIBRATED = 512  # training rows that BatchNorm statistics are taken from
MEGABYTES = {  # of a fast, a normal and a full run
    "digits": (1, 16, 80),
    "digit-images": (2, 20, 100),
    "features": (10, 100, 1000),
    "images": (10, 30, 400),
}
SECONDS = {"digits": 2.5, "digit-images": 25.0, "features": 2.0, "images": 16.0}  # about, per run


def shares(clients: int) -> list[float]:
    """What each client can hold: every capacity equally often."""
    return [CAPACITIES[i % len(CAPACITIES)] for i in range(clients)]


def deal(labels: Indices, clients: int, split: str, key: Key) -> list[Indices]:
    """The rows of each client; each class is dealt by itself, by shares that follow a Dirichlet law.

    >>> rows = deal(np.array([0, 1] * 50), clients=4, split="iid", key=Key(1))
    >>> [len(of_client) for of_client in rows]
    [24, 26, 26, 24]
    """
    dealt: list[list[Indices]] = [[] for _ in range(clients)]
    for number, label in enumerate(np.unique(labels)):
        rows = np.flatnonzero(labels == label)
        rows = rows[randomness.permutation(key.child(number), Purpose.SPLIT, len(rows))]
        ends = np.round(np.cumsum(_portions(clients, SPLITS[split], key.child(number))) * len(rows))
        for own, part in zip(dealt, np.split(rows, ends[:-1].astype(np.int64)), strict=True):
            own.append(part)
    return [np.concatenate(own) for own in dealt]


def _portions(clients: int, concentration: float | None, key: Key) -> Array:
    """The share of each client in one class: equal ones, or a draw of a Dirichlet law."""
    if concentration is None:
        return np.full(clients, 1 / clients)
    drawn = gamma.ppf(randomness.uniforms(key, Purpose.CHOICE, clients), concentration) + 1e-12
    return np.asarray(drawn / drawn.sum())


@dataclass(frozen=True)
class Scored:
    """A run, at each of its marks: bytes, operations of all clients, accuracies by capacity and class."""

    bytes: Array  # (marks,)
    operations: Array
    accuracy: Array  # (marks, capacities, classes)
    labels: Array  # (clients, classes): the share of each class among a client's rows

    def score(self, use: str, test: Array) -> float:
        """The accuracy at the end, on rows with these shares of the classes."""
        by_capacity = self.accuracy[-1] @ test
        return float(by_capacity[0] if use == "whole" else by_capacity.mean())


@one_thread()
def tuned(config: Mapping[str, Any], dataset: Labelled) -> dict[str, Any]:
    """For each use: the rate, all that were tried, and what the judged runs came to.

    A rate that is tried for one use is tried for the other too, so that no small hill hides a higher one.
    With a "size" there is one use: the model of that size.
    """
    run = cache(partial(federated, config, dataset))
    uses = USES[: 1 if "size" in config else None]

    def validated(use: str, setting: Setting) -> float:
        """The mean over seeds, so that a rate at which one of them diverges is not chosen."""
        scored = [run(seed, setting["rate"], "validation") for seed in CHOOSING]
        return float(np.mean([r.score(use, _class_shares(parts.validation)) for r in scored]))

    result: dict[str, Any] = {}
    parts = dataset.parts()
    test = _class_shares(parts.test)
    tried: list[Setting] = [{"rate": config["start"]}]
    for use in uses:
        tried = [setting for setting, _ in climb(partial(validated, use), ["rate"], tried)[1]]
    for use in uses:
        best, scores = climb(partial(validated, use), ["rate"], tried)
        judged = [run(seed, best["rate"], "test") for seed in config["seeds"]]
        result |= {
            f"{use}: rate": best["rate"],
            f"{use}: tried": np.array([[s["rate"], score] for s, score in scores]),
            f"{use}: bytes": np.array([r.bytes for r in judged]),
            f"{use}: operations": np.array([r.operations for r in judged]),
            f"{use}: accuracy": np.array([r.accuracy @ test for r in judged]),
            f"{use}: clients": np.array([_by_client(r) for r in judged]),
        }
    return result


def _by_client(run: Scored) -> Array:
    """The accuracy of each client's submodel on rows with the client's own shares of the classes."""
    held = [CAPACITIES.index(share) for share in shares(len(run.labels))]
    if run.accuracy.shape[1] == 1:  # one model for all
        held = [0 for _ in held]
    return np.array([run.accuracy[-1, c] @ labels for c, labels in zip(held, run.labels, strict=True)])


def federated(config: Mapping[str, Any], dataset: Labelled, seed: int, rate: float, part: str) -> Scored:
    """One federation: train until the bytes are spent, and score on the rows of a part."""
    parts, scheme, clients = dataset.parts(), scheme_of(config["scheme"]), config["clients"]
    size: float | None = config.get("size")  # None: the whole model, of which clients hold parts
    rows = deal(parts.train.y.numpy(), clients, config["split"], Key(seed).child(0, Purpose.SPLIT))
    model = network(_design(dataset.name, size or 1.0), seed)
    own = [1.0 if size is not None and share >= size else share for share in shares(clients)]
    if scheme.scaled_start:
        scale_fronts(model, scheme, own)
    held = dict(zip(scheme.clients(own), capacities_of(model, scheme, own), strict=True))
    mine = [i for i in held if len(rows[i]) > 1]
    train = parts.train
    own_rows = {i: NodeRows(train.x[rows[i]], train.y[rows[i]], config["batch"]) for i in mine}
    workers = [NetworkWorker(held[i], model, cross_entropy, own_rows[i]) for i in mine]
    server = _server(config, scheme, [held[i] for i in mine], VectorLayout(model).read(model), seed, rate)
    scores, spent, operations = [], [], 0
    per_part: dict[int, int] = {}  # operations, by the number of kept values, which tells the sizes
    budget = config["megabytes"] * 1e6
    for mark in range(1, MARKS + 1):
        while (used := _sent(server) / budget) < mark / MARKS and not server.diverged:
            server.local_step_size = rate * max(1e-3, 0.5 * (1 + math.cos(math.pi * min(1.0, used))))
            server.step_size = server.local_step_size
            answers = []
            for message in server.messages():
                node = message.header.node
                part_of = server.part(node)
                if part_of.count not in per_part:
                    per_part[part_of.count] = _operations(config, part_of, message.values, train)
                operations += per_part[part_of.count]
                answers.append(workers[node].answer(message, part_of))
            for answer in answers:
                server.aggregate(answer)
            server.finish_round()
        judged = getattr(parts, part), parts.some(CALIBRATED)
        capacities = CAPACITIES if size is None else (1.0,)
        scores.append(_accuracies(scheme, capacities, workers[0], server.x, *judged))
        spent.append((_sent(server), operations))
    y = train.y.numpy()
    labels = np.array([np.bincount(y[of_one], minlength=10) / max(1, len(of_one)) for of_one in rows])
    bytes_sent, operations_done = np.array(spent, dtype=np.float64).T
    return Scored(bytes_sent, operations_done, np.array(scores), labels)


def _design(name: str, size: float) -> Design:
    """The network of a data set with a share of its hidden units."""
    design = DESIGNS[name]
    assert isinstance(design, Chain)
    return replace(design, widths=tuple(round(size * width) for width in design.widths))


def _server(
    config: Mapping[str, Any], scheme: Scheme, capacities: list[Any], x: Any, seed: int, rate: float
) -> Server:
    take_part = max(1, round(config["participants"] * len(capacities) / config["clients"]))
    participation = Participation(
        seed, len(capacities), stride_of(capacities), scheme.coupling, participants=take_part
    )
    options = {"local_steps": config["local_steps"], "aggregation": scheme.aggregation}
    return Server(x, capacities, participation, step_size=rate, **options)


def _sent(server: Server) -> int:
    return int(server.state.received.sum() + server.state.sent.sum())


def _operations(config: Mapping[str, Any], part: Any, values: Any, rows: ClassRows) -> int:
    """Multiplications and additions of a client that trains a part: forward, and twice as many backward."""
    small = part.draw.module(torch.from_numpy(values.copy()))
    return 3 * flops(small, rows.x[: config["batch"]]) * int(config["local_steps"])


def runs_on(scheme: Scheme, capacity: float) -> Sketch:
    """What a client of this capacity runs in the end: its largest prefix, or a draw of its sketch."""
    if scheme.whole_only:
        return Nested([capacity])
    return largest_prefix(scheme.sketch(capacity, sorted(CAPACITIES)))


def _accuracies(
    scheme: Scheme, capacities: Sequence[float], worker: Any, x: Any, rows: ClassRows, seen: Tensor
) -> Array:
    """(capacities, classes): of the whole model, and of what a client of each other capacity runs."""
    found = []
    for capacity in capacities:
        sketch = runs_on(scheme, capacity)
        held = UnitCapacity(worker.model, Neurons(sketch), like=worker.capacity)
        draws = 1 if capacity == 1 or isinstance(sketch, Nested) else DRAWS
        each = []
        for draw in range(draws):
            part = held.part(Key(CHOOSING[0], draw).child(0, Purpose.ESTIMATE))
            small = part.draw.module(torch.from_numpy(part.gather(x)))
            each.append(_by_class(recalibrate(small, [seen]).eval(), rows))
        found.append(np.mean(each, axis=0))
    return np.array(found)


def _by_class(model: nn.Module, rows: ClassRows) -> Array:
    with torch.no_grad():
        right = (model(rows.x).argmax(1) == rows.y).numpy()
    classes: Indices = rows.y.numpy()
    return np.array([right[classes == c].mean() for c in range(10)])


def _class_shares(rows: ClassRows) -> Array:
    return np.bincount(rows.y.numpy(), minlength=10) / len(rows.y)


def effort(request: Request, name: str) -> dict[str, Any]:
    """The federation: how many clients and rounds, and with which seeds."""
    return {
        "clients": 40,
        "participants": 10,
        "local_steps": 5,
        "batch": 16,
        "start": 0.1,
        "megabytes": request.pick(*MEGABYTES[name]),
        "seeds": request.pick(fast=[4], normal=[4, 5, 6], full=[4, 5, 6]),
    }
