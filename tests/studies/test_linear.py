"""The studies of linear problems, condition numbers and methods; and the command that all studies share."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas
import pytest

import mast
from mast.experiments import reproduce
from mast.support.cells import Cell, Done
from studies import conditioning, methods
from studies.command import main

ROOT = Path(__file__).parents[2]


def test_condition_numbers_against_a_direct_computation(small):
    config = {"kappa": 100.0, "keeps": [0.5], "ratios": [2.0], "seeds": 2}
    table = pandas.DataFrame({k: v for k, v in conditioning.measure(config, small).items() if np.ndim(v)})
    A, b = small.load()
    H = mast.LeastSquares(A, b, kappa=100).hessian(np.zeros(12))
    half = H / 0.5 * np.eye(12) + H * (1 - np.eye(12))  # E[cc'] is 1/p on the diagonal, 1 elsewhere
    uniform = table[table["order"] == "uniform"]
    assert uniform["kappa_D"].item() == pytest.approx(np.linalg.cond(half), rel=1e-9)
    assert (table["kappa_D"] <= table["bound"] * (1 + 1e-9)).all()


def test_keep_probabilities_reach_both_ends():
    for order in conditioning.ORDERS:
        keep = conditioning._keeps(np.array([3.0, 1.0, 2.0]), 5.0, order, seed=0)
        assert (keep.max(), keep.min()) == pytest.approx((0.9, 0.18))
    assert np.argmin(conditioning._keeps(np.array([3.0, 1.0, 2.0]), 5.0, "steep", 0)) == 0


def test_running_mean_of_gradients():
    nothing = Cell("methods", 1, methods.run, {}, None)
    done = Done(nothing, {"step": np.array([0, 1, 2, 4]), "gradient_sq": np.array([4.0, 2.0, 2.0, 0.0])}, 0.0)
    np.testing.assert_allclose(methods.running_mean(done), [4.0, 3.0, 2.5, 1.75])


def test_methods_obey_their_bounds(tmp_path, small_file, monkeypatch):
    """A short run of every method ends in a report of this study alone."""
    pytest.importorskip("matplotlib")
    shorter = {name: run._replace(steps=run.steps // 8) for name, run in methods.RUNS.items()}
    monkeypatch.setattr(methods, "RUNS", shorter)
    page = reproduce.run_experiments([methods.Methods()], tmp_path, "fast", str(small_file), jobs=1)
    assert "<h1>MAST: Other methods on the same problems</h1>" in page.read_text()
    claims = pandas.read_csv(tmp_path / "numbers" / "claims.csv")
    # bounds of theory are theorems: those must hold on any data
    assert claims[claims["source"] == "theory"]["holds"].all()
    assert set(pandas.read_csv(tmp_path / "numbers" / "methods.csv")["run"]) == set(methods.RUNS)


def test_the_command_leaves_numbers(tmp_path, small_file):
    pytest.importorskip("matplotlib")
    words = ["--fast", "--dataset", str(small_file), "--out", str(tmp_path / "out"), "--jobs", "1"]
    study = [sys.executable, "-m", "studies.conditioning", *words]
    done = subprocess.run(study, capture_output=True, text=True, cwd=ROOT, check=True)
    assert done.stdout.splitlines()[-1] == f"report: {tmp_path / 'out' / 'report.html'}"
    table = pandas.read_csv(tmp_path / "out" / "numbers" / "conditioning.csv")
    assert (table["kappa_D"] <= table["bound"] * (1 + 1e-9)).all()


def test_the_command_refuses_in_one_line(tmp_path, monkeypatch, capsys):
    absent = ["--dataset", str(tmp_path / "absent"), "--out", str(tmp_path / "out")]
    monkeypatch.setattr(sys, "argv", ["studies.conditioning", *absent])
    with pytest.raises(SystemExit, match="2"):
        main("studies.conditioning.Conditioning")
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert "no such file" in err
