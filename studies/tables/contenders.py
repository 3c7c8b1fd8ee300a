"""What is compared: every contender is an estimator that takes NaN, fitted to training rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
from sklearn.experimental import enable_iterative_imputer  # noqa: F401
from sklearn.impute import IterativeImputer, KNNImputer, SimpleImputer
from sklearn.linear_model import LogisticRegression, LogisticRegressionCV, Ridge, RidgeCV
from sklearn.pipeline import make_pipeline

import mast
from studies.tables.data import Split

DONORS = 1000  # rows that KNNImputer compares with, at most
KEEP = {"keep_empty_features": True}
NARROW = 40  # columns of a table that IterativeImputer takes, at most
PENALTIES = (1, 10, 100)  # of which the best is chosen; scikit-learn's default is 1
SMALL = {"max_leaf_nodes": 8, "learning_rate": 0.05}


def linear(regression: bool, penalty: float = 1) -> Any:
    """The plain linear model. With five copies of the rows a penalty of 5 is what 1 is without."""
    return Ridge(penalty) if regression else LogisticRegression(C=1 / penalty, max_iter=2000)


def tuned(regression: bool) -> Any:
    """The linear model whose penalty scikit-learn chooses on its training rows."""
    if regression:
        return RidgeCV(PENALTIES)
    strengths = [1 / penalty for penalty in PENALTIES]
    return LogisticRegressionCV(Cs=strengths, cv=5, scoring="neg_log_loss", max_iter=2000)


def trees(regression: bool, copies: int = 1, **settings: Any) -> Any:
    """Boosted trees, which take NaN; for copies, with leaves of as many different rows. None stops early."""
    kind = HistGradientBoostingRegressor if regression else HistGradientBoostingClassifier
    return kind(min_samples_leaf=20 * copies, early_stopping=False, random_state=0, **settings)


def behind(imputer: Any, model: Any, data: Split, donors: int | None = None) -> Any:
    """A linear model behind an imputer that knows the first `donors` rows, or all."""
    imputer = imputer.fit(data.X[:donors])
    return make_pipeline(imputer, model.fit(imputer.transform(data.X), data.y))


def indicators(regression: bool, penalty: float) -> Any:
    """Trained on masked copies, so that it knows what an indicator means where the table has no blanks."""
    model = make_pipeline(SimpleImputer(add_indicator=True, **KEEP), linear(regression, 5 * penalty))
    return mast.MaskedTraining(model, fill="nan")


def ours(regression: bool, penalty: float, rows: int, **settings: Any) -> Any:
    """`MastClassifier` or `MastRegressor` with `penalty` times the default penalty."""
    kind = mast.MastRegressor if regression else mast.MastClassifier
    return kind(alpha=penalty / rows, **settings)


OTHERS: dict[str, Callable[[bool, Split], Any]] = {
    "linear, mean": lambda r, data: behind(SimpleImputer(**KEEP), linear(r), data),
    "linear, KNNImputer": lambda r, data: behind(KNNImputer(**KEEP), linear(r), data, DONORS),
    "linear, IterativeImputer": lambda r, data: behind(
        IterativeImputer(random_state=0, **KEEP), linear(r), data
    ),
    "trees": lambda r, data: trees(r).fit(data.X, data.y),
    "trees, our imputer": lambda r, data: mast.MaskedTraining(trees(r), shares=(0,)).fit(data.X, data.y),
    "linear, mean, tuned": lambda r, data: behind(SimpleImputer(**KEEP), tuned(r), data),
    "linear, our imputer, tuned": lambda r, data: behind(mast.ConditionalImputer(), tuned(r), data),
}
CANDIDATES: dict[str, Callable[[bool, int], Any]] = {  # of which cross-validation chooses
    "linear, our imputer": lambda r, n: mast.MaskedTraining(linear(r), shares=(0,)),
    "linear, indicators": lambda r, n: indicators(r, 1),
    "linear, indicators, 10": lambda r, n: indicators(r, 10),
    "trees, copies (NaN)": lambda r, n: mast.MaskedTraining(trees(r, 5), fill="nan"),
    "small trees, copies (NaN)": lambda r, n: mast.MaskedTraining(trees(r, 5, **SMALL), fill="nan"),
    "MAST": lambda r, n: ours(r, 1, n),
    "MAST, indicators": lambda r, n: ours(r, 1, n, add_indicator=True),
    "MAST, 10": lambda r, n: ours(r, 10, n),
    "MAST, 100": lambda r, n: ours(r, 100, n),
    "MaskedTraining(trees)": lambda r, n: mast.MaskedTraining(trees(r, 5)),
}
CONTENDERS = [*OTHERS, *CANDIDATES]
TUNED = {"linear, mean, tuned", "linear, our imputer, tuned"}  # are counted apart from the goals
OWN = {name for name in CANDIDATES if name.startswith(("MAST", "MaskedTraining"))}  # are no rivals
SLOW = {"linear, KNNImputer", "linear, IterativeImputer"}  # serve blank cells only, not whole columns


def fitted(name: str, regression: bool, data: Split) -> Any:
    """A contender, fitted; None where it takes too long."""
    if name == "linear, IterativeImputer" and data.X.shape[1] > NARROW:
        return None
    if name in OTHERS:
        return OTHERS[name](regression, data)
    return CANDIDATES[name](regression, len(data.y)).fit(data.marked, data.y)
