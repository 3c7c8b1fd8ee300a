"""What the theorems promise, as functions of a few numbers: step sizes, bounds, plans.

Each function returns a `Guarantee`: `max_step_size(T)`, `bound(step_size, T, ...)`, `plan(...)`,
`why(step_size)`, `statement`, `assumptions`. Regimes are "strongly_convex", "convex", "nonconvex".

Find the statement you hold. Numbers count the paper's statements of each kind in order of appearance;
"c" marks those whose printed form is corrected here (docs/errata.md says how, with counterexamples).

==============================  ===========================================  ==============================
paper                           about                                        here
==============================  ===========================================  ==============================
Lemmas 1-3 (9-11)               smoothness, convexity, values of f_D         problem_bounds
Lemma 4 (13)                    second moment of grad f_S                    problem_bounds
Lemma 12                        Lipschitz gradient of f_D                    problem_bounds
Theorem 1 (6), Theorem 7        minima of f and of f_D; f not convex         problem_bounds
Theorem 2 (9), Corollary 3      DSGD (I), Algorithm 1                        dsgd("strongly_convex")
Theorem 10, Corollary 4         DSGD (I)                                     dsgd("convex")
Theorem 3 (8), Cor. 1 (c), 2    DSGD (I)                                     dsgd("nonconvex")
Theorem 12, Corollary 6         DSGD (II), stochastic gradients              dsgd_inexact("strongly_convex")
Theorem 13, Corollary 7 (c)     DSGD (II)                                    dsgd_inexact("convex")
Theorem 4 (11), Corollary 5     DSGD (II)                                    dsgd_inexact("nonconvex")
after Theorem 4 (c)             A, B, C of sampled terms, minibatches        sampling_constants
Theorem 15 (c), Cor. 9 (c)      distributed DSGD, Algorithm 2                distributed("strongly_convex")
Theorem 16 (c), Cor. 10 (c)     distributed DSGD                             distributed("convex")
Theorem 5 (14) (c), Cor. 8 (c)  distributed DSGD                             distributed("nonconvex")
(not in the paper)              independent or disjoint nodes, sharper       distributed(nodes=...)
(not in the paper)              nodes that take part now and then            distributed(participation=...)
(not in the paper)              several draws averaged at each step          averaged_draws
(not in the paper)              DSGD on quadratics, a longer step            expected_smoothness
Theorem 17 (18) (c)             L-SVRDSG, Algorithm 3                        l_svrdsg("strongly_convex")
Theorem 19 (c)                  L-SVRDSG                                     l_svrdsg("convex")
Theorem 20 (c)                  S-PAGE, Algorithm 4                          s_page("nonconvex")
==============================  ===========================================  ==============================

>>> from mast import theory
>>> g = theory.dsgd("nonconvex", L_f=3, L_D=4, L_max=16, gap=.5)
>>> print(g)
DSGD, nonconvex
  statement   Theorem 3, Corollary 2: DSGD with exact sketched gradients, non-convex f
  step size   g <= 1/(L_f sqrt(L_D L_max T))
  promises    min_{t<T} E|grad f_D(x^t)|² <= 3 delta0/(g T) + g L_f² L_D L_max gap
  constants   L_f = 3, L_D = 4, L_max = 16, gap = 0.5
  assumes     f is L_f-smooth and bounded below
  assumes     E[S'S] is finite
  assumes     L_max finite
"""

from __future__ import annotations

from mast.theory.distributed import averaged_draws, distributed
from mast.theory.dsgd import dsgd, expected_smoothness
from mast.theory.dsgd_inexact import dsgd_inexact, sampling_constants, zeta
from mast.theory.guarantee import Guarantee, Plan
from mast.theory.l_svrdsg import l_svrdsg
from mast.theory.problem_bounds import problem_bounds
from mast.theory.s_page import s_page

__all__ = [
    "Guarantee",
    "Plan",
    "averaged_draws",
    "distributed",
    "dsgd",
    "dsgd_inexact",
    "expected_smoothness",
    "l_svrdsg",
    "problem_bounds",
    "s_page",
    "sampling_constants",
    "zeta",
]
