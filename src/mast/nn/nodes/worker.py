"""A node with a network: data, a loss, and local steps on the part of the model that it holds. Needs torch.

Randomness of the node is keyed as everything else: the batch of a local step by (seed, round, node, local
step), and so is torch's own generator during it, which layers such as Dropout use.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from mast import randomness
from mast.errors import ArgumentError
from mast.methods.distributed.messages import Header, Values
from mast.methods.distributed.nodes import Capacity, Worker, local_sum
from mast.nn.nodes.capacities import Units, UnitsPart, Weights, WeightsPart
from mast.nn.nodes.layout import Layout
from mast.nn.structure.sketches import Structured, parse
from mast.randomness import Key, Purpose
from mast.sketches import Sketch

Loss = Callable[[nn.Module, Any], Tensor]  #: of a model and a batch
Batches = Callable[[Key], Any]  #: the batch that a key names


class Rows:
    """Batches of a node's own rows: `batch_size` of them without replacement, or all.

    >>> batches = Rows(torch.arange(10.0), torch.arange(10), batch_size=3)
    >>> inputs, targets = batches(Key(seed=1, step=4, node=2, index=0))
    >>> inputs.tolist() == targets.tolist(), len(targets)
    (True, 3)
    """

    def __init__(self, inputs: Tensor, targets: Tensor, batch_size: int | None = None) -> None:
        if len(inputs) != len(targets) or not len(inputs):
            raise ArgumentError(f"a node has {len(inputs)} inputs and {len(targets)} targets")
        if batch_size is not None and batch_size < 1:
            raise ArgumentError(f"batch_size must be at least 1, got {batch_size}")
        self.inputs, self.targets = inputs, targets
        self.batch_size = None if batch_size is None or batch_size >= len(inputs) else batch_size

    def __call__(self, key: Key) -> tuple[Tensor, Tensor]:
        """The batch of a key."""
        if self.batch_size is None:
            return self.inputs, self.targets
        rows = randomness.permutation(key, Purpose.BATCH, len(self.inputs), 0, self.batch_size)
        chosen = torch.from_numpy(rows)
        return self.inputs[chosen], self.targets[chosen]


class NetworkWorker(Worker):
    """A node whose objective is a loss of a network on its own batches.

    Parameters
    ----------
    capacity
        What the node can hold: ``neurons:0.25``, ``bernoulli:0.5``, or what `capacity_of` makes.
    model
        The architecture. Its trainable parameters are overwritten by what the node is sent; for whole
        units (`neurons:...`) they are not used at all, and it may be on the meta device.
    loss
        ``loss(model, batch)``, a scalar tensor: `cross_entropy`, `mean_squares`, or your own.
    batches
        ``batches(key)``: a batch for each local step, such as `Rows`.
    shift
        v, a vector, if the sketches shrink towards a pretrained model.
    """

    def __init__(
        self,
        capacity: Capacity | Sketch | str,
        model: nn.Module,
        loss: Loss,
        batches: Batches,
        *,
        shift: Values | None = None,
        run: int = 0,
    ) -> None:
        if not isinstance(capacity, Capacity):
            capacity = capacity_of(model, capacity)
        super().__init__(capacity, run)
        self.model, self.loss, self.batches = model, loss, batches
        self.held: Held
        if isinstance(capacity, Weights):
            self.held = WholeModel(model, capacity.layout, shift)
        elif isinstance(capacity, Units):
            if shift is not None:
                raise ArgumentError(
                    "with a shift, a dropped unit would have the shift's weights and not be gone: whole "
                    "units (neurons, layers) take no shift, single weights (bernoulli, randk, permk) do"
                )
            self.held = SmallModel(model, capacity.layout)
        else:
            raise ArgumentError(f"a network has no nodes with the capacity {capacity.label}")

    def gradients(self, part: Any, values: Values, header: Header) -> Values:
        """Local steps of x <- x - g S'grad f(v + S(x - v)) on the kept values; their sum."""
        memory = np.empty_like(values)

        def gradient(held: Values, step: int) -> Values:
            key = Key(header.key.seed, header.round, header.node, step)
            module = self.held.module(part, held)
            with torch_seeded(key):
                self.loss(module, self.batches(key)).backward()  # type: ignore[no-untyped-call]
            self.held.collect(part, module, memory)
            return memory

        total: Values = local_sum(values, gradient, header.step_size, header.local_steps)
        return total

    def submodel(self, part: Any, values: Values) -> nn.Module:
        """The model that the node would train, in training mode."""
        return self.held.module(part, values.copy())


class Held(ABC):
    """How a node holds the part of the model that it was sent."""

    @abstractmethod
    def module(self, part: Any, values: Values) -> nn.Module:
        """A model in training mode with the weights v + S(x - v), its gradients cleared."""

    @abstractmethod
    def collect(self, part: Any, module: nn.Module, out: Values) -> None:
        """S' times the module's gradients."""


class WholeModel(Held):
    """All of the model, with zeros (or the shift) where the draw keeps nothing."""

    def __init__(self, model: nn.Module, layout: Layout, shift: Values | None) -> None:
        self.model, self.shift = model, shift
        self.parameters: Mapping[str, nn.Parameter] = layout._own(model)
        model.train()

    def module(self, part: WeightsPart, values: Values) -> nn.Module:
        """The node's model, filled."""
        part.fill(self.parameters, values, self.shift)
        self.model.zero_grad(set_to_none=True)
        return self.model.train()  # whatever was done with it between two messages

    def collect(self, part: WeightsPart, module: nn.Module, out: Values) -> None:
        """From the parameters' gradients."""
        part.collect(self.parameters, out)


class SmallModel(Held):
    """A model with the kept units only: memory and time are those of what is kept."""

    def __init__(self, model: nn.Module, layout: Layout) -> None:
        self.frozen = {name: p.detach() for name, p in model.named_parameters() if name not in layout.slices}

    def module(self, part: UnitsPart, values: Values) -> nn.Module:
        """Made anew for the draw."""
        return part.module(values, self.frozen)

    def collect(self, part: UnitsPart, module: nn.Module, out: Values) -> None:
        """From the small model's gradients."""
        part.collect(module, out)


def capacity_of(model: nn.Module, text: Any, **options: Any) -> Capacity:
    """The capacity that a text or a sketch names, for a model: ``bernoulli:0.9``, ``neurons:0.25``.

    Options are those of `mast.nn.sparsify`: `where` and `keep`.

    >>> model = nn.Sequential(nn.Linear(10, 8), nn.ReLU(), nn.Linear(8, 2))
    >>> [capacity_of(model, text).part(Key(0)).count for text in ("neurons:.25", "identity")]
    [28, 106]
    """
    sketch = parse(text) if isinstance(text, str) else text
    if isinstance(sketch, Structured):
        return Units(model, sketch, **options)
    return Weights(model, sketch, **options)


def cross_entropy(model: nn.Module, batch: Any) -> Tensor:
    """The mean cross entropy of a batch (inputs, classes)."""
    inputs, targets = batch
    return functional.cross_entropy(model(inputs), targets)


def mean_squares(model: nn.Module, batch: Any) -> Tensor:
    """The mean squared error of a batch (inputs, targets)."""
    inputs, targets = batch
    return functional.mse_loss(model(inputs), targets)


LOSSES: dict[str, Loss] = {"cross_entropy": cross_entropy, "mean_squares": mean_squares}


@contextmanager
def torch_seeded(key: Key) -> Iterator[None]:
    """Inside, torch's own generator is a function of the key; outside it is as it was."""
    low, high = randomness.words(key, Purpose.COIN, 0, 2).tolist()
    before = torch.get_rng_state()
    torch.default_generator.manual_seed(low | high << 32)
    try:
        yield
    finally:
        torch.set_rng_state(before)
