"""What single statements refuse, and the edges they accept."""

import math
import subprocess
import sys

import pytest

from mast import theory
from mast.errors import ArgumentError, BiasedSketchError, MastError, NoGuaranteeError
from mast.theory.guarantee import NO_STATEMENT
from theory.statements import ALL, STATEMENTS


@pytest.mark.parametrize("name", [name for name in STATEMENTS if name != "s_page"])
def test_constants_of_a_biased_sketch(name):
    """No statement about DSGD needs E[S] = I; those of how f_D relates to f do."""
    unscaled = {"L_D": 0.9, "mu_D": 0.7, "L_max": 1.0}
    assert STATEMENTS[name]("strongly_convex", **{**ALL, **unscaled}).max_step_size() > 0
    with pytest.raises(MastError, match=r"mu_D.*'convex'"):
        STATEMENTS[name]("strongly_convex", **{**ALL, **unscaled, "mu_D": 0.0})
    with pytest.raises(BiasedSketchError, match=r"L_D = 0\.9 is below 1.*E\[S\] = I"):
        theory.problem_bounds(L_f=1.0, **unscaled)


@pytest.mark.parametrize("name", [name for name in STATEMENTS if name != "s_page"])
def test_strong_convexity_has_to_be_positive(name):
    with pytest.raises(ArgumentError, match=r"must be a positive number.*regime 'convex'"):
        STATEMENTS[name]("strongly_convex", **{**ALL, "mu_f": 0.0})


@pytest.mark.parametrize("name", [name for name in STATEMENTS if name != "s_page"])
def test_strong_convexity_above_smoothness(name):
    with pytest.raises(ArgumentError, match="no function and sketch have these constants"):
        STATEMENTS[name]("strongly_convex", **{**ALL, "mu_f": 3e4})


@pytest.mark.parametrize("delta", [0, 1, -0.1, 1.5, math.nan])
def test_delta_outside_its_range(delta):
    with pytest.raises(ArgumentError, match="delta must"):
        theory.dsgd("convex", **ALL).plan(delta=delta, r0sq=1)


@pytest.mark.parametrize("eps", [0, -1, math.nan, math.inf])
def test_eps_outside_its_range(eps):
    with pytest.raises(ArgumentError, match="eps must be"):
        theory.dsgd("nonconvex", **ALL).plan(eps=eps, delta0=1)


def test_a_plan_needs_one_start_above_0():
    with pytest.raises(ArgumentError, match="r0sq must be positive"):
        theory.dsgd("convex", **ALL).plan(delta=0.1, r0sq=0)
    with pytest.raises(ArgumentError, match="one finite r0sq"):
        theory.dsgd("convex", **ALL).plan(delta=0.1, r0sq=[1, 2])


def test_a_target_out_of_reach_is_refused():
    with pytest.raises(MastError, match="too small"):
        theory.dsgd("nonconvex", **ALL).plan(eps=1e-200, delta0=1)
    with pytest.raises(NoGuaranteeError, match="iterations"):
        theory.dsgd("nonconvex", **ALL).plan(eps=1e-120, delta0=1e100)
    with pytest.raises(NoGuaranteeError, match="raise b"):
        STATEMENTS["s_page"]("nonconvex", **ALL).plan(eps=0.01, Psi0=1)


def test_nothing_to_do_takes_one_iteration():
    assert theory.dsgd("nonconvex", **ALL).plan(eps=1.0, delta0=0.0).iterations == 1


def test_unknown_regimes_and_regimes_without_statement():
    with pytest.raises(ArgumentError, match="'strongly_convex', 'convex', 'nonconvex', got 'concave'"):
        theory.dsgd("concave", **ALL)
    with pytest.raises(NoGuaranteeError, match="s_page"):
        theory.l_svrdsg("nonconvex", N=3, p=0.5, **ALL)
    for regime in ("strongly_convex", "convex"):
        with pytest.raises(NoGuaranteeError, match="l_svrdsg"):
            theory.s_page(regime, N=3, p=0.5, **ALL)


def test_nonconvex_step_sizes_need_the_length_of_the_run():
    for name in ("dsgd", "dsgd_inexact", "any", "independent", "disjoint"):
        g = STATEMENTS[name]("nonconvex", **ALL)
        with pytest.raises(ArgumentError, match=r"max_step_size\(T=...\)"):
            g.max_step_size()
        with pytest.raises(ArgumentError, match="1 or more"):
            g.max_step_size(T=0)
        assert g.max_step_size(T=[1, 4]).shape == (2,)
    assert STATEMENTS["s_page"]("nonconvex", **ALL).max_step_size() > 0


def test_what_a_statement_does_not_use_is_ignored():
    plain = theory.dsgd("convex", L_f=3, L_max=16, gap=0.5)
    noisy = theory.dsgd("convex", **{**ALL, "mu_f": -7, "L_D": math.nan, "mu_D": 0})
    assert plain.max_step_size() == noisy.max_step_size()
    assert plain.bound(1e-3, 9, r0sq=2) == noisy.bound(1e-3, 9, r0sq=2, delta0=1, Psi0=3)


def test_local_steps_have_no_statement():
    with pytest.raises(NoGuaranteeError, match="local_steps=1"):
        theory.distributed("convex", local_steps=2, **ALL)
    assert "local steps" in NO_STATEMENT["local_steps"]


def test_node_counts():
    with pytest.raises(ArgumentError, match="L_f has 2"):
        theory.distributed("convex", L_f=[1, 2], L_max=[4, 4, 4])
    with pytest.raises(ArgumentError, match="one value or one per node"):
        theory.distributed("convex", L_f=[1, 2], L_max=4, M=3)
    with pytest.raises(ArgumentError, match=r"participants must lie in 1 \.\. 2"):
        theory.distributed("convex", L_f=[1, 2], L_max=4, participants=3)
    with pytest.raises(ArgumentError, match="not both"):
        theory.distributed("convex", L_f=[1, 2], L_max=4, participants=1, participation=0.5)
    with pytest.raises(ArgumentError, match="participation must lie in"):
        theory.distributed("convex", L_f=[1, 2], L_max=4, participation=[1.0, 0.0])
    with pytest.raises(ArgumentError, match="participation must lie in"):
        theory.distributed("convex", L_f=1, L_max=4, participation=[0.5] * 20 + [1.5])
    with pytest.raises(NoGuaranteeError, match="Gaussian"):
        theory.distributed("convex", L_f=[1, 2], L_max=[4, math.inf])
    with pytest.raises(ArgumentError, match="nodes must be one of"):
        theory.distributed("convex", L_f=1, L_max=4, nodes="linked")


def test_some_nodes_may_lack_strong_convexity():
    g = theory.distributed("strongly_convex", L_f=[1, 2], mu_f=[0, 0.5], mu_D=[4, 2], L_max=4, gap=0)
    assert g.bound(0.1, 1, r0sq=1) == pytest.approx(1 - 0.1 * 0.5)


def test_batch_sizes_and_probabilities():
    with pytest.raises(ArgumentError, match=r"b must lie in 1 \.\. 5"):
        theory.l_svrdsg("convex", N=5, b=6, p=0.5, **ALL)
    with pytest.raises(ArgumentError, match="b must be a whole number"):
        theory.zeta(5, 2.5)
    with pytest.raises(ArgumentError, match="N must be at least 1"):
        theory.s_page(N=0, p=0.5, **ALL)
    for p in (0, -0.1, 1.1, math.nan):
        with pytest.raises(ArgumentError, match="p must"):
            theory.l_svrdsg("convex", N=5, p=p, **ALL)
    with pytest.raises(ArgumentError, match="'fresh', 'kept'"):
        theory.l_svrdsg("convex", N=5, p=0.5, batch="old", **ALL)
    with pytest.raises(ArgumentError, match="N is missing"):
        theory.l_svrdsg("convex", p=0.5, **ALL)
    with pytest.raises(ArgumentError, match="sketches must be one of"):
        theory.sampling_constants(L_fi=[1, 2], L_max=4, sketches="some")
    with pytest.raises(ArgumentError, match="L_fi must have one value or n = 5"):
        theory.sampling_constants(L_fi=[1, 2], n=5, L_max=4)
    assert theory.sampling_constants(L_fi=[1, 2], L_max=4).C is None


def test_full_batches_need_no_gap_and_no_variance():
    g = theory.l_svrdsg("strongly_convex", N=5, p=0.5, L_f=3, mu_f=0.2, mu_D=2.5, L_max=16)
    assert g.bound(1e-3, 10, Psi0=1) == pytest.approx((1 - 5e-4) ** 10)
    g = theory.s_page(N=5, p=0.5, L_f=3, L_D=4, L_max=16)
    assert g.bound(1e-3, 1000, Psi0=1) == pytest.approx(2)
    g = theory.s_page(N=5, b=2, p=0.5, L_f=3, L_D=4, L_max=16)
    with pytest.raises(ArgumentError, match=r"sigma_sq is missing.*b = N"):
        g.bound(1e-3, 1000, Psi0=1)


def test_inexact_without_b_needs_no_l_max():
    assert theory.dsgd_inexact("convex", A=5, B=0, C=1, L_max=math.inf).max_step_size() == 0.1
    with pytest.raises(ArgumentError, match="C is missing"):
        theory.dsgd_inexact("convex", A=5, B=0, gap=1).bound(0.1, 10, r0sq=1)


def test_theory_stands_alone():
    """The theory imports nothing of ours but the errors, and nothing heavy."""
    code = (
        "import sys, mast.theory;"
        "ours = {m for m in sys.modules if m.startswith('mast.') and not m.startswith('mast.theory')};"
        "assert ours == {'mast.errors', 'mast.support', 'mast.support.checks'}, ours;"
        "heavy = {'scipy', 'pandas', 'numba', 'sklearn', 'torch', 'matplotlib'} & set(sys.modules);"
        "assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
