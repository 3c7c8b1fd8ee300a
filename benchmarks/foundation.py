"""Masks and parts of permutations: what a draw costs."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import numpy as np

from _bench import Row, bandwidth, best, versus
from mast.randomness import Key, bernoulli, threshold

TITLE = "Draws"

PART = """
import resource, time, mast
sketch = {sketch}
sketch.draw({d} // 10)  # compile
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
start = time.perf_counter()
draw = sketch.draw({d}, step=1)
took = time.perf_counter() - start
after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print(took, (after - before) * 1024, draw.indices.nbytes + draw.scales.nbytes)
"""


def rows() -> Iterator[Row]:
    n = 10**7
    generator = np.random.default_rng(0)
    t = threshold(0.7)
    numpy, ours = best(lambda: generator.random(n) < 0.7, lambda: bernoulli(Key(0), t, 0, n))
    yield versus(
        "Bernoulli mask of 10^7 coordinates",
        ours,
        "NumPy Generator.random(10^7) < p",
        numpy,
        0.25,
        limit=n / bandwidth(),
        limit_of="memory",
        detail="the limit is to write the mask",
    )
    for sketch in ("mast.PermK(1000, redraw=True)", "mast.RandK(0.001)"):
        printed = subprocess.run(
            [sys.executable, "-c", PART.format(sketch=sketch, d=10**8)],
            check=True,
            capture_output=True,
            text=True,
        )
        took, grown, kept = map(float, printed.stdout.split())
        yield versus(
            f"one part of {sketch}, d = 10^8",
            took,
            "one second",
            1.0,
            1.0,
            detail=f"{grown / 1e6:.1f} MB more memory for {kept / 1e6:.1f} MB kept",
        )
