"""Advice: the sentence's numbers are those of the theory, and the command prints them."""

import json

import numpy as np
import pytest
from typer.testing import CliRunner

import mast
from mast.cli import app
from mast.errors import ArgumentError
from mast.sketches import parse

A, B = mast.data.load("a1a")
F = mast.Logistic(A[:200], B[:200], kappa=100)


def test_the_sentence_is_the_row_of_the_method_that_would_be_run():
    bernoulli, perm, identity = (
        mast.advise(F, s) for s in (mast.Bernoulli(0.7), mast.PermK(4), mast.Identity())
    )
    for advice in (bernoulli, perm, identity):
        plain, row = advice.lines[0], next(line for line in advice.lines if line.method == "dsgd")
        assert f"step size {row.planned_step_size:.3g} and {row.iterations:,} steps" in advice.sentence
        assert f"plain gradient descent takes {plain.iterations:,}" in advice.sentence
        assert row.above_target == ("end above the target" in advice.sentence)
    assert bernoulli.lines[2].above_target  # its gap is not 0
    assert not perm.lines[2].above_target


def test_the_gap_is_the_one_that_was_used():
    problem = mast.Problem(F, mast.PermK(4))
    lines = {(line.method, line.regime): line for line in mast.advise(F, mast.PermK(4)).lines}
    assert lines["dsgd", "strongly_convex"].gap == 0  # all sketched functions share one minimiser
    sampled = lines["dsgd_sampled", "strongly_convex"].gap
    assert sampled == pytest.approx(problem.infimum() - F.infimum())


def test_an_unbounded_sketch_is_told_what_to_do_instead():
    advice = mast.advise(F, mast.Gaussian(0.5))
    assert "exact gradient descent" in advice.sentence
    assert [line.method for line in advice.lines] == ["plain gd", "gd"]


def test_lines_are_the_guarantees():
    problem = mast.Problem(F, mast.PermK(4))
    advice = mast.advise(F, mast.PermK(4), delta=0.02)
    lines = {(line.method, line.regime): line for line in advice.lines}
    assert {"dsgd", "dsgd_sampled", "l_svrdsg", "s_page"} <= {method for method, _ in lines}
    g = mast.guarantee(problem, "dsgd", "convex")
    line = lines["dsgd", "convex"]
    assert line.step_size == g.max_step_size()
    r0sq = float(np.sum(problem.minimizer() ** 2))
    plan = g.plan(delta=0.02, r0sq=r0sq)
    assert (line.iterations, line.planned_step_size) == (plan.iterations, plan.step_size)
    assert advice.r0sq == pytest.approx(r0sq)
    assert lines["dsgd", "strongly_convex"].floor == pytest.approx(0, abs=1e-12)


def test_other_objectives():
    flat = mast.Quadratic(np.diag([1.0, 0.0]), [1.0, 0.0])
    assert {line.regime for line in mast.advise(flat, mast.RandK(1)).lines} == {"convex", "nonconvex"}
    bent = mast.NonconvexLogistic(A[:50], B[:50], 0.1)
    assert {line.regime for line in mast.advise(bent, mast.PermK(2)).lines} == {"nonconvex"}


def test_refusals():
    with pytest.raises(ArgumentError, match="delta"):
        mast.advise(F, mast.PermK(2), delta=1.0)


def test_a_sketch_without_scales_has_the_step_size_of_plain_descent():
    unscaled = next(
        line for line in mast.advise(F, mast.UnscaledBernoulli(0.5)).lines if line.method == "dsgd"
    )
    assert unscaled.step_size >= (1 - 1e-12) / F.smoothness


@pytest.mark.parametrize(
    ("text", "sketch"),
    [
        ("identity", "Identity()"),
        ("bernoulli:0.5", "Bernoulli(0.5)"),
        ("Bernoulli:50%", "Bernoulli(0.5)"),
        ("unscaled:0.25", "UnscaledBernoulli(0.25)"),
        ("randk:3", "RandK(3)"),
        ("randk:10%", "RandK(0.1)"),
        ("randk:1", "RandK(1)"),
        ("permk:4", "PermK(4, seed=0)"),
        ("permk:4:7", "PermK(4, seed=7)"),
        ("permk:4:redraw", "PermK(4, redrawn)"),
        ("gaussian:.5", "Gaussian(0.5)"),
    ],
)
def test_spelling(text, sketch):
    assert sketch in repr(parse(text))


@pytest.mark.parametrize(
    "text", ["", "perm:4", "permk", "permk:x", "permk:0", "bernoulli:2", "randk:0%", "a:b:c:d", "gaussian:"]
)
def test_bad_spelling(text):
    with pytest.raises(ArgumentError):
        parse(text)


def test_the_command():
    run = CliRunner().invoke(app, ["advise", "a1a", "--sketch", "bernoulli:0.7"])
    assert run.exit_code == 0
    assert "dsgd_sampled" in run.output
    lines = run.output.splitlines()
    assert max(map(len, lines)) <= 80
    table = next(i for i, line in enumerate(lines) if line.startswith("method"))
    rows = {tuple(line.split()[:2]): line.split() for line in lines[table + 1 :]}
    # one line per method and regime, nothing cut off
    assert rows["dsgd", "strong"][-1].replace(",", "").isdigit()
    assert f"{rows['dsgd', 'strong'][-1]} steps" in " ".join(run.output.split())
    run = CliRunner().invoke(app, ["advise", "a1a", "--sketch", "permk:4", "--json"])
    assert json.loads(run.output)["constants"]["L_max"] == 16
    run = CliRunner().invoke(app, ["advise", "a1a", "--sketch", "gaussian:0.5", "--alpha", "0", "--json"])
    said = json.loads(run.output, parse_constant=lambda text: pytest.fail(f"{text} is not JSON"))
    assert said["constants"]["L_max"] is said["r0sq"] is None
    assert "x_D*|² = unknown" in CliRunner().invoke(app, ["advise", "a1a", "--alpha", "0"]).output
    run = CliRunner().invoke(app, ["advise", "a1a", "--sketch", "permk:four"])
    assert run.exit_code == 2
