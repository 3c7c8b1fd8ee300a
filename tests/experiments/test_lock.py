"""One process at a time in an output folder, and no lock outlives its process."""

import signal
import subprocess
import sys

import pytest

from mast.experiments.lock import FolderInUseError, only_process_in

HOLD = """
import sys, time
from pathlib import Path
from mast.experiments.lock import only_process_in
with only_process_in(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(60)
"""


@pytest.fixture
def holder(tmp_path):
    process = subprocess.Popen([sys.executable, "-c", HOLD, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "held\n"
    yield process
    process.kill()
    process.wait()
    process.stdout.close()


def test_second_process_is_refused_by_name(tmp_path, holder):
    with (
        pytest.raises(FolderInUseError, match=rf"in use by process {holder.pid} on .* --out"),
        only_process_in(tmp_path),
    ):
        pass


def test_lock_of_a_killed_process_is_taken_over(tmp_path, holder):
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    with only_process_in(tmp_path):
        pass


def test_folder_is_made_and_can_be_locked_again(tmp_path):
    for _ in range(2):
        with only_process_in(tmp_path / "a" / "b"):
            assert (tmp_path / "a" / "b").is_dir()


def test_folder_that_cannot_be_made(tmp_path):
    (tmp_path / "file").write_text("")
    from mast.errors import DataError

    with pytest.raises(DataError, match="cannot be written to"), only_process_in(tmp_path / "file" / "out"):
        pass
