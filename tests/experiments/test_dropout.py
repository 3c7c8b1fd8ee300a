"""The dropout experiment: its rules on made-up curves, and what it evaluates."""

# ruff: noqa: E402

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import mast
from mast.experiments.datasets import Dataset
from mast.experiments.experiment import Results
from mast.experiments.neural import dropout, runs
from mast.support.cells import Cell, Done

ROUNDS = np.arange(0, 1510, 10.0)
DATA = Dataset("made", "", "0")


def loss(end, noise):
    made = end * np.exp(noise * np.where(np.arange(ROUNDS.size) % 2, 1.0, -1.0))
    made[0] = 5.0
    return made


def results(unbiased, biased, times_p):
    """Cells whose runs end at these levels, functions of keep and step size; noise grows with the step."""
    found = []
    for keep in dropout.KEEPS:
        for scaled in (True, False):
            sizes = runs.STEP_SIZES if scaled else dropout.STEP_SIZES
            config = {"keep": keep, "scaled": scaled, "step_sizes": list(sizes)}
            cell = Cell("neural" if scaled else "dropout", 1, runs.distributed_run, config, DATA)
            numbers = {
                "round": ROUNDS,
                "loss": [loss((unbiased if scaled else biased)(keep, s), 0.1 * s) for s in sizes],
            }
            if not scaled:
                numbers["loss_at_keep"] = [loss(times_p(keep, s), 0.1 * s) for s in sizes]
            found.append(Done(cell, {name: np.array(value) for name, value in numbers.items()}, 0.0))
    return Results(found)


def verdicts(*levels):
    return [claim.holds for claim in dropout.dropout_claims(results(*levels))]


def test_rules():
    low, high = (lambda k, s: 0.1), (lambda k, s: 0.1 / k)
    assert verdicts(low, high, high) == [True, True, True, True]
    assert verdicts(high, low, high) == [False, False, True, False]
    # one of six is enough to break "always"; at p x the original may win
    once = lambda k, s: 0.05 if (k, s) == (0.9, 1.0) else 0.1 / k  # noqa: E731
    assert verdicts(low, once, low) == [False, True, True, False]


def test_noise_that_does_not_grow_is_noticed():
    done = results(*[lambda k, s: 0.1] * 3)
    for d in done:
        d.result["loss"][:] = loss(0.1, 0.05)
    assert [claim.holds for claim in dropout.dropout_claims(done)] == [False, False, False, False]


def test_the_third_curve_is_evaluated_at_p_x():
    done = results(lambda k, s: 0.1, lambda k, s: 0.2, lambda k, s: 0.3 + k)
    assert dropout.curve_of(done, "biased", 0.7, 0.5).level == pytest.approx(0.2, rel=0.06)
    assert dropout.curve_of(done, "biased, times p", 0.7, 0.5).level == pytest.approx(1.0, rel=0.06)
    assert dropout.curve_of(done, "unbiased", 0.9, 1.0).level == pytest.approx(0.1, rel=0.11)


def test_original_dropout_at_p_x_is_the_unbiased_sketch_with_a_shorter_step():
    from mast.experiments.datasets import initial_weights
    from mast.experiments.neural.runs import Lanes, masks, student

    shape, p = (7, 5, 3), 0.5  # a power of two: the keep probability is exact
    rows = initial_weights(1, 5, (4, 6, 7), 1.0), initial_weights(1, 6, (4, 6, 3), 1.0)
    original = Lanes(student(shape, 0), [0.4], *rows)
    network = student(shape, 0)
    with torch.no_grad():
        for weight in network.parameters():
            weight *= p
    unbiased = Lanes(network, [0.4 * p**2], *rows)
    for t in range(10):
        original.advance(masks(mast.UnscaledBernoulli(p), network, 4, 3, t))
        unbiased.advance(masks(mast.Bernoulli(p), network, 4, 3, t))
    rounding = 10 * 40 * torch.finfo(torch.float32).eps  # steps, and terms of a step's sums
    for a, b in zip(original.weights, unbiased.weights, strict=True):
        torch.testing.assert_close(p * a, b, rtol=0, atol=rounding)
    assert original.losses(p)[0] == pytest.approx(unbiased.losses()[0], rel=rounding)
