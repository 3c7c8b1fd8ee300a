"""Tests leave nothing on the machine: temporary files and caches go to one folder, removed at the end.

Libraries write where they like: scikit-learn's checks, torchrun and Ray to the folder for temporary files,
matplotlib, ONNX Runtime and MAST itself to the user's cache. After a failure the folder stays, and is named.
"""

import os
import shutil
import tempfile
from pathlib import Path

import pytest

FONTS = Path(__file__).parents[1] / ".pytest_cache" / "matplotlib"  # the list of fonts takes long to make


class OwnFolders:
    """Points all processes of this session to a folder of their own."""

    def __init__(self) -> None:
        self.folder = tempfile.mkdtemp(prefix="mast-tests-")  # short: sockets lie in it
        self.failed = False
        self.before = dict(os.environ)
        cache = str(Path(self.folder) / "cache")
        os.environ.update(TMPDIR=self.folder, XDG_CACHE_HOME=cache, MPLCONFIGDIR=str(FONTS))
        tempfile.tempdir = None  # it is looked up once

    def pytest_sessionfinish(self, exitstatus: int) -> None:
        self.failed = exitstatus not in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED)

    def pytest_unconfigure(self) -> None:
        os.environ.clear()
        os.environ.update(self.before)
        tempfile.tempdir = None
        if self.failed:
            print(f"temporary files of the tests: {self.folder}")
        else:
            shutil.rmtree(self.folder, ignore_errors=True)


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):  # workers of pytest-xdist inherit it
        config.pluginmanager.register(OwnFolders())
