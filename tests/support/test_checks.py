"""Checked numbers: what is accepted, and what the refusal says."""

import math

import numpy as np
import pytest
import scipy.sparse

from mast.errors import ArgumentError
from mast.support import checks
from mast.support.checks import csr


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


# ---- sparse matrices become one form; the callers' stay as they are ---------------------------------------

DENSE = np.array([[1.0, 0.0, 2.0], [0.0, 3.0, 0.0], [4.0, 0.0, 5.0], [0.0, 6.0, 0.0]])


def test_what_is_out_of_order_is_put_in_order():
    A = scipy.sparse.csr_array((np.array([1.0, 2, 3, 4, 0]), [2, 0, 0, 1, 2], [0, 3, 5]), shape=(2, 3))
    A.has_sorted_indices = A.has_canonical_format = True  # as a program may claim
    before = A.indices.copy(), A.data.copy()
    made = csr("A", A)
    np.testing.assert_array_equal(made.toarray(), [[5, 0, 1], [0, 4, 0]])
    assert made.nnz == 3
    assert (np.diff(made.indices[:2]) > 0).all()
    np.testing.assert_array_equal(A.indices, before[0])
    np.testing.assert_array_equal(A.data, before[1])


@pytest.mark.parametrize("of", [scipy.sparse.csr_array, scipy.sparse.csr_matrix])
@pytest.mark.parametrize("kind", ["csr", "csc", "bsr", "coo", "lil", "dok", "dia"])
def test_every_kind_of_sparse_matrix_is_read_alike(kind, of):
    made = csr("A", of(DENSE).asformat(kind))
    np.testing.assert_array_equal(made.toarray(), DENSE)
    assert made.has_canonical_format


def test_spare_room_in_the_arrays_stays_the_callers():
    A = scipy.sparse.csr_array(DENSE)
    A.data, A.indices = np.append(A.data, 7.0), np.append(A.indices, 0).astype(A.indices.dtype)
    np.testing.assert_array_equal(csr("A", A).toarray(), DENSE)
    assert A.data.size == 7
