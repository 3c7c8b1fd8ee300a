"""Every test here has its own empty cache and no network but this machine's loopback."""

from pathlib import Path

import pytest

from mast.data import catalogue


@pytest.fixture(autouse=True)
def alone(monkeypatch, tmp_path):
    for name in ("MAST_DATA", "http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"):
        monkeypatch.delenv(name, raising=False)
    empty = tmp_path / "working-directory"
    empty.mkdir()
    monkeypatch.chdir(empty)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr("mast.data.lookup.cache", lambda: tmp_path / "cache" / "mast")
    monkeypatch.setattr(catalogue, "COLLECTION", "http://127.0.0.1:9/")  # nobody listens there


@pytest.fixture
def cache(tmp_path):
    return tmp_path / "cache" / "mast"


@pytest.fixture(scope="session")
def shared():
    folder = Path(__file__).parents[3] / "shared" / "data"
    if not (folder / "libsvm").is_dir():
        pytest.skip(f"needs the data sets in {folder}")
    return folder


@pytest.fixture
def file(tmp_path):
    def write(text, name="mine"):
        path = tmp_path / name
        path.write_bytes(text)
        return path

    return write
