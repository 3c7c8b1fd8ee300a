"""For data scientists: a mixed table with missing values when the model is served.

    python examples/data_scientist.py        about half a minute

Numbers, text, a date and a customer's number, as in a CSV file. The usual choices are mean imputation before
LogisticRegression, and gradient boosting, which accepts missing values. They are compared with the same
kinds of models trained for missing values: MastClassifier and MaskedTraining. The metric is log-loss.
"""

import numpy as np
import pandas as pd
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss
from sklearn.pipeline import make_pipeline

import mast

SHARES = (0.0, 0.25, 0.5, 0.75)


def table(n: int = 4000) -> tuple[pd.DataFrame, np.ndarray]:
    """Customers who stay or leave; the columns are correlated, as those of real tables are."""
    random = np.random.default_rng(0)
    wealth, *noise = random.standard_normal((5, n))
    since = pd.to_timedelta((900 + 300 * (wealth + noise[0])).clip(0).round(), unit="D")
    jobs = np.array(["clerk", "cook", "nurse", "judge"])
    frame = pd.DataFrame(
        {
            "customer": [f"C{i:05}" for i in range(n)],
            "income": 3000 + 900 * (wealth + 0.5 * noise[1]),
            "rent": 1000 + 250 * (wealth + 0.6 * noise[2]),
            "job": jobs[np.digitize(wealth + 0.6 * noise[3], [-0.7, 0.0, 0.9])],
            "city": random.choice(["Bern", "Lyon", "Turin"], n),
            "since": pd.Timestamp("2024-12-31") - since,
        }
    )
    stays = 1.5 * wealth + (frame["city"] == "Lyon") + random.logistic(size=n) > 0.3
    return frame, np.where(stays, "stays", "leaves")


def main() -> None:
    frame, y = table()
    train, test = frame[:2000], frame[2000:]
    encoder = mast.TableEncoder(ids=["customer"])  # the same features for all; a missing cell stays NaN
    trees = HistGradientBoostingClassifier(random_state=0)
    models = {
        "LogisticRegression, means": make_pipeline(encoder, SimpleImputer(), LogisticRegression()),
        "gradient boosting": make_pipeline(encoder, trees),
        "MastClassifier": make_pipeline(encoder, mast.MastClassifier()),
        "MaskedTraining(boosting)": make_pipeline(encoder, mast.MaskedTraining(trees)),
    }
    masks = [np.random.default_rng(1).random(test.shape) < share for share in SHARES]
    print(f"{'log-loss':28}" + "".join(f"{share:>7.0%}" for share in SHARES) + "   of the cells missing")
    for name, model in models.items():
        model.fit(train, y[:2000])
        losses = [log_loss(y[2000:], model.predict_proba(test.mask(mask))) for mask in masks]
        print(f"{name:28}" + "".join(f"{loss:7.3f}" for loss in losses))


if __name__ == "__main__":
    main()
