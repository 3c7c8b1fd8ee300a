"""`mast reproduce` from end to end: files, numbers, claims, repetition, kill and resume, refusals."""

import importlib.util
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from html.parser import HTMLParser

import numpy as np
import pandas
import pytest

import mast
from mast.errors import ArgumentError, DataError, InUseError
from mast.experiments import (
    accuracy,
    interpolation,
    rand1,
    reproduce,
    shift,
    trajectory,
)
from mast.experiments.reproduce import EXPERIMENTS, GROUPS, MOVED, experiments_of
from mast.support.files import exclusive

pytest.importorskip("matplotlib")


def numbers(out):
    return {path.name: path.read_bytes() for path in sorted((out / "numbers").glob("*.csv"))}


def cells(out):
    return {path.name: path.stat().st_mtime_ns for path in (out / "cells").glob("*.cell")}


@pytest.fixture(scope="module")
def everything(tmp_path_factory, small_file):
    """All convex experiments on the small data set."""
    out = tmp_path_factory.mktemp("runs") / "paper"
    with pytest.MonkeyPatch.context() as shorter:
        shorter.setattr(rand1, "rand1_steps", lambda dataset: 12 * 200)
        shorter.setattr(rand1, "SWEEP", (1.0, 5.0, 20.0, 50.0))
        shorter.setattr(trajectory, "trajectory_steps", lambda dataset: 3000)
        report = reproduce.reproduce("convex", out, "fast", str(small_file), jobs=1)
        assert report == out / "report.html"
        yield out


# ---- what is in the folder ------------------------------------------------------------------


def test_every_experiment_leaves_its_numbers_and_figures(everything):
    for name in GROUPS["convex"]:
        section = json.loads((everything / "sections" / f"{name}.json").read_text())
        assert section["figures"]
        assert section["claims"]
        for table in section["tables"]:
            assert len(pandas.read_csv(everything / "numbers" / f"{table}.csv")) > 0
        for figure in section["figures"]:
            assert (everything / "figures" / f"{figure['name']}.png").read_bytes().startswith(b"\x89PNG")
            assert (everything / "figures" / f"{figure['name']}.pdf").read_bytes().startswith(b"%PDF")
    configuration = json.loads((everything / "configuration.json").read_text())
    assert set(configuration) == set(GROUPS["convex"])
    assert configuration["accuracy"]["configuration"]["sparsified"]["kappa"] == 100
    assert configuration["accuracy"]["versions"]["mast"] == mast.__version__


def test_claims_are_in_one_table_with_a_verdict_each(everything):
    claims = pandas.read_csv(everything / "numbers" / "claims.csv")
    assert set(claims["experiment"]) == set(GROUPS["convex"])
    assert set(claims["holds"]) <= {True, False}
    assert claims.notna().all(axis=None)
    # bounds of theory are theorems: those must hold on any data
    assert claims[claims["source"] == "theory"]["holds"].all()


def test_accuracy_table_is_what_the_cells_say(everything, small):
    table = pandas.read_csv(everything / "numbers" / "accuracy.csv")
    assert len(table) == 2 * 10 * sum(accuracy.BLOCKS)
    config = {"K": 4, "permutation": 7, "kappa": 100.0, "test_share": 0.25, "split_seed": 0}
    cell = accuracy.sparsified(config, small)
    mine = table[(table["K"] == 4) & (table["permutation"] == 7)]
    for model in ("ERM", "MAST"):
        part = mine[mine["model"] == model]
        # old versions of pandas read the last bit of a number otherwise
        np.testing.assert_allclose(part["accuracy"], cell[f"accuracy_{model.lower()}"], rtol=1e-14)
        np.testing.assert_allclose(part["tie_share"], cell[f"ties_{model.lower()}"], rtol=1e-14)


def test_trajectory_table_starts_at_one_and_obeys_the_bound(everything):
    table = pandas.read_csv(everything / "numbers" / "trajectory.csv")
    assert (table[table["step"] == 0]["relative_gap"] == 1).all()
    within = table[(table["sketches"] == "one") & (table["shrink"] == trajectory.K**2)]
    assert np.isfinite(within["bound_of_distance_sq"]).all()
    beyond = table[(table["sketches"] == "one") & (table["shrink"] == 1)]
    assert np.isinf(beyond["bound_of_distance_sq"]).all()


def test_shift_table_obeys_theorem_1(everything):
    table = pandas.read_csv(everything / "numbers" / "shift.csv")
    assert (table["excess"] <= table["excess_bound"] + 1e-12).all()
    assert (table["gap"] <= table["gap_bound"] + 1e-12).all()
    assert (table["gap"] >= table["gap_lower"] - 1e-12).all()
    assert abs(table[table["relative_distance"] == 0]["gap"]).max() < 1e-12


# ---- single cells -----------------------------------------------------------------------------


def test_interpolation_ends_at_the_minimiser_of_f(small):
    config = {"K": 4, "partitions": 5, "distance": 0.0, "seed": 0, "kappa": 10.0, "steps": 3000}
    cell = interpolation.shifted_run(config, small)
    assert abs(cell["gap_of_f_D"]) < 1e-14
    assert cell["distance_sq"][-1] < 1e-20 * cell["distance_sq"][0]


def test_shift_cell_against_the_definition(small):
    config = {"K": 3, "toward": "zero", "seed": 1, "kappa": 100.0, "distances": [0.0, 1.0]}
    cell = shift.solve(config, small)
    f = shift.logistic(small, 100.0, 0, 0.25)
    x = mast.Problem(f, mast.PermK(3, seed=1)).minimizer()  # at distance 1 towards zero, v = 0
    assert cell["excess"][1] == pytest.approx(f.value(x) - f.infimum(), rel=1e-9)
    assert cell["distance"][1] == pytest.approx(np.linalg.norm(f.minimizer()), rel=1e-12)


# ---- the report -----------------------------------------------------------------------------


class Page(HTMLParser):
    def __init__(self, text):
        super().__init__()
        self.tags, self.sources = [], []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self.sources += [v for k, v in attributes if k in ("src", "href") and not (v or "").startswith("#")]


def test_report_needs_nothing_else(everything):
    text = (everything / "report.html").read_text()
    page = Page(text)
    assert "script" not in page.tags
    assert page.sources
    assert all(source.startswith("data:image/png;base64,") for source in page.sources)
    assert not re.search(r"url\(|@import|https?://", text)
    assert '<meta name="viewport"' in text
    claims = pandas.read_csv(everything / "numbers" / "claims.csv")
    assert sum(text.count(f"{mark} ") for mark in "✓≈✗") == len(claims)
    for experiment in GROUPS["convex"]:
        assert f'<section id="{experiment}">' in text
    sha256 = json.loads((everything / "configuration.json").read_text())["accuracy"]["datasets"][0]["sha256"]
    assert sha256 in text


@pytest.mark.skipif(not shutil.which("chromium"), reason="chromium is not installed")
@pytest.mark.parametrize("size", ["1280,900", "390,844"])
def test_report_opens_in_a_browser(everything, tmp_path, size):
    command = [
        *("chromium", "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
        *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
        *(f"--user-data-dir={tmp_path / 'profile'}", f"--window-size={size}"),
        *(f"--screenshot={tmp_path / 'page.png'}", (everything / "report.html").as_uri()),
    ]
    subprocess.run(command, check=True, capture_output=True, timeout=120)
    import matplotlib.image

    picture = matplotlib.image.imread(tmp_path / "page.png")
    assert picture.shape[1] == int(size.split(",")[0])
    assert np.ptp(picture) > 0.5  # something dark on something light


# ---- repetition, change, interruption -----------------------------------------------------------


def test_repeated_it_uses_what_is_there(everything, small_file):
    before, files = cells(everything), numbers(everything)
    reproduce.reproduce("rand1", everything, "fast", str(small_file), jobs=1)
    assert cells(everything) == before
    assert numbers(everything) == files


def test_a_changed_configuration_recomputes_what_changed(tmp_path, small_file, monkeypatch):
    monkeypatch.setattr(accuracy, "BLOCKS", (2, 4))
    reproduce.reproduce("accuracy", tmp_path, "fast", str(small_file), jobs=1)
    before = cells(tmp_path)
    monkeypatch.setattr(accuracy, "BLOCKS", (2, 5))
    reproduce.reproduce("accuracy", tmp_path, "fast", str(small_file), jobs=1)
    after = cells(tmp_path)
    assert len(before) == 20
    assert len(after) == 30
    assert {name: after[name] for name in before} == before
    assert set(pandas.read_csv(tmp_path / "numbers" / "accuracy.csv")["K"]) == {2, 5}


def test_report_grows_with_each_experiment(tmp_path, small_file, monkeypatch):
    monkeypatch.setattr(accuracy, "BLOCKS", (2,))
    monkeypatch.setattr(trajectory, "trajectory_steps", lambda dataset: 300)
    reproduce.reproduce("trajectory", tmp_path, "fast", str(small_file), jobs=1)
    assert 'id="accuracy"' not in (tmp_path / "report.html").read_text()
    reproduce.reproduce("accuracy", tmp_path, "fast", str(small_file), jobs=1)
    text = (tmp_path / "report.html").read_text()
    assert text.index('id="accuracy"') < text.index('id="trajectory"')  # in the catalogue's order


def command(out, *extra):
    return [sys.executable, "-m", "mast", "reproduce", "accuracy", "--fast", "--out", str(out), *extra]


@pytest.mark.skipif(os.name == "nt", reason="SIGKILL is of POSIX")
def test_killed_it_continues_with_the_same_bytes(tmp_path):
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    said = subprocess.run(command(whole), check=True, capture_output=True, text=True)
    assert said.stdout.splitlines()[-1] == f"report: {whole / 'report.html'}"
    process = subprocess.Popen(command(cut), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 600
    while process.poll() is None and len(list(cut.glob("cells/*.cell"))) < 5 and time.monotonic() < deadline:
        time.sleep(0.002)
    process.send_signal(signal.SIGKILL)
    process.wait()
    finished = cells(cut)
    assert len(finished) >= 5
    assert not (cut / "report.html").exists() or len(finished) == 50
    subprocess.run(command(cut), check=True, capture_output=True)
    after = cells(cut)
    assert len(after) == 50
    assert {name: after[name] for name in finished} == finished
    assert numbers(cut) == numbers(whole)


# ---- refusals -----------------------------------------------------------------------------------


def test_a_second_process_is_refused(tmp_path):
    with exclusive(tmp_path / "report.html"), pytest.raises(InUseError, match="in use by another process"):
        reproduce.reproduce("accuracy", tmp_path, "fast")


def test_a_folder_that_cannot_be_made(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match="the folder cannot be made"):
        reproduce.reproduce("accuracy", tmp_path / "file" / "out", "fast")


def test_unknown_experiment_names_the_known(tmp_path):
    with pytest.raises(ArgumentError, match=r"no experiment 'accurracy'; there are: accuracy, .*convex"):
        reproduce.reproduce("accurracy", tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_command_line_refuses_in_one_line(tmp_path):
    out = str(tmp_path / "out")
    for arguments, expected in (
        (["nothing"], "there are: accuracy"),
        (["density"], "in a checkout of the repository, run python -m studies.density"),
        (["accuracy", "--dataset", str(tmp_path / "absent")], "no such file"),
        (["accuracy", "--fast", "--full"], "not both"),
        (["accuracy", "--fast", "--jobs", "0"], "at least 1"),
    ):
        said = subprocess.run(
            [sys.executable, "-m", "mast", "reproduce", *arguments, "--out", out],
            capture_output=True,
            text=True,
        )
        assert said.returncode == 2
        assert said.stdout == ""
        assert expected in said.stderr
        assert len(said.stderr.splitlines()) == 1


def test_data_with_one_label_are_refused(tmp_path):
    (tmp_path / "ones").write_text("1 1:1\n1 2:1\n")
    with pytest.raises(DataError, match="all labels are equal"):
        reproduce.reproduce("accuracy", tmp_path / "out", "fast", str(tmp_path / "ones"))


def test_only_experiments_with_networks_need_torch():
    """In another process, where torch cannot be imported."""
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "from mast.errors import MissingExtraError\n"
        "from mast.experiments.reproduce import CONVEX, NETWORKS, experiments_of\n"
        "assert [e.name for e in experiments_of('convex')] == list(CONVEX)\n"
        "for name in (*NETWORKS, 'all'):\n"
        "    try: experiments_of(name)\n"
        "    except MissingExtraError as error: print(error)\n"
    )
    said = subprocess.check_output([sys.executable, "-c", code], text=True).splitlines()
    assert said == ['neural experiments need PyTorch: pip install "mast-train[nn]"'] * 4


def test_every_experiment_is_listed_under_its_name():
    pytest.importorskip("torch")
    assert [experiment.name for experiment in experiments_of("all")] == list(EXPERIMENTS)
    assert [experiment.name for experiment in experiments_of("demo")] == ["accuracy", "sizes"]


def test_what_left_is_a_study():
    for name, study in MOVED.items():
        assert name not in {*EXPERIMENTS, *GROUPS}
        assert importlib.util.find_spec(f"studies.{study}") is not None
        with pytest.raises(ArgumentError, match=f"{name} left the package.* python -m studies.{study}$"):
            experiments_of(name)
