"""SIGKILL at random moments of a run, a sweep and a reproduction: what is resumed ends with the same bits."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from faults.amounts import times
from faults.tally import survived

pytestmark = [
    pytest.mark.faults,
    pytest.mark.skipif(not hasattr(os, "fork"), reason="SIGKILL and fork are of POSIX"),
]
NURSERY = Path(__file__).with_name("nursery.py")


LONG = pytest.param("reproduce", marks=pytest.mark.slow)  # tests/experiments kills its command once


@pytest.mark.parametrize("work", ["sampled", "variance_reduced", "page", "distributed", "sweep", LONG])
def test_killed_and_resumed_it_ends_with_the_same_bits(work, tmp_path):
    """Several series of kills; a series ends early where a life was shorter than the wait for its kill."""
    series = times(1, 4) if work == "reproduce" else times(3, 10)
    kills, least = times(4, 40), times(1, 20)
    done = subprocess.run(
        [sys.executable, NURSERY, work, tmp_path, *map(str, (kills, series, least))],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    ended = json.loads(done.stdout.splitlines()[-1])
    assert ended["same"]
    assert ended["killed"] >= least
    what = work if work in ("sweep", "reproduce") else "minimize"
    survived(
        f"SIGKILL of {what}", ended["killed"], ended["killed"], "resumed, with the bits of a run left alone"
    )
