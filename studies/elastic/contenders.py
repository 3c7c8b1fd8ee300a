"""Who is compared: cuts without training, each size alone, slimmable networks, DynaBERT's way, and `elastic`.

All cut the same units of the same sorted network, and all are trained by `train`: the same optimizer,
schedule and batches.
"""

from __future__ import annotations

import copy
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import mast
from mast.nn.sorting import sort_by_scores
from studies.elastic.rows import Loaded, Rows, logits
from studies.elastic.tasks import Block

SIZES = (0.25, 0.5, 0.75, 1.0)
SORTED_BY = 256  # training rows that decide the order of units
CALIBRATED_BY = 1024  # training rows for the statistics of BatchNorm
TEMPERATURE = 4.0  # of softened logits
EVEN, SMALLER = (0.25, 0.25, 0.25, 0.25), (0.4, 0.3, 0.2, 0.1)
SMALL_FIRST = ((0.6, 0.25, 0.1, 0.05), (0.05, 0.1, 0.25, 0.6))
WEIGHTS = {  # how often each size is drawn, by setting: at the first and at the last step, linear in between
    "even": (EVEN, EVEN),
    "even, labels": (EVEN, EVEN),
    "own rates": (SMALLER, SMALLER),  # each size has a learning rate of its own, as it has alone
    "own rates, labels": (SMALLER, SMALLER),
    "small first": SMALL_FIRST,  # own rates, which all end as that of the largest size
    "small first, labels": SMALL_FIRST,
    "even, softened": (EVEN, EVEN),  # the teacher's logits at a higher temperature
    "own rates, softened": (SMALLER, SMALLER),
    "small first, softened": SMALL_FIRST,
}
SCORES = ("activation", "output", "taylor")
CUTS = (*SCORES, "magnitude", "torch-pruning")


def draws(setting: str, sizes: Sequence[float] = SIZES) -> Any:
    """How often each of the smallest sizes is drawn, where there are no others: a row each for both ends."""
    weights = np.array(WEIGHTS[setting])[:, : len(sizes)]
    return weights / weights.sum(axis=1, keepdims=True)


def labelled(output: Tensor, batch: Rows) -> Tensor:
    """Cross-entropy with the labels."""
    return F.cross_entropy(output.flatten(0, -2), batch.labels.flatten())


def towards(output: Tensor, target: Tensor, temperature: float = 1.0) -> Tensor:
    """Kullback-Leibler divergence from the target's distribution, per label."""
    given, own = ((t.float() / temperature).log_softmax(-1) for t in (target, output))
    divergence = F.kl_div(own, given, log_target=True, reduction="sum") * temperature**2
    return divergence / (output.numel() / output.shape[-1])


def distilled(output: Tensor, batch: Rows) -> Tensor:
    """The given network teaches."""
    return towards(output, batch.taught)


def softened(output: Tensor, batch: Rows) -> Tensor:
    """The same at a higher temperature: a network that is sure of its training rows says more by that."""
    return towards(output, batch.taught, TEMPERATURE)


LOSSES: dict[str, Callable[[Tensor, Rows], Tensor]] = {
    "labels": labelled,
    "distilled": distilled,
    "softened": softened,
}


def loss_of(setting: str) -> Callable[[Tensor, Rows], Tensor]:
    """The last word of a setting; the given network teaches where none is named."""
    return LOSSES.get(setting.rpartition(", ")[2], distilled)


def elastic(loaded: Loaded, seed: int, score: str = "activation", **options: Any) -> tuple[nn.Module, Any]:
    """A copy of the given network, made elastic."""
    model = copy.deepcopy(loaded.model)
    rows = list(loaded.train.batches(32, SORTED_BY // 32, 1000 + seed))
    batches = [(b.call, b.labels) for b in rows]
    loss = (
        (lambda output, y: F.cross_entropy(output.flatten(0, -2), y.flatten())) if score == "taylor" else None
    )
    options = {"loss": loss, "score": score, "example": rows[0][:4].call, "seed": seed} | options
    return model, mast.nn.elastic(model, SIZES, batches, **options)


# ---- what is trained -----------------------------------------------------------------------------


class Contender(ABC):
    """Something that is trained: its parameters, one step's gradients, and the networks that come out."""

    model: nn.Module
    size = 1.0  # the largest one that is trained

    #: of Adam's running mean of gradients
    momentum = 0.9

    @abstractmethod
    def backward(self, batch: Rows, progress: float) -> float:
        """Gradients of one step; returns the size whose learning rate it takes."""

    def rate(self, rates: dict[float, float], size: float, progress: float) -> float:
        """The learning rate of a size, after a share of the steps."""
        return rates[size]

    @abstractmethod
    def networks(self) -> dict[float, nn.Module]:
        """Plain networks by size."""


class Alone(Contender):
    """One size, cut from the sorted network, as a plain small network."""

    def __init__(self, sk: Any, setting: str, size: float) -> None:
        self.size, self.loss = size, loss_of(setting)
        self.model = sk.submodel(member=SIZES.index(size), calibrate=False).train()

    def backward(self, batch: Rows, progress: float) -> float:
        """The plain loop."""
        self.loss(logits(self.model, batch), batch).backward()
        return self.size

    def networks(self) -> dict[float, nn.Module]:
        """The one."""
        return {self.size: self.model}


class Ours(Contender):
    """The plain loop of an elastic network: each step draws a size; the given network teaches, or labels.

    With rates of their own, a step has the learning rate of its size, and Adam no momentum: what the largest
    size has gathered would move its own units on with the rate of a small one. Small first: small sizes are
    drawn often at the beginning, large ones at the end, when all rates have become that of the largest size.
    """

    sizes = SIZES

    def __init__(self, loaded: Loaded, seed: int, setting: str) -> None:
        self.model, self.sk = elastic(loaded, seed)
        self.loss = loss_of(setting)
        self.small_first = "small first" in setting
        self.momentum = 0.0 if "own rates" in setting or self.small_first else 0.9
        self.weights, self.random = draws(setting, self.sizes), np.random.default_rng(seed)
        self.model.train()

    def backward(self, batch: Rows, progress: float) -> float:
        """Draw a size, and train it."""
        first, last = (np.array(w) for w in self.weights)
        i = int(self.random.choice(len(self.sizes), p=(1 - progress) * first + progress * last))
        with self.sk.member(i):
            self.loss(logits(self.model, batch), batch).backward()
        return self.sizes[i]

    def rate(self, rates: dict[float, float], size: float, progress: float) -> float:
        """Small first: from the rate of the size to that of the largest."""
        progress = progress if self.small_first else 0.0
        return rates[size] ** (1 - progress) * rates[self.size] ** progress

    def networks(self) -> dict[float, nn.Module]:
        """All sizes."""
        return {size: self.sk.submodel(member=i, calibrate=False) for i, size in enumerate(self.sizes)}


class Smaller(Ours):
    """The same without the largest size, which stays the given network: the others have all the steps."""

    sizes = SIZES[:-1]
    size = sizes[-1]


class Prefixes(Contender):
    """Several sizes per step, written by hand: small networks whose weights are prefixes of the large one's.

    It does not use the passes of the library, only its small networks. Each has its own BatchNorm
    statistics, as in slimmable networks.
    """

    def __init__(self, loaded: Loaded, seed: int, setting: str) -> None:
        self.model, sk = elastic(loaded, seed)
        self.loss, self.temperature = loss_of(setting), TEMPERATURE if setting == "softened" else 1.0
        self.small = [sk.submodel(member=i, calibrate=False).train() for i in range(len(SIZES))]
        sk.remove()
        self.random = np.random.default_rng(seed)
        for small in self.small:
            for name, view in self._views(small).items():
                assert torch.equal(view, small.get_parameter(name)), f"{name} is no prefix"

    def _views(self, small: nn.Module) -> dict[str, Tensor]:
        whole = dict(self.model.named_parameters())
        return {name: whole[name][tuple(slice(n) for n in p.shape)] for name, p in small.named_parameters()}

    def output(self, i: int, batch: Rows) -> Tensor:
        """The logits of one size."""
        small, call = self.small[i], batch.call
        arguments = ((), call) if isinstance(call, dict) else ((call,), {})
        output = torch.func.functional_call(small, self._views(small), *arguments)
        return output if isinstance(output, Tensor) else output.logits

    def networks(self) -> dict[float, nn.Module]:
        """All sizes."""
        for small in self.small:
            small.load_state_dict(self._views(small), strict=False)
        return dict(zip(SIZES, self.small, strict=True))


class Slimmable(Prefixes):
    """Sandwich rule, in-place distillation: the largest learns labels, teaches the smallest and one more."""

    def backward(self, batch: Rows, progress: float) -> float:
        """Largest, smallest, and one of the others."""
        largest = self.output(3, batch)
        labelled(largest, batch).backward()
        for i in (0, int(self.random.integers(1, 3))):
            towards(self.output(i, batch), largest.detach(), self.temperature).backward()
        return self.size


class DynaBERT(Prefixes):
    """The width stage of DynaBERT: all sizes at each step, taught by the given network (by its logits)."""

    def backward(self, batch: Rows, progress: float) -> float:
        """All sizes."""
        for i in range(len(SIZES)):
            self.loss(self.output(i, batch), batch).backward()
        return self.size


def begin(name: str, loaded: Loaded, seed: int, setting: str) -> list[Contender]:
    """What has to be trained for all sizes."""
    if name == "alone":
        _, sk = elastic(loaded, seed)
        return [Alone(sk, setting, size) for size in SIZES]
    kinds = {"ours": Ours, "smaller": Smaller, "slimmable": Slimmable, "dynabert": DynaBERT}
    return [kinds[name](loaded, seed, setting)]


class Training:
    """AdamW with clipped gradients; rates rise for a tenth of the steps, then fall linearly."""

    def __init__(self, contender: Contender, rates: dict[float, float], steps: int) -> None:
        self.contender, self.rates, self.steps, self.taken = contender, rates, steps, 0
        self.parameters = [p for p in contender.model.parameters() if p.requires_grad]
        betas = (contender.momentum, 0.999)
        self.optimizer = torch.optim.AdamW(self.parameters, betas=betas, weight_decay=0.0)

    def step(self, batch: Rows) -> float:
        """One step; its CPU seconds."""
        begun = time.process_time()
        progress = self.taken / self.steps
        size = self.contender.backward(batch, progress)
        nn.utils.clip_grad_norm_(self.parameters, 1.0)
        rate = self.contender.rate(self.rates, size, progress)
        self.optimizer.param_groups[0]["lr"] = rate * self._schedule()
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.taken += 1
        return time.process_time() - begun

    def _schedule(self) -> float:
        rise = max(1, round(0.1 * self.steps))
        return min((self.taken + 1) / rise, max(0.0, (self.steps - self.taken) / (self.steps - rise + 1)))


def train(contender: Contender, loaded: Loaded, seed: int, rates: dict[float, float], steps: int) -> float:
    """Train epoch after epoch, and return the CPU seconds of the steps."""
    training = Training(contender, rates, steps)
    return sum(training.step(batch) for batch in loaded.train.batches(loaded.task.batch, steps, seed))


# ---- what comes out ------------------------------------------------------------------------------


def evaluate(model: nn.Module, loaded: Loaded, rows: Rows, calibrate: bool = True) -> dict[str, float]:
    """Accuracy, and the mean loss, whose exponential is the perplexity; BatchNorm is calibrated before."""
    if calibrate:
        size = min(128, len(loaded.train))
        batches = (b.call for b in loaded.train.batches(size, CALIBRATED_BY // 128, 77))
        mast.nn.recalibrate(model, batches)
    right, loss, count = 0, 0.0, 0
    model.eval()
    with torch.no_grad():
        for batch in rows.in_order(64):
            output = logits(model, batch)
            right += int((output.argmax(-1) == batch.labels).sum())
            loss += float(labelled(output, batch)) * batch.labels.numel()
            count += batch.labels.numel()
    return {
        "parameters": sum(p.numel() for p in model.parameters()),
        "accuracy": right / count,
        "loss": loss / count,
    }


# ---- cuts without training -----------------------------------------------------------------------


def cuts(loaded: Loaded, how: str, seed: int, sizes: Iterable[float] = SIZES[:3]) -> dict[float, nn.Module]:
    """The sizes after a cut, untrained; the largest is the given network."""
    if how == "torch-pruning":
        return {size: torch_pruning(loaded, size) for size in sizes}
    if how in SCORES:
        _, sk = elastic(loaded, seed, score=how)
    else:
        model, sk = elastic(loaded, seed, sort=False)
        scores = _random(sk.unit_map.groups, seed) if how == "random" else norms(model, sk)
        sort_by_scores(model, sk.unit_map, scores)
    return {size: sk.submodel(member=SIZES.index(size), calibrate=False) for size in sizes}


def _random(groups: Sequence[Any], seed: int) -> dict[str, Any]:
    random = np.random.default_rng(seed)
    return {group.name: random.random(group.units) for group in groups}


def norms(model: nn.Module, sk: Any) -> dict[str, Any]:
    """The squared norm of all weights of a unit."""
    weights, found = dict(model.named_parameters()), {}
    for group in sk.unit_map.groups:
        total = torch.zeros(group.units)
        for a in group.slices:
            if a.tensor in weights:
                own = weights[a.tensor].detach().movedim(a.dim, 0)
                squares = own.reshape(len(own), -1).square().sum(1)
                total += squares[a.offset : a.offset + group.units * a.run].view(group.units, a.run).sum(1)
        found[group.name] = total.numpy()
    return found


def torch_pruning(loaded: Loaded, size: float) -> nn.Module:
    """Torch-Pruning's choice (group norms) of the channels inside blocks: of ResNets, whose stream stays."""
    import torch_pruning as tp

    model = copy.deepcopy(loaded.model)
    inner = {m.conv1 for m in model.modules() if isinstance(m, Block)}
    layers = {m for m in model.modules() if isinstance(m, nn.Conv2d | nn.Linear)}
    pruner = tp.pruner.MagnitudePruner(
        model,
        loaded.train[:2].call,
        importance=tp.importance.GroupMagnitudeImportance(),
        pruning_ratio=1 - size,
        ignored_layers=list(layers - inner),
    )
    pruner.step()
    return model
