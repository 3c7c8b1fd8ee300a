"""Arrays that users pass: what is wrong with them is said before anything reads them."""

import subprocess
import sys

import numpy as np
import pytest
import scipy.sparse

import mast
from mast.arrays import csr
from mast.errors import DataError

DENSE = np.array([[1.0, 0.0, 2.0], [0.0, 3.0, 0.0], [4.0, 0.0, 5.0], [0.0, 6.0, 0.0]])
LABELS = [1.0, -1.0, 1.0, -1.0]


def damaged(part: str, at: int, value: int, kind: type = scipy.sparse.csr_array):
    """A matrix with one wrong number in one of its index arrays."""
    A = kind(DENSE)
    getattr(A, part)[at] = value
    return A


DAMAGED = {
    "a column beyond d": damaged("indices", 1, 3),
    "a column far beyond d": damaged("indices", 1, 1 << 30),
    "a negative column": damaged("indices", 1, -1),
    "rows that overlap": damaged("indptr", 1, 5),
    "more entries than there are": damaged("indptr", -1, 7),
    "a first row that begins late": damaged("indptr", 0, 1),
    "a row beyond n, by columns": damaged("indices", 1, 1 << 30, scipy.sparse.csc_array),
    "a row beyond n, by coordinates": damaged("row", 0, 1 << 30, scipy.sparse.coo_matrix),
    "a column beyond d, in lists": scipy.sparse.lil_array(DENSE),
}
DAMAGED["a column beyond d, in lists"].rows[0] = [0, 9]


@pytest.mark.parametrize("what", DAMAGED)
def test_a_damaged_structure_is_refused(what):
    with pytest.raises(DataError, match="A is a damaged sparse matrix"):
        mast.Logistic(DAMAGED[what], LABELS, l2=0.1)


def test_a_damaged_structure_ends_no_process():
    """Reading beyond an array may end a process without a word: so it is tried in one of its own."""
    code = """
import numpy as np, scipy.sparse, mast
A = scipy.sparse.random(2000, 50, 0.2, format="csr", random_state=0)
A.indices[7] = 2_000_000_000
try:
    mast.minimize(mast.Problem(mast.Logistic(A, np.ones(2000), l2=.1), mast.RandK(5)), steps=3)
except mast.errors.DataError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "A is a damaged sparse matrix" in done.stdout


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
