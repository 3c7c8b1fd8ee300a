"""Data of the neural experiments: embeddings as inputs, the logits of a fine-tuned head as targets.

The paper's inputs are embeddings of an ImageNet ResNet-50, and its targets the logits of two fully connected
layers that were fine-tuned on top of it. With a folder that holds such embeddings of CIFAR-10 the same
is done here. Without, scikit-learn's digits stand in: 256 fixed random ReLU features of the pixels play the
frozen network, and a head fine-tuned on them gives the targets.
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mast.errors import ArgumentError, DataError
from mast.experiments.datasets import (
    Dataset,
    data_folder,
    digits,
    digits_sum,
    file_sum,
    initial_weights,
    one_thread,
    read_npz,
)
from mast.randomness import Key, Purpose, normal, permutation

FEATURES = Path("cifar10") / "resnet50_features_10k_2k.npz"  # below a data folder
DIGIT_FEATURES = 256
HEAD_WIDTH, HEAD_STEPS, HEAD_RATE = 64, 60, 0.01  # of the fine-tuned head: Adam, all rows in each step


def find_embeddings(effort: str, dataset: str | None, data_dir: Path | None) -> tuple[Dataset, ...]:
    """CIFAR-10's embeddings if the folder has them, else digits; or what the user names."""
    folder = data_folder(data_dir)
    if dataset is None:
        dataset = "cifar10" if data_dir is not None and (data_dir / FEATURES).is_file() else "digits"
    if dataset == "digits":
        return (Dataset("digits", "", digits_sum(), embeddings_of),)
    if dataset == "cifar10":
        if folder is None or not (folder / FEATURES).is_file():
            raise DataError(f"{FEATURES} is not there: give the folder that holds it by --data-dir")
        name, path = dataset, folder / FEATURES
    elif not dataset.endswith(".npz"):
        raise ArgumentError(
            f"the neural experiments run on digits, on cifar10, or on an .npz file of embeddings (f_train, "
            f"y_train), not on {dataset!r}"
        )
    else:
        path = Path(dataset)
        name = path.stem
    return (Dataset(name, str(path.resolve()), file_sum(path), embeddings_of),)


@lru_cache(maxsize=1)
def embeddings_of(dataset: Dataset) -> tuple[Any, Any]:
    """Embeddings of norm 1, and class labels 0, 1, ..."""
    if dataset.path:
        embeddings, labels = read_npz(Path(dataset.path), dataset.sha256, ("f_train", "y_train"))
        if embeddings.ndim != 2 or labels.shape != embeddings.shape[:1]:
            raise DataError(
                f"{dataset.path}: f_train must be rows of embeddings and y_train a label for each, got "
                f"shapes {embeddings.shape} and {labels.shape}"
            )
        embeddings = embeddings.astype(np.float64)
        kinds, labels = np.unique(labels, return_inverse=True)
        if kinds.size < 2:
            raise DataError(
                f"{dataset.path}: all labels are equal, so there is nothing to fine-tune a head on"
            )
    else:
        pixels, labels = digits()
        mixed = normal(Key(0).child(2, Purpose.START), 0, 64 * DIGIT_FEATURES).reshape(64, DIGIT_FEATURES)
        embeddings = np.maximum((pixels - pixels.mean(axis=0)) @ mixed, 0)
    norms = np.linalg.norm(embeddings, axis=1, keepdims=True)
    return (embeddings / np.maximum(norms, 1e-30)).astype(np.float32), labels.astype(np.int64)


@lru_cache(maxsize=1)
@one_thread()
def fine_tuned(dataset: Dataset) -> tuple[Tensor, Tensor, float]:
    """Fine-tune the head on the labels of all rows: the inputs, its standardised logits, and its accuracy."""
    embeddings, codes = dataset.load()
    X, y = torch.from_numpy(embeddings), torch.from_numpy(codes)
    outputs = int(codes.max()) + 1
    sizes = ((HEAD_WIDTH, X.shape[1], 2 / HEAD_WIDTH), (outputs, HEAD_WIDTH, 1 / HEAD_WIDTH))
    head = [initial_weights(0, 10 + i, (a, b), var).requires_grad_() for i, (a, b, var) in enumerate(sizes)]
    optimizer = torch.optim.Adam(head, lr=HEAD_RATE)
    for _ in range(HEAD_STEPS):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy((X @ head[0].T).relu() @ head[1].T, y).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    with torch.no_grad():
        logits = (X @ head[0].T).relu() @ head[1].T
    accuracy = float((logits.argmax(dim=1) == y).double().mean())
    deviation = logits.std(dim=0, correction=0).clamp_min(1e-12)
    return X, (logits - logits.mean(dim=0)) / deviation, accuracy


def shares(dataset: Dataset, rows: int | None, nodes: int) -> tuple[Tensor, Tensor, float]:
    """Inputs and targets, (nodes, rows of a node, .) each, and the head's accuracy.

    Rows are shuffled by a key, and what does not divide among the nodes is left out. None is all rows.
    """
    inputs, targets, accuracy = fine_tuned(dataset)
    count = len(inputs) if rows is None else min(rows, len(inputs))
    each = count // nodes
    if each < 1:
        raise DataError(f"{dataset.name}: {count} rows are too few for {nodes} nodes")
    order = permutation(Key(0), Purpose.SPLIT, len(inputs), 0, nodes * each)
    return inputs[order].view(nodes, each, -1), targets[order].view(nodes, each, -1), accuracy
