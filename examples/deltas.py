"""Fine-tune once, ship twenty different small updates: a transformer goes from source code to prose.

A transformer of a million weights learns to continue the source of Python's library. Then it is fine-tuned to
Python's manual once, with `mast.PermK(20)` around the pretrained weights: each of twenty submodels changes
another 5 % of the weights. Every one is written to a file (the key, the member's number and its values) and
read again on top of the pretrained model, beside a full fine-tuning with as many steps.

    python examples/deltas.py            about ten minutes on one core
    python examples/deltas.py --fast     some seconds, for a look: nothing is learned
"""

from __future__ import annotations

import argparse
import copy
import math
import sysconfig
import tempfile
from pathlib import Path
from pydoc_data.topics import topics

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import mast

LENGTH, SYMBOLS, BATCH = 64, 97, 16
MEMBERS = 20  # each changes a twentieth of the weights


class Reader(nn.Module):
    """Says for every character of a text which one follows."""

    def __init__(self, width: int = 128, blocks: int = 5) -> None:
        super().__init__()
        self.symbol, self.place = nn.Embedding(SYMBOLS, width), nn.Embedding(LENGTH, width)
        block = nn.TransformerEncoderLayer(
            width, 4, 4 * width, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
        )
        self.blocks = nn.TransformerEncoder(block, blocks, enable_nested_tensor=False)
        self.norm, self.out = nn.LayerNorm(width), nn.Linear(width, SYMBOLS)
        self.register_buffer("later", nn.Transformer.generate_square_subsequent_mask(LENGTH))

    def forward(self, codes: Tensor) -> Tensor:
        x = self.symbol(codes) + self.place(torch.arange(LENGTH, device=codes.device))
        return self.out(self.norm(self.blocks(x, mask=self.later, is_causal=True)))


def rows(documents: list[str]) -> Tensor:
    """Pieces of the documents, each with one character more than the network sees."""
    text = "\n".join(documents).encode("ascii", errors="replace")
    codes = torch.tensor([b - 32 if 32 <= b < 127 else 95 if b == 10 else 96 for b in text])
    return codes[: len(codes) // LENGTH * LENGTH + 1].unfold(0, LENGTH + 1, LENGTH)


def library() -> Tensor:
    """The source of Python's library, up to 4,000 characters of each file."""
    folder = Path(sysconfig.get_path("stdlib"))
    return rows([file.read_text(errors="replace")[:4000] for file in sorted(folder.glob("*.py"))])


def manual() -> tuple[Tensor, Tensor]:
    """Python's manual, without what it says twice: three quarters to train on, the rest to test on."""
    paragraphs = list(dict.fromkeys("\n\n".join(topics[name] for name in sorted(topics)).split("\n\n")))
    cut = len(paragraphs) * 3 // 4
    return rows(["\n\n".join(paragraphs[:cut])]), rows(["\n\n".join(paragraphs[cut:])])


def train(model: nn.Module, text: Tensor, steps: int, rate: float, seed: int) -> None:
    """A plain training loop. Nothing in it knows about MAST."""
    torch.manual_seed(seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, weight_decay=0.0)
    model.train()
    for t in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = rate * 0.5 * (1 + math.cos(math.pi * t / steps))
        batch = text[torch.randint(len(text), (BATCH,))]
        loss = cross_entropy(model(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if (t + 1) % max(1, steps // 10) == 0:
            print(f"  step {t + 1:,} of {steps:,}: loss {loss.item():.3f}", flush=True)
    model.eval()


@torch.no_grad()
def accuracy(model: nn.Module, text: Tensor) -> float:
    """The share of characters that are foreseen."""
    return (model.eval()(text[:, :-1]).argmax(-1) == text[:, 1:]).double().mean().item()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--fast", action="store_true", help="a few steps only")
    steps, tested = ((2, 2), 16) if parser.parse_args().fast else ((1500, 1600), 400)
    code, (prose, test) = library(), manual()
    test = test[:tested]
    torch.manual_seed(0)
    base = Reader()
    print(f"Pretraining on source code, {sum(p.numel() for p in base.parameters()):,} weights")
    train(base, code, steps[0], 1e-3, seed=1)

    print("Full fine-tuning to the manual")
    full = copy.deepcopy(base)
    train(full, prose, steps[1], 1e-3, seed=2)

    print(f"One fine-tuning of {MEMBERS} deltas")
    model = copy.deepcopy(base)
    sk = mast.nn.sparsify(model, mast.PermK(MEMBERS), shift="init", seed=0)
    train(model, prose, steps[1], 1e-3, seed=2)

    with tempfile.TemporaryDirectory() as folder:
        files = [
            mast.nn.save_delta(sk, Path(folder) / f"{i}.delta", member=i, base=base) for i in range(MEMBERS)
        ]
        scores = torch.tensor([accuracy(mast.nn.apply_delta(base, file), test) for file in files])
        size = max(file.stat().st_size for file in files)
    whole = 4 * sum(p.numel() for p in base.parameters())
    print("\n| model | characters foreseen | bytes to send |\n|---|---|---|")
    print(f"| pretrained on code | {accuracy(base, test):.3f} | 0 |")
    print(f"| full fine-tuning | {accuracy(full, test):.3f} | {whole:,} |")
    print(f"| {MEMBERS} deltas, mean | {scores.mean():.3f} | {size:,} each |")
    print(f"| {MEMBERS} deltas, worst | {scores.min():.3f} | |")


if __name__ == "__main__":
    main()
