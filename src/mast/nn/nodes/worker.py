"""A node with a network: data, a loss, and local steps on the part of the model that it holds. Needs torch.

Randomness of the node is keyed as everything else: the batch of a local step by (seed, round, node, local
step), and so is torch's own generator during it, which layers such as Dropout use.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from mast import files, randomness
from mast.checkpoint import describe
from mast.checks import choice
from mast.distributed.messages import Header, Values
from mast.distributed.nodes import Capacity, Part, Worker, local_sum
from mast.errors import ArgumentError
from mast.nn.nodes.capacities import (
    Units,
    VectorLayout,
    Weights,
    capacities_of,
    capacity_of,
    module_identity,
)
from mast.nn.tensors.torch_private import NormBase, tree_leaves
from mast.randomness import Key, Purpose
from mast.sketches import Sketch

_KINDS: dict[torch.dtype, np.dtype[Any]] = {
    torch.float32: np.dtype(np.float32),
    torch.float64: np.dtype(np.float64),
}
Loss = Callable[[nn.Module, Any], Tensor]  #: of a model and a batch
Batches = Callable[[Key], Any]  #: the batch that a key names


class NodeRows:
    """Batches of a node's own rows: `batch_size` of them without replacement, or all.

    >>> batches = NodeRows(torch.arange(10.0), torch.arange(10), batch_size=3)
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
        What the node can hold: ``neurons:0.25``, ``bernoulli:0.5``, or what `capacity_of` makes (from an
        `example`, if the model's input cannot be guessed).
    model
        The architecture. Its trainable parameters are overwritten by what the node is sent; for whole
        units (`neurons:...`) they are not used at all, and it may be on the meta device.
    loss
        ``loss(model, batch)``, a scalar tensor: `cross_entropy`, `mean_squares`, or your own.
    batches
        ``batches(key)``: a batch for each local step, such as `NodeRows`.
    shift
        v, a vector, if the sketches shrink towards a pretrained model.
    batch_norm
        Statistics of BatchNorm never travel. "static", as in HeteroFL: training uses those of each batch, and
        a submodel that is scored takes its own from batches (`mast.nn.recalibrate`). "local": the node keeps
        running ones for its units, and its submodels are scored with them.
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
        batch_norm: str = "static",
    ) -> None:
        if not isinstance(capacity, Capacity):
            capacity = capacity_of(model, capacity)
        super().__init__(capacity, run)
        self.model, self.loss, self.batches = model, loss, batches
        self.shift = shift
        self.batch_norm = choice("batch_norm", batch_norm, ("static", "local"))
        self.held: WholeModel | SmallModel
        if isinstance(capacity, Weights):
            self.held = WholeModel(model, capacity.layout, shift)
        elif isinstance(capacity, Units):
            if shift is not None:
                raise ArgumentError(
                    "with a shift, a dropped unit would have the shift's weights and not be gone: whole "
                    "units (neurons, layers) take no shift, single weights (bernoulli, randk, permk) do"
                )
            self.held = SmallModel(model, capacity.layout, keeps_statistics=batch_norm == "local")
        else:
            raise ArgumentError(f"a network has no nodes with the capacity {capacity.label}")

    def gradients(self, part: Any, values: Values, header: Header) -> Values:
        """Local steps of x <- x - g S'grad f(v + S(x - v)) on the kept values; their sum."""
        memory = np.empty_like(values)
        module = None

        def gradient(held: Values, step: int) -> Values:
            nonlocal module
            key = Key(header.key.seed, header.round, header.node, step)
            module = self.held.module(part, held, module)
            with torch_seeded(key, devices_of(module)):
                self.loss(module, self.batches(key)).backward()  # type: ignore[no-untyped-call]
            self.held.collect(part, module, memory)
            return memory

        total: Values = local_sum(values, gradient, header.step_size, header.local_steps)
        self.held.trained(part, module)
        return total

    def identity(self) -> dict[str, str]:
        """The sketch, the loss, the batches, the modules, what of them is not trained, and the shift."""
        model, layout = self.model, self.held.layout
        norms = {id(b) for m in model.modules() if isinstance(m, NormBase) for b in m.buffers()}
        frozen: list[Tensor] = [p for name, p in model.named_parameters() if name not in layout.slices]
        frozen += [b for b in model.buffers() if id(b) not in norms]  # of norms, each node has its own
        return super().identity() | {
            **self.training_identity(),
            "model": files.digest(*sorted(module_identity(model).items())),
            "frozen parameters and buffers": tensors_digest(frozen),
            "shift": "none" if self.shift is None else files.digest(self.shift),
            "batch_norm": self.batch_norm,
        }

    def training_identity(self) -> dict[str, str]:
        """The part of the identity that says how, and on what, the node trains."""
        return {"loss": describe(self.loss), "data": _digest_of_batches(self.batches)}

    @property
    def statistics(self) -> dict[str, Tensor]:
        """With ``batch_norm="local"``: what the node remembers from round to round, by the names of buffers.

        The tensors are the node's own: who copies values into them gives it back what it knew.
        """
        if self.batch_norm != "local":
            return {}
        if isinstance(self.held, SmallModel):
            return self.held.buffers or {}
        return {name: b.detach() for name, b in self.model.named_buffers()}

    def submodel(self, part: Any, values: Values) -> nn.Module:
        """The model that the node would train, in training mode."""
        if self.batch_norm == "static" and isinstance(self.held, WholeModel):
            for norm in (m for m in self.model.modules() if isinstance(m, NormBase)):
                norm.reset_running_stats()
        return self.held.module(part, values.copy())


def submodel_of(
    model: nn.Module,
    scheme: str,
    share: float,
    key: Key = Key(0),  # noqa: B008
    *,
    example: Any = None,
) -> nn.Module:
    """What a client of a share runs when the model is trained: a small dense model, in evaluation mode.

    In schemes of prefixes it is the largest that the client holds. In schemes of random units `key` says
    which draw. BatchNorm's statistics are those of the model: take them anew with `mast.nn.recalibrate`.

    >>> model = nn.Sequential(nn.Linear(10, 8), nn.ReLU(), nn.Linear(8, 2))
    >>> submodel_of(model, "mast_balanced", 0.25)
    Sequential(
      (0): Linear(in_features=10, out_features=2, bias=True)
      (1): ReLU()
      (2): Linear(in_features=2, out_features=2, bias=True)
    )
    """
    (capacity,) = capacities_of(model, scheme, [share], example=example)
    layout = VectorLayout(model)
    part = capacity.largest(key)
    held = SmallModel(model, layout, keeps_statistics=True)
    return held.module(part, part.gather(layout.read(model))).eval()


class WholeModel:
    """How a node holds single weights: all of the model, with zeros (or the shift) where nothing is kept."""

    def __init__(self, model: nn.Module, layout: VectorLayout, shift: Values | None) -> None:
        self.model, self.layout = model, layout
        self.shift = None if shift is None else layout.arrays(np.ascontiguousarray(shift))
        self.parameters = layout.parameters(model)
        kinds = {_KINDS.get(p.dtype) for p in self.parameters.values()}
        #: of all parameters, if they are alike and NumPy has it
        self.dtype: np.dtype[Any] | None = kinds.pop() if len(kinds) == 1 else None
        self._memory = np.empty(0)
        model.train()

    def module(self, part: Part, values: Values, made: nn.Module | None = None) -> nn.Module:
        """The node's model in training mode with the weights v + S(x - v), its gradients cleared."""
        y = self._scratch(part.count, values.dtype if self.shift else self.dtype or values.dtype)
        y[...] = values
        for name, kept in part.kept.items():
            parameter, numbers = self.parameters[name].detach(), part.kept.of(y, name)
            if self.shift is None:
                parameter.zero_()
                kept.scale(numbers)
            else:
                v = self.shift[name].astype(values.dtype)
                around = kept.gather(v)
                numbers -= around
                kept.scale(numbers)
                numbers += around
                parameter.copy_(torch.from_numpy(v))
            kept.place(parameter, numbers)
        self.model.zero_grad(set_to_none=True)
        return self.model.train()  # whatever was done with it between two messages

    def _scratch(self, count: int, dtype: np.dtype[Any]) -> Values:
        """Memory that is used again: fresh memory costs as much as filling it."""
        if self._memory.size < count or self._memory.dtype != dtype:
            self._memory = np.empty(count + count // 16, dtype)
        return self._memory[:count]

    def collect(self, part: Part, module: nn.Module, out: Values) -> None:
        """S' times the parameters' gradients, on what is kept."""
        for name, kept in part.kept.items():
            gradient, target = self.parameters[name].grad, out[part.kept.slices[name]]
            if gradient is None:  # the loss does not depend on it
                target[...] = 0
            else:
                wide = gradient.detach() if gradient.dtype in _KINDS else gradient.detach().float()
                kept.gather(wide.cpu().numpy(), target)
                kept.scale(target)

    def trained(self, part: Part, module: nn.Module | None) -> None:
        """The local steps of a round are done: the model keeps its statistics anyway."""


class SmallModel:
    """How a node holds whole units: a model of its own for each draw, as large as what is kept."""

    def __init__(self, model: nn.Module, layout: VectorLayout, keeps_statistics: bool = False) -> None:
        self.layout = layout
        #: the node's own statistics of norms and other buffers, of all units
        self.buffers = {n: b.detach().clone() for n, b in model.named_buffers()} if keeps_statistics else None
        self.frozen = {name: p.detach() for name, p in model.named_parameters() if name not in layout.slices}

    def module(self, part: Part, values: Values, made: nn.Module | None = None) -> nn.Module:
        """The small model in training mode, with the weights S x; frozen parameters are the node's own.

        `made` is the model of the same part that was made before: it gets the new weights.
        """
        cut, sent = part.draw, torch.from_numpy(values)
        if self.frozen:
            full = sent.new_empty(cut.count)
            for name, kept in cut.parameters.items():
                small = cut.parameters.of(full, name)
                if name in part.kept:
                    small.copy_(part.kept.of(sent, name))
                else:
                    kept.gather(self.frozen[name].to(full), small)
            sent = full
        if made is not None:
            y = cut.scaled(sent)
            for name, p in made.named_parameters():
                p.data, p.grad = cut.parameters.of(y, name).to(p.dtype), None
            return made.train()
        buffers = None if self.buffers is None else cut.gather_buffers(self.buffers)
        module: nn.Module = cut.module(sent, buffers)
        for counted, known in self._counts(module):
            counted.copy_(known)
        return module

    def trained(self, part: Part, module: nn.Module | None) -> None:
        """The local steps of a round are done: remember the statistics, if the node has its own."""
        if self.buffers is not None and module is not None:
            part.draw.place_buffers(self.buffers, part.draw.buffers_of(module))
            for counted, known in self._counts(module):
                known.copy_(counted)

    def _counts(self, module: nn.Module) -> list[tuple[Tensor, Tensor]]:
        """How many batches a norm has seen, in the small model and here: means over all batches need it."""
        own = self.buffers or {}
        named = [(b, own.get(name)) for name, b in module.named_buffers()]
        return [
            (b, b_own) for b, b_own in named if b_own is not None and b.dtype == torch.int64 and b.dim() == 0
        ]

    def collect(self, part: Part, module: nn.Module, out: Values) -> None:
        """S' times the small model's gradients, without those of frozen parameters."""
        gradient, slices = part.draw.gradient(module), part.draw.parameters.slices
        if self.frozen:
            gradient = torch.cat([gradient[slices[name]] for name in part.kept])
        torch.from_numpy(out).copy_(gradient)


def tensors_digest(tensors: Iterable[Tensor]) -> str:
    """A sum of tensors of any type and shape, of their values unless they are on the meta device.

    >>> tensors_digest([torch.zeros(2)]) == tensors_digest([torch.zeros(2, dtype=torch.bfloat16)])
    False
    """
    parts: list[Any] = []
    for tensor in tensors:
        parts += [str(tensor.dtype), tuple(tensor.shape)]
        if not tensor.is_meta:
            parts.append(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy())
    return files.digest(*parts)


def _digest_of_batches(batches: Batches) -> str:
    """Of a node's rows; of any other function, of what it is and of the first batch that it gives."""
    if isinstance(batches, NodeRows):
        return files.digest(tensors_digest([batches.inputs, batches.targets]), batches.batch_size)
    with torch_seeded(Key(0)):
        first = batches(Key(0))
    leaves = [leaf for leaf in tree_leaves(first) if isinstance(leaf, Tensor)]
    return files.digest(describe(batches), tensors_digest(leaves))


def cross_entropy(model: nn.Module, batch: Any) -> Tensor:
    """The mean cross entropy of a batch (inputs, classes)."""
    inputs, targets = batch
    return functional.cross_entropy(model(inputs), targets)


def mean_squares(model: nn.Module, batch: Any) -> Tensor:
    """The mean squared error of a batch (inputs, targets)."""
    inputs, targets = batch
    return functional.mse_loss(model(inputs), targets)


LOSSES: dict[str, Loss] = {"cross_entropy": cross_entropy, "mean_squares": mean_squares}


def devices_of(module: nn.Module) -> set[torch.device]:
    """Where a model's parameters are."""
    return {p.device for p in module.parameters()}


@contextmanager
def torch_seeded(key: Key, devices: Iterable[torch.device] | None = None) -> Iterator[None]:
    """Inside, torch's generators on the CPU and on these devices (None: on all GPUs) follow from the key.

    Outside they are as they were.
    """
    if devices is None:
        devices = [torch.device("cuda", i) for i in range(torch.cuda.device_count())]
    modules = {d: torch.get_device_module(d) for d in devices if d.type not in ("cpu", "meta")}
    low, high = randomness.words(key, Purpose.COIN, 0, 2).tolist()
    seed = low | high << 32
    on_cpu = torch.get_rng_state()
    elsewhere = {device: module.get_rng_state(device) for device, module in modules.items()}
    torch.default_generator.manual_seed(seed)
    for device, module in modules.items():
        with module.device(device):
            module.manual_seed(seed)
    try:
        yield
    finally:
        torch.set_rng_state(on_cpu)
        for device, module in modules.items():
            module.set_rng_state(elsewhere[device], device)
