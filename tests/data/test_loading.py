"""What a user gets from `mast.data.load`: the matrix, the labels, and what its arguments do."""

import logging
import pickle
import subprocess
import sys

import numpy as np
import pytest
import scipy.sparse

import mast
from mast.errors import ArgumentError, DataError


def test_a1a_is_embedded():
    A, b = mast.data.load("a1a", download=False)
    assert scipy.sparse.isspmatrix_csr(A)
    assert A.shape == (1605, 123)
    assert A.nnz == 22249
    assert (A.data.dtype, A.indices.dtype, A.indptr.dtype) == (np.float64, np.int32, np.int32)
    assert (b.dtype, (b == 1).sum(), (b == -1).sum()) == (np.float64, 395, 1210)
    A.check_format(full_check=True)
    assert A.has_canonical_format


@pytest.mark.parametrize(
    ("name", "shape", "positive"),
    [("a1a", (1605, 123), 395), ("a5a", (6414, 123), 1569), ("w8a", (49749, 300), 1479)],
)
def test_shared_sets(shared, name, shape, positive):
    from sklearn.datasets import load_svmlight_file

    A, b = mast.data.load(name, data_dir=shared)
    assert A.shape == shape
    assert (b == 1).sum() == positive
    expected, labels = load_svmlight_file(str(shared / "libsvm" / f"{name}.gz"), n_features=shape[1])
    assert (expected != A).nnz == 0
    assert (b == labels).all()


def test_liblinear_accepts_it():
    from sklearn.linear_model import LogisticRegression

    A, b = mast.data.load("a1a")
    assert LogisticRegression(solver="liblinear").fit(A, b).score(A, b) > 0.8


@pytest.mark.parametrize(
    ("low", "high"), [("-1", "+1"), ("0", "1"), ("1", "2"), ("-7.5", "-7"), ("2", "10"), ("-1", "0")]
)
def test_the_larger_label_is_positive_and_that_is_said(file, caplog, low, high):
    path = file(f"{high} 1:1\n{low} 1:1\n{high} 2:1\n".encode())
    with caplog.at_level(logging.INFO, "mast.data"):
        loaded = mast.data.load(path)
    assert loaded.b.tolist() == [1, -1, 1]
    assert loaded.labels == (float(low), float(high))
    words = f"labels {low} -> -1, {high.lstrip('+')} -> +1"
    assert words in repr(loaded)
    assert words in caplog.text


def test_more_than_two_labels(file):
    path = file(b"0 1:1\n1 1:1\n2.5 1:1\n")
    with pytest.raises(DataError, match=r"labels 0, 1, 2\.5, expected two classes; labels='raw'"):
        mast.data.load(path)
    assert mast.data.load(path, labels="raw").b.tolist() == [0, 1, 2.5]
    assert mast.data.load(path, labels="raw").labels is None
    with pytest.raises(DataError, match=r"line 3: the label is 2\.5, but labels=\(0, 1\)"):
        mast.data.load(path, labels=(0, 1))


def test_many_labels_are_not_all_named(file):
    with pytest.raises(DataError, match=r"8, 9, \.\.\. \(50 in all\)"):
        mast.data.load(file("".join(f"{i} 1:1\n" for i in range(50)).encode()))


def test_one_class(file):
    assert mast.data.load(file(b"+1 1:1\n1 1:1")).b.tolist() == [1, 1]
    assert mast.data.load(file(b"-1 1:1")).b.tolist() == [-1]
    with pytest.raises(DataError, match=r"every label is 2.*labels=\(negative, positive\)"):
        mast.data.load(file(b"2 1:1"))
    assert mast.data.load(file(b"2 1:1"), labels=(1, 2)).b.tolist() == [1]
    assert mast.data.load(file(b"2 1:1"), labels=(2, 1)).b.tolist() == [-1]


@pytest.mark.parametrize("labels", ["both", None, 1, (1, 1), (1, 2, 3), ("a", "b"), (0, float("nan"))])
def test_labels_must_be_a_known_option(labels):
    with pytest.raises(ArgumentError, match="expected 'binary', 'raw' or a pair"):
        mast.data.load("a1a", labels=labels)


def test_number_of_features(file):
    path = file(b"1 3:1\n-1 7:1\n")
    assert mast.data.load(path).A.shape == (2, 7)
    assert mast.data.load(path, n_features=9).A.shape == (2, 9)
    assert mast.data.load(path, np.int64(9)).A.shape == (2, 9)
    assert mast.data.load(path, zero_based=True).A.shape == (2, 8)
    with pytest.raises(DataError, match=r"mine, line 2: found '7:1', but n_features=6"):
        mast.data.load(path, n_features=6)
    for wrong in (0, -1, 2.0, "7", True, 2**31):
        with pytest.raises(ArgumentError, match="n_features must"):
            mast.data.load(path, n_features=wrong)


def test_rows_without_features(file):
    assert mast.data.load(file(b"1\n-1 2:1\n")).A.toarray().tolist() == [[0, 0], [0, 1]]
    assert mast.data.load(file(b"1\n-1\n"), n_features=2).A.shape == (2, 2)
    with pytest.raises(DataError, match="give n_features"):
        mast.data.load(file(b"1\n-1\n"))


def test_a_loaded_pair_survives_pickling():
    loaded = pickle.loads(pickle.dumps(mast.data.load("a1a")))
    assert loaded.labels == (-1, 1)
    assert loaded.A.shape == (1605, 123)


def test_importing_is_light():
    heavy = {"numba", "scipy", "pooch", "sklearn"}
    code = f"import sys, mast.data; print({heavy} & set(sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.strip() == "set()"
