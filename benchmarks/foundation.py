"""Masks and parts of permutations: what a draw costs."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import numpy as np

from mast.bench import Row, best, seconds
from mast.randomness import Key, bernoulli, threshold

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
    yield Row(
        "Bernoulli mask of 10^7 coordinates",
        "NumPy Generator.random(10^7) < p",
        ours / numpy,
        0.25,
        detail=f"{seconds(ours)} against {seconds(numpy)}",
    )
    for sketch in ("mast.PermK(1000, redraw=True)", "mast.RandK(0.001)"):
        printed = subprocess.run(
            [sys.executable, "-c", PART.format(sketch=sketch, d=10**8)],
            check=True,
            capture_output=True,
            text=True,
        )
        took, grown, kept = map(float, printed.stdout.split())
        yield Row(
            f"one part of {sketch}, d = 10^8",
            "one second",
            took,
            1.0,
            detail=f"{seconds(took)}, {grown / 1e6:.1f} MB more memory for {kept / 1e6:.1f} MB kept",
        )
