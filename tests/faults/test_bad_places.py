"""A full disk and a folder that may not be written to: an error of ours, and nothing of before is lost."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from faults.amounts import FULL
from faults.tally import survived

pytestmark = [
    pytest.mark.faults,
    pytest.mark.skipif(not hasattr(os, "fork"), reason="limits, mounts and users are those of POSIX"),
]
SCRIPT = Path(__file__).with_name("bad_places.py")


@pytest.mark.parametrize("how", ["full", "readonly", *(["limit"] if FULL else [])])
def test_an_error_and_nothing_lost(how, tmp_path):
    if how == "readonly" and os.getuid() == 0 and sys.platform != "linux":
        pytest.skip("root writes everywhere, and only Linux lets it give up that right")
    done = subprocess.run([sys.executable, SCRIPT, how, tmp_path], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert len(found) == 9
    for operation, became in found.items():
        assert became["said"].startswith("MastError"), f"{operation} on a {how} disk: {became['said']}"
        assert not became["lost"], f"{operation}: lost {became['lost']}"
        # runs that were finished before the place went bad stay; half a file does not
        assert all(name.endswith(".cell") for name in became["left"]), f"{operation}: left {became['left']}"
    place = "read-only folder" if how == "readonly" else "full disk"
    survived(place, len(found), len(found), "an error of ours, and what was there before is as it was")
