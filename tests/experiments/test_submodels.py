"""The demo's network: settings chosen on validation rows, gains against the rival that would be chosen."""

import numpy as np
import pytest

pytest.importorskip("torch")

from mast.cells import Done
from mast.experiments.catalogue import experiments_of
from mast.experiments.density.submodels import SHARES, USES, Submodels, compared, gains, table
from mast.experiments.experiment import Request, Results


@pytest.fixture(scope="module")
def request_():
    return Request(Submodels().find("fast", "a1a", None), "fast")


def finished(request_, scores):
    """All cells with made-up results: (scores, validation score) by use and kind."""
    results = Results()
    for cell in Submodels().cells(request_):
        values, validated = scores[cell.config["use"], cell.config["kind"]]
        repeated = np.array([values, np.array(values) + 0.01])
        numbers = {"scores": repeated, "validated": validated, "rows_tested": 500, "decay": 0.3, "keep": 0.5}
        results.append(Done(cell, numbers | {"seeds": [0, 1]}, 1.0))
    return results


def test_the_demo_is_the_first_figure_and_the_submodels():
    assert [experiment.name for experiment in experiments_of("demo")] == ["accuracy", "submodels"]


def test_the_baseline_is_chosen_on_validation_rows_and_not_on_test_rows(request_):
    rivals = {"plain": ([0.9, 0.8, 0.7], 0.5), "dropout": ([0.8, 0.7, 0.6], 0.6)}
    scores = {(use, kind): value for use in USES for kind, value in rivals.items()}
    scores |= {("list", "nested"): ([0.95, 0.9, 0.85], 0.9), ("random", "mast"): ([0.8, 0.7, 0.6], 0.6)}
    found = list(gains(finished(request_, scores)))
    assert len(found) == len(USES) * len(SHARES)
    assert {gain.rival for gain in found} == {"dropout, tuned"}  # though plain is better on test rows
    np.testing.assert_allclose([gain.mast - gain.baseline for gain in found], [0.15, 0.2, 0.25, 0, 0, 0])
    rows = [p * (1 - p) / 500 for p in (0.805, 0.955)]  # the seeds agree about the difference
    np.testing.assert_allclose(found[0].error, sum(rows) ** 0.5)


def test_findings_are_complete(request_):
    kinds = {(cell.config["use"], cell.config["kind"]) for cell in Submodels().cells(request_)}
    results = finished(request_, {kind: ([0.9, 0.8, 0.7], 0.5) for kind in kinds})
    findings = Submodels().findings(request_, results)
    assert [claim.holds or claim.noise for claim in findings.claims] == [True] * 6
    assert len(table(results)) == len(kinds) * 2 * len(SHARES)
    figure = findings.figures[0].draw()
    assert [axes.get_xlabel() for axes in figure.axes] == ["Share of the neurons that is left (%)"] * 2


def test_a_contender_is_tuned_trained_and_cut(request_):
    cell = next(cell for cell in Submodels().cells(request_) if cell.config["kind"] == "nested")
    short = {**cell.config, "epochs": 1, "seeds": [0], "draws": 1}
    result = compared(short, cell.dataset)
    assert result["scores"].shape == (1, len(SHARES))
    assert 0 < result["scores"].min() <= result["scores"].max() < 1
    assert 0 < result["validated"] < 1
