"""Downloading, against a server on this machine: whole and checked, or not at all."""

import bz2
import gzip
import http.server
import logging
import os
import subprocess
import sys
import threading
import time

import pytest

import mast
from mast.data import catalogue, download, lookup
from mast.errors import DataError

MUSHROOMS = b"1 1:1 3:1\n2 2:1\n" * 100


class Server(http.server.ThreadingHTTPServer):
    """Serves `files`, a dictionary of path to bytes or to a function that answers itself."""

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.files = {}
        self.asked = []
        self.stopping = threading.Event()


class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.server.asked.append(self.path)
        content = self.server.files.get(self.path)
        if callable(content):
            content(self)
        elif content is None:
            self.send_error(404)
        else:
            self.send_response(200)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

    def log_message(self, *_):
        pass


@pytest.fixture
def server(monkeypatch):
    server = Server()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    monkeypatch.setattr(catalogue, "COLLECTION", f"http://127.0.0.1:{server.server_port}/")
    yield server
    server.stopping.set()
    server.shutdown()
    server.server_close()
    thread.join(timeout=10)
    assert not thread.is_alive()


@pytest.fixture
def a1a():
    return gzip.decompress(mast.data.fetch("a1a").read_bytes())


def test_a_set_with_a_published_checksum(server, cache, a1a, monkeypatch, tmp_path):
    monkeypatch.setattr("mast.data.lookup.EMBEDDED", tmp_path / "nothing")
    server.files["/a1a"] = a1a
    loaded = mast.data.load("a1a")
    assert loaded.A.shape == (1605, 123)
    assert loaded.path == cache / "a1a"
    assert [path.name for path in cache.iterdir()] == ["a1a"]
    mast.data.load("a1a")
    assert server.asked == ["/a1a"], "the second time it is in the cache"


def test_a_wrong_checksum_is_refused_and_nothing_is_kept(server, cache, a1a, monkeypatch, tmp_path):
    monkeypatch.setattr("mast.data.lookup.EMBEDDED", tmp_path / "nothing")
    server.files["/a1a"] = wrong = a1a.replace(b"-1", b"+1", 1)
    with pytest.raises(DataError) as caught:
        mast.data.load("a1a")
    assert lookup.checksum(wrong) in str(caught.value)
    assert lookup.checksum(a1a) in str(caught.value)
    assert not list(cache.iterdir())


def test_a_set_without_one_is_trusted_once_and_that_is_said(server, cache, caplog):
    server.files["/mushrooms"] = MUSHROOMS
    with caplog.at_level(logging.WARNING, "mast.data"):
        loaded = mast.data.load("mushrooms")
    assert loaded.labels == (1, 2)
    assert lookup.checksum(MUSHROOMS) in caplog.text
    assert sorted(path.name for path in cache.iterdir()) == ["mushrooms", "mushrooms.sha256"]

    (cache / "mushrooms").unlink()
    server.files["/mushrooms"] = MUSHROOMS[:160]
    with pytest.raises(DataError, match="was recorded at the first download"):
        mast.data.load("mushrooms")
    assert [path.name for path in cache.iterdir()] == ["mushrooms.sha256"]


def test_a_packed_set(server, cache):
    text = b"-1 1:0.5\n1 2:1\n"
    server.files["/ijcnn1.bz2"] = bz2.compress(text)
    assert mast.data.load("ijcnn1").path == cache / "ijcnn1.bz2"
    assert lookup.recorded_checksum(cache, "ijcnn1") == lookup.checksum(text)


def test_fetch_puts_it_into_the_folder_asked_for(server, cache, tmp_path):
    server.files["/mushrooms"] = MUSHROOMS
    old = os.umask(0o022)
    try:
        path = mast.data.fetch("mushrooms", tmp_path / "mine")
    finally:
        os.umask(old)
    assert path == tmp_path / "mine" / "mushrooms"
    assert path.stat().st_mode & 0o777 == 0o644, "others may read what lies in a shared folder"
    assert not cache.exists()


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "the server answered 404"),
        (b"<html>Please log in</html>", "looks like a web page"),
        (b"", "there are no rows"),
        (MUSHROOMS + b"1 3:", "line 201: found '3:'"),
        (gzip.compress(MUSHROOMS, mtime=0)[:-20], "stream is damaged"),
        (lambda handler: handler.wfile.write(b"nonsense\r\n\r\n"), "could not be reached"),
        (lambda handler: None, "could not be reached"),
    ],
)
def test_bad_answers_are_refused_and_nothing_is_kept(server, cache, content, words):
    server.files["/mushrooms"] = content
    with pytest.raises(DataError, match=words) as caught:
        mast.data.load("mushrooms")
    assert f"{server.server_port}/mushrooms" in str(caught.value)
    assert not list(cache.iterdir())


def test_a_connection_that_ends_early(server, cache):
    def half(handler):
        handler.send_response(200)
        handler.send_header("Content-Length", str(len(MUSHROOMS)))
        handler.end_headers()
        handler.wfile.write(MUSHROOMS[:320])

    server.files["/mushrooms"] = half
    with pytest.raises(DataError, match=f"ended after 320 of {len(MUSHROOMS)} bytes|connection broke"):
        mast.data.load("mushrooms")
    assert not list(cache.iterdir())


def test_a_silent_server(server, cache, monkeypatch):
    monkeypatch.setattr(download, "TIMEOUT", 0.2)
    server.files["/mushrooms"] = lambda handler: handler.server.stopping.wait(20)
    with pytest.raises(DataError, match="timed out"):
        mast.data.load("mushrooms")
    assert not list(cache.iterdir())


def test_a_server_that_sends_a_byte_now_and_then(server, cache, monkeypatch):
    monkeypatch.setattr(download, "PATIENCE", 0.3)

    def drip(handler):
        handler.send_response(200)
        handler.end_headers()
        begin = time.monotonic()
        while time.monotonic() - begin < 20 and not handler.server.stopping.wait(0.05):
            try:
                handler.wfile.write(b"1")
            except OSError:
                return

    server.files["/mushrooms"] = drip
    with pytest.raises(DataError, match="sent only"):
        mast.data.load("mushrooms")
    assert not list(cache.iterdir())


def test_a_server_that_never_ends(server, cache, monkeypatch):
    monkeypatch.setattr(download, "LARGEST", 1000)
    server.files["/mushrooms"] = MUSHROOMS
    with pytest.raises(DataError, match="more than 1000 bytes"):
        mast.data.load("mushrooms")
    assert not list(cache.iterdir())


def test_a_full_disk(server, cache, monkeypatch):
    server.files["/mushrooms"] = MUSHROOMS

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(download, "_stream", full)
    with pytest.raises(DataError, match=r"cannot be written to .*No space left on device"):
        mast.data.load("mushrooms")
    assert not list(cache.iterdir())


def test_a_folder_that_cannot_be_made(server, tmp_path):
    server.files["/mushrooms"] = MUSHROOMS
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(DataError, match="the folder cannot be made"):
        mast.data.fetch("mushrooms", tmp_path / "file")


def test_two_processes_at_once(server, tmp_path):
    gate = threading.Barrier(2, timeout=60)

    def together(handler):
        gate.wait()  # both are downloading before either may finish
        handler.send_response(200)
        handler.send_header("Content-Length", str(len(MUSHROOMS)))
        handler.end_headers()
        handler.wfile.write(MUSHROOMS)

    server.files["/mushrooms"] = together
    code = (
        "import mast.data.catalogue as c, mast.data\n"
        f"c.COLLECTION = {catalogue.COLLECTION!r}\n"
        f"print(mast.data.fetch('mushrooms', {str(tmp_path / 'both')!r}))\n"
    )
    running = [
        subprocess.Popen(
            [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        for _ in range(2)
    ]
    for process in running:
        out, err = process.communicate(timeout=120)
        assert process.returncode == 0, err
        assert out.strip() == str(tmp_path / "both" / "mushrooms")
    assert (tmp_path / "both" / "mushrooms").read_bytes() == MUSHROOMS
    assert sorted(path.name for path in (tmp_path / "both").iterdir()) == ["mushrooms", "mushrooms.sha256"]
