"""Every statement with constants that suit it: a new one joins the tests by joining this list."""

import pytest

from mast import theory

ALL = {"L_f": 3, "mu_f": 0.2, "L_D": 4, "mu_D": 2.5, "L_max": 16, "gap": 0.5}
START = {"r0sq": 2.0, "delta0": 1.0, "Psi0": 3.0, "D0": 4.0, "sigma_sq": 5.0}
STATEMENTS = {
    "dsgd": theory.dsgd,
    "dsgd_inexact": lambda regime, **k: theory.dsgd_inexact(regime, **{"A": 1, "B": 1, "C": 2, **k}),
    "any": lambda regime, **k: theory.distributed(regime, nodes="any", M=3, **k),
    "independent": lambda regime, **k: theory.distributed(regime, nodes="independent", M=3, **k),
    "disjoint": lambda regime, **k: theory.distributed(regime, nodes="disjoint", M=3, **k),
    "averaged_draws": lambda regime, **k: theory.averaged_draws(regime, draws=3, **k),
    "l_svrdsg": lambda regime, **k: theory.l_svrdsg(regime, **{"N": 5, "b": 2, "p": 0.5, **k}),
    "l_svrdsg kept": lambda regime, **k: theory.l_svrdsg(
        regime, batch="kept", **{"N": 5, "b": 2, "p": 0.5, **k}
    ),
    "s_page": lambda regime, **k: theory.s_page(regime, **{"N": 5, "b": 2, "p": 0.5, "sigma_sq": 0.1, **k}),
}
REGIMES = dict.fromkeys(STATEMENTS, ("strongly_convex", "convex", "nonconvex"))
REGIMES["l_svrdsg"] = REGIMES["l_svrdsg kept"] = ("strongly_convex", "convex")
REGIMES["s_page"] = ("nonconvex",)
CASES = [(name, regime) for name, regimes in REGIMES.items() for regime in regimes]
every = pytest.mark.parametrize(("name", "regime"), CASES)
