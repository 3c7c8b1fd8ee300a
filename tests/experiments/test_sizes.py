"""One network in several sizes: what a cell computes, and what its numbers decide."""

import numpy as np
import pytest

pytest.importorskip("torch")

from mast.errors import ArgumentError
from mast.experiments.experiment import Results
from mast.experiments.reproduce import MOST_GAINS, gains_table, reproduce
from mast.experiments.sizes import SIZES, WAYS, Sizes, size_claims, size_gains, sizes
from mast.support.cells import Cell, Done

(DATA,) = Sizes().find("fast", None, None)
CONFIG = {"width": 40, "steps": 60, "alone": 20, "elastic": 40, "batch": 32, "rate": 3e-3, "seed": 1}


def test_a_cell_is_repeated_exactly_and_its_largest_cut_is_the_given_network():
    first, second = (sizes(CONFIG, DATA) for _ in range(2))
    for way in WAYS:
        assert np.array_equal(first[f"right_{way}"], second[f"right_{way}"])
        assert first[f"right_{way}"].shape == (len(SIZES), 898)
    assert np.array_equal(first["right_cut"][-1], first["right_given"])
    assert first["parameters"].tolist() == [64 * n + n + n * n + n + 10 * n + 10 for n in (2, 4, 10, 40)]
    assert first["seconds_cut"] == 0 < first["seconds_elastic"]


def results(**accuracies):
    """Two seeds of ten test rows, with the given accuracies."""
    found = []
    for seed in (0, 1):
        values = {f"seconds_{way}": 1.0 for way in WAYS} | {"parameters": np.arange(4)}
        values |= {
            f"right_{way}": np.array([np.arange(10) < 10 * a for a in accuracies[way]]) for way in WAYS
        }
        found.append(Done(Cell("sizes", 1, sizes, {"seed": seed}, DATA), values, 1.0))
    return Results(found)


@pytest.mark.parametrize(
    ("elastic", "holds"),
    [
        ([0.5, 0.7, 0.9, 1.0], [True, True]),
        ([0.2, 0.9, 1.0, 1.0], [False, True]),  # the smallest is not better than its cut
        ([0.4, 0.5, 0.9, 1.0], [True, False]),
    ],
)
def test_claims_are_about_every_cut_and_the_mean_of_sizes(elastic, holds):
    found = results(cut=[0.2, 0.3, 0.4, 1.0], alone=[0.5, 0.7, 0.9, 1.0], elastic=elastic)
    assert [claim.holds for claim in size_claims(found)] == holds


def test_gains_are_those_over_cuts_and_over_sizes_alone():
    found = results(cut=[0.2, 0.3, 0.4, 1], alone=[0.4, 0.6, 0.8, 1], elastic=[0.5, 0.7, 0.9, 1])
    differences = [gain.mast - gain.baseline for gain in size_gains(found)]
    assert differences == pytest.approx([0.3, 0.4, 0.5, 0.075])


def test_the_printed_table_has_the_surest_gains():
    listed = [
        {"setting": f"n{i}", "baseline": 0.5, "mast": 0.5 + 0.01 * i, "error": 0.01, "rival": "x"}
        for i in range(10)
    ]
    lines = gains_table(listed)
    assert [line.split()[0] for line in lines[1:-1]] == [f"n{i}" for i in range(9, 1, -1)]
    assert len(lines) == 1 + MOST_GAINS + 1
    assert lines[-1] == "and 2 more in the report"


def test_it_runs_on_digits_alone(tmp_path):
    with pytest.raises(ArgumentError, match="digits, not on 'a1a'"):
        reproduce("sizes", tmp_path, "fast", dataset="a1a")
