"""The examples of how to add something: short, complete, and as right as what is in the package."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import mast
import test_run
from mast.errors import ArgumentError
from mast.methods import METHODS
from sketches import test_sketches
from sketches.samples import D

FOLDER = Path(__file__).parents[1] / "examples"
EXAMPLES = ("add_a_sketch", "add_an_objective", "add_a_method")


def load(name):
    spec = importlib.util.spec_from_file_location(f"example_{name}", FOLDER / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", EXAMPLES)
def test_it_runs_and_fits_on_a_page(name):
    path = FOLDER / f"{name}.py"
    assert len(path.read_text().splitlines()) < 60
    done = subprocess.run(
        [sys.executable, "-W", "error", str(path)], capture_output=True, text=True, env=os.environ
    )
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) >= 2


class TestSketch:
    """Everything that the suite of sketches asks of ours."""

    @pytest.mark.parametrize("k", [1, 2, 5, 6])
    @pytest.mark.parametrize(
        "suite", [test_sketches.TestAgainstEnumeration, test_sketches.TestDraws], ids=lambda s: s.__name__
    )
    def test_classes_of_the_suite(self, suite, k):
        checks = [name for name in dir(suite) if name.startswith("test_")]
        assert len(checks) >= 5
        for check in checks:
            getattr(suite(), check)(load("add_a_sketch").Window(k))

    @pytest.mark.parametrize("k", [1, 4])
    @pytest.mark.parametrize(
        "check",
        [
            test_sketches.test_constants_against_enumeration,
            test_sketches.test_second_moment_against_enumeration,
            test_sketches.test_indices_and_scales,
            test_sketches.test_draws_have_the_moments_of_the_closed_form,
        ],
        ids=lambda check: check.__name__,
    )
    def test_functions_of_the_suite(self, check, k):
        check(load("add_a_sketch").Window(k))

    def test_methods_reach_the_minimiser(self):
        f = mast.Quadratic(np.eye(D) + 0.1, np.arange(D))
        problem = mast.Problem(f, load("add_a_sketch").Window(3))
        result = mast.minimize(problem, "l_svrdsg", 20_000)
        np.testing.assert_allclose(result.x, problem.minimizer(), atol=1e-10)


class TestObjective:
    @pytest.fixture
    def f(self):
        rng = np.random.default_rng(0)
        return load("add_an_objective").Huber(rng.normal(size=(30, 4)), 3 * rng.normal(size=30), l2=0.1)

    def test_gradient_is_the_slope_of_the_value(self, f):
        x, h = np.array([0.5, -1.0, 0.2, 2.0]), 1e-6
        slopes = [(f.value(x + h * e) - f.value(x - h * e)) / (2 * h) for e in np.eye(4)]
        np.testing.assert_allclose(f.gradient(x), slopes, atol=1e-7)  # the slope of the loss has kinks
        rows = np.arange(30)
        np.testing.assert_allclose(f.term_gradient(x, rows), f.gradient(x), rtol=1e-13)

    def test_smoothness_and_convexity_hold(self, f):
        rng = np.random.default_rng(1)
        for _ in range(200):
            x, y = rng.normal(size=(2, 4)) * rng.choice([0.1, 1, 10])
            difference, step = f.gradient(x) - f.gradient(y), x - y
            assert np.linalg.norm(difference) <= f.smoothness * np.linalg.norm(step) * (1 + 1e-12)
            assert difference @ step >= f.strong_convexity * (step @ step) * (1 - 1e-12)

    def test_sparsified_training_finds_the_minimiser(self, f):
        problem = mast.Problem(f, mast.RandK(2))
        result = mast.minimize(problem, "gd", 3000)
        np.testing.assert_allclose(problem.gradient(result.x), 0, atol=1e-9)
        sampled = mast.minimize(problem, "dsgd_sampled", 200, batch_size=5)
        assert sampled.rows[-1]["f_D"] < sampled.rows[0]["f_D"]


class TestMethod:
    @pytest.fixture
    def name(self, monkeypatch):
        HeavyBall = load("add_a_method").HeavyBall
        monkeypatch.setitem(METHODS, HeavyBall.name, HeavyBall)
        monkeypatch.setitem(test_run.RUNS, HeavyBall.name, (test_run.PROBLEM, 0.01))
        return HeavyBall.name

    @pytest.mark.parametrize("cut", [0, 17, 40])
    def test_continues_bit_for_bit(self, name, cut, tmp_path):
        test_run.TestEveryMethod().test_continues_bit_for_bit_from_any_step(name, cut, tmp_path)

    def test_the_rest_of_the_suite(self, name):
        suite = test_run.TestEveryMethod()
        suite.test_finishes_with_a_trace(name)
        suite.test_same_seed_same_bits(name)
        suite.test_refuses_an_unknown_option(name)
        with pytest.raises(ArgumentError, match="beta"):
            mast.minimize(test_run.PROBLEM, name, 5, 0.01, beta=1.0)

    def test_without_momentum_it_is_dsgd(self, name):
        ours = mast.minimize(test_run.PROBLEM, name, 30, 0.01, beta=0.0)
        assert np.array_equal(ours.x, mast.minimize(test_run.PROBLEM, "dsgd", 30, 0.01).x)
