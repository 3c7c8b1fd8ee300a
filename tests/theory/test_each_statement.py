"""What every statement does alike: limits, arrays, edges, refusals that name what is wrong."""

import math

import numpy as np
import pytest

from mast import theory
from mast.errors import ArgumentError, MastError, NoGuaranteeError
from theory.statements import ALL, START, STATEMENTS, every


@every
def test_a_guarantee_is_complete(name, regime):
    g = STATEMENTS[name](regime, **ALL)
    assert isinstance(g, theory.Guarantee)
    assert g.regime == regime
    assert "Theorem" in g.statement
    assert g.assumptions
    assert g.statement in str(g)
    assert g.quantity in str(g)
    assert g.limit_formula in repr(g)
    plan = g.plan(delta=0.1, eps=0.8, **START)
    assert isinstance(plan.iterations, int)
    assert isinstance(plan.step_size, float)
    assert g.bound(plan.step_size, plan.iterations, **START) <= plan.target


@every
def test_the_limit_and_what_is_above_it(name, regime):
    g = STATEMENTS[name](regime, **ALL)
    limit = g.max_step_size(T=50)
    assert isinstance(limit, float)
    assert math.isfinite(g.bound(limit, 50, **START))
    assert math.isfinite(g.bound(np.nextafter(limit, 1), 50, **START))  # rounding is not a violation
    above = g.bound(1.001 * limit, 50, **START)
    assert "within the limit" in g.why(limit, 50)
    sentence = g.why(2 * limit, 50)
    assert f"2 times the limit {g.limit_formula}" in sentence
    if name == "dsgd" and regime == "nonconvex":
        assert math.isfinite(above)
        assert "general factor" in sentence
    else:
        assert above == math.inf
        assert "the bound is infinite" in sentence
    assert g.bound(math.inf, 50, **START) == math.inf


@every
def test_arrays_broadcast(name, regime):
    g = STATEMENTS[name](regime, **ALL)
    T = np.array([0, 1, 5, 100])
    steps = g.max_step_size(T=100) * np.array([[0.1], [1.0], [50.0]])
    table = g.bound(steps, T, **START)
    assert table.shape == (3, 4)
    for i in range(3):
        for j in range(4):
            one = g.bound(float(steps[i, 0]), int(T[j]), **START)
            assert isinstance(one, float)
            assert table[i, j] == one
    assert g.bound(0.5 * steps[0, 0], [1, 2], **START).shape == (2,)


@every
def test_no_iterations(name, regime):
    """With T = 0 a distance is bounded by its start; an average over no iterate is bounded by nothing."""
    g = STATEMENTS[name](regime, **ALL)
    value = g.bound(1e-9, 0, **START)
    if regime == "strongly_convex":
        assert 2 <= value < 5
    else:
        assert value == math.inf
    assert g.bound(0.0, 10, **START) >= (2 if regime == "strongly_convex" else math.inf)


@every
def test_huge_and_tiny_numbers_raise_no_warning(name, regime):
    """The suite turns warnings into errors."""
    for scale in (1e-90, 1e90):
        constants = {**ALL, "L_f": 3 * scale, "mu_f": 0.2 * scale, "gap": 0.5 * scale}
        g = STATEMENTS[name](regime, **constants)
        T = np.array([1, 10**6, 10**15])
        limits = np.broadcast_to(g.max_step_size(T=T), T.shape)
        assert (limits > 0).all()
        for factor in (1e-30, 1.0, 1e30):
            assert not np.isnan(g.bound(limits * factor, T, **{k: v * 1e100 for k, v in START.items()})).any()
    with pytest.raises(MastError, match=r"range of floating point|overflow"):
        STATEMENTS[name](regime, **{**ALL, "L_f": 1e200, "L_max": 1e200, "mu_f": 1})


@every
def test_missing_constants_are_named(name, regime):
    with pytest.raises(ArgumentError, match="L_f is missing"):
        STATEMENTS[name](regime, **{**ALL, "L_f": None})
    with pytest.raises(ArgumentError, match="L_max is missing"):
        STATEMENTS[name](regime, **{**ALL, "L_max": None})
    g = STATEMENTS[name](regime, **ALL)
    with pytest.raises(ArgumentError, match=r"(r0sq|delta0|Psi0) is missing"):
        g.bound(1e-6, 10)
    with pytest.raises(
        ArgumentError, match="eps is missing" if regime == "nonconvex" else "delta is missing"
    ):
        g.plan(**START)


@every
def test_the_step_size_needs_no_gap(name, regime):
    without = {key: value for key, value in ALL.items() if key != "gap"}
    g = STATEMENTS[name](regime, **without)
    assert g.max_step_size(T=10) == STATEMENTS[name](regime, **ALL).max_step_size(T=10)
    if name not in ("l_svrdsg kept", "s_page"):
        with pytest.raises(ArgumentError, match="gap is missing"):
            g.bound(1e-6, 10, **START)
        with pytest.raises(ArgumentError, match="gap is missing"):
            g.plan(delta=0.1, eps=1.0, **START)


@every
@pytest.mark.parametrize("bad", [-1.0, math.nan, math.inf, "three"])
def test_bad_numbers_are_refused(name, regime, bad):
    with pytest.raises(MastError, match="L_f"):
        STATEMENTS[name](regime, **{**ALL, "L_f": bad})
    if name not in ("l_svrdsg kept", "s_page"):
        with pytest.raises(MastError, match="gap"):
            STATEMENTS[name](regime, **{**ALL, "gap": bad})
    g = STATEMENTS[name](regime, **ALL)
    with pytest.raises(ArgumentError, match="T "):
        g.bound(1e-6, bad, **START)
    if bad != math.inf:
        with pytest.raises(ArgumentError, match="step_size"):
            g.bound(bad, 10, **START)
        for key in START:
            with pytest.raises(ArgumentError, match=key):
                g.bound(1e-6, 10, **{**START, key: bad})


@every
def test_infinite_l_max_says_what_to_do(name, regime):
    with pytest.raises(NoGuaranteeError, match=r"Truncate.*1/\(L_f L_D\)"):
        STATEMENTS[name](regime, **{**ALL, "L_max": math.inf})
