"""`reproduce`: from the names of experiments to a folder with a report, figures, numbers and configuration.

Each experiment leaves a section in the folder, and the report shows all sections that are there:
so experiments can be run one after the other, and the report grows. A new experiment is one file or folder,
and one line in `EXPERIMENTS`. Each is imported when it is asked for: those with networks need PyTorch.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import platform
import sys
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from importlib import metadata
from itertools import islice
from pathlib import Path
from typing import Any

import pandas

import mast
from mast.errors import ArgumentError, DataError, optional_module
from mast.experiments import report
from mast.experiments.datasets import Dataset
from mast.experiments.experiment import (
    EFFORTS,
    NOISE,
    Experiment,
    Findings,
    Request,
    Results,
    sentence,
    verdict,
)
from mast.plots import SETTINGS
from mast.support import cells, files
from mast.support.progress import duration

# name -> the class, below mast.experiments
CONVEX = {
    "accuracy": "accuracy.Accuracy",
    "trajectory": "trajectory.Trajectory",
    "rand1": "rand1.Rand1",
    "shift": "shift.Shift",
}
NETWORKS = {"neural": "neural.study.Neural", "dropout": "neural.dropout.Dropout", "sizes": "sizes.Sizes"}
EXPERIMENTS = CONVEX | NETWORKS
GROUPS = {"convex": tuple(CONVEX), "demo": ("accuracy", "sizes"), "all": tuple(EXPERIMENTS)}
# experiments of 0.2 that are studies now -> the study, in a checkout of the repository
MOVED = {name: name for name in ("conditioning", "methods", "density", "federated")} | {
    "submodels": "density"
}

SECTION_FORMAT = 4
MOST_GAINS = 8  # rows of the table that is printed
PAPER = "the paper's experiments, repeated"  # the title of the report
VERDICTS = {"holds": "hold", "within noise": "fail within noise", "does not hold": "do not hold"}
PACKAGES = ("numpy", "scipy", "numba", "scikit-learn", "pandas", "matplotlib", "joblib", "torch")


def experiments_of(name: str) -> list[Experiment]:
    """The experiments that a name stands for.

    >>> [experiment.name for experiment in experiments_of("accuracy")]
    ['accuracy']
    """
    if name in MOVED:
        raise ArgumentError(
            f"{name} left the package: in a checkout of the repository, run python -m studies.{MOVED[name]}"
        )
    names = GROUPS.get(name, (name,))
    if not set(names) <= set(EXPERIMENTS):
        known = ", ".join([*EXPERIMENTS, *GROUPS])
        raise ArgumentError(f"there is no experiment {name!r}; there are: {known}")
    if not set(names) <= set(CONVEX):
        optional_module("torch", "neural experiments need PyTorch", "nn")
    places = (EXPERIMENTS[member].rpartition(".") for member in names)
    return [
        getattr(importlib.import_module(f"mast.experiments.{module}"), kind)() for module, _, kind in places
    ]


def reproduce(
    name: str,
    out: Path = Path("runs/paper"),
    effort: str = "normal",
    dataset: str | None = None,
    data_dir: Path | None = None,
    jobs: int | None = None,
) -> Path:
    """Run the experiments that `name` stands for, write all they find, and return the report's path."""
    return run_experiments(experiments_of(name), out, effort, dataset, data_dir, jobs, EXPERIMENTS)


def run_experiments(
    experiments: Sequence[Experiment],
    out: Path,
    effort: str = "normal",
    dataset: str | None = None,
    data_dir: Path | None = None,
    jobs: int | None = None,
    shown: Iterable[str] = (),
) -> Path:
    """Run experiments, write all they find, and return the path of the report.

    It has their sections, or those of all that are `shown`, as far as the folder has them from before.
    """
    if effort not in EFFORTS:
        raise ArgumentError(f"the effort is one of {', '.join(EFFORTS)}, got {effort!r}")
    if jobs is not None and jobs < 1:
        raise ArgumentError(f"--jobs must be at least 1, got {jobs}")
    optional_module("matplotlib", "figures need matplotlib", "plots")  # before anything is computed
    begun = time.monotonic()
    path = out / "report.html"
    files.make_folder(out)
    with files.exclusive(path):
        requests = [Request(e.find(effort, dataset, data_dir), effort) for e in experiments]
        parts = [experiment.cells(request) for experiment, request in zip(experiments, requests, strict=True)]
        finished = cells.run_cells([cell for part in parts for cell in part], out / "cells", jobs)
        in_order = iter(finished)  # experiments may share cells
        for experiment, request, part in zip(experiments, requests, parts, strict=True):
            results = Results(islice(in_order, len(part)))
            _write_section(out, experiment, request, results, experiment.findings(request, results))
        names = [experiment.name for experiment in experiments]
        title = PAPER if shown else experiments[0].title
        sections = read_sections(out, shown or names)
        _write_overview(out, sections)
        files.write(path, report.page(sections, out, title).encode())
    _print_summary(finished, [s for s in sections if s["name"] in names], time.monotonic() - begun)
    return path


def _write_section(
    out: Path, experiment: Experiment, request: Request, results: Results, findings: Findings
) -> None:
    """Figures, tables and the section's own description; the description last, so that it is never ahead."""
    import matplotlib

    for folder in ("figures", "numbers", "sections"):
        (out / folder).mkdir(exist_ok=True)
    for figure in findings.figures:
        with matplotlib.rc_context(SETTINGS):
            drawn = figure.draw()
            drawn.draw_without_rendering()  # lays it out once, and not again for each file
            drawn.set_layout_engine(None)  # even with "none", saving begins with a drawing that nobody sees
            for kind, options in (("png", {"dpi": 160}), ("pdf", {"metadata": {"CreationDate": None}})):
                content = io.BytesIO()
                drawn.savefig(content, format=kind, **options)
                files.write(out / "figures" / f"{figure.name}.{kind}", content.getvalue())
    for name, frame in findings.tables.items():
        files.write(out / "numbers" / f"{name}.csv", frame.to_csv(index=False).encode())
    section = {
        "format": SECTION_FORMAT,
        "name": experiment.name,
        "title": experiment.title,
        "lead": findings.lead,
        "figures": [{"name": f.name, "title": f.title, "caption": f.caption} for f in findings.figures],
        "tables": list(findings.tables),
        "claims": [asdict(claim) for claim in findings.claims],
        "gains": [asdict(gain) for gain in findings.gains],
        "choices": list(findings.choices),
        "configuration": results.settings(),
        "effort": request.effort,
        "datasets": [_described(d) for d in request.datasets],
        "cells": len(results),
        "seconds": sum(d.seconds for d in results),
        "borrowed": _borrowed(experiment, results),
        "written": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "versions": versions(),
    }
    files.write(out / "sections" / f"{experiment.name}.json", section_bytes(section))


def section_bytes(section: dict[str, Any]) -> bytes:
    """A section as its file holds it: JSON that ends with a sum of the rest."""
    plain = {name: value for name, value in section.items() if name != "sum"}
    plain["sum"] = files.digest(json.dumps(plain))
    return json.dumps(plain, indent=1).encode()


def _described(dataset: Dataset) -> dict[str, Any]:
    rows, features = dataset.load()[0].shape
    return {"name": dataset.name, "sha256": dataset.sha256, "rows": int(rows), "features": int(features)}


def _borrowed(experiment: Experiment, results: Results) -> dict[str, dict[str, float]]:
    """Which of the cells are those of another experiment, so that the report counts them once."""
    lent: dict[str, list[float]] = {}
    for d in results:
        if d.cell.experiment != experiment.name:
            lent.setdefault(d.cell.experiment, []).append(d.seconds)
    return {lender: {"cells": len(each), "seconds": sum(each)} for lender, each in lent.items()}


def read_sections(out: Path, names: Iterable[str] = EXPERIMENTS) -> list[dict[str, Any]]:
    """The sections in the folder, in the order of their names; those of other versions are left out."""
    sections = []
    for name in names:
        path = out / "sections" / f"{name}.json"
        try:
            raw = path.read_bytes()
            section = json.loads(raw)
        except FileNotFoundError:
            continue
        except (OSError, ValueError, RecursionError) as error:
            raise DataError(f"{path}: this is not a section of a report ({error}): delete it") from error
        if not isinstance(section, dict) or "format" not in section:
            raise DataError(f"{path}: this is not a section of a report: delete it")
        if section["format"] != SECTION_FORMAT:
            continue
        if raw != section_bytes(section):
            raise DataError(f"{path}: this section is damaged: delete it, and its experiment writes it again")
        sections.append(section)
    return sections


def _write_overview(out: Path, sections: list[dict[str, Any]]) -> None:
    """All claims in one table, and the configuration of everything in the folder."""
    columns = ["experiment", "dataset", "claim", "decides", "measured", "holds", "noise", "source"]
    rows = [
        {"experiment": s["name"], **claim, "measured": sentence(claim["measured"])}
        for s in sections
        for claim in s["claims"]
    ]
    (out / "numbers").mkdir(exist_ok=True)
    table = pandas.DataFrame(rows, columns=columns)
    files.write(out / "numbers" / "claims.csv", table.to_csv(index=False).encode())
    keys = ("effort", "configuration", "datasets", "versions", "written", "cells", "seconds")
    configuration = {s["name"]: {key: s[key] for key in keys} for s in sections}
    files.write(out / "configuration.json", json.dumps(configuration, indent=1).encode())


def versions() -> dict[str, str]:
    """What the numbers were made with."""
    known = {"mast": mast.__version__, "Python": platform.python_version()}
    for package in PACKAGES:
        with contextlib.suppress(metadata.PackageNotFoundError):
            known[package] = metadata.version(package)
    return known


def _print_summary(finished: list[cells.Done], sections: list[dict[str, Any]], seconds: float) -> None:
    """How much was computed, what was gained, and how the claims were decided; the report has the numbers."""
    verdicts = Counter(verdict(claim) for section in sections for claim in section["claims"])
    counted = [f"{verdicts[v]} {words}" for v, words in VERDICTS.items() if verdicts[v]]
    total = sum(verdicts.values())
    once = {done.cell.key: done.reused for done in finished}  # experiments may share cells
    reused = sum(once.values())
    print(
        f"{len(once) - reused} cells computed, {reused} from before, {duration(seconds)}; "
        f"of {total} claim{'s' * (total != 1)} {', '.join(counted)}",
        file=sys.stderr,
    )
    for line in gains_table([gain for section in sections for gain in section["gains"]]):
        print(line, file=sys.stderr)


def gains_table(gains: list[dict[str, Any]]) -> list[str]:
    """The largest gains as lines of text, with twice their standard errors, those beyond noise first.

    >>> gain = {"setting": "a half", "baseline": 0.7, "mast": 0.75, "error": 0.004, "rival": "plain model"}
    >>> for line in gains_table([gain]):
    ...     print(line)
    test accuracy of submodels   MAST  baseline            gain
    a half                      0.750     0.700  +0.050 ± 0.008  over plain model
    """
    if not gains:
        return []
    title = "test accuracy of submodels"
    gains = sorted(gains, key=lambda g: (g["baseline"] - g["mast"]) / max(g["error"], 1e-9))
    left_out, gains = len(gains[MOST_GAINS:]), gains[:MOST_GAINS]
    width = max(len(title), *(len(gain["setting"]) for gain in gains))
    rows = [f"{title:<{width}}   MAST  baseline            gain"]
    for gain in gains:
        ahead = f"{gain['mast'] - gain['baseline']:+.3f} ± {NOISE * gain['error']:.3f}"
        numbers = f"{gain['mast']:.3f}     {gain['baseline']:.3f}  {ahead}"
        rows.append(f"{gain['setting']:<{width}}  {numbers}  over {gain['rival']}")
    return [*rows, f"and {left_out} more in the report"] if left_out else rows
