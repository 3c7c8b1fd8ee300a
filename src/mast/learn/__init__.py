"""scikit-learn estimators: linear models that keep working when weights or features are missing."""

from mast.learn.classifier import MastClassifier
from mast.learn.regressor import MastRegressor

__all__ = ["MastClassifier", "MastRegressor"]
