"""Numbers to try a formula at, and what "equal" means for one typed twice."""

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st

size = st.floats(1e-3, 1e3)
least_one = st.floats(1.0, 1e3)
gaps = st.one_of(st.just(0.0), st.floats(1e-3, 1e2))
share = st.floats(0.01, 0.99)
count = st.integers(1, 10**6)
unhurried = settings(deadline=None)  # a slow machine is not a wrong formula
NEAR = 1e-9  # the two ways of typing a formula differ by a few roundings


def near(left, right):
    np.testing.assert_allclose(left, right, rtol=NEAR, atol=0)


def whole_near(iterations, needed):
    """The ceiling of the closed form; a formula that rounds differently may land on a neighbour."""
    assert isinstance(iterations, int)
    assert abs(iterations - max(1, needed)) <= 1 + NEAR * needed
    assert iterations >= needed * (1 - NEAR)
