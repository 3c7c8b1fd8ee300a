"""Accuracy when features are missing at serving time: makes docs/missing-features.md.

    python benchmarks/missing_features.py

Four models on each data set, all with the penalty of LogisticRegression's default (alpha = 1/n): one
that knows nothing of missing features, one trained on copies of the data with features dropped
at random, and MAST, trained for the share that will be missing and with its default sketch.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse
from sklearn.datasets import load_breast_cancer, load_digits
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import train_test_split
from sklearn.preprocessing import StandardScaler

import mast
from mast.errors import DataError

FOLDER = Path(os.environ.get("MAST_DATA", Path(__file__).parents[2] / "shared" / "data"))
PAGE = Path(__file__).parents[1] / "docs" / "missing-features.md"
MISSING = (0.0, 0.25, 0.5, 0.75, 0.9)
DRAWS = 100
COPIES = 10  # of the training data, each with other features dropped


@dataclass(frozen=True)
class Task:
    name: str
    X: Any
    y: Any
    X_test: Any
    y_test: Any


def tasks() -> Iterator[Task]:
    for name in ("a1a", "a5a", "w8a"):
        try:
            yield from _libsvm(name)
        except DataError as error:
            print(f"{name} is left out: {error}")
    for name, load in (("digits", load_digits), ("breast cancer", load_breast_cancer)):
        X, y = load(return_X_y=True)
        X, X_test, y, y_test = train_test_split(X, y, test_size=0.5, random_state=0, stratify=y)
        scaler = StandardScaler().fit(X)
        yield Task(name, scaler.transform(X), y, scaler.transform(X_test), y_test)


def _libsvm(name: str) -> Iterator[Task]:
    folder = FOLDER if FOLDER.is_dir() else None
    width = 300 if name == "w8a" else 123
    X, y = mast.data.load(name, width, folder, download=False)
    try:
        X_test, y_test = mast.data.load(f"{name}.t", width, folder, download=False)
    except DataError:
        X, X_test, y, y_test = train_test_split(X, y, test_size=0.5, random_state=0, stratify=y)
    yield Task(name, X, y, X_test, y_test)


def subsets(d: int, missing: float, quarters: bool) -> list[np.ndarray]:
    """The features that are there, draw by draw, as zeros and ones: the same for every model."""
    if quarters:
        return [np.isin(np.arange(d), block).astype(float) for block in mast.PermK(4).partition(d)]
    if missing == 0:
        return [np.ones(d)]
    draws = (mast.RandK(1 - missing).draw(d, seed=2024, step=i) for i in range(DRAWS))
    return [(draw.diagonal() > 0).astype(float) for draw in draws]


def dropped(X: Any, missing: float) -> Any:
    """Copies of the data, in each row and copy another part of the features missing."""
    generator = np.random.default_rng(0)
    parts = []
    for _ in range(COPIES if missing else 1):
        if scipy.sparse.issparse(X):
            part = X.copy()
            part.data = part.data * (generator.random(part.data.size) >= missing)
        else:
            part = X * (generator.random(X.shape) >= missing)
        parts.append(part)
    return scipy.sparse.vstack(parts, format="csr") if scipy.sparse.issparse(X) else np.vstack(parts)


def accuracies(task: Task, model: Any, scale: float, there: list[np.ndarray]) -> Any:
    """The accuracy of each draw; what is there counts `scale` times."""
    scores, classes = [], model.classes_
    for kept in there:
        output = np.asarray(task.X_test @ (model.coef_ * kept * scale).T) + model.intercept_
        chosen = (output[:, 0] > 0).astype(int) if output.shape[1] == 1 else output.argmax(axis=1)
        scores.append(np.mean(classes[chosen] == task.y_test))
    return np.array(scores)


def compare(task: Task) -> Iterator[tuple[str, dict[str, Any]]]:
    n = task.X.shape[0]
    plain = LogisticRegression(C=1.0, max_iter=5000).fit(task.X, task.y)
    default = mast.MastClassifier(alpha=1 / n, random_state=0).fit(task.X, task.y)
    for missing in MISSING:
        copies = COPIES if missing else 1
        on_dropped = LogisticRegression(C=1.0 / copies, max_iter=5000).fit(
            dropped(task.X, missing), np.tile(task.y, copies)
        )
        sketch = mast.Bernoulli(1 - missing)
        fitted = mast.MastClassifier(sketch, alpha=1 / n, random_state=0).fit(task.X, task.y)
        keep = 1 / (1 - missing)
        models = {
            "LogisticRegression": (plain, 1.0),
            "trained on dropped inputs": (on_dropped, 1.0),
            "MAST, same share": (fitted, keep),
            "MAST, PermK(4)": (default, keep),
        }
        for quarters in (False, True) if missing == 0.75 else (False,):
            there = subsets(task.X.shape[1], missing, quarters)
            label = "75%, fixed quarters" if quarters else f"{missing:.0%}"
            yield label, {name: accuracies(task, m, scale, there) for name, (m, scale) in models.items()}


HEAD = """# When features are missing at serving time

Made by `python benchmarks/missing_features.py`. Accuracy on test data when a share of the features is
missing, the same for all rows of a draw: the mean of {draws} draws, and the worst of them in brackets.
The best mean of a row is bold, and so is what is within 0.001 of it.

- **LogisticRegression** knows nothing of missing features; what is missing is 0, which is the mean of
  standardised features.
- **Trained on dropped inputs** is LogisticRegression on {copies} copies of the data, with that share of
  the entries set to 0.
- **MAST, same share** is `MastClassifier(Bernoulli(1 - share))`; kept features are served times
  1/(1 - share).
- **MAST, PermK(4)** is `MastClassifier()` with its default sketch: one model for all shares. It is trained
  for four fixed quarters of the features, not for random ones; the row "fixed quarters" serves those.

All have the penalty of LogisticRegression's default, C = 1.
"""


def page() -> str:
    parts = [HEAD.format(draws=DRAWS, copies=COPIES)]
    wins: dict[str, int] = {}
    for task in tasks():
        begun = time.perf_counter()
        lines: list[str] = []
        for missing, scores in compare(task):
            if not lines:
                lines = ["| missing | " + " | ".join(scores) + " |", "|---|" + "---|" * len(scores)]
            best = max(float(s.mean()) for s in scores.values())
            cells = []
            for name, s in scores.items():
                mean = f"{s.mean():.3f}"
                won = s.mean() >= best - 1e-3
                wins[name] = wins.get(name, 0) + (won and missing != "0%")
                cells.append(
                    (f"**{mean}**" if won else mean) + (f" ({s.min():.3f})" if missing != "0%" else "")
                )
            lines.append(f"| {missing} | " + " | ".join(cells) + " |")
        rows, d = task.X.shape
        parts.append(
            f"\n## {task.name}\n\n{rows:,} rows to train on, {task.X_test.shape[0]:,} to test on, "
            f"{d} features, {np.unique(task.y).size} classes; the largest class has "
            f"{_majority(task.y_test):.3f} of the test rows.\n"
        )
        parts.append("\n".join(lines) + "\n")
        print(f"{task.name}: {time.perf_counter() - begun:.1f} s")
    said = "; ".join(f"{name}: {count}" for name, count in wins.items())
    parts.append(f"\n## Who has the best mean, where something is missing\n\n{said}.\n")
    parts.append(CONCLUSION)
    return "\n".join(parts)


CONCLUSION = """
## What to make of it

- A model that was trained for missing features mostly beats one that was not, the more so the more is
  missing, and most in the worst draw. How it was trained matters less: MAST for the right share and
  LogisticRegression on dropped inputs minimise nearly the same function, MAST without making copies by
  hand. Neither wins everywhere.
- With nothing missing, MAST for another share loses to plain LogisticRegression: robustness has a price.
- The default `PermK(4)` is right for what it is trained for, one of four *fixed* parts (such as four
  servers, or four sources of data). Where features go missing at random it can do worse than a plain
  model: then give `sketch=mast.Bernoulli(share that stays)`.
- Several classes: MAST is one against the rest here, LogisticRegression is multinomial.
"""


def _majority(y: Any) -> float:
    return float(np.unique(y, return_counts=True)[1].max() / len(y))


if __name__ == "__main__":
    PAGE.write_text(page())
    print(f"written: {PAGE.name}")
