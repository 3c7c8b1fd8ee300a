"""Checked numbers: what a user passes becomes a number in its range, or an error that says which that is."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable
from typing import Any

from mast.errors import ArgumentError


def check_number(
    name: str,
    value: Any,
    *,
    above: float | None = None,
    least: float | None = None,
    below: float | None = None,
    most: float | None = None,
) -> float:
    """`value` as a finite float above `above`, below `below`, at least `least` and at most `most`.

    >>> check_number("momentum", 0.9, least=0, below=1)
    0.9
    >>> check_number("momentum", 1, least=0, below=1)
    Traceback (most recent call last):
    mast.errors.ArgumentError: momentum must lie in [0, 1), got 1
    """
    if value is None:
        raise ArgumentError(f"{name} is missing: pass {name}=...")
    try:
        if isinstance(value, str | bytes | bool) or getattr(value, "ndim", 0) != 0:
            raise TypeError  # float() would accept them
        result = float(value)
    except (TypeError, ValueError, OverflowError):
        result = math.nan
    fits = (
        math.isfinite(result)
        and (above is None or result > above)
        and (least is None or result >= least)
        and (below is None or result < below)
        and (most is None or result <= most)
    )
    if not fits:
        raise ArgumentError(f"{name} must {_range(above, least, below, most)}, got {value!r}")
    return result


def check_positive(name: str, value: Any) -> float:
    """A finite number above 0."""
    return check_number(name, value, above=0)


def check_nonnegative(name: str, value: Any) -> float:
    """A finite number, 0 or more."""
    return check_number(name, value, least=0)


def check_optional(name: str, value: Any) -> float | None:
    """A finite number, 0 or more; None where the caller does not know it."""
    return None if value is None else check_nonnegative(name, value)


def check_probability(name: str, value: Any) -> float:
    """A number in (0, 1]: the probability of something that may happen."""
    return check_number(name, value, above=0, most=1)


def check_int(name: str, value: Any, least: int | None = None, most: int | None = None) -> int:
    """`value` as an int within the limits; a float is not a whole number, even 3.0.

    >>> check_int("nodes", 4, 1, 3)
    Traceback (most recent call last):
    mast.errors.ArgumentError: nodes must lie in 1 .. 3, got 4
    """
    try:
        if isinstance(value, bool):
            raise TypeError
        result = operator.index(value)
    except TypeError:
        raise ArgumentError(f"{name} must be a whole number, got {value!r}") from None
    if (least is not None and result < least) or (most is not None and result > most):
        limits = f"be at least {least}" if most is None else f"lie in {least} .. {most}"
        raise ArgumentError(f"{name} must {limits}, got {value!r}")
    return result


def check_choice(name: str, value: Any, allowed: Iterable[str]) -> str:
    """One of a few words.

    >>> check_choice("coupling", "some", ["independent", "disjoint"])
    Traceback (most recent call last):
    mast.errors.ArgumentError: coupling must be one of 'independent', 'disjoint', got 'some'
    """
    words = list(allowed)
    if not isinstance(value, str) or value not in words:
        raise ArgumentError(f"{name} must be one of {', '.join(map(repr, words))}, got {value!r}")
    return value


def check_list(name: str, value: Any) -> list[Any]:
    """`value` as a list; a text is not one."""
    if isinstance(value, str) or not isinstance(value, Iterable):
        raise ArgumentError(f"{name} must be a list, got {value!r}")
    return list(value)


def _range(above: float | None, least: float | None, below: float | None, most: float | None) -> str:
    upper = below if most is None else most
    if upper is not None:
        left = f"({above:g}" if least is None else f"[{least:g}"
        return f"lie in {left}, {upper:g}{')' if most is None else ']'}"
    if above is not None:
        return "be a positive number" if above == 0 else f"be a finite number above {above:g}"
    return "be a finite number" if least is None else f"be a finite number >= {least:g}"
