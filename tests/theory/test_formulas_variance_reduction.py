"""L-SVRDSG and S-PAGE: step sizes, bounds and plans against the formulas typed a second time."""

import math

from hypothesis import given
from hypothesis import strategies as st

from mast import theory
from theory.formulas import count, gaps, near, share, size, unhurried

NUMBERS = {
    **{"N": st.integers(1, 50), "data": st.data(), "p": st.one_of(st.just(1.0), st.floats(1e-3, 1))},
    **{"L_f": size, "L_D": size, "L_max": size, "sigma_sq": gaps, "T": count},
}


@unhurried
@given(**NUMBERS, mu_share=share, gap=gaps, r0sq=size, D0=size, cut=share)
def test_l_svrdsg(N, data, p, L_f, L_D, L_max, mu_share, gap, r0sq, D0, sigma_sq, T, cut):
    b = data.draw(st.integers(1, N))
    z = (N - b) / (max(1, N - 1) * b)
    mu = mu_share * L_f * min(L_max, L_D)
    sketch = {"L_f": L_f, "mu_f": mu, "L_D": L_D, "mu_D": 1, "L_max": L_max, "gap": gap}
    constants = {"N": N, "b": b, "p": p, **sketch}
    start = {"r0sq": r0sq, "D0": D0, "sigma_sq": sigma_sq}

    g = theory.l_svrdsg("strongly_convex", **constants)
    near(g.max_step_size(), 1 / (20 * L_f * L_max))
    step = cut / (20 * L_f * L_max)
    rho, Psi0 = min(step * mu, p / 2), r0sq + 16 * step**2 / p * D0
    fresh = (1 - rho) ** T * Psi0 + 8 * step**2 * L_f * L_max * z * gap / rho
    near(g.bound(step, T, Psi0=Psi0), fresh)
    near(g.bound(step, T, **start), fresh)

    g = theory.l_svrdsg("convex", **constants)
    near(g.max_step_size(), 1 / (40 * L_f * L_max))
    step = cut / (40 * L_f * L_max)
    near(g.bound(step, T, Psi0=7.0), 7 / (step * T) + 8 * z * step * L_f * L_max * gap)

    kept = {
        regime: theory.l_svrdsg(regime, batch="kept", **constants) for regime in ("strongly_convex", "convex")
    }
    if b == N or p == 1:
        for regime, g in kept.items():
            fresh = theory.l_svrdsg(regime, **constants)
            assert g.max_step_size() == fresh.max_step_size()
            step = cut * g.max_step_size()
            assert g.bound(step, T, **start) == fresh.bound(step, T, **start)
        return
    g = kept["strongly_convex"]
    limit = 1 / (L_f * (6 * L_max + (2 * L_D + 32 * z * L_max) / p))
    near(g.max_step_size(), limit)
    step = cut * limit
    rho, c = min(step * mu, p / 2), 4 * step**2 / p * (1 + 8 * z / p)
    bound = 2 * (1 - rho) ** T * (r0sq + c * D0) + 48 * step**2 * z * sigma_sq / (p * rho)
    near(g.bound(step, T, **start), bound)
    g = kept["convex"]
    limit = 1 / (L_f * (2 * L_D / p + 8 * L_max + (12 / p + 8) * z * L_max))
    near(g.max_step_size(), limit)
    step = cut * limit
    c = step**2 / p * (6 * z / p + 2 + 4 * z)
    bound = (r0sq + c * D0) / (step * T) + 10 * step * z * sigma_sq / p + 2 * step * z * sigma_sq / (p**2 * T)
    near(g.bound(step, T, **start), bound)


@unhurried
@given(**NUMBERS, Psi0=size, eps=size)
def test_s_page(N, data, p, L_f, L_D, L_max, sigma_sq, Psi0, T, eps):
    b, b_small = data.draw(st.integers(1, N)), data.draw(st.integers(1, N))

    def zeta(b):
        return (N - b) / (max(1, N - 1) * b)

    g = theory.s_page(N=N, b=b, b_small=b_small, p=p, sigma_sq=sigma_sq, L_f=L_f, L_D=L_D, L_max=L_max)
    limit = 1 / (L_f * (L_D + math.sqrt((1 - p) / p * zeta(b_small) * L_max * L_D)))
    near(g.max_step_size(), limit)
    near(g.bound(limit, T, Psi0=Psi0), 2 * Psi0 / (limit * T) + zeta(b) * sigma_sq)
    room = eps**2 - zeta(b) * sigma_sq
    if room > 1e-6 * eps**2:
        plan = g.plan(eps=eps, Psi0=Psi0)
        needed = 2 * Psi0 / (limit * room)
        assert abs(plan.iterations - max(1, needed)) <= 1 + 1e-5 * needed  # room cancels up to six digits
        assert g.bound(plan.step_size, plan.iterations, Psi0=Psi0) <= eps**2


@unhurried
@given(N=st.integers(1, 1000), data=st.data())
def test_zeta(N, data):
    b = data.draw(st.integers(1, N))
    assert theory.zeta(N, b) == (N - b) / (max(1, N - 1) * b)
