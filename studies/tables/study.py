"""The run: each table and split is one part, whose numbers are kept as soon as they are there."""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any

import numpy as np
import pandas
from sklearn.metrics import log_loss, r2_score, roc_auc_score
from sklearn.model_selection import KFold, StratifiedKFold
from threadpoolctl import threadpool_limits

from mast.errors import DataError
from studies.tables import page
from studies.tables.contenders import CANDIDATES, CONTENDERS, SLOW, fitted
from studies.tables.data import TABLES, Split, Table

NUMBERS = Path(__file__).parents[2] / "docs" / "studies" / "tables"
FILES = ("scores.csv", "validation.csv")
SHARES = (0.25, 0.5, 0.75)
SPLITS = (6, 7, 8, 9)  # 1 to 5 were those of the first run; 0 and those from 100 on for trying things out
DRAWS = {"cells": 1, "columns": 3}
VALIDATION_DRAWS = 2  # per fold
MANY_ROWS, FOLDS = 1000, (5, 3)  # folds below this many training rows, and from there on


def measure(table: Table, seed: int, folder: Path) -> tuple[list[Any], list[Any]]:
    """The scores of all contenders on one split, and what cross-validation says of our own."""
    warnings.simplefilter("ignore")
    with threadpool_limits(1):
        data = table.split(folder, seed)
        key = {"table": table.name, "split": seed}
        scores = [key | row for row in _scores(table, data, seed)]
        return scores, [key | row for row in _validation(table, data)]


def _situations() -> Iterator[tuple[str, float]]:
    yield "cells", 0.0
    yield from ((kind, share) for kind in DRAWS for share in SHARES)


def _scores(table: Table, data: Split, seed: int) -> Iterator[dict[str, Any]]:
    for name in CONTENDERS:
        begun = time.process_time()
        model = fitted(name, table.regression, data)
        if model is None:
            continue
        seconds = time.process_time() - begun
        for kind, share in _situations():
            if kind == "columns" and name in SLOW:
                continue
            draws = range(10 * seed, 10 * seed + (DRAWS[kind] if share else 1))
            served = (data.blank(kind, share, draw) for draw in draws)
            found = pandas.DataFrame([_judged(table, model, X, data.y_test) for X in served]).mean()
            yield {"contender": name, "blank": kind, "share": share, **found, "fit_seconds": seconds}


def _judged(table: Table, model: Any, X: Any, y: Any) -> dict[str, float]:
    """R², or AUC, log-loss and calibration error."""
    if table.regression:
        return {"r2": r2_score(y, model.predict(X))}
    chances = np.asarray(model.predict_proba(X))
    auc = roc_auc_score(y, chances[:, 1] if chances.shape[1] == 2 else chances, multi_class="ovr")
    right = model.classes_[chances.argmax(axis=1)] == y
    return {
        "auc": auc,
        "log_loss": log_loss(y, chances, labels=model.classes_),
        "calibration_error": calibration_error(chances.max(axis=1), right),
    }


def calibration_error(confidence: Any, right: Any, bins: int = 10) -> float:
    """The mean of |accuracy - confidence| over ten bins of the confidence in the chosen class (ECE)."""
    which = np.minimum((confidence * bins).astype(int), bins - 1)
    gaps = np.bincount(which, weights=right - confidence, minlength=bins)
    return float(np.abs(gaps).sum() / len(confidence))


def _validation(table: Table, data: Split) -> Iterator[dict[str, Any]]:
    """The scores of the candidates on folds of the training rows, with blanks of each kind and share."""
    folds: Any = KFold if table.regression else StratifiedKFold
    number = FOLDS[len(data.y) >= MANY_ROWS]
    for name, make in CANDIDATES.items():
        parts = folds(number, shuffle=True, random_state=0).split(data.X, data.y)
        for i, (train, test) in enumerate(parts):
            fold = Split(data.X[train], data.y[train], data.X[test], data.y[test], data.groups)
            model = make(table.regression, len(train)).fit(fold.marked, fold.y)
            for kind, share in _situations():
                # other draws than those of the test rows: which columns will be blank is not known
                draws = range(10**6 + 10 * i, 10**6 + 10 * i + (VALIDATION_DRAWS if share else 1))
                found = [_judged(table, model, fold.blank(kind, share, j), fold.y_test) for j in draws]
                score = np.mean([one["r2"] if table.regression else -one["log_loss"] for one in found])
                yield {"contender": name, "blank": kind, "share": share, "score": score}


def main(arguments: list[str] | None = None) -> None:
    """Run what is missing, and write the page."""
    parser = argparse.ArgumentParser(prog="python -m studies.tables", description=__doc__)
    parser.add_argument("--fast", action="store_true", help="wine and diabetes, one split")
    parser.add_argument("--out", type=Path, metavar="DIR", help="numbers; the page stands beside the folder")
    parser.add_argument("--data-dir", type=Path, default=Path("../shared/data"), metavar="DIR")
    parser.add_argument("--table", action="append", choices=[t.name for t in TABLES], help="only these")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="processes")
    given = parser.parse_args(arguments)
    out = given.out or (Path("runs/tables") if given.fast else NUMBERS)
    out.mkdir(parents=True, exist_ok=True)
    chosen = given.table or (["wine", "diabetes"] if given.fast else [t.name for t in TABLES])
    parts = [(t, seed) for seed in ((0,) if given.fast else SPLITS) for t in TABLES if t.name in chosen]
    run(parts, out, given.data_dir, given.jobs)
    (out.parent / f"{out.name}.md").write_text(page.page(*numbers(out)), encoding="utf-8")


def run(parts: list[tuple[Table, int]], out: Path, folder: Path, jobs: int) -> None:
    """Do the parts that are not there yet."""
    done = {tuple(part) for part in numbers(out)[1].reindex(columns=["table", "split"]).to_numpy()}
    todo = [(table, seed) for table, seed in parts if (table.name, seed) not in done]
    with ProcessPoolExecutor(jobs) as pool:
        running = {pool.submit(measure, table, seed, folder): (table.name, seed) for table, seed in todo}
        for part in as_completed(running):
            try:
                found = part.result()
            except DataError as error:
                print(f"{running[part][0]} is left out: {error}")
                continue
            for name, old, rows in zip(FILES, numbers(out), found, strict=True):
                new = pandas.concat([old, pandas.DataFrame(rows)])
                new.to_csv(out / name, index=False, float_format="%.6g")
            print(*running[part], flush=True)


def numbers(folder: Path) -> list[Any]:
    """The scores, and those of cross-validation, as far as they are there."""
    return [pandas.read_csv(p) if p.exists() else pandas.DataFrame() for p in (folder / f for f in FILES)]
