"""Linear models in scikit-learn's form that keep working when features are missing or weights are pruned."""

from mast.learn.encoder import TableEncoder
from mast.learn.estimators import MastClassifier, MastRegressor
from mast.learn.imputer import ConditionalImputer
from mast.learn.masked_training import MaskedTraining
from mast.learn.scoring import MissingDisplay, make_missing_scorer
from mast.learn.storage import load_pipeline, save_pipeline
from mast.learn.validation import ColumnsWarning

__all__ = [
    "ColumnsWarning",
    "ConditionalImputer",
    "MaskedTraining",
    "MastClassifier",
    "MastRegressor",
    "MissingDisplay",
    "TableEncoder",
    "load_pipeline",
    "make_missing_scorer",
    "save_pipeline",
]
