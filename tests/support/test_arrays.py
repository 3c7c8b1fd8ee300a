"""Sparse matrices that users pass become one form; theirs stay as they are."""

import numpy as np
import pytest
import scipy.sparse

from mast.support.arrays import csr

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
