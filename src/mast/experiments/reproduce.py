"""`reproduce`: from the names of experiments to a folder with a report, figures, numbers and configuration.

Each experiment leaves a section in the folder, and the report shows all sections that are there:
so experiments can be run one after the other, and the report grows.
"""

from __future__ import annotations

import json
import platform
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from importlib import metadata
from itertools import islice
from pathlib import Path
from typing import Any

import mast
from mast import files
from mast.errors import ArgumentError, DataError
from mast.experiments import engine, report, style
from mast.experiments.catalogue import EXPERIMENTS, chosen
from mast.experiments.cells import Done
from mast.experiments.datasets import Dataset, locate
from mast.experiments.findings import EFFORTS, Experiment, Findings, Plan
from mast.experiments.lock import only_process_in

SECTION_FORMAT = 2
PACKAGES = ("numpy", "scipy", "numba", "scikit-learn", "pandas", "matplotlib", "joblib", "torch")


def reproduce(
    name: str,
    out: Path = Path("runs/paper"),
    effort: str = "normal",
    dataset: str | None = None,
    data_dir: Path | None = None,
    jobs: int | None = None,
    terminal: bool | None = None,
) -> Path:
    """Run the experiments that `name` stands for, write all they find, and return the report's path."""
    if effort not in EFFORTS:
        raise ArgumentError(f"the effort is one of {', '.join(EFFORTS)}, got {effort!r}")
    experiments = chosen(name)
    style.need_matplotlib()
    begun = time.monotonic()
    with only_process_in(out):
        plans = _plans(experiments, effort, dataset, data_dir)
        parts = [experiment.cells(plan) for experiment, plan in zip(experiments, plans, strict=True)]
        finished = engine.run([cell for part in parts for cell in part], out / "cells", jobs, terminal)
        results = iter(finished.cells)  # in the same order; experiments may share cells
        for experiment, plan, part in zip(experiments, plans, parts, strict=True):
            done = list(islice(results, len(part)))
            _write_section(out, experiment, plan, done, experiment.findings(plan, done))
        sections = read_sections(out)
        _write_overview(out, sections)
        path = out / "report.html"
        files.write(path, report.page(sections, out).encode())
    _say(
        finished,
        [s for s in sections if s["name"] in {e.name for e in experiments}],
        time.monotonic() - begun,
    )
    return path


def _plans(
    experiments: Sequence[Experiment], effort: str, dataset: str | None, data_dir: Path | None
) -> list[Plan]:
    """The data sets of each experiment: the user's, or the experiment's own."""
    found: dict[str, Dataset] = {}
    plans = []
    for experiment in experiments:
        if experiment.find is not None:
            plans.append(Plan(experiment.find(effort, dataset, data_dir), effort))
            continue
        own = experiment.fast_datasets if effort == "fast" else experiment.datasets
        names = own if dataset is None else (dataset,)
        for name in names:
            if name not in found:
                found[name] = locate(name, data_dir)
        plans.append(Plan(tuple(found[name] for name in names), effort))
    return plans


def _write_section(out: Path, experiment: Experiment, plan: Plan, done: list[Done], found: Findings) -> None:
    """Figures, tables and the section's own description; the description last, so that it is never ahead."""
    for folder in ("figures", "numbers", "sections"):
        (out / folder).mkdir(exist_ok=True)
    figures = []
    for figure in found.figures:
        drawn = figure.draw()
        style.settle(drawn)
        for kind, options in (("png", {"dpi": 160}), ("pdf", {"metadata": {"CreationDate": None}})):
            _save_figure(drawn, out / "figures" / f"{figure.name}.{kind}", kind, options)
        figures.append({"name": figure.name, "title": figure.title, "caption": figure.caption})
    for name, frame in found.tables.items():
        files.write(out / "numbers" / f"{name}.csv", frame.to_csv(index=False).encode())
    section = {
        "format": SECTION_FORMAT,
        "name": experiment.name,
        "title": experiment.title,
        "lead": found.lead,
        "figures": figures,
        "tables": list(found.tables),
        "claims": [asdict(claim) for claim in found.claims],
        "choices": list(found.choices),
        "configuration": found.configuration,
        "effort": plan.effort,
        "datasets": [
            {
                "name": d.name,
                "sha256": d.sha256,
                "rows": int(d.load()[0].shape[0]),
                "features": int(d.load()[0].shape[1]),
            }
            for d in plan.datasets
        ],
        "cells": len(done),
        "seconds": sum(d.seconds for d in done),
        "borrowed": _borrowed(experiment, done),
        "written": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "versions": versions(),
    }
    files.write(out / "sections" / f"{experiment.name}.json", spelled(section))


def spelled(section: dict[str, Any]) -> bytes:
    """A section as its file holds it: JSON that ends with a sum of the rest."""
    plain = {name: value for name, value in section.items() if name != "sum"}
    plain["sum"] = files.digest(json.dumps(plain))
    return json.dumps(plain, indent=1).encode()


def _borrowed(experiment: Experiment, done: list[Done]) -> dict[str, dict[str, float]]:
    """Which of the cells are those of another experiment, so that the report counts them once."""
    lenders = {d.cell.experiment for d in done} - {experiment.name}
    return {
        lender: {
            "cells": sum(d.cell.experiment == lender for d in done),
            "seconds": sum(d.seconds for d in done if d.cell.experiment == lender),
        }
        for lender in sorted(lenders)
    }


def _save_figure(figure: Any, path: Path, kind: str, options: dict[str, Any]) -> None:
    import io

    content = io.BytesIO()
    with style.look():
        figure.savefig(content, format=kind, **options)
    files.write(path, content.getvalue())


def read_sections(out: Path) -> list[dict[str, Any]]:
    """The sections in the folder, in the order of the catalogue; those of other versions are left out."""
    sections = []
    for name in EXPERIMENTS:
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
        if section["format"] == SECTION_FORMAT:
            if raw != spelled(section):
                raise DataError(
                    f"{path}: this section is damaged: delete it, and its experiment writes it again"
                )
            sections.append(section)
    return sections


def _write_overview(out: Path, sections: list[dict[str, Any]]) -> None:
    """All claims in one table, and the configuration of everything in the folder."""
    import pandas

    columns = ["experiment", "dataset", "claim", "decides", "measured", "holds", "source"]
    rows = [{"experiment": s["name"], **claim} for s in sections for claim in s["claims"]]
    (out / "numbers").mkdir(exist_ok=True)
    table = pandas.DataFrame(rows, columns=columns)
    files.write(out / "numbers" / "claims.csv", table.to_csv(index=False).encode())
    keys = ("effort", "configuration", "datasets", "versions", "written", "cells", "seconds")
    configuration = {s["name"]: {key: s[key] for key in keys} for s in sections}
    files.write(out / "configuration.json", json.dumps(configuration, indent=1).encode())


def versions() -> dict[str, str]:
    """What the numbers were made with."""
    found = {"mast": mast.__version__, "Python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:  # pragma: no cover - all of them are dependencies
            continue
    return found


def _say(finished: engine.Finished, sections: list[dict[str, Any]], seconds: float) -> None:
    from mast.experiments.display import duration

    claims = [claim for section in sections for claim in section["claims"]]
    broken = [claim for claim in claims if not claim["holds"]]
    print(
        f"{finished.computed} cells computed, {finished.reused} from before, {duration(seconds)}; "
        f"{len(claims) - len(broken)} of {len(claims)} claims hold",
        file=sys.stderr,
    )
    for claim in broken:
        print(f"does not hold on {claim['dataset']}: {claim['claim']} ({claim['measured']})", file=sys.stderr)
