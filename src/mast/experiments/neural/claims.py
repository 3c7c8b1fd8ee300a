"""What the paper's text says of its neural figures, each sentence decided by numbers over seeds.

The rules were fixed before the full runs, but for one. The variance of f itself was added when that of log f
had been seen, and its measure was changed once, from deviations about a straight line to second differences,
because runs that still fall are not straight.

A level is the median loss over the last tenth of a run, and the median of that over seeds; the best step
size has the lowest level among the five of the grid.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import numpy as np

from mast.experiments.experiment import Claim, Results, small_table
from mast.experiments.neural.runs import HIGH, KEEPS, STEP_SIZES, UNSETTLED, Curve, advised, curve

SPARSE = KEEPS[:-1]
STAGNANT = 0.1  # of the loss: a fall in the second half of the run that is less counts as none
EARLY = 0.1  # of the run: the least time for which a sparse run has to be ahead
WORTH = 2.0  # times the best level: what the advised step size may cost

Curves = dict[tuple[float, float | str], Curve]


def neural_curves(results: Results) -> Curves:
    """All curves of a data set, by keep probability and step size (or "advised")."""
    return {(k, s): curve(results, k, s) for k in KEEPS for s in (*STEP_SIZES, "advised")}


def best(curves: Curves, keep: float) -> float:
    """The step size with the lowest level."""
    return min(STEP_SIZES, key=lambda s: curves[keep, s].level)


def neural_claims(results: Results) -> Iterator[Claim]:
    """All of them for one data set."""
    curves = neural_curves(results)
    yield from _sweet_spot(curves)
    yield _restless(curves[0.5, 1.0])
    yield from _stagnation(curves)
    yield from _variance(curves)
    yield from _sparse_ahead(curves)
    yield from _advice(results, curves)


def _sweet_spot(curves: Curves) -> Iterator[Claim]:
    spots = {k: best(curves, k) for k in KEEPS}
    shown = small_table("keep", spots, best_step_size=[f"{s:g}" for s in spots.values()])
    order, longest = list(spots.values()), STEP_SIZES[-1]
    yield Claim(
        "At every sparsity there is a sweet spot of the step size, beyond which longer steps do worse",
        f"for keep .5, .7 and .9 the best step size is below {longest:g}",
        [
            ["keep", *(f"{k:g}" for k in SPARSE)],
            ["best step size", *(f"{spots[k]:g}" for k in SPARSE)],
            ["loss at it", *(f"{curves[k, spots[k]].level:.3g}" for k in SPARSE)],
            [f"loss at {longest:g}", *(f"{curves[k, longest].level:.3g}" for k in SPARSE)],
        ],
        all(spots[k] < longest for k in SPARSE),
    )
    yield Claim(
        "The sweet spot is γ = .5 at every sparsity",
        "the best of the five step sizes, for keep .5, .7 and .9",
        shown,
        all(spots[k] == 0.5 for k in SPARSE),
    )
    yield Claim(
        "The sweet spot depends on the keep probability: what is sparser needs shorter steps",
        "the best step size never falls as keep rises over .5, .7, .9, 1, and rises at least once",
        shown,
        all(a <= b for a, b in pairwise(order)) and order[0] < order[-1],
    )


def _restless(runs: Curve) -> Claim:
    diverged, unsettled = int(np.isinf(runs.loss[:, -1]).sum()), int((~runs.settled).sum())
    count = len(runs.settled)
    return Claim(
        "Keep .5 with γ = 1 diverges, or never settles",
        f"in most seeds: it diverges, or ends above {HIGH:g} of its start, or changes by a factor of "
        f"{UNSETTLED:g} within the last quarter",
        f"{diverged} of {count} diverged, {unsettled} of {count} did not settle; level {runs} from "
        f"{np.median(runs.loss[:, 0]):.3g}",
        2 * unsettled > count,
    )


def _stagnation(curves: Curves) -> Iterator[Claim]:
    tuned, short = {k: best(curves, k) for k in SPARSE}, dict.fromkeys(SPARSE, 0.01)
    for text, sizes in (
        ("Keep .5 stagnates where .7 and .9 go on, each at its best step size", tuned),
        ("Keep .5 stagnates even with γ = .01, where .7 and .9 go on", short),
    ):
        falls = {k: float(np.median(curves[k, sizes[k]].falls)) for k in SPARSE}
        yield Claim(
            text,
            f"in the second half of the run the loss falls by less than {STAGNANT:.0%} at keep .5, and "
            "by more at .7 and .9",
            small_table(
                "keep",
                falls,
                step_size=[f"{sizes[k]:g}" for k in falls],
                fall_of_the_loss=[f"{fall:.1%}" for fall in falls.values()],
            ),
            falls[0.5] < STAGNANT and falls[0.7] > STAGNANT and falls[0.9] > STAGNANT,
        )


def _variance(curves: Curves) -> Iterator[Claim]:
    """Relative to what is left of the loss, and of the loss itself: the two can disagree."""
    by_step = [((k, a), (k, b)) for k in SPARSE for a, b in pairwise(STEP_SIZES)]
    by_keep = [((b, s), (a, s)) for s in STEP_SIZES for a, b in pairwise(SPARSE)]
    of_log = "deviation of log f from its linear trend in the last quarter"
    of_f = "changes of f between measured rounds of the last quarter, its trend taken out"
    for measure, relative, decides in (
        ("fluctuations", " relative to its level", of_log),
        ("deviations", "", of_f),
    ):
        noise = {(k, s): float(np.median(getattr(curves[k, s], measure))) for k in SPARSE for s in STEP_SIZES}
        shown = [
            ["step size", *(f"{s:g}" for s in STEP_SIZES)],
            *([f"keep {k:g}", *(f"{noise[k, s]:.2g}" for s in STEP_SIZES)] for k in SPARSE),
        ]
        for text, pairs in (("Longer steps make", by_step), ("More sparsity makes", by_keep)):
            ordered = sum(noise[a] < noise[b] or noise[a] == noise[b] == np.inf for a, b in pairs)
            yield Claim(
                f"{text} the loss fluctuate more{relative}",
                f"{decides}: larger for each of the neighbouring step sizes or keep probabilities",
                [*shown, ["neighbours in order", f"{ordered} of {len(pairs)}"]],
                ordered == len(pairs),
            )


def _sparse_ahead(curves: Curves) -> Iterator[Claim]:
    dense = curves[1.0, 0.01]
    ahead = {k: rounds_ahead(curves[k, 0.1], curves[1.0, 0.1]) for k in SPARSE}
    total = float(curves[1.0, 0.1].rounds[-1])
    yield Claim(
        "Sparse training can beat dense training at a small step size (γ = .01)",
        "some keep below 1 ends lower than keep 1, in every seed",
        small_table("keep", KEEPS, level=[str(curves[k, 0.01]) for k in KEEPS]),
        any(bool((curves[k, 0.01].levels < dense.levels).all()) for k in SPARSE),
    )
    yield Claim(
        "Sparse training can beat dense training early on (γ = .1; in the paper, for about 1,200 rounds)",
        f"some keep below 1 has the lower median loss from the first measured round on, for at least "
        f"{EARLY:.0%} of the run",
        small_table("keep", ahead, ahead_until_round=[f"{r:.0f} of {total:.0f}" for r in ahead.values()]),
        max(ahead.values()) >= EARLY * total,
    )


def rounds_ahead(sparse: Curve, dense: Curve) -> float:
    """Until which measured round the sparse median loss stays below the dense one; 0 if never.

    >>> rounds = np.array([0.0, 10.0, 20.0, 30.0])
    >>> a, b = (Curve(rounds, np.array([loss])) for loss in ([5, 3, 2, 2.0], [5, 4, 2.5, 1]))
    >>> rounds_ahead(a, b), rounds_ahead(b, a)
    (20.0, 0.0)
    """
    lower = np.median(sparse.loss, axis=0)[1:] < np.median(dense.loss, axis=0)[1:]
    until = lower.size if lower.all() else int(np.argmin(lower))
    return float(sparse.rounds[until]) if until else 0.0


def _advice(results: Results, curves: Curves) -> Iterator[Claim]:
    sizes = {k: advised(results, k) for k in KEEPS}
    cost = {k: curves[k, "advised"].level / curves[k, best(curves, k)].level for k in KEEPS}
    yield Claim(
        "The step size that mast.nn.advise proposes is on the stable side",
        f"every seed settles at it: ends below {HIGH:g} of its start, and changes by less than a factor "
        f"of {UNSETTLED:g} within the last quarter",
        small_table(
            "keep",
            KEEPS,
            step_size=[f"{sizes[k]:.2g}" for k in KEEPS],
            level=[str(curves[k, "advised"]) for k in KEEPS],
        ),
        all(bool(curves[k, "advised"].settled.all()) for k in KEEPS),
        source="beyond",
    )
    yield Claim(
        "The step size that mast.nn.advise proposes loses little against the best one found",
        f"its level is at most {WORTH:g} times that of the best of the five step sizes",
        small_table("keep", cost, times_the_best_level=[f"{ratio:.2f}" for ratio in cost.values()]),
        max(cost.values()) <= WORTH,
        source="beyond",
    )
