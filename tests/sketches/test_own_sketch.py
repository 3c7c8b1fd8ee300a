"""A sketch of a user's own: `sample` is enough, and what it knows besides makes the numbers exact."""

import numpy as np
import pytest

import mast
from mast import randomness
from mast.errors import BiasedSketchError, NotDiagonalError
from mast.sketches import DiagonalDraw, MatrixDraw

D = 6


class Drops(mast.Sketch):
    """Drop each coordinate with a probability, like Bernoulli, and say nothing about it."""

    def __init__(self, drop, scaled=True):
        self.drop, self.scaled = drop, scaled
        self._drawn = 0  # what a private attribute holds is nobody's business

    def sample(self, d, key):
        self._drawn += 1
        kept = np.flatnonzero(randomness.bernoulli(key, randomness.threshold(1 - self.drop), 0, d))
        return DiagonalDraw(d, kept, np.full(kept.size, 1 / (1 - self.drop) if self.scaled else 1.0))


class Listed(Drops):
    """The same, which also lists what S can be."""

    def outcomes(self, d):
        return mast.Bernoulli(1 - self.drop).outcomes(d)


class Turned(mast.Sketch):
    """A general S: two coordinates are mixed one way or the other."""

    diagonal = False

    def sample(self, d, key):
        S = np.eye(d)
        S[0, 1] = 1.0 if randomness.below(key, randomness.Purpose.COIN, 2) else -1.0
        return MatrixDraw(S)


def test_constants_are_estimated_and_say_so():
    constants = Drops(0.5).constants(D)
    assert constants.estimated
    assert "estimated=True" in repr(constants)
    error = 5 * 2 / np.sqrt(mast.sketches.ESTIMATE_DRAWS)  # c² is 0 or 4: its deviation is 2
    assert constants.L_D == pytest.approx(2, abs=error)
    assert constants.mu_D == pytest.approx(2, abs=error)
    assert constants.mu_D < 2 < constants.L_D  # the extremes of six coordinates
    assert constants.L_max == 4
    assert Drops(0.5).constants(D) == constants  # the seed is fixed


def test_moments_are_estimated():
    sketch = Drops(0.5)
    error = 5 / np.sqrt(mast.sketches.ESTIMATE_DRAWS)
    assert sketch.share(D) == pytest.approx(0.5, abs=error)
    np.testing.assert_array_equal(sketch.mean(D), 1)
    np.testing.assert_allclose(sketch.second_moment(D), mast.Bernoulli(0.5).second_moment(D), atol=2 * error)
    np.testing.assert_allclose(Drops(0.5, scaled=False).second_moment(D).diagonal(), 0.5, atol=error)


def test_a_support_makes_them_exact():
    sketch, known = Listed(0.25), mast.Bernoulli(0.75)
    assert not sketch.constants(D).estimated
    assert sketch.constants(D).L_D == pytest.approx(known.constants(D).L_D, rel=1e-12)
    assert sketch.constants(D).L_max == pytest.approx(known.constants(D).L_max, rel=1e-12)
    assert sketch.share(D) == pytest.approx(0.75, rel=1e-12)
    assert sketch.support_size(D) == 2**D
    np.testing.assert_allclose(sketch.second_moment(D), known.second_moment(D), atol=1e-12)
    with pytest.raises(mast.errors.SupportTooLargeError, match="65,537 draws, more than 65536"):
        sketch.support(20)
    assert sketch.constants(20).estimated  # too many to go through


def test_a_bias_that_the_class_does_not_admit_is_found():
    with pytest.raises(BiasedSketchError, match="the mean of 4096 draws is off by"):
        Drops(0.5, scaled=False).constants(D)
    biased = Listed(0.25)
    biased.outcomes = lambda d: ((p, draw) for p, draw in mast.UnscaledBernoulli(0.75).outcomes(d))
    with pytest.raises(BiasedSketchError, match=r"its mean over its support is off by 0\.25"):
        biased.constants(D)


def test_what_is_rarely_kept_is_no_bias():
    assert Drops(0.99).constants(50).L_max == pytest.approx(1e4)


def test_a_general_matrix():
    sketch = Turned()
    S, T = (np.eye(3) for _ in range(2))
    S[0, 1], T[0, 1] = 1, -1
    H = np.diag([1.0, 2.0, 3.0])
    np.testing.assert_allclose(sketch.sandwich(H), (S.T @ H @ S + T.T @ H @ T) / 2, atol=0.1)
    assert sketch.constants(3).L_max == pytest.approx(np.linalg.norm(S, 2) ** 2)
    for ask in (sketch.share, sketch.second_moment):
        with pytest.raises(NotDiagonalError, match="diagonal"):
            ask(3)


@pytest.mark.parametrize(
    "sketch",
    [
        mast.Grouped(Drops(0.5), [0, 1, 2, 0, 1, 2]),
        mast.Except(Drops(0.5), [-1]),
        mast.Mixture([Drops(0.5), mast.Identity()]),
        mast.Except(Turned(), [0]),
    ],
)
def test_inside_other_sketches(sketch):
    constants = sketch.constants(D)
    assert constants.estimated
    assert 1 <= constants.mu_D <= constants.L_D <= constants.L_max
    assert sketch.draw(D, seed=3).dim == D
    np.testing.assert_array_equal(sketch.mean(D), 1)


def test_what_it_is_called():
    assert repr(Drops(0.5)) == "<Drops(drop=0.5, scaled=True): keeps share(d) of d coordinates>"
    assert Drops(0.5).at(0.25).share(8) == 0.25  # Rand-K, as the kind has no such member


def test_every_part_of_the_core_takes_it(tmp_path):
    problem = mast.Problem(mast.Quadratic(np.diag([3.0, 2.0, 1.0]), np.ones(3)), Drops(0.5))
    estimate = problem.estimate(np.ones(3), samples=500)
    expected = mast.Problem(problem.objective, mast.Bernoulli(0.5)).value(np.ones(3))
    assert abs(estimate.value - expected) < 5 * estimate.value_stderr
    whole = mast.minimize(problem, "dsgd", steps=60)
    assert "estimated" in str(whole.guarantee.assumptions)
    mast.minimize(problem, "dsgd", steps=20, checkpoint=tmp_path / "run")
    again = mast.Problem(problem.objective, Drops(0.5))
    again.sketch.draw(3)  # its private counter is elsewhere now
    resumed = mast.minimize(again, "dsgd", steps=60, checkpoint=tmp_path / "run")
    np.testing.assert_array_equal(resumed.x, whole.x)
    other = mast.Problem(problem.objective, Drops(0.25))
    with pytest.raises(mast.errors.CheckpointError, match="its sketch is"):
        mast.minimize(other, "dsgd", steps=60, checkpoint=tmp_path / "run")


def test_networks_take_it():
    torch = pytest.importorskip("torch", reason="mast.nn needs PyTorch")
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
    sk = mast.nn.sparsify(model, Drops(0.5))
    x = {name: p.detach().clone() for name, p in model.named_parameters()}
    with sk.sample(3):
        weight = model[0].weight.detach().clone()
    scale = weight / x["0.weight"]
    assert set(scale.flatten().tolist()) == {0.0, 2.0}
    assert 0.4 < sk.density < 0.6
    sk.remove()
    units = mast.nn.sparsify(model, mast.nn.Neurons(Drops(0.5)))
    assert units.sketch.constants(8).estimated
