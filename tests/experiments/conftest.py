"""A small data set as a file, for experiments that end in seconds."""

import numpy as np
import pytest

from mast import data, plots
from mast.experiments.datasets import Dataset, locate
from mast.randomness import Key, normal


@pytest.fixture(autouse=True, scope="session")
def fonts_of_type_3():
    """Fonts of type 42 take matplotlib a second per figure; what the tests start as a command has them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(plots.SETTINGS, "pdf.fonttype", 3)
        yield


@pytest.fixture(scope="session")
def small_file(tmp_path_factory):
    """120 rows and 12 features, a third of them zero, with noisy labels."""
    x = normal(Key(5), 0, 120 * 12).reshape(120, 12)
    A = np.where(normal(Key(6), 0, x.size).reshape(x.shape) > -0.4, x.round(2), 0.0)
    score = A @ normal(Key(7), 0, 12) + normal(Key(8), 0, 120)
    path = tmp_path_factory.mktemp("data") / "small"
    data.save(path, A, np.where(score > 0, 1.0, -1.0))
    return path


@pytest.fixture(scope="session")
def small(small_file) -> Dataset:
    return locate(str(small_file))
