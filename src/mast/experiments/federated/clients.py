"""The clients of the study: how rows are dealt to them, and what each can hold."""

from __future__ import annotations

import numpy as np

from mast import randomness
from mast.arrays import Array, Indices
from mast.randomness import Key, Purpose

CAPACITIES = (1.0, 0.5, 0.25, 0.125, 0.0625)
SPLITS = {"iid": None, "dirichlet": 0.3}  # the concentration of each class over clients; None: alike


def shares(clients: int) -> list[float]:
    """What each client can hold: every capacity equally often."""
    return [CAPACITIES[i % len(CAPACITIES)] for i in range(clients)]


def deal(labels: Indices, clients: int, split: str, key: Key) -> list[Indices]:
    """The rows of each client; each class is dealt by itself, by shares that follow a Dirichlet law.

    >>> rows = deal(np.array([0, 1] * 50), clients=4, split="iid", key=Key(1))
    >>> [len(of_client) for of_client in rows]
    [24, 26, 26, 24]
    """
    dealt: list[list[Indices]] = [[] for _ in range(clients)]
    for number, label in enumerate(np.unique(labels)):
        rows = np.flatnonzero(labels == label)
        rows = rows[randomness.permutation(key.child(number), Purpose.SPLIT, len(rows))]
        ends = np.round(np.cumsum(_portions(clients, SPLITS[split], key.child(number))) * len(rows))
        for own, part in zip(dealt, np.split(rows, ends[:-1].astype(np.int64)), strict=True):
            own.append(part)
    return [np.concatenate(own) for own in dealt]


def _portions(clients: int, concentration: float | None, key: Key) -> Array:
    """The share of each client in one class: equal ones, or a draw of a Dirichlet law."""
    if concentration is None:
        return np.full(clients, 1 / clients)
    from scipy.stats import gamma

    drawn = gamma.ppf(randomness.uniforms(key, Purpose.CHOICE, clients), concentration) + 1e-12
    return np.asarray(drawn / drawn.sum())
