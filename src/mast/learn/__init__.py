"""Linear models in scikit-learn's form that keep working when features are missing or weights are pruned."""

from mast.learn.classifier import MastClassifier
from mast.learn.encoder import TableEncoder
from mast.learn.frames import ColumnsWarning
from mast.learn.imputer import ConditionalImputer
from mast.learn.masked_training import MaskedTraining
from mast.learn.pipelines import load_pipeline, save_pipeline
from mast.learn.regressor import MastRegressor
from mast.learn.scoring import MissingDisplay, make_missing_scorer

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
