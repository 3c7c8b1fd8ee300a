"""The Rand-1 figure: its short cut by counting draws against the method itself."""

import numpy as np
import pytest

import mast
from mast.experiments import rand1
from mast.experiments.datasets import logistic
from mast.experiments.separable import CoordinateLosses, times_drawn


def test_coordinates_are_f_D(small):
    f = logistic(small, 1000.0)
    problem = mast.Problem(f, mast.RandK(1))
    phi = CoordinateLosses.of(f)
    x = np.linspace(-0.2, 0.3, 12)
    assert phi.values(12 * x).mean() == pytest.approx(problem.value(x), rel=1e-14)
    np.testing.assert_allclose(phi.slopes(12 * x), problem.gradient(x), atol=1e-15)
    # phi_j'' by differences of phi_j'; 1e-8 is their accuracy
    h = 1e-5
    bend = (phi.slopes(12 * x + h) - phi.slopes(12 * x - h)) / (2 * h)
    np.testing.assert_allclose(phi.curvatures(12 * x), bend, atol=1e-8)
    assert (phi.curvatures(np.zeros(12)) >= phi.curvatures(12 * x)).all()


def test_draws_are_those_of_the_sketch():
    counts = times_drawn(7, seed=2**40 + 3, stops=np.array([0, 10, 50]))
    indices = [mast.RandK(1).draw(7, seed=2**40 + 3, step=t).indices[0] for t in range(50)]
    assert counts.sum(axis=1).tolist() == [0, 10, 50]
    assert counts[2].tolist() == np.bincount(indices, minlength=7).tolist()


@pytest.mark.filterwarnings("ignore::mast.errors.StepSizeWarning")
@pytest.mark.parametrize("multiple", [1, 10])
def test_curve_is_that_of_minimize(small, multiple):
    config = {"kappa": 1000.0, "steps": 600, "method": "dsgd", "multiple": multiple, "seeds": 2}
    cell = rand1.descend(config, small)
    problem = mast.Problem(logistic(small, 1000.0), mast.RandK(1))
    for seed in range(2):
        result = mast.minimize(
            problem, "dsgd", 600, cell["step_size"], seed=seed, trace=cell["stops"].tolist()
        )
        gaps = result.trace["f_D"].to_numpy() - result.infimum
        np.testing.assert_allclose(cell["gaps"][seed], gaps, rtol=1e-9, atol=1e-14)


def test_exact_descent_is_gd(small):
    cell = rand1.descend({"kappa": 1000.0, "steps": 1200, "method": "gd"}, small)
    problem = mast.Problem(logistic(small, 1000.0), mast.RandK(1))
    result = mast.minimize(problem, "gd", int(cell["stops"][-1]), trace=cell["stops"].tolist())
    np.testing.assert_allclose(cell["gaps"][0], result.trace["f_D"] - result.infimum, rtol=1e-9, atol=1e-14)


def test_sweep_ends_where_the_curve_does(small):
    base = {"kappa": 1000.0, "steps": 600, "multiple": 10}
    curve = rand1.descend({**base, "method": "dsgd", "seeds": 1}, small)
    end = rand1.end_of_run({**base, "seed": 0}, small)
    assert end["relative_gap"] == pytest.approx(curve["gaps"][0, -1] / curve["gaps"][0, 0], rel=1e-9)


def test_stability_on_a1a():
    """The limit that the project's theory predicts for a1a: 13.2 g0 by the largest curvature."""
    from mast.experiments.datasets import locate

    config = {"kappa": 1000.0, "steps": 119, "method": "dsgd", "multiple": 1, "seeds": 1}
    cell = rand1.descend(config, locate("a1a"))
    assert round(cell["stable_anywhere"], 1) == 13.2
    assert cell["stable_at_solution"] > cell["stable_anywhere"]


@pytest.mark.parametrize(
    ("ends", "limit"),
    [([1e-9, 1e-9, 0.1, 2.0], (2.0, 4.0)), ([1e-9] * 4, (8.0, np.inf)), ([1.0] * 4, (0.0, 1.0))],
)
def test_observed_limit(ends, limit):
    assert rand1.observed_limit(np.array([1.0, 2.0, 4.0, 8.0]), np.array(ends)) == limit
