"""Packed files, and damaged ones: read, or refused with a reason; never a crash, never a hang."""

import bz2
import gzip
import os

import numpy as np
import pytest

import mast
from mast.errors import DataError

TEXT = b"+1 1:1 3:0.25\n-1 2:1e-3\n" * 50


@pytest.mark.parametrize("pack", [bytes, gzip.compress, bz2.compress])
@pytest.mark.parametrize("name", ["mine", "mine.gz", "mine.bz2", "mine.txt"])
def test_packing_is_known_by_the_bytes(file, pack, name):
    assert mast.data.load(file(pack(TEXT), name)).A.shape == (100, 3)


@pytest.mark.parametrize("pack", [gzip.compress, bz2.compress])
def test_several_streams_and_padding(file, pack):
    assert mast.data.load(file(pack(TEXT) + pack(TEXT) + b"\0" * 512)).A.shape == (200, 3)


def test_a_byte_order_mark_is_skipped(file):
    assert mast.data.load(file(b"\xef\xbb\xbf" + TEXT)).A.shape == (100, 3)


@pytest.mark.parametrize("pack", [gzip.compress, bz2.compress])
def test_a_cut_stream_is_refused(file, pack):
    rng = np.random.default_rng(0)
    packed = pack("".join(f"1 1:{x}\n" for x in rng.normal(size=20000)).encode())
    for length in (3, 10, len(packed) // 2, len(packed) - 1):
        with pytest.raises(DataError, match=r"mine: the \w+ stream is damaged: Compressed file ended"):
            mast.data.load(file(packed[:length]))


@pytest.mark.parametrize("pack", [gzip.compress, bz2.compress])
def test_a_flipped_bit_in_a_stream_is_refused(file, pack):
    packed = bytearray(pack(TEXT))
    packed[len(packed) // 2] ^= 4
    with pytest.raises(DataError, match=r"mine: the \w+ stream is damaged"):
        mast.data.load(file(bytes(packed)))


@pytest.mark.parametrize(
    "text", [b"", b"\n\n", b"# only this\n", gzip.compress(b"", mtime=0), bz2.compress(b"")]
)
def test_files_without_rows_are_refused(file, text):
    with pytest.raises(DataError, match="mine: there are no rows"):
        mast.data.load(file(text))


def test_a_stream_larger_than_memory_is_refused(file, monkeypatch):
    monkeypatch.setattr("mast.data.lookup.memory_limit", lambda: 10_000)
    with pytest.raises(DataError, match="more than a quarter of this machine's memory"):
        mast.data.load(file(gzip.compress(b"1 1:1\n" * 10_000, mtime=0)))
    with pytest.raises(DataError, match="more than this machine's memory"):
        mast.data.load(file(b"1 1:1\n" * 10_000))


def test_what_is_not_a_file_is_refused(tmp_path):
    with pytest.raises(DataError, match="folder, not a file"):
        mast.data.load(tmp_path)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(DataError, match="not a regular file"):
        mast.data.load(str(tmp_path / "pipe"))
    with pytest.raises(DataError, match="not a regular file"):
        mast.data.load("/dev/zero")
