"""Sums that a few bad answers cannot spoil: answers are changed before the server adds them up.

- "clipped:c": answers longer than c times the running median of norms are cut to that length (c = 1).
- "trimmed:share": in each coordinate this share of the values at either end, and at least one where three or
  more nodes hold it, gives way to the mean of the others (share = 0.1).

Both have a price: the estimate of the gradient is biased as soon as nodes differ, and no statement covers it.
Trimming takes as much memory as all answers written out in full. Where only one or two nodes hold a
coordinate there is nothing to trim, so a bad node still moves it by its own answer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from mast.checks import number, positive
from mast.errors import ArgumentError
from mast.methods.distributed.messages import Message, Values
from mast.methods.distributed.nodes import Part
from mast.methods.distributed.server import Server

EXAMPLES = "clipped, clipped:2, trimmed, trimmed:0.2"


def parse_robust(text: str | None) -> tuple[str, float]:
    """The kind of sum that a text names, and its number.

    >>> parse_robust("trimmed:0.2"), parse_robust(None)
    (('trimmed', 0.2), ('none', 0.0))
    """
    kind, _, word = str(text).strip().lower().partition(":")
    default = {"none": 0.0, "clipped": 1.0, "trimmed": 0.1}.get(kind)
    try:
        value = default if not word else float(word)
    except ValueError:
        value = None
    if default is None or value is None or (word and kind == "none"):
        raise ArgumentError(f"unknown robust sum {text!r}; examples are {EXAMPLES}")
    if kind == "clipped":
        positive("the factor of clipped", value)
    if kind == "trimmed":
        number("the share of trimmed", value, above=0, below=0.5)
    return kind, value


def clipped(answers: Sequence[Values], length: float) -> list[Values]:
    """The answers, none of them longer than this.

    >>> clipped([np.array([3.0, 4.0]), np.array([0.5, 0.0])], 1.0)
    [array([0.6, 0.8]), array([0.5, 0. ])]
    """
    norms = [float(np.linalg.norm(values)) for values in answers]
    return [
        values if norm <= length else values * values.dtype.type(length / norm)
        for values, norm in zip(answers, norms, strict=True)
    ]


def trimmed(
    answers: Sequence[Values], parts: Sequence[Part], weights: Sequence[float], dim: int, share: float
) -> list[Values]:
    """The answers, with the mean of the middle in place of what is at either end of a coordinate.

    Values are compared as the server sums them, times their weights. Their sum is then the number of nodes
    that hold the coordinate, times the trimmed mean.

    >>> from mast.sketches.kept import Everything
    >>> whole = [Part(Everything([1]), None)] * 4
    >>> trimmed([np.array([v]) for v in (1.0, 2.0, 4.0, -100.0)], whole, [1.0] * 4, 1, 0.1)
    [array([1.]), array([2.]), array([1.5]), array([1.5])]
    """
    table = np.full((len(answers), dim), np.nan)
    for row, values, part, weight in zip(table, answers, parts, weights, strict=True):
        written, held = np.zeros(dim), np.zeros(dim)
        part.add(written, values.astype(np.float64), weight)
        part.count_in(held, 1.0)
        row[held > 0] = written[held > 0]
    held = ~np.isnan(table)
    count = held.sum(axis=0)
    ends = np.minimum(np.ceil(share * count), np.maximum(count - 1, 0) // 2)
    place = np.argsort(np.argsort(table, axis=0, kind="stable"), axis=0)  # NaN, which is not held, comes last
    middle = held & (place >= ends) & (place < count - ends)
    mean = np.where(middle, table, 0.0).sum(axis=0) / np.maximum(middle.sum(axis=0), 1)
    table = np.where(middle, table, mean)
    return [
        (part.gather(row) / weight).astype(values.dtype)
        for row, values, part, weight in zip(table, answers, parts, weights, strict=True)
    ]


def robust_answers(
    robust: tuple[str, float],
    server: Server,
    answers: Mapping[int, Message],
    weights: Mapping[int, float],
    length: float,
) -> dict[int, Message]:
    """The answers of a round, changed as `robust` asks; `length` is the running median of norms."""
    (kind, value), nodes = robust, sorted(answers)
    values = [answers[node].values for node in nodes]
    if kind == "clipped":
        values = clipped(values, value * length)
    elif kind == "trimmed":
        parts, factors = [server.part(node) for node in nodes], [weights[node] for node in nodes]
        values = trimmed(values, parts, factors, server.x.size, value)
    return {node: Message.of(answers[node].header, new) for node, new in zip(nodes, values, strict=True)}
