"""The tutorial runs, and shows what it promises."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="mast.nn needs PyTorch")
SCRIPT = Path(__file__).parents[2] / "examples" / "digits_cnn.py"


@pytest.mark.slow
def test_digits_cnn():
    done = subprocess.run(
        [sys.executable, str(SCRIPT)],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True, text=True, timeout=900, check=True,
    )  # fmt: skip
    rows = {
        line.split()[0]: line.split()[1:] for line in done.stdout.splitlines() if line.strip()[:2].isdigit()
    }
    plain, ours = (float(rows["50%"][i]) for i in (0, 2))
    assert float(rows["100%"][0]) > 0.95
    assert ours > plain + 0.1  # far beyond the spread over draws
