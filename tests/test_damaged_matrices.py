"""Damaged sparse matrices at every door: refused by name, and no process ends.

SciPy reads memory wherever an index points, so everything is tried in a process of its own.
"""

import itertools
import subprocess
import sys

import numpy as np
import pytest
import scipy.sparse

import mast
from mast.errors import MastError

ROWS, COLUMNS = 12, 12  # square, so that every door takes it
DENSE = (np.arange(ROWS * COLUMNS).reshape(ROWS, COLUMNS) * 7 % 11 % 3).astype(float)
SQUARE = DENSE + DENSE.T + 20 * np.eye(ROWS)
LABELS = np.tile([1.0, -1.0], ROWS // 2)
REFUSALS = "is a damaged sparse matrix|must hold real numbers|must have 2 dimensions"
WILD = (-1, -(1 << 31), ROWS, 100, 1 << 20, (1 << 31) - 1)


class Careless(scipy.sparse.csr_array):
    """A class of the user's own that claims the best of everything."""

    has_sorted_indices = True
    has_canonical_format = True

    def check_format(self, full_check=True):
        """Finds nothing."""


def put(part, at, value):
    """A change of one number."""

    def change(A):
        getattr(A, part)[at] = value

    return change


def become(part, what):
    """A change of a whole part."""

    def change(A):
        setattr(A, part, what(getattr(A, part)))

    return change


def compressed_changes():
    for at, value in itertools.product((0, 5, -1), WILD):
        yield f"indices[{at}] = {value}", put("indices", at, value)
    for at, value in itertools.product((1, 3, -2), (-1, -(1 << 31), 10_000, 1 << 30)):
        yield f"indptr[{at}] = {value}", put("indptr", at, value)
    for value in (1, 5, -1, 1 << 30):
        yield f"indptr[0] = {value}", put("indptr", 0, value)
    for value in (-1, 10_000, 1 << 30):
        yield f"indptr[-1] = {value}", put("indptr", -1, value)
    for part in ("indices", "indptr", "data"):
        yield f"short {part}", become(part, lambda old: old[:-1])
        yield f"empty {part}", become(part, lambda old: old[:0])
        yield f"{part} in two dimensions", become(part, lambda old: old[None])
        yield f"no {part}", become(part, lambda old: None)
        yield f"{part} of objects", become(part, lambda old: old.astype(object))
    for part in ("indices", "indptr"):
        yield f"real {part}", become(part, lambda old: old + 0.5)
        yield f"large {part}", become(part, lambda old: old.astype(np.uint64) + np.uint64(1 << 63))
    for shape in ((3, 3), (ROWS, 2), (ROWS + 1, COLUMNS + 1), (-1, COLUMNS), (ROWS,)):
        yield f"shape {shape}", become("_shape", lambda old, shape=shape: shape)


def put_coordinate(axis, at, value):
    """A change of one coordinate."""
    return lambda A: A.coords[axis].__setitem__(at, value)


def coordinate_changes():
    for axis, at, value in itertools.product((0, 1), (0, -1), WILD):
        yield f"coordinates[{axis}][{at}] = {value}", put_coordinate(axis, at, value)
    for axis, what in itertools.product((0, 1), (lambda x: x[:-1], lambda x: x + 0.5, lambda x: None)):
        yield f"axis {axis}", lambda A, a=axis, w=what: setattr(A, "coords", replaced(A.coords, a, w))
    yield "three axes", lambda A: setattr(A, "coords", (*A.coords, A.coords[0]))
    yield "short data", become("data", lambda old: old[:-1])
    yield "objects", become("data", lambda old: old.astype(object))
    yield "a small shape", become("_shape", lambda old: (3, 3))


def replaced(coords, axis, what):
    return tuple(what(part) if i == axis else part for i, part in enumerate(coords))


def list_changes():
    for value in (*WILD, 0.5, "x", None, 10**30):
        yield f"rows[1] has {value}", lambda A, v=value: A.rows[1].__setitem__(0, v)
    for part in ("rows", "data"):
        yield f"a short list of {part}", lambda A, p=part: getattr(A, p)[2].pop()
        yield f"no list of {part}", put(part, 3, None)
        yield f"too few {part}", become(part, lambda old: old[:-1])
    yield "a text", lambda A: A.data[1].__setitem__(0, "x")


def dictionary_changes():
    for key in ((0, 99), (99, 0), (-1, 0), (0, 1 << 31), (0,), (0, 0, 0), (0.5, 1), "x", None, (None, 1)):
        yield f"key {key}", lambda A, k=key: A._dict.__setitem__(k, 1.0)
    yield "a text", lambda A: A._dict.__setitem__((0, 0), "x")


def diagonal_changes():
    yield "offsets that repeat", put("offsets", slice(None), 0)
    yield "real offsets", become("offsets", lambda old: old + 0.5)
    yield "few offsets", become("offsets", lambda old: old[:-1])
    yield "few diagonals", become("data", lambda old: old[:-1])
    yield "flat data", become("data", lambda old: old.ravel())
    yield "objects", become("data", lambda old: old.astype(object))


CHANGES = {
    "csr": compressed_changes,
    "csc": compressed_changes,
    "bsr": compressed_changes,
    "coo": coordinate_changes,
    "lil": list_changes,
    "dok": dictionary_changes,
    "dia": diagonal_changes,
}


def damaged():
    """Labels and damaged matrices of all formats; of some changes a matrix cannot even be made."""
    for kind, changes in CHANGES.items():
        for family in (scipy.sparse.csr_array, scipy.sparse.csr_matrix):
            for label, change in changes():
                A = family(SQUARE).asformat(kind)
                if kind == "bsr":
                    A = A.tobsr((2, 3))
                change(A)
                yield f"{family.__name__[4:]} {kind}: {label}", A
    for label, change in compressed_changes():
        A = Careless(SQUARE)
        change(A)
        yield f"careless: {label}", A


def doors(tmp):
    """Every way in for a sparse matrix."""
    classifier = mast.MastClassifier(alpha=0.1, random_state=0).fit(SQUARE, LABELS)
    sparse = scipy.sparse.csr_array(SQUARE)
    regressor = mast.MastRegressor(alpha=0.1, random_state=0).fit(sparse, LABELS)
    return {
        "MastClassifier.fit": lambda A: mast.MastClassifier(random_state=0).fit(A, LABELS),
        "MastRegressor.fit": lambda A: mast.MastRegressor(random_state=0).fit(A, LABELS),
        "predict": classifier.predict,
        "predict_proba": classifier.predict_proba,
        "decision_function": classifier.decision_function,
        "score": lambda A: regressor.score(A, LABELS),
        "score_sparsified": lambda A: regressor.score_sparsified(A, LABELS, draws=2),
        "shift": lambda A: mast.MastRegressor(shift=A).fit(sparse, LABELS),
        "Logistic": lambda A: mast.Logistic(A, LABELS, l2=0.1).value(np.ones(COLUMNS)),
        "LeastSquares": lambda A: mast.LeastSquares(A, LABELS),
        "NonconvexLogistic": lambda A: mast.NonconvexLogistic(A, LABELS, 0.1),
        "Quadratic": lambda A: mast.Quadratic(A, np.ones(ROWS)),
        "Matrices": lambda A: mast.Matrices([A, A]),
        "Conditional": lambda A: mast.Conditional(A, 0.5),
        "data.save": lambda A: mast.data.save(f"{tmp}/rows", A, LABELS),
    }


def main(tmp, wanted):
    """Try every matrix at some doors; the line before a crash says where it was."""
    chosen = {name: door for name, door in doors(tmp).items() if name in wanted.split(",")}
    tries = 0
    for (label, A), (name, door) in itertools.product(damaged(), chosen.items()):
        print(name, label, flush=True)
        tries += 1
        with pytest.raises(MastError, match=REFUSALS):
            door(A)
    print(tries, "tries, all refused")


@pytest.mark.parametrize(
    "wanted",
    [
        "MastClassifier.fit,MastRegressor.fit,predict,predict_proba,decision_function,score,score_sparsified",
        "shift,Logistic,LeastSquares,NonconvexLogistic,Quadratic,Matrices,Conditional,data.save",
    ],
)
def test_damaged_matrices_are_refused_at_every_door(tmp_path, wanted):
    done = subprocess.run(
        [sys.executable, "-W", "ignore", __file__, str(tmp_path), wanted],
        capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    last = done.stdout.splitlines()[-1:]
    assert done.returncode == 0, f"{last} ended with {done.returncode}: {done.stderr[-2000:]}"
    assert int(last[0].split()[0]) > 2000


@pytest.mark.parametrize("kind", CHANGES)
def test_sound_matrices_of_every_kind_pass_every_door(tmp_path, kind):
    A = scipy.sparse.csr_array(SQUARE).asformat(kind)
    for name, door in doors(tmp_path).items():
        if name not in ("Matrices", "shift"):  # the mean of matrices must be I, and a shift is a vector
            door(A)
    mast.Matrices([scipy.sparse.eye_array(3, format=kind)] * 2)
    v = scipy.sparse.csr_array(SQUARE[:1]).asformat(kind)
    mast.MastRegressor(shift=v).fit(SQUARE, LABELS)


def test_diagonals_outside_are_zeros():
    A = scipy.sparse.spdiags(np.ones((3, 2)), [-1, 0, 5], 2, 2)
    np.testing.assert_array_equal(mast.Quadratic(A + A.T, np.ones(2)).H, [[2, 1], [1, 2]])


def test_a_matrix_that_is_too_wide_to_be_dense_is_refused():
    A = scipy.sparse.coo_array(([1.0], ([0], [0])), shape=(10**7, 10**7))
    with pytest.raises(MastError, match="H as a dense array would take"):
        mast.Quadratic(A, np.ones(3))


if __name__ == "__main__":
    main(*sys.argv[1:])
