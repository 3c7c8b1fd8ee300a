"""How time and memory grow with rows, features, blocks and nodes, in powers of ten: fitted exponents."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import scipy.sparse

import mast
from _bench import Row, exponent, processor_times
from mast.methods import make

TITLE = "Growth"

ROW = 16  # non-zeros a row


def rows() -> Iterator[Row]:
    yield from _exact()
    yield from _draws()
    yield from _steps()
    yield from _nodes()


def _logistic(n: int, d: int) -> mast.Logistic:
    rng = np.random.default_rng(0)
    A = scipy.sparse.csr_matrix(
        (rng.normal(size=n * ROW), rng.integers(0, d, size=n * ROW), np.arange(0, n * ROW + 1, ROW)), (n, d)
    )
    return mast.Logistic(A, np.where(rng.random(n) < 0.5, 1.0, -1.0), l2=0.1)


def _memory(job: Callable[[], Any]) -> float:
    """The most that the job holds at once beyond what was there, in bytes."""
    job()
    tracemalloc.start()
    try:
        job()
        return float(tracemalloc.get_traced_memory()[1])
    finally:
        tracemalloc.stop()


def _exact() -> Iterator[Row]:
    """The exact gradient of f_D, one size growing and the others staying."""

    def gradient(n: int, d: int, K: int) -> Callable[[], Any]:
        exact = mast.Problem(_logistic(n, d), mast.PermK(K)).exact
        x = np.full(d, 0.01)
        return lambda: exact.gradient(x)

    ns, ds, Ks = [10**4, 10**5, 10**6], [10**4, 10**5, 10**6], [10, 100, 1000]
    by_n = [gradient(n, 1000, 100) for n in ns]
    yield exponent("exact gradient of f_D against n: time", ns, processor_times(*by_n, tries=3), 1.05)
    yield exponent("exact gradient of f_D against n: memory", ns, [_memory(g) for g in by_n], 1.05, "B")
    del by_n
    by_d = [gradient(20_000, d, 100) for d in ds]
    yield exponent("exact gradient of f_D against d: time", ds, processor_times(*by_d), 1.05)
    yield exponent("exact gradient of f_D against d: memory", ds, [_memory(g) for g in by_d], 1.05, "B")
    by_K = [gradient(50_000, 4000, K) for K in Ks]
    yield exponent("exact gradient of f_D against K: time", Ks, processor_times(*by_K), 0.5)


def _draws() -> Iterator[Row]:
    """A draw costs what it keeps, not what there is."""
    ds = [10**5, 10**6, 10**7, 10**8]
    for name, sketches in (
        ("RandK(1000)", [mast.RandK(1000) for _ in ds]),
        ("PermK(d/1000, redraw=True)", [mast.PermK(d // 1000, redraw=True) for d in ds]),
    ):
        jobs = [
            lambda d=d, s=sketch: [s.draw(d, step=t) for t in range(10)]
            for d, sketch in zip(ds, sketches, strict=True)
        ]
        yield exponent(f"10 draws of {name} against d: time", ds, processor_times(*jobs), 0.2)
        yield exponent(f"10 draws of {name} against d: memory", ds, [_memory(job) for job in jobs], 0.2, "B")


def _steps() -> Iterator[Row]:
    """Steps of dsgd_sampled that keep ten coordinates, whatever d is."""
    ds, count = [10**3, 10**4, 10**5], 20_000

    def steps(d: int) -> Callable[[], Any]:
        method = make("dsgd_sampled", {}).bind(mast.Problem(_logistic(5000, d), mast.PermK(d // 10)), 0)
        state = method.start(np.zeros(d))
        return lambda: method.advance(state, 0, np.full(count, 1e-5))

    times = processor_times(*[steps(d) for d in ds])
    yield exponent(f"{count:,} steps of dsgd_sampled that keep 10 of d, against d: time", ds, times, 0.35)


def _nodes() -> Iterator[Row]:
    """A round of all nodes, where each holds its block of a model that all of them share."""
    counts, d = [10, 100, 1000], 10_000

    def rounds(nodes: int) -> Callable[[], Any]:
        objective = mast.LeastSquares(scipy.sparse.identity(d, format="csr"), np.ones(d), l2=0.1)
        problem = mast.Nodes([mast.Problem(objective, mast.PermK(nodes)) for _ in range(nodes)])
        method = make("distributed", {"coupling": "disjoint"}).bind(problem, 0)
        state = method.start(np.zeros(d))
        return lambda: method.advance(state, 0, np.full(2, 1e-5))

    jobs = [rounds(nodes) for nodes in counts]
    yield exponent(
        "two rounds of nodes with a block each, against nodes: time",
        counts,
        processor_times(*jobs, tries=3),
        1.05,
    )
    yield exponent("the same: memory", counts, [_memory(job) for job in jobs], 1.05, "B")
