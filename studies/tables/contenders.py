"""What is compared: every contender is an estimator that takes NaN, fitted to training rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
from sklearn.experimental import enable_iterative_imputer  # noqa: F401
from sklearn.impute import IterativeImputer, KNNImputer, SimpleImputer
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.pipeline import make_pipeline

import mast
from studies.tables.data import Split

DONORS = 1000  # rows that KNNImputer compares with, at most
KEEP = {"keep_empty_features": True}
NARROW = 40  # columns of a table that IterativeImputer takes, at most


def linear(regression: bool, copies: int = 1) -> Any:
    """The plain linear model; for copies, with a penalty that is so many times as large."""
    return Ridge(copies) if regression else LogisticRegression(C=1 / copies, max_iter=2000)


def trees(regression: bool, copies: int = 1) -> Any:
    """Boosted trees, which take NaN; for copies, with leaves of as many different rows. None stops early."""
    kind = HistGradientBoostingRegressor if regression else HistGradientBoostingClassifier
    return kind(min_samples_leaf=20 * copies, early_stopping=False, random_state=0)


def behind(imputer: Any, regression: bool, data: Split, donors: int | None = None) -> Any:
    """The linear model behind an imputer that knows so many rows."""
    imputer = imputer.fit(data.X[:donors])
    return make_pipeline(imputer, linear(regression).fit(imputer.transform(data.X), data.y))


def indicators(regression: bool, data: Split) -> Any:
    """Trained on masked copies, so that it knows what an indicator means where the table has no blanks."""
    model = make_pipeline(SimpleImputer(add_indicator=True, **KEEP), linear(regression, 5))
    return mast.MaskedTraining(model, fill="nan").fit(data.marked, data.y)


RIVALS: dict[str, Callable[[bool, Split], Any]] = {
    "linear, mean": lambda r, data: behind(SimpleImputer(**KEEP), r, data),
    "linear, indicators": indicators,
    "linear, KNNImputer": lambda r, data: behind(KNNImputer(**KEEP), r, data, DONORS),
    "linear, IterativeImputer": lambda r, data: behind(IterativeImputer(random_state=0, **KEEP), r, data),
    "linear, our imputer": lambda r, data: behind(mast.ConditionalImputer(), r, data),
    "trees": lambda r, data: trees(r).fit(data.X, data.y),
}
OURS: dict[str, Callable[[bool], Any]] = {  # of which cross-validation chooses
    "MAST": lambda r: mast.MastRegressor() if r else mast.MastClassifier(),
    "MaskedTraining(trees)": lambda r: mast.MaskedTraining(trees(r, 5)),
    "trees, masked copies (NaN)": lambda r: mast.MaskedTraining(trees(r, 5), fill="nan"),
    "trees, our imputer": lambda r: mast.MaskedTraining(trees(r), shares=(0,)),
}
SLOW = {"linear, KNNImputer", "linear, IterativeImputer"}  # serve blank cells only, not whole columns
CONTENDERS = [*RIVALS, *OURS]


def fitted(name: str, regression: bool, data: Split) -> Any:
    """A contender, fitted; None where it takes too long."""
    if name == "linear, IterativeImputer" and data.X.shape[1] > NARROW:
        return None
    ours = name in OURS
    return OURS[name](regression).fit(data.marked, data.y) if ours else RIVALS[name](regression, data)
