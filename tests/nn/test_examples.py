"""The examples run, and show what they promise."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="mast.nn needs PyTorch")
EXAMPLES = Path(__file__).parents[2] / "examples"


def run(*command):
    done = subprocess.run(
        [sys.executable, "-W", "error", *map(str, command)],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True, text=True, timeout=900, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_digits_cnn():
    printed = run(EXAMPLES / "digits_cnn.py")
    rows = {line.split()[0]: line.split()[1:] for line in printed.splitlines() if line.strip()[:2].isdigit()}
    plain, ours = (float(rows["50%"][i]) for i in (0, 2))
    assert float(rows["100%"][0]) > 0.95
    assert ours > plain + 0.1  # far beyond the spread over draws


def submodels(*options):
    """The table of the example, by column."""
    lines = [line for line in run(EXAMPLES / "submodels.py", *options).splitlines() if line.startswith("| ")]
    head, *rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    assert [row[0] for row in rows] == ["100%", "75%", "50%", "25%"]
    return {name: [row[i] for row in rows] for i, name in enumerate(head)}


def test_submodels_in_files():
    table = submodels("--fast")
    parameters = [int(cell.replace(",", "")) for cell in table["parameters"]]
    assert parameters[0] == 58634
    # Channels kept on both sides of a convolution: weights go with the square of the density.
    for count, density in zip(parameters, (1, 0.75, 0.5, 0.25), strict=True):
        assert 0.9 * density**2 < count / parameters[0] < 1.3 * density**2
    sizes = [int(cell.removesuffix(" kB")) for cell in table["file"]]
    assert sizes == sorted(sizes, reverse=True)
    assert all(
        4 * count < 1000 * (size + 0.5) < 4 * count + 9000
        for count, size in zip(parameters, sizes, strict=True)
    )
    assert float(table["accuracy"][0]) > 0.5  # after two epochs; chance is 0.1


@pytest.mark.slow
def test_submodels_are_better_than_those_of_the_plain_network():
    table = submodels()
    ours, plain = ([float(cell) for cell in table[name]] for name in ("accuracy", "trained plainly"))
    assert min(ours[:3]) > 0.93
    assert ours[3] > plain[3] + 0.1


def test_deltas_in_files():
    """Every member is in a file of about a twentieth of the model."""
    lines = [line for line in run(EXAMPLES / "deltas.py", "--fast").splitlines() if line.startswith("| ")]
    table = {name.strip(): cells for name, *cells in (line.strip("|").split("|") for line in lines[1:])}
    whole, each = (
        int(table[name][1].removesuffix("each ").replace(",", ""))
        for name in ("full fine-tuning", "20 deltas, mean")
    )
    assert 0.05 * whole < each < 0.07 * whole
    assert float(table["20 deltas, worst"][0]) <= float(table["20 deltas, mean"][0])
