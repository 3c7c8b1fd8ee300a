"""What all tests share: where the larger data sets are, if they are anywhere."""

import os
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """The folder with a5a, w8a and the features of CIFAR-10."""
    beside = Path(__file__).parents[2] / "shared" / "data"
    folder = Path(os.environ.get("MAST_DATA", beside))
    if not folder.is_dir():
        pytest.skip("the larger data sets are not here; set MAST_DATA to their folder")
    return folder
