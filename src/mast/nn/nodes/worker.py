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

from mast import randomness
from mast.distributed.messages import Header, Values
from mast.distributed.nodes import Capacity, Worker, local_gradient_sum
from mast.errors import ArgumentError
from mast.nn.nodes.capacities import UnitCapacity, WeightCapacity, capacity_of
from mast.nn.nodes.models import MaskedModel, SmallModel, module_identity
from mast.nn.tensors.torch_private import NormBase, tree_leaves
from mast.randomness import Key, Purpose
from mast.sketches import Sketch
from mast.support import files
from mast.support.checkpoint import describe
from mast.support.checks import check_choice

ModelLoss = Callable[[nn.Module, Any], Tensor]  #: of a model and a batch
BatchSource = Callable[[Key], Any]  #: the batch that a key names


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
        loss: ModelLoss,
        batches: BatchSource,
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
        self.batch_norm = check_choice("batch_norm", batch_norm, ("static", "local"))
        self.local_model: MaskedModel | SmallModel
        if isinstance(capacity, WeightCapacity):
            self.local_model = MaskedModel(model, capacity.layout, shift)
        elif isinstance(capacity, UnitCapacity):
            if shift is not None:
                raise ArgumentError(
                    "with a shift, a dropped unit would have the shift's weights and not be gone: whole "
                    "units (neurons, layers) take no shift, single weights (bernoulli, randk, permk) do"
                )
            self.local_model = SmallModel(model, capacity.layout, keeps_statistics=batch_norm == "local")
        else:
            raise ArgumentError(f"a network has no nodes with the capacity {capacity.label}")

    def gradients(self, part: Any, values: Values, header: Header) -> Values:
        """Local steps of x <- x - g S'grad f(v + S(x - v)) on the kept values; their sum."""
        memory = np.empty_like(values)
        module = None

        def gradient(held: Values, step: int) -> Values:
            nonlocal module
            key = Key(header.key.seed, header.round, header.node, step)
            module = self.local_model.module(part, held, module)
            with torch_seeded(key, devices_of(module)):
                self.loss(module, self.batches(key)).backward()  # type: ignore[no-untyped-call]
            self.local_model.collect(part, module, memory)
            return memory

        total: Values = local_gradient_sum(values, gradient, header.step_size, header.local_steps)
        self.local_model.finish_round(part, module)
        return total

    def identity(self) -> dict[str, str]:
        """The sketch, the loss, the batches, the modules, what of them is not trained, and the shift."""
        model, layout = self.model, self.local_model.layout
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
        if isinstance(self.local_model, SmallModel):
            return self.local_model.buffers or {}
        return {name: b.detach() for name, b in self.model.named_buffers()}

    def submodel(self, part: Any, values: Values) -> nn.Module:
        """The model that the node would train, in training mode."""
        if self.batch_norm == "static" and isinstance(self.local_model, MaskedModel):
            for norm in (m for m in self.model.modules() if isinstance(m, NormBase)):
                norm.reset_running_stats()
        return self.local_model.module(part, values.copy())


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


def _digest_of_batches(batches: BatchSource) -> str:
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
