"""Any function that trains a small model, as a client's worker. Needs torch.

The client is sent the kept values of x and builds its submodel, y = v + S(x - v); the function trains it in
place as it likes. The answer is S' (y before - y after) / step_size: for one plain gradient step of the size
that the message names this is exactly S' grad f(y), the answer of theory; for anything else (several
steps, momentum, Adam, another rate) it is a pseudo-gradient, as in FedAvg, and no statement covers it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from logging import WARNING
from typing import Any

import numpy as np
import torch
from flwr.supercore import log
from torch import nn

from mast.distributed import Capacity, Header, Part
from mast.distributed.messages import Values
from mast.errors import ArgumentError
from mast.nn.nodes import NetworkWorker, torch_seeded
from mast.nn.nodes.worker import devices_of
from mast.nn.submodels import recalibrate
from mast.nn.tensors.torch_private import BatchNorm
from mast.randomness import Key
from mast.sketches import Sketch
from mast.sketches.draws import FullDraw
from mast.support.checkpoint import describe


@dataclass(frozen=True)
class Assignment:
    """What a client is asked to do in a round."""

    round: int  # from 0
    node: int
    step_size: float  # the answer is measured in steps of this size
    local_steps: int
    seed: int
    config: Mapping[str, Any] = field(default_factory=dict)  # of ``strategy.start(train_config=...)``

    def key(self, step: int) -> Key:
        """For what is random in a local step: which rows, for example with `mast.nn.nodes.NodeRows`."""
        return Key(self.seed, self.round, self.node, step)


Train = Callable[[nn.Module, Assignment], "Mapping[str, float] | None"]  #: trains the model in place


class TrainingWorker(NetworkWorker):
    """A client that trains its submodel with a function of the user's.

    Only trainable parameters travel. Those that are frozen in `model`, and buffers, are the client's own:
    statistics of BatchNorm belong to one draw, so `Client(..., calibrate=)` takes them anew for each score.

    Parameters
    ----------
    capacity
        What the client can hold: ``neurons:0.25``, ``bernoulli:0.5``, a sketch, or a `Capacity`.
    model
        The architecture; its trainable parameters are overwritten by what the client is sent.
    train
        ``train(model, assignment)`` trains the model in place; numbers that it returns by name are
        shown by the strategy. torch's generator is seeded by the round and the client while it runs.
    shift, run, batch_norm
        As for `mast.nn.nodes.NetworkWorker`.

    >>> from mast.distributed import MessageKind, Message
    >>> def train(model, assignment):
    ...     optimizer = torch.optim.SGD(model.parameters(), lr=assignment.step_size)
    ...     loss = (model(torch.ones(1, 2)) ** 2).sum() / 2
    ...     loss.backward()
    ...     optimizer.step()
    ...     return {"loss": loss.item()}
    >>> model = nn.Linear(2, 1, bias=False)
    >>> worker = TrainingWorker("identity", model, train)
    >>> header = Header(MessageKind.VALUES, 0, Key(0), 2, np.dtype("f4"), step_size=0.25)
    >>> worker.answer(Message.of(header, [1.0, 2.0])).values, worker.metrics
    (array([3., 3.], dtype=float32), {'loss': 4.5})
    """

    def __init__(
        self,
        capacity: Capacity | Sketch | str,
        model: nn.Module,
        train: Train,
        *,
        shift: Values | None = None,
        run: int = 0,
        batch_norm: str = "static",
    ) -> None:
        super().__init__(capacity, model, _unused, _unused, shift=shift, run=run, batch_norm=batch_norm)
        self.train = train
        self.config: Mapping[str, Any] = {}
        self.metrics: dict[str, float] = {}

    def training_identity(self) -> dict[str, str]:
        """The function, which has its own loss and data."""
        return {"train": describe(self.train)}

    def gradients(self, part: Part, values: Values, header: Header) -> Values:
        """Train, and measure how far the weights went in steps of the message's size."""
        if not header.step_size > 0:
            raise ArgumentError(f"the message names no step size for local steps: {header.step_size}")
        task = Assignment(
            header.round, header.node, header.step_size, header.local_steps, header.key.seed, self.config
        )
        module = self.local_model.module(part, values.copy())
        trained = [p for p in module.parameters() if p.requires_grad]
        before = [p.detach().clone() for p in trained]
        try:
            with torch_seeded(task.key(0), devices_of(module)), only_kept(part, module):
                self.metrics = dict(self.train(module, task) or {})
        finally:  # the function may have frozen layers; the next round's may not want that
            for p in trained:
                p.requires_grad_(True)
        with torch.no_grad():
            for p, old in zip(trained, before, strict=True):
                p.grad = (old - p) / header.step_size
        out = np.empty_like(values)
        self.local_model.collect(part, module, out)
        self.local_model.finish_round(part, module)
        return out


@contextmanager
def only_kept(part: Part, module: nn.Module) -> Iterator[None]:
    """Inside, single weights that the draw does not keep get no gradient, so that training leaves them."""
    hooks = []
    if part.draw is part.kept:  # else the module has nothing but kept units
        parameters = dict(module.named_parameters())
        for name, kept in part.kept.items():
            if not isinstance(kept, FullDraw):
                mask = torch.zeros_like(parameters[name])
                kept.place(mask, np.ones(kept.count))
                hooks.append(parameters[name].register_hook(mask.mul))  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def evaluate_network(
    module: nn.Module,
    evaluate: Callable[[Any], Mapping[str, float]],
    calibrate: Iterable[Any] | None,
    batch_norm: str = "static",
) -> Mapping[str, float]:
    """A client's score of a submodel, in evaluation mode."""
    if calibrate is not None:
        recalibrate(module, calibrate)
    elif batch_norm == "static" and any(
        isinstance(m, BatchNorm) and m.track_running_stats for m in module.modules()
    ):
        log(WARNING, STALE)
    module.eval()
    try:
        with torch.no_grad():
            return evaluate(module)
    finally:
        module.train()


STALE = (
    "The model has BatchNorm, whose statistics do not travel: this submodel is scored with those of other "
    "draws, or of a new layer. Client(worker, evaluate, calibrate=batches) takes them anew for each draw, "
    'and a worker with batch_norm="local" has its own'
)


def _unused(*_: Any) -> Any:
    raise AssertionError("the user's function has its own loss and batches")
