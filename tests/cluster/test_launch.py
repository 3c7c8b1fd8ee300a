"""Our own way to start ranks: on 127.0.0.1 only, with a secret, and with nothing left behind."""

import os
import signal
import sys
import time

import pytest

pytest.importorskip("torch")
if sys.platform != "linux":
    pytest.skip("processes and ports are looked up in /proc", allow_module_level=True)

import mast
from cluster.launching import Launched, rows_of, until
from mast.cluster.__main__ import main
from mast.cluster.wire import Wire
from mast.errors import DataError

SETTINGS = """
[run]
rounds = {rounds}
timeout = {timeout}
checkpoint_seconds = 0.0
progress = false
draws = 0
[nodes]
count = 4
capacity = "permk:4"
[model]
kind = "logistic"
l2 = 0.1
[data]
file = "a1a"
"""
LOOPBACK = {"0100007F", "00000000000000000000000001000000", "0000000000000000FFFF00000100007F"}


def settings(folder, rounds, timeout=60.0):
    path = folder / "train.toml"
    path.write_text(SETTINGS.format(rounds=rounds, timeout=timeout))
    return path


def test_nothing_listens_to_the_world_and_nothing_is_left_after_a_kill(tmp_path):
    """SIGKILL of the command: all is gone within 10 s, and it can be run again at once."""
    path, trace = settings(tmp_path, 100_000), tmp_path / "out" / "trace.jsonl"
    with Launched(path) as run:
        until(lambda: rows_of(trace) >= 5)
        assert len(run.family()) >= 3
        assert run.listening() <= LOOPBACK
        run.process.kill()
        deadline = time.monotonic() + 10
        while run.family() and time.monotonic() < deadline:
            time.sleep(0.1)
        assert not run.family()
        done = rows_of(trace)
    result = mast.cluster.run(settings(tmp_path, done + 3))
    assert result.trace["step"].tolist() == list(range(1, done + 4))


def test_a_wrong_settings_file_ends_at_once(tmp_path, capfd):
    """Before any process is started, in one line."""
    path = settings(tmp_path, 5)
    path.write_text(path.read_text().replace("l2 = 0.1", "l3 = 0.1"))
    assert main([str(path), "--ranks", "2"]) == 2
    [line] = capfd.readouterr().err.splitlines()
    assert line.startswith("mast.cluster: unknown key 'l3' in [model]")


@pytest.mark.slow
def test_what_a_rank_refuses_is_said_once_and_not_tried_again(tmp_path):
    """Settings are fine, the data are not: only the ranks can see it."""
    (tmp_path / "rows.txt").write_text("+1 1:nan\n-1 2:1\n" * 4)
    path = settings(tmp_path, 5)
    path.write_text(path.read_text().replace('"a1a"', '"rows.txt"'))
    with Launched(path) as run:
        code, printed = run.wait()
    assert code == 2, printed
    assert printed.count("mast.cluster: ") == 1
    assert "Traceback" not in printed


@pytest.mark.slow
def test_a_stopped_rank_is_noticed_within_twice_the_timeout(tmp_path):
    path, trace, timeout = settings(tmp_path, 100_000, timeout=8.0), tmp_path / "out" / "trace.jsonl", 8.0
    with Launched(path, "--max-restarts=1") as run:
        until(lambda: rows_of(trace) >= 5)
        stopped = run.rank(1)
        os.kill(stopped, signal.SIGSTOP)
        begun, done = time.monotonic(), rows_of(trace)
        until(lambda: stopped not in run.family())
        assert time.monotonic() - begun < 2 * timeout
        until(lambda: rows_of(trace) > done + 5)  # it goes on


def test_words_without_the_secret_are_refused(monkeypatch):
    """Who can write to the store of the ranks cannot speak for one of them."""
    monkeypatch.setenv("MAST_CLUSTER_SECRET", "one")
    wire = Wire()
    assert wire._read(wire._signed({"a": 1}), 1) == {"a": 1}
    monkeypatch.setenv("MAST_CLUSTER_SECRET", "another")
    forged = Wire()._signed({"a": 1})
    with pytest.raises(DataError, match="in the name of rank 1 was not signed"):
        wire._read(forged, 1)


def test_ranks_take_no_settings_from_each_other(tmp_path):
    """One with another file is refused; before, all ran what the first one, or a stranger, said."""
    from mast.cluster.running import _settings

    class Told(Wire):
        def first_words(self, word):
            return [["another digest", None], word]

    path = settings(tmp_path, 5)
    with pytest.raises(DataError, match="rank 0 has other settings than rank"):
        _settings(path, tmp_path, Told())


def test_a_full_disk_under_the_trace_is_one_line(tmp_path):
    """The trace may not grow beyond some bytes, as on a full disk; the checkpoint is smaller."""
    import subprocess

    path = settings(tmp_path, 100_000)
    code = (
        "import resource, sys\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))\n"
        "from mast.cluster.__main__ import main\n"
        f"sys.exit(main([{str(path)!r}]))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=200)
    assert done.returncode == 2
    [line] = done.stderr.splitlines()
    assert "trace.jsonl cannot be written: File too large" in line


def test_a_truncated_checkpoint_is_called_that_and_new_rows_are_kept(tmp_path):
    path = settings(tmp_path, 5)
    mast.cluster.run(path)
    (tmp_path / "out" / "trace.jsonl").unlink()
    settings(tmp_path, 8)
    assert mast.cluster.run(path).trace["step"].tolist() == [6, 7, 8]
    checkpoint = tmp_path / "out" / "checkpoint.mast"
    content = checkpoint.read_bytes()
    for size in (3, 50, 200, len(content) // 2, len(content) - 1):
        checkpoint.write_bytes(content[:size])
        with pytest.raises(DataError, match="truncated"):
            mast.cluster.run(path)
