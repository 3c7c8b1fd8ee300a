"""Compiled kernels against their readable references, and gradients of one draw against the definition."""

import threading

import numpy as np
import pytest
import scipy.sparse
from hypothesis import given, settings
from hypothesis import strategies as st

import mast
from mast.errors import ArgumentError
from mast.objectives import kernels
from mast.objectives.design import Blocks, Pairs
from objectives import reference
from objectives.linear_samples import FORMATS, MODELS, D, data, halves
from sketches.samples import SKETCHES

seeds = st.integers(0, 10**6)


class TestSubsets:
    """The enumeration of a row's cases."""

    @given(seeds, st.integers(0, 8))
    @settings(deadline=None, max_examples=40)
    def test_sums_weights_and_folds(self, seed, m):
        rng = np.random.default_rng(seed)
        t, keep, bases, rates = rng.normal(size=2 * m), rng.random(2 * m), rng.normal(size=2), rng.random(2)
        start, rows = np.array([0, m, 2 * m]), np.array([1, 0])
        sums, weights = np.empty(2 << m), np.empty(2 << m)
        chunk = (rows, m, start)
        kernels.subset_sums(chunk, t, bases, sums)
        kernels.independent_weights(chunk, keep, rates, weights)
        work = rng.normal(size=2 << m)
        units, totals = np.empty(2 * m), np.empty(2)
        kernels.fold(chunk, work.copy(), units, totals)
        squares, square_start = np.zeros(2 * m * m), np.array([0, m * m, 2 * m * m])
        kernels.fold_pairs(chunk, square_start, work.copy(), squares, totals)
        for place, i in enumerate(rows):
            own, cases = slice(i * m, i * m + m), slice(place << m, (place + 1) << m)
            np.testing.assert_allclose(sums[cases], reference.subset_sums(bases[i], t[own]), atol=1e-13)
            expected = rates[i] * reference.independent_weights(keep[own])
            np.testing.assert_allclose(weights[cases], expected, atol=1e-15)
            both, each, total = reference.fold(work[cases], m)
            np.testing.assert_allclose(units[own], each, atol=1e-11)
            found = squares[square_start[i] : square_start[i + 1]].reshape(m, m)
            np.testing.assert_allclose(found, both, atol=1e-11)
            assert totals[i] == pytest.approx(total, abs=1e-11)


class TestPairs:
    @given(seeds, st.integers(1, 9), st.integers(1, 7), st.integers(1, 4))
    @settings(deadline=None, max_examples=40)
    def test_pairs_are_those_of_the_definition(self, seed, n, d, K):
        rng = np.random.default_rng(seed)
        A = rng.integers(-1, 2, size=(n, d)).astype(float)
        labels = rng.integers(-1, K, size=d)
        blocks = Blocks(labels)
        pairs = Pairs(scipy.sparse.csr_array(A), np.ones(n), blocks, np.arange(n), np.ones(n))
        found = reference.pairs(A, blocks.labels) if (blocks.labels >= 0).any() else {}
        assert pairs.B.shape[0] == len(found)
        for p, ((k, i), entries) in enumerate(found.items()):
            assert pairs.context[p] == i
            assert pairs.start[k] <= p < pairs.start[k + 1]
            row = pairs.B[[p]].tocoo()
            columns = blocks.order[row.coords[1]]
            assert dict(zip(columns.tolist(), row.data.tolist(), strict=True)) == entries
        touched = np.bincount([i for _, i in found], minlength=n) if found else np.zeros(n)
        np.testing.assert_array_equal(pairs.touched, touched)

    @given(seeds, st.integers(1, 60))
    @settings(deadline=None, max_examples=40)
    def test_equal_rows(self, seed, n):
        rng = np.random.default_rng(seed)
        A = rng.integers(0, 2, size=(n, 3)).astype(float)
        context = rng.integers(0, 2, size=n)
        S = scipy.sparse.csr_array(A)
        target, first = np.empty(n, dtype=np.int64), np.empty(n, dtype=np.int64)
        count = kernels.equal_rows((S.indptr, S.indices, S.data.view(np.uint64)), context, target, first)
        expected = reference.equal_rows([(c, *row) for c, row in zip(context, A, strict=True)])
        np.testing.assert_array_equal(target, expected)
        assert count == len(set(expected))
        np.testing.assert_array_equal(target[first[:count]], np.arange(count))

    def test_sums_of_many_equal_parts_keep_their_digits(self):
        """A plain running sum of a million tenths is off by 1e-6 parts in a million; this one is not."""
        groups = np.arange(2_000_000) % 2
        out = np.zeros(2)
        kernels.grouped_sums(np.full(groups.size, 0.1), groups, out)
        np.testing.assert_allclose(out, 100_000.0, rtol=1e-15)
        values = np.random.default_rng(0).normal(size=50)
        out = np.zeros(3)
        kernels.grouped_sums(values, np.arange(50) % 3, out)
        np.testing.assert_allclose(out, reference.grouped_sums(values, np.arange(50) % 3, 3), rtol=1e-13)


@pytest.mark.parametrize(("sketch", "model", "form", "shifted"), halves(SKETCHES, MODELS))
def test_gradient_of_one_draw(sketch, model, form, shifted):
    A, b = data(share=0.4)
    f = MODELS[model](FORMATS[form](A), b)
    rng = np.random.default_rng(0)
    v = shifted * rng.normal(size=D)
    x, w = rng.normal(size=D), rng.normal(size=D)
    gradients = f.sketched_gradients(v)
    for step in range(3):
        draw = SKETCHES[sketch].draw(D, step=step)
        for rows in (None, np.array([5]), np.array([3, 7, 7, 16])):
            if isinstance(draw, mast.sketches.DiagonalDraw):
                c, kept = draw.diagonal(), draw.indices
                at_x, at_w = (reference.sketched_gradient(f, y, c, v, rows)[kept] for y in (x, w))
            else:
                gradient = f.gradient if rows is None else lambda y, rows=rows: f.term_gradient(y, rows)
                at_x, at_w = (draw.adjoint(gradient(v + draw.apply(y - v))) for y in (x, w))
            tolerance = {"rtol": 1e-12, "atol": 1e-12}
            np.testing.assert_allclose(f.sketched_gradient(x, draw, v, rows), at_x, **tolerance)
            np.testing.assert_allclose(gradients.gradient(x, draw, rows), at_x, **tolerance)
            if rows is None:
                np.testing.assert_allclose(gradients.difference(x, w, draw), at_x - at_w, **tolerance)


class TestDraws:
    def test_each_way_is_used(self):
        A, b = data(n=200, d=D, share=0.3)
        A[:, 0] *= np.arange(200) < 3
        f = mast.Logistic(scipy.sparse.csr_matrix(A), b, l2=0.1)
        gradients = f.sketched_gradients(np.zeros(D))
        gradients.gradient(np.ones(D), mast.PermK(2).draw(D))
        assert len(gradients._submatrices) == 1
        for sketch, kept, rows in (
            ("nearly all columns", np.arange(1, D), slice(None)),
            ("a column with few entries", np.array([0]), np.flatnonzero(A[:, 0])),
        ):
            draw = mast.sketches.DiagonalDraw(D, kept, np.ones(kept.size))
            with gradients._products(draw, None) as columns:
                np.testing.assert_array_equal(columns.rows, rows, err_msg=sketch)
        assert len(gradients._submatrices) == 1
        with gradients._products(draw, np.array([5, 7])) as columns:
            np.testing.assert_array_equal(columns.rows, [5, 7])

    def test_submatrices_are_remembered_within_bounds(self):
        A, b = data(n=50, share=0.8)
        f = mast.Logistic(scipy.sparse.csr_matrix(A), b, l2=0.1)
        gradients = f.sketched_gradients(np.zeros(D))
        for seed in range(9):
            sketch = mast.PermK(2, seed=seed)
            for step in range(6):
                gradients.gradient(np.ones(D), sketch.draw(D, step=step))
        held = sum(part.entries for part in gradients._submatrices.values())
        assert 0 < held <= 2 * f.design.csr.data.size

    def test_threads_do_not_share_scratch(self):
        A, b = data(n=400, d=D, share=0.3)
        f = mast.Logistic(scipy.sparse.csr_matrix(A), b, l2=0.1)
        sketch, x = mast.RandK(2), np.ones(D)
        gradients = f.sketched_gradients(np.zeros(D))
        expected = [gradients.gradient(x, sketch.draw(D, step=t)) for t in range(50)]
        wrong = []

        def work():
            for t in range(50):
                got = gradients.gradient(x, sketch.draw(D, step=t))
                if not np.array_equal(got, expected[t]):
                    wrong.append(t)

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert wrong == []

    def test_other_objectives_have_no_rows(self):
        f = mast.Quadratic(np.eye(2), [1.0, 1.0])
        draw = mast.Identity().draw(2)
        gradients = f.sketched_gradients(np.zeros(2))
        np.testing.assert_allclose(gradients.difference(np.ones(2), np.zeros(2), draw), 1.0)
        with pytest.raises(ArgumentError, match="not a sum of terms"):
            f.sketched_gradient(np.ones(2), draw, np.zeros(2), np.array([0]))
