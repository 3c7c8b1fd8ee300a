"""Checked numbers: what is accepted, and what the refusal says."""

import math

import numpy as np
import pytest

from mast.errors import ArgumentError
from mast.support import checks


@pytest.mark.parametrize("value", [1, 1.0, np.float32(1), np.int64(1), np.array(1.0)])
def test_numbers_of_every_kind_become_a_float(value):
    assert type(checks.check_number("x", value)) is float
    assert (
        checks.check_positive("x", value)
        == checks.check_nonnegative("x", value)
        == checks.check_probability("x", value)
        == 1
    )


@pytest.mark.parametrize("value", ["1", b"1", True, [1], np.array([1.0]), 1j, math.nan, math.inf, 10**400])
def test_what_is_no_finite_number_is_refused(value):
    with pytest.raises(ArgumentError, match=r"x must be a finite number, got"):
        checks.check_number("x", value)


@pytest.mark.parametrize(
    ("limits", "value", "words"),
    [
        ({"above": 0}, 0, "a positive number"),
        ({"above": 1}, 1, "a finite number above 1"),
        ({"least": 0}, -1e-9, "a finite number >= 0"),
        ({"least": 0, "below": 1}, 1, r"lie in \[0, 1\)"),
        ({"above": 0, "most": 1}, 0, r"lie in \(0, 1\]"),
        ({"above": 0, "most": 1}, 1.5, r"lie in \(0, 1\]"),
    ],
)
def test_limits(limits, value, words):
    with pytest.raises(ArgumentError, match=f"x must (be )?{words}, got {value}"):
        checks.check_number("x", value, **limits)


def test_a_missing_number_says_so():
    with pytest.raises(ArgumentError, match="eps is missing: pass eps="):
        checks.check_positive("eps", None)
    assert checks.check_optional("eps", None) is None


@pytest.mark.parametrize("value", [3.0, "3", True, None, np.float64(3)])
def test_whole_numbers_are_integers(value):
    assert checks.check_int("n", np.int32(3)) == 3
    with pytest.raises(ArgumentError, match="n must be a whole number"):
        checks.check_int("n", value)


def test_whole_numbers_have_limits():
    with pytest.raises(ArgumentError, match="n must be at least 1, got 0"):
        checks.check_int("n", 0, 1)
    with pytest.raises(ArgumentError, match=r"n must lie in 1 \.\. 5, got 6"):
        checks.check_int("n", 6, 1, 5)


def test_words_and_lists():
    with pytest.raises(ArgumentError, match="mode must be one of 'a', 'b', got 3"):
        checks.check_choice("mode", 3, ["a", "b"])
    with pytest.raises(ArgumentError, match="blocks must be a list, got 'ab'"):
        checks.check_list("blocks", "ab")
    assert checks.check_list("blocks", range(2)) == [0, 1]
