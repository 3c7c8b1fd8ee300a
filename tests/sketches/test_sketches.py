"""What holds for every sketch: closed forms against enumeration, draws against closed forms."""

import math

import numpy as np
import pytest

import mast
from mast import randomness
from mast.errors import BiasedSketchError, NotDiagonalError, SupportTooLargeError
from mast.randomness import Key
from mast.sketches.independent import entry_of
from sketches.samples import BIASED, DIAGONAL, FINITE, SKETCHES, UNBIASED, D


def each(sketches):
    return pytest.mark.parametrize("sketch", sketches.values(), ids=sketches.keys())


def mean_over(support, of):
    return sum(probability * of(draw.matrix()) for probability, draw in support)


@each(FINITE)
class TestAgainstEnumeration:
    def test_probabilities(self, sketch):
        support = sketch.support(D)
        assert len(support) == sketch.support_size(D)
        assert min(p for p, _ in support) > 0
        assert math.fsum(p for p, _ in support) == pytest.approx(1, abs=1e-14)

    def test_mean(self, sketch):
        expected = mean_over(sketch.support(D), lambda S: S)
        np.testing.assert_allclose(np.diag(sketch.mean(D)), expected, atol=1e-12)

    def test_expected_square(self, sketch):
        expected = mean_over(sketch.support(D), lambda S: S.T @ S)
        square = sketch.expected_square(D)
        np.testing.assert_allclose(np.diag(square) if square.ndim == 1 else square, expected, atol=1e-12)

    def test_sandwich(self, sketch):
        H = np.random.default_rng(0).standard_normal((D, D))
        H = H @ H.T
        expected = mean_over(sketch.support(D), lambda S: S.T @ H @ S)
        np.testing.assert_allclose(sketch.sandwich(H), expected, atol=1e-12 * np.abs(expected).max())

    def test_draws_come_from_the_support(self, sketch):
        possible = np.stack([draw.matrix() for _, draw in sketch.support(D)])
        for step in range(20):
            S = sketch.draw(D, seed=1, step=step).matrix()
            assert np.abs(possible - S).max(axis=(1, 2)).min() < 1e-14


@each({name: s for name, s in FINITE.items() if name != "nested, never whole"})
def test_constants_against_enumeration(sketch):
    support = sketch.support(D)
    eigenvalues = np.linalg.eigvalsh(mean_over(support, lambda S: S.T @ S))
    largest = max(np.linalg.norm(draw.matrix(), 2) ** 2 for _, draw in support)
    constants = sketch.constants(D)
    assert pytest.approx(eigenvalues[-1], rel=1e-12) == constants.L_D
    assert constants.mu_D == pytest.approx(eigenvalues[0], rel=1e-12)
    assert constants.L_max == pytest.approx(largest, rel=1e-12)
    assert constants.kappa_D == (constants.L_D / constants.mu_D if constants.mu_D else np.inf)
    assert constants.L_max >= constants.L_D >= constants.mu_D
    assert constants.unbiased == sketch.unbiased
    assert constants.mu_D >= 1 - 1e-12 or not sketch.unbiased


@each({name: s for name, s in DIAGONAL.items() if name in FINITE})
def test_second_moment_against_enumeration(sketch):
    expected = mean_over(sketch.support(D), lambda S: np.outer(np.diag(S), np.diag(S)))
    np.testing.assert_allclose(sketch.second_moment(D), expected, atol=1e-12)


@each({name: s for name, s in DIAGONAL.items() if name in FINITE})
def test_share_against_enumeration(sketch):
    expected = sum(probability * draw.indices.size / D for probability, draw in sketch.support(D))
    assert sketch.share(D) == pytest.approx(expected, abs=1e-12)


@each({name: s for name, s in DIAGONAL.items() if name in FINITE})
def test_at_another_density(sketch):
    other = sketch.at(0.5)
    if sketch.members is None:  # one share of a nested order is biased, another list has another mean
        assert other.unbiased == sketch.unbiased or not isinstance(other, type(sketch))
    if not isinstance(sketch, mast.Except | mast.Grouped | mast.Sampled):
        assert other.share(D) == pytest.approx(0.5, abs=1e-9)
    assert sketch.at(1).share(D) == 1
    with pytest.raises(mast.MastError, match="density"):
        sketch.at(1.5)


@each({name: s for name, s in SKETCHES.items() if entry_of(s) is not None})
def test_an_entry_draws_any_piece(sketch):
    entry, key = entry_of(sketch), Key(3, 4, 5, 6)
    kept = randomness.bernoulli(key, entry.threshold, 2, D)
    normal = randomness.normal(key, 0, D)[2:] if entry.sigma else 0
    expected = kept * (entry.scale + entry.sigma * normal)
    assert np.array_equal(sketch.sample(D, key).diagonal()[2:], expected)


@each({name: s for name, s in DIAGONAL.items() if s.members == s.stride})
def test_nodes_of_a_stride_draw_the_support(sketch):
    drawn = [sketch.draw(D, seed=2, node=node).diagonal().tolist() for node in range(sketch.stride)]
    assert sorted(drawn) == sorted(draw.diagonal().tolist() for _, draw in sketch.support(D))


@each(SKETCHES)
class TestDraws:
    def test_is_a_pure_function_of_its_key(self, sketch):
        first = sketch.draw(D, seed=5, step=7, node=2, index=3).matrix()
        for step in range(5):
            sketch.draw(D, seed=1, step=step)
        assert np.array_equal(first, sketch.draw(D, seed=5, step=7, node=2, index=3).matrix())

    def test_apply_and_adjoint_are_the_matrix(self, sketch):
        draw = sketch.draw(D, seed=2)
        u = np.linspace(-1, 2, D)
        np.testing.assert_allclose(draw.apply(u), draw.matrix() @ u, rtol=1e-15, atol=1e-15)
        np.testing.assert_allclose(draw.adjoint(u), draw.matrix().T @ u, rtol=1e-15, atol=1e-15)
        columns = np.arange(D * 2.0).reshape(D, 2)
        np.testing.assert_allclose(draw.apply(columns), draw.matrix() @ columns, rtol=1e-14, atol=1e-14)

    def test_apply_leaves_its_argument_alone(self, sketch):
        u = np.ones(D)
        sketch.draw(D).apply(u)
        assert (u == 1).all()

    def test_refuses_another_length(self, sketch):
        with pytest.raises(mast.MastError, match=f"{D} entries"):
            sketch.draw(D).apply(np.ones(D + 1))

    def test_says_what_it_keeps(self, sketch):
        assert "keeps" in repr(sketch) or not sketch.diagonal
        assert str(D) in repr(sketch.draw(D))

    def test_refuses_a_bad_dimension(self, sketch):
        for d in (0, -1, 1.5):
            with pytest.raises(mast.MastError, match="dimension"):
                sketch.draw(d)


@each(DIAGONAL)
def test_indices_and_scales(sketch):
    draw = sketch.draw(D, seed=9, step=4)
    assert draw.indices.dtype == np.int64
    assert (np.diff(draw.indices) > 0).all()
    assert draw.scales.shape == draw.indices.shape
    c = np.zeros(D)
    c[draw.indices] = draw.scales
    assert np.array_equal(np.diag(c), draw.matrix())
    assert draw.apply(np.ones(D, dtype=np.float32)).dtype == np.float32


@each(SKETCHES)
def test_draws_have_the_moments_of_the_closed_form(sketch):
    """Mean and E[S'HS] of many draws, within five standard errors; the key's fields take turns."""
    n = 6000
    H = np.ones((D, D)) + np.diag(np.arange(D))
    S = np.empty((n, D, D))
    for i in range(n):
        field = ("seed", "step" if sketch.independent else "seed", "node", "index")[i % 4]
        S[i] = sketch.draw(
            D, **{"seed": 17, field: 64 * i}
        ).matrix()  # 64: nodes of different groups of Perm-K
    for sample, exact in (
        (S, np.diag(sketch.mean(D))),
        (np.einsum("nki,kl,nlj->nij", S, H, S, optimize=True), sketch.sandwich(H)),
    ):
        error = sample.std(axis=0) / math.sqrt(n)
        assert (np.abs(sample.mean(axis=0) - exact) <= 5 * error + 1e-12).all()


@each(BIASED)
def test_theorem_1_does_not_cover_a_biased_sketch(sketch):
    """DSGD has a step size for it all the same, and Theorem 1 does not bound its gap."""
    f = mast.Function(
        lambda x: (float(np.sum(np.logaddexp(x, -x))), np.tanh(x)), D, smoothness=1.0, convex=True
    )
    problem = mast.Problem(f, sketch)
    if sketch is SKETCHES["nested, never whole"]:
        with pytest.raises(BiasedSketchError, match="add the share 1"):
            mast.guarantee(problem)
        return
    g = mast.guarantee(problem, regime="convex")
    assert g.max_step_size() == pytest.approx(1 / (2 * sketch.constants(D).L_max))
    assert not any("Theorem 1" in note for note in g.assumptions)


@each(UNBIASED)
def test_an_unbiased_sketch_has_mean_one(sketch):
    np.testing.assert_allclose(sketch.mean(D), np.ones(D), rtol=0, atol=1e-15)


@each({name: s for name, s in SKETCHES.items() if not s.diagonal})
def test_a_general_matrix_has_no_second_moment_of_its_diagonal(sketch):
    with pytest.raises(NotDiagonalError):
        sketch.second_moment(D)


@each({name: s for name, s in SKETCHES.items() if name not in FINITE})
def test_an_infinite_support_is_none(sketch):
    assert sketch.support(D) is None


@pytest.mark.parametrize(
    ("sketch", "d", "size"),
    [
        (mast.Bernoulli(0.5), 20, "1,048,576"),
        (mast.RandK(10), 40, "847,660,528"),
        (mast.Bernoulli(0.5), 1000, r"10\^301"),
        (mast.PermK(2, redraw=True), 30, "155,117,520"),
    ],
)
def test_a_large_support_is_refused_with_its_size(sketch, d, size):
    with pytest.raises(SupportTooLargeError, match=size):
        sketch.support(d)


@each({name: s for name, s in SKETCHES.items() if s.law(D) and s.law(D).separable()})
def test_separable_sketches_keep_one_block(sketch):
    labels, K = sketch.law(D).separable()
    moment = np.where(labels[:, None] == labels, float(K), 0.0)
    free = labels < 0  # left alone: the constant 1
    moment[free, :] = moment[:, free] = 1.0
    np.testing.assert_allclose(sketch.second_moment(D), moment, atol=1e-12)
    assert sketch.constants(D).L_max == K**2
