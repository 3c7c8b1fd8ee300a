"""Advice: the sentence's numbers are those of the theory, and the command prints them."""

import json

import numpy as np
import pytest
from typer.testing import CliRunner

import mast
from mast.cli import app
from mast.errors import ArgumentError, BiasedSketchError
from mast.sketches import parse

A, B = mast.data.load("a1a")
F = mast.Logistic(A[:200], B[:200], kappa=100)


def test_the_sentence():
    advice = mast.advise(F, mast.Bernoulli(0.7))
    assert "keep 70 %" in advice.sentence
    assert "step size 2.0 times" in advice.sentence  # L_max = 1/.49
    assert "about 1.4 times" in advice.sentence  # L_max/mu_D = .7/.49
    assert "may stay" in mast.advise(F, mast.Identity()).sentence
    assert "keep 25 %" in mast.advise(F, mast.PermK(4)).sentence


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
    assert line.against_plain == pytest.approx(16)
    r0sq = float(np.sum(problem.minimizer() ** 2))
    assert line.iterations == g.plan(delta=0.02, r0sq=r0sq).iterations
    assert advice.r0sq == pytest.approx(r0sq)
    assert advice.gap == pytest.approx(problem.infimum() - F.infimum())
    assert lines["dsgd", "strongly_convex"].neighbourhood == pytest.approx(0, abs=1e-12)


def test_other_objectives():
    flat = mast.Quadratic(np.diag([1.0, 0.0]), [1.0, 0.0])
    assert {line.regime for line in mast.advise(flat, mast.RandK(1)).lines} == {"convex", "nonconvex"}
    bent = mast.NonconvexLogistic(A[:50], B[:50], 0.1)
    assert {line.regime for line in mast.advise(bent, mast.PermK(2)).lines} == {"nonconvex"}


def test_refusals():
    with pytest.raises(ArgumentError, match="delta"):
        mast.advise(F, mast.PermK(2), delta=1.0)
    with pytest.raises(BiasedSketchError):
        mast.advise(F, mast.UnscaledBernoulli(0.5))


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
    assert "Lower the step size" in run.output or "lower the step size 2.0 times" in run.output
    assert "dsgd_sampled" in run.output
    run = CliRunner().invoke(app, ["advise", "a1a", "--sketch", "permk:4", "--json"])
    assert json.loads(run.output)["constants"]["L_max"] == 16
    run = CliRunner().invoke(app, ["advise", "a1a", "--sketch", "permk:four"])
    assert run.exit_code == 2
