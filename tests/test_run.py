"""The loop: status, trace, step sizes, warnings, interruption, callbacks, methods of one's own."""

import math
import warnings
from dataclasses import dataclass

import numpy as np
import pytest

import mast
from mast.errors import ArgumentError, DataError, NoGuaranteeError, StepSizeWarning
from mast.methods import METHODS, SingleMethod, make
from mast.methods.base import deviation_of
from mast.trace import COLUMNS, trace_steps

H = np.array([[2.0, 0.5, 0.0], [0.5, 1.0, 0.2], [0.0, 0.2, 3.0]])
F = mast.Quadratic(H, [1.0, -2.0, 0.5])
PROBLEM = mast.Problem(F, mast.PermK(3, seed=1), [0.1, 0.2, 0.3])
A, B = mast.data.load("a1a")
LOGISTIC = mast.Logistic(A[:300], B[:300], kappa=100)
LINEAR = mast.Problem(LOGISTIC, mast.PermK(5))
NODES = mast.Nodes(
    [PROBLEM, mast.Problem(mast.Quadratic(2 * H, [0.0, 1.0, 1.0]), mast.Bernoulli(0.7), PROBLEM.shift)]
)

# every method joins here: a problem it runs on, and a step size that is fine
RUNS = {
    "gd": (PROBLEM, "theory"),
    "agd": (PROBLEM, "theory"),
    "dsgd": (PROBLEM, "theory"),
    "dsgd_sampled": (LINEAR, "theory"),
    "l_svrdsg": (PROBLEM, "theory"),
    "s_page": (PROBLEM, "theory"),
    "distributed": (NODES, "theory"),
    "gdci": (PROBLEM, 0.05),
    "dcgd": (PROBLEM, 0.05),
    "ist_naive": (NODES, 0.05),
}
each_method = pytest.mark.parametrize("method", METHODS)


def test_every_method_is_in_the_list():
    assert set(RUNS) == set(METHODS)


@each_method
class TestEveryMethod:
    def test_finishes_with_a_trace(self, method):
        problem, size = RUNS[method]
        result = mast.minimize(problem, method, 50, size, seed=3)
        assert result.status == "finished"
        assert result.steps == 50
        trace = result.trace
        assert tuple(trace.columns) == COLUMNS
        assert trace["step"].tolist() == trace_steps(50, "log")
        assert (trace["passes"].diff().dropna() > 0).all()
        assert (trace["seconds"].diff().dropna() >= 0).all()
        last = trace.iloc[-1]
        assert last["f_D"] == pytest.approx(problem.value(result.x), rel=1e-12)
        assert last["grad_sq"] == pytest.approx(float(np.sum(problem.gradient(result.x) ** 2)), rel=1e-9)
        assert last["dist_sq"] == pytest.approx(
            float(np.sum((result.x - problem.minimizer()) ** 2)), rel=1e-9
        )
        assert method in repr(result)

    def test_same_seed_same_bits(self, method):
        problem, size = RUNS[method]
        one, two = (mast.minimize(problem, method, 40, size, seed=5).x for _ in range(2))
        assert np.array_equal(one, two)
        if method not in ("gd", "agd"):
            assert not np.array_equal(one, mast.minimize(problem, method, 40, size, seed=6).x)

    @pytest.mark.parametrize("cut", [0, 1, 17, 39, 40])
    def test_continues_bit_for_bit_from_any_step(self, method, cut, tmp_path):
        problem, size = RUNS[method]
        chosen = mast.minimize(problem, method, 40, size).step_size  # theory may depend on the length
        path = tmp_path / "run.mast"
        mast.minimize(problem, method, cut, chosen, checkpoint=path)
        continued = mast.minimize(problem, method, 40, chosen, checkpoint=path)
        straight = mast.minimize(problem, method, 40, chosen)
        assert np.array_equal(continued.x, straight.x)
        assert continued.steps == 40
        for part in vars(straight.state):
            assert np.array_equal(getattr(continued.state, part), getattr(straight.state, part))
        exact = [name for name in COLUMNS if name != "seconds"]
        common = continued.trace.merge(straight.trace, on="step", how="right", suffixes=("", "_straight"))
        for name in exact[1:]:
            np.testing.assert_array_equal(common[name], common[f"{name}_straight"])

    def test_refuses_an_unknown_option(self, method):
        problem, size = RUNS[method]
        with pytest.raises(ArgumentError, match="has no option colour"):
            mast.minimize(problem, method, 5, size, colour="red")


class TestConvergence:
    def test_methods_that_should_reach_the_solution_do(self):
        """Rand-1 and fixed Perm-K share one minimiser over all draws: even plain DSGD converges to it."""
        for method, steps in (
            ("gd", 400),
            ("agd", 300),
            ("dsgd", 3000),
            ("l_svrdsg", 20_000),
            ("s_page", 3000),
        ):
            result = mast.minimize(PROBLEM, method, steps)
            assert result.rows[-1]["dist_sq"] < 1e-26, method

    def test_variance_reduction_reaches_machine_precision_where_dsgd_stalls(self):
        problem = mast.Problem(F, mast.RandK(2), [0.1, 0.2, 0.3])
        stalled = mast.minimize(problem, "dsgd", 20_000)
        assert stalled.rows[-1]["dist_sq"] > 1e-6
        for method in ("l_svrdsg", "s_page"):
            assert mast.minimize(problem, method, 20_000).rows[-1]["dist_sq"] < 1e-25

    def test_agd_without_strong_convexity(self):
        flat = mast.Problem(mast.Quadratic(np.diag([1.0, 1e-5, 0.0]), [1.0, 1e-5, 0.0]), mast.Identity())
        slow, fast = (mast.minimize(flat, method, 300).rows[-1]["f_D"] for method in ("gd", "agd"))
        assert fast < slow

    def test_naive_ist_is_biased(self):
        """It goes to a point of its own, neither the minimiser of f nor that of f_D."""
        problem = mast.Problem(F, mast.PermK(3, seed=1))
        result = mast.minimize(problem, "ist_naive", 5000, 0.05)
        biased = F.b / np.diag(F.H)  # every block is solved as if the others were 0
        np.testing.assert_allclose(result.x, biased, atol=1e-10)
        assert np.abs(biased - problem.minimizer()).max() > 0.1
        assert np.abs(biased - F.minimizer()).max() > 0.1

    def test_tolerance(self):
        result = mast.minimize(PROBLEM, "gd", 10_000, tol=1e-20)
        assert result.status == "converged"
        assert result.steps < 10_000
        assert result.rows[-1]["grad_sq"] <= 1e-20

    def test_kept_batches_diverge_where_theory_says_and_warn_before(self):
        d = 4
        f = mast.Quadratic(np.eye(d), np.ones(d))
        problem = mast.Problem(f, mast.RandK(1))
        x0 = problem.minimizer() + 1
        options = {"p": 1.25e-3, "b": 1, "x0": x0, "trace": [0, 5000]}
        with pytest.warns(StepSizeWarning, match="times the limit"):
            kept = mast.minimize(problem, "l_svrdsg", 5000, 1 / 320, batch="kept", **options)
        assert kept.rows[-1]["dist_sq"] > 100
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # for fresh batches the same step size is within the limit
            fresh = mast.minimize(problem, "l_svrdsg", 5000, 1 / 320, batch="fresh", **options)
        assert fresh.rows[-1]["dist_sq"] < 4

    def test_a_sampled_support(self):
        problem = mast.Problem(F, mast.Bernoulli(0.6))
        result = mast.minimize(problem, "l_svrdsg", 40_000, support=30, p=0.1)
        bound = make("l_svrdsg", {"support": 30, "p": 0.1}).bind(problem, 0)
        np.testing.assert_allclose(result.x, bound.over.minimizer(), atol=1e-9)
        assert 0 < deviation_of(bound.over.sketch, problem.dim) < 0.5
        with pytest.raises(ArgumentError, match="support=N"):
            mast.minimize(problem, "l_svrdsg", 10)
        with pytest.raises(ArgumentError, match="support=N"):
            mast.minimize(mast.Problem(F, mast.Gaussian(0.1)), "s_page", 10)


class TestStepSizes:
    def test_theory_is_the_limit_of_the_statement(self):
        result = mast.minimize(PROBLEM, "dsgd", 10)
        assert result.step_size == result.guarantee.max_step_size() == pytest.approx(1 / (F.smoothness * 9))
        assert "Theorem 2" in result.note

    def test_gradient_descent_uses_the_smoothness_of_the_sketched_problem(self):
        for method in ("gd", "agd"):
            assert mast.minimize(PROBLEM, method, 1).step_size == pytest.approx(1 / (F.smoothness * 3))

    def test_a_schedule(self):
        result = mast.minimize(PROBLEM, "gd", 2, lambda t: 0.1 / (t + 1))
        x = PROBLEM.shift - 0.1 * PROBLEM.gradient(PROBLEM.shift)
        np.testing.assert_allclose(result.x, x - 0.05 * PROBLEM.gradient(x), rtol=1e-14)

    @pytest.mark.parametrize("size", [0, -1, math.nan, math.inf, "large", None, [0.1], lambda t: -1.0])
    def test_refuses(self, size):
        with pytest.raises(ArgumentError, match="step"):
            mast.minimize(PROBLEM, "dsgd", 5, size)

    def test_no_guarantee_is_said(self):
        result = mast.minimize(PROBLEM, "gdci", 5, 0.01)
        assert result.guarantee is None
        assert "no statement" in result.note
        result = mast.minimize(NODES, "distributed", 5, 0.01, local_steps=3)
        assert result.guarantee is None
        assert "local" in result.note
        with pytest.raises(NoGuaranteeError):
            mast.minimize(PROBLEM, "dcgd", 5)
        with pytest.raises(NoGuaranteeError, match="inf"):
            mast.minimize(mast.Problem(F, mast.Gaussian(0.5)), "dsgd", 5)

    def test_the_regime_asked_for_decides_the_step_size(self):
        result = mast.minimize(PROBLEM, "dsgd", 5, regime="convex")
        assert (
            result.step_size == result.guarantee.max_step_size() == pytest.approx(1 / (2 * F.smoothness * 9))
        )

    def test_exact_gradients_have_a_limit_too(self):
        with pytest.warns(StepSizeWarning, match="of gd"):
            mast.minimize(PROBLEM, "gd", 2, 1.01 / PROBLEM.smoothness)
        assert "1/(L_f L_D)" in mast.minimize(PROBLEM, "gd", 2).note

    def test_a_schedule_above_the_limit_warns(self):
        with pytest.warns(StepSizeWarning) as caught:
            mast.minimize(PROBLEM, "dsgd", 3, lambda t: 1.0 / (t + 1))
        assert caught[0].filename == __file__

    def test_an_asked_regime_must_have_a_statement(self):
        with pytest.raises(NoGuaranteeError):
            mast.minimize(PROBLEM, "s_page", 5, regime="convex")


class TestGuarantees:
    def test_the_sharp_gap_is_zero_for_separable_problems(self):
        g = mast.guarantee(PROBLEM, "dsgd")
        assert g.constants["gap"] == 0
        assert any("sharper" in words for words in g.assumptions)

    def test_the_gap_is_exact_where_it_can_be(self):
        problem = mast.Problem(F, mast.Bernoulli(0.5))
        exact = problem.infimum() - F.infimum()
        assert mast.guarantee(problem, "l_svrdsg", support=10).constants["gap"] >= 0
        nodes = mast.Nodes([problem, problem])
        assert mast.guarantee(nodes, "distributed").constants["gap"] == pytest.approx(exact)

    def test_the_sharp_gap_of_a_quadratic(self):
        problem = mast.Problem(F, mast.RandK(2))
        lower = sum(
            p * problem.at(draw).value(_minimiser_of(problem, draw)) for p, draw in problem.sketch.support(3)
        )
        assert mast.guarantee(problem, "dsgd").constants["gap"] == pytest.approx(problem.infimum() - lower)

    def test_theorem_1_stands_in_and_says_so(self):
        wide = mast.Logistic(A[:50], B[:50], kappa=100)
        problem = mast.Problem(wide, mast.Gaussian(0.3))
        from mast.methods.base import BOUND, gap_of

        gap, source = gap_of(problem)
        best = wide.minimizer()
        assert source == BOUND
        assert gap == pytest.approx(0.09 * wide.smoothness / 2 * float(best @ best))

    def test_regimes(self):
        flat = mast.Problem(mast.Quadratic(np.diag([1.0, 0.0]), [1.0, 0.0]), mast.RandK(1))
        bent = mast.Problem(mast.Quadratic(np.diag([1.0, -1.0]), [1.0, 0.0]), mast.RandK(1))
        assert mast.guarantee(PROBLEM).regime == "strongly_convex"
        assert mast.guarantee(flat).regime == "convex"
        assert mast.guarantee(bent).regime == "nonconvex"
        assert mast.guarantee(PROBLEM, regime="convex").regime == "convex"

    def test_disjoint_nodes_get_the_sharper_statement(self):
        sketch = mast.PermK(3)
        nodes = mast.Nodes([mast.Problem(F, sketch) for _ in range(3)])
        any_limit = 1 / (F.smoothness * 9)
        assert mast.guarantee(nodes, "distributed", coupling="disjoint").max_step_size() == pytest.approx(
            3 * any_limit
        )
        mixed = mast.Nodes([mast.Problem(F, mast.PermK(3, seed=i)) for i in range(3)])
        assert mast.guarantee(mixed, "distributed", coupling="disjoint").max_step_size() == pytest.approx(
            any_limit
        )

    def test_runs_stay_below_their_bound(self):
        """The mean over seeds of |x - x_D*|², with the bound of the statement, at each traced step."""
        problem = mast.Problem(F, mast.RandK(2))
        runs = [mast.minimize(problem, "dsgd", 300, seed=s, trace=30) for s in range(200)]
        measured = np.array([[row["dist_sq"] for row in r.rows] for r in runs])
        g, size = runs[0].guarantee, runs[0].step_size
        bound = g.bound(size, np.array([row["step"] for row in runs[0].rows]), r0sq=measured[0, 0])
        error = measured.std(axis=0) / math.sqrt(len(runs))
        assert (measured.mean(axis=0) - 5 * error <= bound).all()


def _minimiser_of(problem, draw):
    S = draw.matrix()
    return problem.shift + np.linalg.pinv(S.T @ F.H @ S) @ (-S.T @ F.gradient(problem.shift))


def test_a_coordinate_that_always_survives_ties_the_blocks():
    """Then the draws share no minimiser, and the gap is not 0."""
    f = mast.Quadratic([[2.0, 0, 1], [0, 2, -1], [1, -1, 2]], [5.0, 5, 1])
    problem = mast.Problem(f, mast.Except(mast.PermK(blocks=[[0], [1]]), [-1]))
    g = mast.guarantee(problem, "dsgd")
    size, best = g.max_step_size(), problem.minimizer()
    ends = [mast.minimize(problem, "dsgd", 2000, size, best, seed=s).rows[-1]["dist_sq"] for s in range(20)]
    assert np.mean(ends) > 0.05
    assert g.bound(size, 2000, r0sq=0.0) > np.mean(ends)


class TestIndependentNodes:
    def test_nodes_with_different_sketches(self):
        f = mast.Quadratic(np.eye(6), np.ones(6))
        sketches = (
            mast.Identity(),
            mast.Mixture([mast.PermK(2), mast.Bernoulli(0.5)]),
            mast.Mixture([mast.Bernoulli(0.25), mast.Bernoulli(0.5)]),
            mast.PermK(3),
        )
        bound = make("distributed", {}).bind(mast.Nodes([mast.Problem(f, s) for s in sketches]), 0)
        key = bound.server.participation.key
        assert len({key(0, i).node for i in range(4)}) == 4
        draws = [[sketches[i].sample(6, key(t, i)).diagonal() for i in (1, 2)] for t in range(400)]
        same = [np.array_equal(*pair) for pair in draws]
        assert np.mean(same) < 0.1

    def test_very_many_blocks(self):
        f = mast.Quadratic(np.eye(2), np.ones(2))
        nodes = mast.Nodes([mast.Problem(f, mast.PermK(2**31)) for _ in range(3)])
        bound = make("distributed", {}).bind(nodes, 0)
        assert len({bound.server.participation.key(0, i) for i in range(3)}) == 3

    def test_grouped_blocks_are_disjoint_too(self):
        f = mast.Quadratic(np.eye(6), np.ones(6))
        sketch = mast.Grouped(mast.PermK(3), [0, 0, 1, 1, 2, 2])
        nodes = mast.Nodes([mast.Problem(f, sketch) for _ in range(3)])
        assert mast.guarantee(nodes, "distributed", coupling="disjoint").max_step_size() == pytest.approx(
            1 / 3
        )


def test_sampling_terms_of_any_objective():
    class Two(mast.Objective):
        """The mean of x²/2 and (x - 2)²/2."""

        dim, convex, terms = 1, True, 2
        smoothness = strong_convexity = 1.0
        term_smoothness = np.ones(2)

        def value_and_gradient(self, x):
            x = self._point(x)
            return float(np.mean([x[0] ** 2, (x[0] - 2) ** 2])) / 2, x - 1

        def term_gradient(self, x, rows):
            return np.mean([x - 2 * row for row in rows], axis=0)

        def term_infima(self):
            return np.zeros(2)

    result = mast.minimize(mast.Problem(Two(), mast.Identity()), "dsgd_sampled", 4000, lambda t: 1 / (t + 1))
    assert abs(result.x[0] - 1) < 0.1
    whole = mast.minimize(PROBLEM, "dsgd_sampled", 50)  # a single term: DSGD itself
    assert np.array_equal(whole.x, mast.minimize(PROBLEM, "dsgd", 50, whole.step_size).x)


@dataclass
class Scaled(SingleMethod):
    """Gradient descent on f with a factor that has to be given."""

    factor: float

    def step(self, state, t, step_size):
        state.x -= self.factor * step_size * self.problem.objective.gradient(state.x)


class TestMethodsAsObjects:
    def test_an_object_runs_like_its_name(self):
        problem, _ = RUNS["l_svrdsg"]
        named = mast.minimize(problem, "l_svrdsg", 30, p=0.5)
        assert np.array_equal(mast.minimize(problem, METHODS["l_svrdsg"](p=0.5), 30).x, named.x)
        assert (
            mast.guarantee(problem, METHODS["dsgd"]()).statement == mast.guarantee(problem, "dsgd").statement
        )

    def test_one_of_ones_own_runs_and_stays_as_it_was(self):
        method = Scaled(factor=2.0)
        result = mast.minimize(PROBLEM, method, 50, 0.05)
        straight = PROBLEM.shift.copy()
        for _ in range(50):
            straight -= 0.1 * F.gradient(straight)
        assert np.array_equal(result.x, straight)
        assert (result.method, result.guarantee) == ("Scaled", None)
        assert "no statement about 'Scaled'" in result.note
        assert not hasattr(method, "problem")

    def test_options_belong_to_the_object(self):
        with pytest.raises(ArgumentError, match=r"factor: .*Scaled\(\.\.\.\)"):
            mast.minimize(PROBLEM, Scaled(1.0), 5, 0.1, factor=2.0)
        with pytest.raises(ArgumentError, match=r"pass a method, Scaled\(\.\.\.\)"):
            mast.minimize(PROBLEM, Scaled, 5, 0.1)

    def test_an_option_without_a_default_is_asked_for(self, monkeypatch):
        monkeypatch.setitem(METHODS, "scaled", Scaled)
        assert mast.minimize(PROBLEM, "scaled", 5, 0.1, factor=1.0).steps == 5
        with pytest.raises(ArgumentError, match="scaled needs a value for factor: pass factor="):
            mast.minimize(PROBLEM, "scaled", 5, 0.1)
        with pytest.raises(ArgumentError, match="its options are: factor"):
            mast.minimize(PROBLEM, "scaled", 5, 0.1, size=1.0)


class TestCallback:
    @each_method
    def test_it_sees_every_step_and_changes_nothing(self, method):
        problem, size = RUNS[method]
        seen = []
        result = mast.minimize(
            problem, method, 20, size, seed=2, callback=lambda step, x: seen.append((step, x))
        )
        assert [step for step, _ in seen] == list(range(1, 21))
        assert np.array_equal(result.x, mast.minimize(problem, method, 20, size, seed=2).x)
        for step, x in seen[9:11]:
            assert np.array_equal(x, mast.minimize(problem, method, step, result.step_size, seed=2).x)

    def test_x_is_read_only(self):
        def write(step, x):
            x[0] = 1.0

        with pytest.raises(ValueError, match="read-only"):
            mast.minimize(PROBLEM, "dsgd", 5, callback=write)

    def test_a_continued_run_goes_on_calling(self, tmp_path):
        steps = []
        for total in (5, 8):
            mast.minimize(
                PROBLEM, "dsgd", total, checkpoint=tmp_path / "c", callback=lambda step, x: steps.append(step)
            )
        assert steps == list(range(1, 9))


class TestEnds:
    def test_divergence_stops_and_names_the_step(self):
        with pytest.warns(StepSizeWarning, match="times the limit"):
            result = mast.minimize(PROBLEM, "dsgd", 100_000, 50.0)
        assert result.status == "diverged"
        assert result.diverged_at is not None
        assert result.steps == result.diverged_at + 1 < 100_000
        trace = result.trace
        assert trace["step"].iloc[-1] == result.steps
        assert trace["f_D"].iloc[-2] > trace["f_D"].iloc[0]

    def test_a_diverged_checkpoint_stays_diverged(self, tmp_path):
        for _ in range(2):
            with pytest.warns(StepSizeWarning):
                result = mast.minimize(PROBLEM, "dsgd", 1000, 50.0, checkpoint=tmp_path / "c")
            assert result.status == "diverged"

    def test_no_steps(self):
        result = mast.minimize(PROBLEM, "dsgd", 0)
        assert result.status == "finished"
        assert np.array_equal(result.x, PROBLEM.shift)

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            ({"steps": -1}, "steps must be at least 0"),
            ({"steps": 1.5}, "whole"),
            ({"x0": [1.0]}, "x0"),
            ({"x0": [math.nan] * 3}, "NaN"),
            ({"seed": -1}, "seed"),
            ({"method": "sgd"}, "the methods are gd"),
            ({"trace": "linear"}, "trace"),
            ({"trace": [5000]}, "trace"),
            ({"trace": 0}, "trace"),
        ],
    )
    def test_refusals(self, arguments, message):
        with pytest.raises(ArgumentError, match=message):
            mast.minimize(PROBLEM, **{"steps": 10, **arguments})

    def test_what_is_for_one_problem_refuses_nodes(self):
        with pytest.raises(ArgumentError, match="distributed"):
            mast.minimize(NODES, "dsgd", 1)

    def test_any_function_runs(self):
        f = mast.Function(
            lambda x: (float(np.log(np.cosh(x)).sum()), np.tanh(x)), 3, smoothness=1, convex=True, infimum=0.0
        )
        problem = mast.Problem(f, mast.RandK(1))
        for method in ("gd", "dsgd", "s_page", "dcgd"):
            result = mast.minimize(
                problem, method, 3000, 0.05 if method != "s_page" else "theory", [1.0, 2.0, -1.0]
            )
            assert result.rows[-1]["f_D"] < 1e-3

    def test_estimates_where_nothing_is_exact(self):
        f = mast.Function(lambda x: (float(np.cosh(x).sum()), np.sinh(x)), 30, smoothness=2, convex=True)
        problem = mast.Problem(f, mast.Bernoulli(0.5))
        plain = mast.minimize(problem, "dsgd", 10, 0.01, np.ones(30), samples=0)
        assert math.isnan(plain.rows[-1]["f_D"])
        assert math.isfinite(plain.rows[-1]["f"])
        estimated = mast.minimize(problem, "dsgd", 10, 0.01, np.ones(30))
        assert estimated.estimated
        assert estimated.rows[-1]["f_D"] < estimated.rows[0]["f_D"]
        assert not mast.minimize(PROBLEM, "dsgd", 1).estimated


@pytest.mark.parametrize("method", ["gd", "agd", "dsgd", "dcgd"])
def test_a_biased_sketch_runs(method):
    """DSGD has its guarantee also where E[S] is not I; DCGD, which solves another problem, has none."""
    problem = mast.Problem(F, mast.UnscaledBernoulli(0.6))
    if method == "dcgd":
        assert mast.minimize(problem, method, 20, 0.05).guarantee is None
        with pytest.raises(mast.MastError):
            mast.minimize(problem, method, 5)
        return
    result = mast.minimize(problem, method, 2000)
    if method == "dsgd":
        assert result.step_size >= 1 / F.smoothness * (1 - 1e-12)
        assert math.isfinite(result.guarantee.bound(result.step_size, 2000, r0sq=1.0))
    else:
        assert result.guarantee is None
        np.testing.assert_allclose(result.x, problem.minimizer(), atol=1e-6)


class TestBytes:
    def test_each_node_is_counted_exactly(self):
        d = 10
        f = mast.Quadratic(np.eye(d), np.ones(d))
        nodes = mast.Nodes([mast.Problem(f, s) for s in (mast.RandK(3), mast.PermK(5), mast.Identity())])
        result = mast.minimize(nodes, "distributed", 7, 0.01)
        assert (
            result.state.received.tolist() == result.state.sent.tolist() == [7 * 8 * 3, 7 * 8 * 2, 7 * 8 * 10]
        )
        assert result.trace["bytes"].iloc[-1] == 2 * 7 * 8 * 15

    def test_absent_nodes_cost_nothing(self):
        nodes = mast.Nodes([mast.Problem(F, mast.RandK(1)) for _ in range(4)])
        result = mast.minimize(nodes, "distributed", 50, 0.01, participants=1)
        assert result.trace["bytes"].iloc[-1] == 50 * 2 * 8


def test_plot_draws_the_curve_and_its_bound(tmp_path):
    pyplot = pytest.importorskip("matplotlib.pyplot")
    pyplot.switch_backend("Agg")
    result = mast.minimize(PROBLEM, "dsgd", 200)
    ax = result.plot()
    assert len(ax.lines) == 2
    curve, bound = (line.get_ydata() for line in ax.lines)
    assert (bound >= curve).all()
    ax.figure.savefig(tmp_path / "run.png")
    for column in ("f", "f_D", "grad_sq"):
        assert len(result.plot(column).lines) == 1
    with pytest.raises(ArgumentError, match="column"):
        result.plot("speed")
    pyplot.close("all")


def test_a_result_below_a_file_is_refused_in_one_line(tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(DataError, match=r"^.*out: the folder cannot be made: [^\n]+$"):
        mast.minimize(PROBLEM, "dsgd", 3, 0.01).save(tmp_path / "file" / "out")
