"""A network with its data: rows to train on, to choose with (from the training side), and to judge on."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class Rows:
    """Inputs (images, or token numbers padded with 0), labels, and what the given network says of them."""

    inputs: Tensor
    labels: Tensor
    taught: Tensor | None = None
    padded: bool = False  # token numbers of different lengths

    def __len__(self) -> int:
        return len(self.inputs)

    def __getitem__(self, index: Any) -> Rows:
        taught = None if self.taught is None else self.taught[index]
        return replace(self, inputs=self.inputs[index], labels=self.labels[index], taught=taught)

    @property
    def call(self) -> Any:
        """What the model is called with."""
        if self.inputs.is_floating_point():
            return self.inputs.contiguous(memory_format=torch.channels_last)
        if not self.padded:
            return {"input_ids": self.inputs[:, :-1]}  # the last token is only a label
        ids = self.inputs[:, : int((self.inputs != 0).sum(1).max())]
        return {"input_ids": ids, "attention_mask": (ids != 0).long()}

    def batches(self, size: int, steps: int, seed: int) -> Iterator[Rows]:
        """Batches in a random order, epoch after epoch; sentences of about one length stand together."""
        generator = torch.Generator().manual_seed(seed)
        size, queue = min(size, len(self)), []
        for _ in range(steps):
            if not queue:
                order = torch.randperm(len(self), generator=generator)
                order = order[: len(order) // size * size]
                if self.padded:
                    lengths = (self.inputs != 0).sum(1)
                    windows = order.split(8 * size)
                    order = torch.cat([w[lengths[w].argsort(stable=True)] for w in windows])
                parts = order.split(size)
                queue = [parts[int(i)] for i in torch.randperm(len(parts), generator=generator)]
            yield self[queue.pop()]

    def in_order(self, size: int) -> Iterator[Rows]:
        """All rows once, from the shortest to the longest."""
        order = (self.inputs != 0).sum(1).argsort() if self.padded else torch.arange(len(self))
        return (self[index] for index in order.split(size))


@dataclass(frozen=True)
class Task:
    """A network with its data, and how much of everything a run of it takes."""

    name: str
    title: str
    make: Callable[[Path, Path, Task], tuple[nn.Module, Rows, Rows, Rows]]
    batch: int
    steps: int  # of each size alone
    rate: float  # the middle of the grid of learning rates
    seeds: int
    validation: int = 500  # rows
    test: int = 10**9
    pool: int = 4096  # training rows
    length: int = 128  # tokens of a story
    tuning: int = 160  # steps of 32 rows that fine-tune MiniLM
    settings: tuple[str, ...] = ()  # that are tried, where not all of them are
    first: int = 11  # of the seeds that judge: those before it judged earlier recipes
    rivals: int = 11  # the first seed of slimmable networks and DynaBERT, which judge nothing

    def load(self, data: Path, cache: Path) -> Loaded:
        """The network and its rows; DataError with what is missing and how to get it."""
        cache.mkdir(parents=True, exist_ok=True)
        model, *parts = self.make(data, cache, self)
        model.eval()
        model.to(memory_format=torch.channels_last)  # of convolutions
        train, validation, test = parts
        seen = hashlib.blake2b(train.inputs.contiguous().numpy().data, digest_size=8).hexdigest()
        path = cache / f"{self.name}-{seen}.taught.pt"
        if not path.exists():
            torch.save(outputs(model, train), path)
        train = replace(train, taught=torch.load(path, weights_only=True))
        return Loaded(self, model, train, validation[: self.validation], test[: self.test])


@dataclass(frozen=True)
class Loaded:
    """A task with its given network and rows."""

    task: Task
    model: nn.Module
    train: Rows
    validation: Rows
    test: Rows


def logits(model: nn.Module, batch: Rows) -> Tensor:
    """The outputs of the network for a batch."""
    call = batch.call
    output = model(**call) if isinstance(call, dict) else model(call)
    return output if isinstance(output, Tensor) else output.logits


@torch.no_grad()
def outputs(model: nn.Module, rows: Rows) -> Tensor:
    """The logits of all rows, in half precision."""
    order = (rows.inputs != 0).sum(1).argsort() if rows.padded else torch.arange(len(rows))
    found = torch.cat([logits(model, batch).half() for batch in rows.in_order(64)])
    return found[order.argsort()]
