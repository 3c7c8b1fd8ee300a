"""The examples of each user: they run, fit on a page, and end with the comparison that they promise."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[1] / "examples"
FILES = sorted([*FOLDER.glob("*.py"), *(FOLDER / "cluster").glob("*.py")])
NUMBER = re.compile(r"(?<![\w.])\d+\.\d+(?![\w.%])")


def run(name, *options, folder=None, warnings="error"):
    """What an example prints; a warning is an error."""
    done = subprocess.run(
        [sys.executable, "-W", warnings, FOLDER / name, *options],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def table(printed):
    """The numbers of each line, by the words before them."""
    lines = [(line, NUMBER.findall(line)) for line in printed.splitlines()]
    return {
        line[: NUMBER.search(line).start()].strip(): list(map(float, found)) for line, found in lines if found
    }


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_a_file_fits_on_a_page(path):
    text = path.read_text(encoding="utf-8")
    assert len(text.splitlines()) < 80
    assert path.name in (FOLDER / "README.md").read_text(encoding="utf-8")
    assert path.name in text.split('"""')[1]  # its docstring says how it is started


def test_researcher():
    printed = run("researcher.py")
    assert "below its bound at every step: True" in printed
    rows = table(printed)
    plain, ours, steps = rows["plain, exact"], rows["MAST, exact"], rows["MAST, 4,000 steps of DSGD"]
    assert plain[0] < ours[0]  # f: the plain model is better as long as it is whole
    assert ours[1] < steps[1] + 1e-3 < plain[1] - 0.3  # f_D
    assert ours[2] > plain[2]


def test_data_scientist():
    rows = table(run("data_scientist.py"))
    linear, boosting, ours, masked = rows.values()
    for share in (2, 3):  # half and three quarters of the cells
        assert ours[share] < linear[share] - 0.01
        assert masked[share] < boosting[share] - 0.01


@pytest.mark.slow
def test_deep_learning():
    pytest.importorskip("transformers")
    rows = [line.split() for line in run("deep_learning.py").splitlines() if "kB" in line]
    cut, alone, ours = (float(number) for number in rows[0][-3:])
    assert ours > max(cut + 0.3, alone)  # at a quarter of the units
    sizes = [int(row[1]) for row in rows]
    assert len(sizes) == 4
    assert sizes == sorted(sizes)


@pytest.mark.slow
def test_federated_engineer():
    pytest.importorskip("flwr")
    rows = table(run("federated_engineer.py", warnings="default"))  # Flower's imports are deprecated ones
    fedavg, heterofl, ours = rows.values()
    assert ours[-1] > max(fedavg[-1], heterofl[-1]) + 0.1  # the smallest clients gain the most


@pytest.mark.parametrize("name", ["train_linear", "train_network"])
def test_cluster_engineer(name, tmp_path):
    pytest.importorskip("torch")
    printed = run(f"cluster/{name}.py", "--rounds", "40", folder=tmp_path)
    assert printed.count("finished after 40 rounds") == 2
    rows = table(printed)
    ours, everything = rows["what each can hold     accuracy"], rows["everybody everything   accuracy"]
    assert ours[0] > 0.7  # after a few rounds
    assert ours[1] < 0.8 * everything[1]  # bytes
    again = run(f"cluster/{name}.py", "--rounds", "40", folder=tmp_path)  # reads the checkpoints
    assert again.splitlines()[-2:] == printed.splitlines()[-2:]
