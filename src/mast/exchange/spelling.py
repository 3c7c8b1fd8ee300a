"""Capacities as people type them: any sketch of single weights, or of whole units of a network."""

from __future__ import annotations

from mast.errors import ArgumentError
from mast.sketches import Sketch, parse

STRUCTURED = ("neurons", "layers")


def parse_capacity(text: str) -> Sketch:
    """A sketch (``bernoulli:0.9``, ``permk:4``) or, for networks, a structure (``neurons:0.25``).

    >>> parse_capacity("bernoulli:.9")
    <Bernoulli(0.9): keeps 90 %>
    """
    if not isinstance(text, str):
        raise ArgumentError(
            f"a capacity is spelled as text such as 'bernoulli:0.9' or 'neurons:0.25', got {text!r}"
        )
    if is_structured(text):
        from mast.nn.structure.sketches import parse as parse_structured

        return parse_structured(text)
    return parse(text)


def is_structured(text: str) -> bool:
    """Whether the text speaks of whole units of a network."""
    return text.strip().lower().split(":")[0] in STRUCTURED


def parse_sketch(text: str) -> Sketch:
    """A sketch of single coordinates; a structure is refused."""
    if isinstance(text, str) and is_structured(text):
        raise ArgumentError(f"{text!r} keeps whole units of a network; a linear model takes a sketch such as "
                            "bernoulli:0.9 or permk:4")  # fmt: skip
    return parse_capacity(text)
