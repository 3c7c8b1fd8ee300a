"""How the defaults for missing features were chosen: which sketch is "auto", and which scale serves.

    python benchmarks/missing_rules.py

Written before the run, on breast cancer, wine, digits, a1a and a5a (half of the rows to test on, cells blank
at random, all of ``missing="scale"``):

- The sketch: of those that lose at most 0.005 to LogisticRegression with nothing missing (mean over sets),
  the one with the best mean accuracy at 25, 50 and 75 % missing.
- The scale of a row whose observed share is q, (1 + l)/(q + l): the l with the best mean accuracy over sets,
  shares of 10 to 90 % and two sketches; of those within 0.002 of it, the one with the least log-loss.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
from sklearn.datasets import load_breast_cancer, load_digits, load_wine
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss
from sklearn.model_selection import train_test_split
from sklearn.preprocessing import StandardScaler

import mast
from missing_features import FOLDER, blank

EVERYTHING = mast.Identity()
SKETCHES = {
    "keep 50 %": mast.Bernoulli(0.5),
    "keep 60 %": mast.Bernoulli(0.6),
    "keep 70 %": mast.Bernoulli(0.7),
    "100, 75, 50, 50 %": "auto",
    "100, 75, 50, 25 %": mast.Mixture([EVERYTHING, *(mast.Bernoulli(k) for k in (0.75, 0.5, 0.25))]),
}
SCALES: dict[str, float | str] = {
    "1/q": 0.0,
    "l = 0.1": 0.1,
    "l = 0.2": 0.2,
    "l = 0.5": 0.5,
    "1/keep": "keep",
    "none": float("inf"),
}
DRAWS = 4


def splits() -> Iterator[tuple[str, Any, Any, Any, Any]]:
    """Training and test rows: several splits of the small sets."""
    for name, load, count in (
        ("breast cancer", load_breast_cancer, 5),
        ("wine", load_wine, 5),
        ("digits", load_digits, 2),
    ):
        X, y = load(return_X_y=True)
        for seed in range(count):
            A, B, a, b = train_test_split(X, y, test_size=0.5, random_state=seed, stratify=y)
            scaler = StandardScaler().fit(A)
            yield name, scaler.transform(A), scaler.transform(B), a, b
    for name in ("a1a", "a5a"):
        X, y = mast.data.load(name, data_dir=FOLDER if FOLDER.is_dir() else None, download=False)
        A, B, a, b = train_test_split(X.toarray(), y, test_size=0.5, random_state=0, stratify=y)
        yield name, A, B[:1500], a, b[:1500]


def main() -> None:
    """Both tables."""
    warnings.simplefilter("ignore")
    accuracy: dict[tuple[str, str, float], list[float]] = {}
    losses: dict[tuple[str, str, float], list[float]] = {}
    for name, A, B, a, b in splits():
        plain = LogisticRegression(max_iter=3000).fit(A, a)
        accuracy.setdefault(("LogisticRegression", name, 0.0), []).append(plain.score(B, b))
        for title, sketch in SKETCHES.items():
            model = mast.MastClassifier(sketch, missing="scale", random_state=0).fit(A, a)
            for share in (0.0, 0.1, 0.25, 0.5, 0.75, 0.9):
                for draw in range(DRAWS if share else 1):
                    served = blank(B, "cells", share, [int(100 * share), draw])
                    accuracy.setdefault((title, name, share), []).append(model.score(served, b))
                    if not share or title not in ("keep 50 %", "100, 75, 50, 50 %"):
                        continue
                    for rule, scale in SCALES.items():
                        chances = model.set_params(missing_scale=scale).predict_proba(served)
                        chosen = model.classes_[chances.argmax(axis=1)]
                        accuracy.setdefault((rule, name, share), []).append(float(np.mean(chosen == b)))
                        losses.setdefault((rule, name, share), []).append(log_loss(b, chances))
                    model.set_params(missing_scale=0.2)
        print(name, flush=True)
    shares = (0.1, 0.25, 0.5, 0.75, 0.9)
    for title in ("LogisticRegression", *SKETCHES):
        row = [_mean(accuracy, title, share) for share in (0.0, 0.25, 0.5, 0.75)]
        print(f"| {title} | " + " | ".join(f"{value:.3f}" for value in row) + f" | {np.mean(row[1:]):.4f} |")
    for rule in SCALES:
        row = [_mean(accuracy, rule, share) for share in shares]
        loss = np.mean([_mean(losses, rule, share) for share in shares])
        print(f"| {rule} | " + " | ".join(f"{v:.3f}" for v in row) + f" | {np.mean(row):.4f} | {loss:.3f} |")


def _mean(values: dict[tuple[str, str, float], list[float]], title: str, share: float) -> float:
    """The mean over sets of the means over draws."""
    found = [np.mean(v) for (t, _, s), v in values.items() if t == title and s == share]
    return float(np.mean(found)) if found else float("nan")


if __name__ == "__main__":
    main()
