"""The tables: frames with their own blanks, what is predicted, and arrays of numbers for every contender."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas
from sklearn import datasets
from sklearn.model_selection import train_test_split

import mast
from mast.errors import DataError
from mast.learn.validation import EncodedRows

TRAIN_ROWS, TEST_ROWS = 4000, 1000  # at most

# names of rows and places, and what is known only with the outcome or after it
COMMUNITIES = ("state", "county", "community", "communityname string", "fold")
NHEFS = (
    *("seqn", "rownames", "id", "yrdth", "modth", "dadth", "wt82", "wt82_71", "smkintensity82_71"),
    *("censored", "death", "qsmk"),
)
TRIAL = (
    *("rownames", "PID", "Birth.outcome", "Preg.ended...37.wk", "GA.at.outcome", "Birthweight", "Apgar1"),
    *("Fetal.congenital.anomaly", "Apgar5", "Any.SAE.", "GA...1st.SAE", "X..Vis.Att", "X..Vis.Elig"),
    "X1st.Miss.Vis",
)


@dataclass(frozen=True)
class Split:
    """Training and test rows as numbers, NaN where a cell is blank."""

    X: Any
    y: Any
    X_test: Any
    y_test: Any
    groups: Any  # for each feature the number of its column

    @property
    def marked(self) -> Any:
        """The training rows, which know the columns of their features."""
        rows = np.asarray(self.X).view(EncodedRows)
        rows.groups = self.groups
        return rows

    def blank(self, kind: str, share: float, draw: int) -> Any:
        """The test rows with this share of their cells, or of the columns, blank."""
        columns = self.groups[-1] + 1
        generator = np.random.default_rng([draw, round(100 * share)])
        if kind == "columns":
            gone = np.broadcast_to(generator.permutation(columns) < round(share * columns), (1, columns))
        else:
            gone = generator.random((len(self.X_test), columns)) < share
        return np.where(gone[:, self.groups], np.nan, self.X_test)


@dataclass(frozen=True)
class Table:
    """A table by its name, with a function that reads it from the folder of data."""

    name: str
    regression: bool
    read: Callable[[Path], tuple[Any, Any]]
    train_rows: int = TRAIN_ROWS

    def split(self, folder: Path, seed: int) -> Split:
        """Half of the rows to train on, the other half to test on."""
        X, y = self.read(folder)
        train, test = (min(limit, len(y) // 2) for limit in (self.train_rows, TEST_ROWS))
        fair = None if self.regression else y
        A, B, a, b = train_test_split(
            X, y, train_size=train, test_size=test, random_state=seed, stratify=fair
        )
        if isinstance(A, np.ndarray):
            return Split(A, a, B, b, np.arange(A.shape[1]))
        encoder = mast.TableEncoder().fit(A)
        return Split(
            np.asarray(encoder.transform(A)), a, np.asarray(encoder.transform(B)), b, encoder.groups_
        )


def _bundled(name: str, _: Path) -> tuple[Any, Any]:
    X, y = getattr(datasets, f"load_{name}")(return_X_y=True)
    return pandas.DataFrame(X, columns=[f"x{j}" for j in range(X.shape[1])]), y


def _libsvm(name: str, folder: Path) -> tuple[Any, Any]:
    X, y = mast.data.load(name, data_dir=folder, download=False)
    return X.toarray(), y  # zeros and ones stay what they are


def _table(file: str, target: str, without: tuple[str, ...], folder: Path) -> tuple[Any, Any]:
    path = folder / "tables" / f"{file}.gz"
    if not path.exists():
        raise DataError(f"{path} is not there: --data-dir names the folder of the data")
    frame = pandas.read_csv(path, na_values=["?", "."], skipinitialspace=True)
    texts = frame.select_dtypes(exclude="number").columns
    frame[texts] = frame[texts].apply(lambda column: column.str.strip().replace("", None))
    frame = frame[frame[target].notna() & (frame[target] != "Lost to FU")]
    y = frame[target].to_numpy()
    y = y == "Live birth" if target == "Birth.outcome" else y
    return frame.drop(columns=[target, *without], errors="ignore"), y


TABLES = [
    Table("breast cancer", False, partial(_bundled, "breast_cancer")),
    *(Table(name, False, partial(_bundled, name)) for name in ("wine", "digits")),
    *(Table(name, False, partial(_libsvm, name), 2000) for name in ("a1a", "a5a", "w8a")),
    Table("NHEFS, death", False, partial(_table, "nhefs.csv", "death", NHEFS)),
    Table("NHEFS, quitting", False, partial(_table, "nhefs.csv", "qsmk", NHEFS)),
    Table("trial, live birth", False, partial(_table, "medicaldata_opt.csv", "Birth.outcome", TRIAL)),
    Table("Adult, income", False, partial(_table, "adult_census_income.csv", "income", ())),
    Table("diabetes", True, partial(_bundled, "diabetes")),
    Table("Communities", True, partial(_table, "communities.data", "ViolentCrimesPerPop", COMMUNITIES)),
    Table("NHEFS, weight", True, partial(_table, "nhefs.csv", "wt82_71", NHEFS)),
    Table("trial, birth weight", True, partial(_table, "medicaldata_opt.csv", "Birthweight", TRIAL)),
    Table("Adult, hours", True, partial(_table, "adult_census_income.csv", "hours.per.week", ())),
]
