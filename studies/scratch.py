"""Sizes of fresh networks: from the first step on, or after half of the steps were plain.

Contenders, all with as many steps and one schedule (a constant rate for half of them, then a cosine to 0):

- `start`: prefixes at scale 1 from the first step on;
- `scaled`: the same with weights scaled by one over how often they are drawn, after `scale_start`;
- `halfway`: plainly for half of the steps, then `elastic`: sorted units, scale 1, a new optimizer;
- `alone`: a network of each size, with all the steps for each.

Rule, written before the runs: on both tasks `halfway` is ahead of `start` on the mean over sizes by more
than two standard errors of the difference over the seeds that judge. Seed 0 chooses the rates, on validation
rows; the others judge, on test rows.
"""

from __future__ import annotations

import argparse
import gzip
import math
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import mast
from studies.elastic.study import Store

SIZES = (0.25, 0.5, 0.75, 1.0)
RATES = (1e-3, 3e-3, 1e-2, 3e-2)
CONTENDERS = ("start", "halfway", "alone", "scaled")
COLUMNS = ["task", "contender", "rate", "seed", "rows", "size", "seconds", "accuracy"]
NUMBERS = Path(__file__).parents[1] / "docs" / "studies" / "scratch"


PAGE = """# Sizes from scratch

A fresh network shall have four sizes in the end, 25, 50, 75 and 100 % of the units inside its blocks. Is
it better to draw the sizes from the first step on, or to train plainly first?

<!-- not run: it takes a quarter of an hour -->
```bash
python -m studies.scratch
```

All contenders have 400 steps of AdamW and one schedule, a constant rate for half of them and then a
cosine to 0. The rate of each is the best of 0.001, 0.003, 0.01 and 0.03 on validation rows with a seed that
does not judge; the numbers are means of test accuracy over four other seeds.

- `start`: prefixes at scale 1 from the first step on.
- `halfway`: plain training for half of the steps, then `mast.nn.elastic` with a new optimizer.
- `alone`: a network of each size, with all the steps for each.
- `scaled`: prefixes from the first step on, scaled by one over how often they are drawn, after
  `mast.nn.scale_start`.

The tasks are the next character of Shakespeare's plays with a transformer of two layers (heads and MLP
units are cut), and CIFAR-10 at 16 x 16 pixels with a small ResNet (channels inside of blocks). The rule,
committed before the runs: `halfway` is ahead of `start` on the mean over sizes by more than two standard
errors of the difference, on both tasks.

"""
CHANGES = """## What was changed after seeing results

The rate 0.03 was added when 0.01, then the largest, was the best of the first two contenders.
"""


class Attention(nn.Module):
    """Causal attention with heads of 16, before it a norm and behind it a sum."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.out = nn.LayerNorm(width), nn.Linear(width, width)
        self.q, self.k, self.v = (nn.Linear(width, width) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        """X plus what the heads say."""
        h = self.norm(x)
        q, k, v = (f(h).unflatten(-1, (-1, 16)).transpose(1, 2) for f in (self.q, self.k, self.v))
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return x + self.out(attended.transpose(1, 2).flatten(2))


class Feed(nn.Module):
    """The other half of a layer."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.up, self.down = (
            nn.LayerNorm(width),
            nn.Linear(width, 4 * width),
            nn.Linear(4 * width, width),
        )

    def forward(self, x: Tensor) -> Tensor:
        """X plus what the units say."""
        return x + self.down(F.gelu(self.up(self.norm(x))))


class Characters(nn.Module):
    """A transformer of two layers over characters."""

    def __init__(self, width: int = 64, length: int = 48, kinds: int = 65) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(kinds, width), nn.Embedding(length, width)
        layers = (layer(width) for _ in range(2) for layer in (Attention, Feed))
        self.layers = nn.Sequential(*layers, nn.LayerNorm(width), nn.Linear(width, kinds))

    def forward(self, x: Tensor) -> Tensor:
        """Logits of the next character."""
        return self.layers(self.words(x) + self.places.weight[: x.shape[1]])


class Residual(nn.Module):
    """Two convolutions and a way around them."""

    def __init__(self, inside: int, outside: int) -> None:
        super().__init__()
        stride = outside // inside
        self.first, self.norm = nn.Conv2d(inside, outside, 3, stride, 1, bias=False), nn.BatchNorm2d(outside)
        self.second, self.last = nn.Conv2d(outside, outside, 3, 1, 1, bias=False), nn.BatchNorm2d(outside)
        self.around = nn.Conv2d(inside, outside, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Both, added."""
        return F.relu(self.last(self.second(F.relu(self.norm(self.first(x))))) + self.around(x))


class Pictures(nn.Module):
    """A small ResNet for pictures of 16 x 16."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 16, 3, 1, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU())
        self.blocks = nn.Sequential(Residual(16, 16), Residual(16, 32), Residual(32, 64))
        self.head = nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        """Logits of the classes."""
        return self.head(self.blocks(self.stem(x)).mean((2, 3)))


Rows = tuple[Tensor, Tensor]


def shakespeare(folder: Path) -> dict[str, Rows]:
    """Pieces of 49 characters: the first nine tenths to train on, then validation and test."""
    text = gzip.decompress((folder / "text" / "tinyshakespeare.txt.gz").read_bytes()).decode()
    numbers = {c: i for i, c in enumerate(sorted(set(text)))}
    data = torch.tensor([numbers[c] for c in text])
    pieces = data[: len(data) // 49 * 49].view(-1, 49)
    n = len(pieces)
    ends = {
        "training": (0, n * 9 // 10),
        "validation": (n * 9 // 10, n * 19 // 20),
        "test": (n * 19 // 20, n),
    }
    return {name: (pieces[a:b, :-1], pieces[a:b, 1:]) for name, (a, b) in ends.items()}


def pictures(folder: Path) -> dict[str, Rows]:
    """CIFAR-10 at half of its resolution; validation rows are the last 1,000 of the training side."""
    with np.load(folder / "cifar10" / "images_10k_2k.npz", allow_pickle=False) as file:
        x = {
            k: torch.tensor(file[f"x_{k}"]).permute(0, 3, 1, 2).float() / 127.5 - 1 for k in ("train", "test")
        }
        y = {k: torch.tensor(file[f"y_{k}"]).long() for k in ("train", "test")}
    x = {k: F.avg_pool2d(v, 2) for k, v in x.items()}
    mixed = torch.randperm(len(y["train"]), generator=torch.Generator().manual_seed(0))
    rows = {"training": mixed[:-1000], "validation": mixed[-1000:]}
    found = {name: (x["train"][r], y["train"][r]) for name, r in rows.items()}
    return found | {"test": (x["test"], y["test"])}


TASKS = {"shakespeare": (shakespeare, Characters, 16), "pictures": (pictures, Pictures, 32)}


def batches(rows: Rows, size: int, steps: int, seed: int) -> Iterator[Rows]:
    """Random rows, the same for all contenders of a seed."""
    chosen = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        index = torch.randint(0, len(rows[0]), (size,), generator=chosen)
        yield rows[0][index], rows[1][index]


def train(model: nn.Module, rows: list[Rows], rate: float, first: int, steps: int) -> None:
    """Steps `first` to `first + len(rows)` of a schedule with `steps` steps."""
    optimizer = torch.optim.AdamW(model.train().parameters(), lr=rate, weight_decay=0.01)
    for t, (x, y) in enumerate(rows, first):
        done = max(0.0, 2 * t / steps - 1)
        optimizer.param_groups[0]["lr"] = rate * (1 + math.cos(math.pi * done)) / 2
        optimizer.zero_grad()
        F.cross_entropy(model(x).flatten(0, -2), y.flatten()).backward()
        optimizer.step()


def run(task: str, data: dict[str, Rows], name: str, rate: float, seed: int, rows: str, steps: int) -> Any:
    """One contender, trained and looked at in all sizes."""
    _, make, size = TASKS[task]
    given = list(batches(data["training"], size, steps, seed))
    example = given[0][0][:2]
    calibrate = [x for x, _ in batches(data["training"], 256, 4, seed + 1000)]
    torch.manual_seed(seed)
    model, begun, found = make(), time.process_time(), {}
    if name == "alone":
        sk = mast.nn.elastic(model, SIZES, [example], sort=False)
        found = {s: sk.submodel(member=i, calibrate=False) for i, s in enumerate(SIZES)}
        for small in found.values():
            for module in small.modules():  # a fresh start of its own size
                if hasattr(module, "reset_parameters"):
                    module.reset_parameters()
            train(small, given, rate, 0, steps)
    elif name == "halfway":
        train(model, given[: steps // 2], rate, 0, steps)
        sk = mast.nn.elastic(model, SIZES, [x for x, _ in given[:8]], seed=seed)
        train(model, given[steps // 2 :], rate, steps // 2, steps)
    elif name == "scaled":
        keep = mast.nn.elastic(make(), SIZES, [example], sort=False)  # only to see what stays whole
        whole = {w: 1.0 for w in keep.unit_map.excluded if "residual stream" in keep.unit_map.excluded[w]}
        sketch = mast.nn.Neurons(mast.Nested(SIZES))
        sk = mast.nn.sparsify(model, sketch, keep=whole, example=example, seed=seed)
        mast.nn.scale_start(model, sketch, example=example)
        train(model, given, rate, 0, steps)
    else:
        sk = mast.nn.elastic(model, SIZES, [example], sort=False, seed=seed)
        train(model, given, rate, 0, steps)
    seconds = time.process_time() - begun
    for i, s in enumerate(SIZES):
        small = found.get(s) or sk.submodel(member=i, calibrate=False)
        score = accuracy(mast.nn.recalibrate(small, calibrate), data[rows])
        yield {"size": s, "seconds": seconds, "accuracy": score}


@torch.no_grad()
def accuracy(model: nn.Module, rows: Rows) -> float:
    """The share of labels that are right."""
    right = [
        (model.eval()(x).argmax(-1) == y).float().mean()
        for x, y in zip(*(r[:2000].split(250) for r in rows), strict=True)
    ]
    return float(torch.stack(right).mean())


def main(arguments: list[str] | None = None) -> None:
    """Run what is missing, and print the table and the rule's answer."""
    parser = argparse.ArgumentParser(prog="python -m studies.scratch", description=__doc__.partition("\n")[0])
    parser.add_argument("--fast", action="store_true", help="a few steps and one seed, about a minute")
    parser.add_argument("--out", type=Path, default=NUMBERS, metavar="DIR")
    parser.add_argument("--data-dir", type=Path, default=Path("../shared/data"), metavar="DIR")
    given = parser.parse_args(arguments)
    torch.set_num_threads(1)
    steps, seeds, rates = (8, 1, RATES[:1]) if given.fast else (400, 4, RATES)
    given.out.mkdir(parents=True, exist_ok=True)
    store = Store(given.out / "results.csv", COLUMNS)
    for task, (load, _, _) in TASKS.items():
        try:
            data = load(given.data_dir)
        except FileNotFoundError as error:
            print(f"{task} is left out: there is no {error.filename}; --data-dir names its folder")
            continue
        for name in CONTENDERS:
            for rate in rates:
                key = {"task": task, "contender": name, "rate": rate, "seed": 0, "rows": "validation"}
                store.once(key, lambda: list(run(task, data, name, rate, 0, "validation", steps)))  # noqa: B023
            chosen = store.find(task=task, contender=name, rows="validation")
            best = float(chosen.groupby("rate")["accuracy"].mean().idxmax())
            for seed in range(1, seeds + 1):
                key = {"task": task, "contender": name, "rate": best, "seed": seed, "rows": "test"}
                store.once(key, lambda: list(run(task, data, name, best, seed, "test", steps)))  # noqa: B023
    page = PAGE + report(store.rows) + "\n" + CHANGES
    given.out.with_suffix(".md").write_text(page, encoding="utf-8")
    print(page)


def report(rows: Any) -> str:
    """The mean over seeds of every size, and whether the rule holds, as Markdown."""
    test = rows[rows["rows"] == "test"]
    lines = []
    for task in test["task"].unique():
        own = test[test["task"] == task]
        lines += [
            f"## {task.capitalize()}",
            "",
            "| contender | rate | " + " | ".join(f"{s:.0%}" for s in SIZES) + " | mean | CPU s |",
        ]
        lines.append("|---|" + "---:|" * (len(SIZES) + 3))
        for name in CONTENDERS:
            these = own[own["contender"] == name]
            cells = [f"{these[these['size'] == s]['accuracy'].mean():.3f}" for s in SIZES]
            last = f"{these['accuracy'].mean():.3f} | {these['seconds'].mean():.0f}"
            lines.append(f"| {name} | {these['rate'].mean():g} | {' | '.join(cells)} | {last} |")
        means = own.pivot_table(index="seed", columns="contender", values="accuracy")
        gain = means["halfway"] - means["start"]
        error = gain.std() / math.sqrt(len(gain))
        holds = "holds" if gain.mean() > 2 * error else "does not hold"
        lines += [
            "",
            f"`halfway` minus `start`: {gain.mean():+.4f}, standard error {error:.4f}: the rule {holds}.",
            "",
        ]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
