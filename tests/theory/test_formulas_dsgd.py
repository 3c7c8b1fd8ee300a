"""DSGD: step sizes, bounds and plans against the formulas typed a second time."""

import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from mast import theory
from theory import formulas
from theory.formulas import gaps, least_one, near, share, size, unhurried

NUMBERS = {**formulas.DSGD, "L_f": size, "L_D": least_one, "L_max": least_one, "mu_share": share}


@unhurried
@given(**NUMBERS, mu_D=least_one)
def test_dsgd(L_f, L_D, L_max, mu_share, mu_D, gap, start, delta, eps, T, cut):
    L, noise = L_f * L_max, 2 * L_f * L_max * gap
    mu_f = mu_share * L / mu_D
    g = theory.dsgd("strongly_convex", L_f=L_f, mu_f=mu_f, L_D=math.inf, mu_D=mu_D, L_max=L_max, gap=gap)
    formulas.check_strongly_convex(g, L, mu_D * mu_f, noise, start=start, delta=delta, T=T, cut=cut)
    g = theory.dsgd("convex", L_f=L_f, L_max=L_max, gap=gap)
    formulas.check_convex(g, L, noise, start=start, delta=delta, T=T, cut=cut)
    g = theory.dsgd("nonconvex", L_f=L_f, L_D=L_D, L_max=L_max, gap=gap)
    formulas.check_nonconvex(g, L, L_f * L_D, noise, start=start, eps=eps, T=T, cut=cut)
    D = L_f * math.sqrt(L_D * L_max)
    above = 2 / (D * math.sqrt(T))
    general = (1 + above**2 * D**2) ** T / (above * T) * start + above * D**2 * gap
    # a power of 1e6 loses digits
    np.testing.assert_allclose(g.bound(above, T, delta0=start), general, rtol=1e-8)


@unhurried
@given(**NUMBERS, A=st.one_of(st.just(0.0), size), B=st.floats(0.1, 10), C=gaps)
def test_dsgd_inexact(A, B, C, L_f, L_D, L_max, mu_share, gap, start, delta, eps, T, cut):
    D_AB = A + B * L_f * L_max
    mu, noise = mu_share * D_AB, 2 * gap * D_AB + C
    sketch = {"L_f": L_f, "L_D": L_D, "L_max": L_max, "gap": gap, "mu_f": mu, "mu_D": 1}
    strongly, convex, nonconvex = (
        theory.dsgd_inexact(regime, A=A, B=B, C=C, **sketch)
        for regime in ("strongly_convex", "convex", "nonconvex")
    )
    formulas.check_strongly_convex(strongly, D_AB, mu, noise, start=start, delta=delta, T=T, cut=cut)
    formulas.check_convex(convex, D_AB, noise, start=start, delta=delta, T=T, cut=cut)
    formulas.check_nonconvex(nonconvex, D_AB, L_f * L_D, noise, start=start, eps=eps, T=T, cut=cut)
    assert nonconvex.bound(1.01 * nonconvex.max_step_size(T), T, delta0=start) == math.inf


@unhurried
@given(
    L=st.lists(size, min_size=2, max_size=6), L_max=least_one, L_D=least_one, terms_gap=gaps, data=st.data()
)
def test_sampling_constants(L, L_max, L_D, terms_gap, data):
    n, L_f = len(L), sum(L) / len(L)
    t = data.draw(st.integers(1, n))
    z = (n - t) / ((n - 1) * t)
    A, B, C = theory.sampling_constants(L_fi=L, batch_size=t, L_max=L_max, terms_gap=terms_gap)
    near(A, z * L_max * max(L))
    near(B, 1 - z)
    near(C, 2 * z * L_max * max(L) * terms_gap)
    A, B, C = theory.sampling_constants(
        L_fi=max(L), n=n, batch_size=t, L_D=L_D, L_f=L_f, sketches="all", terms_gap=terms_gap
    )
    near(A + B, z * L_D * max(L) + (1 - z) * L_f * L_D)
    near(C, 2 * z * L_D * max(L) * terms_gap)
