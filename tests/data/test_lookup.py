"""Where sets are looked for, and how it is known that they are right."""

import bz2
import gzip

import pytest

import mast
from mast.data import lookup
from mast.errors import ArgumentError, DataError

TEXT = b"+1 1:1 3:0.25\n-1 2:1e-3\n" * 50


def altered():
    return b"+1 1:1\n-1 2:1\n"


def test_order_of_places(tmp_path, monkeypatch, cache):
    name = "mushrooms"  # a known set without a published checksum
    places = [tmp_path / "data_dir", tmp_path / "MAST_DATA", cache]
    for rows, place in enumerate(places, start=1):
        place.mkdir(parents=True)
        (place / name).write_bytes(b"1 1:1\n2 1:1\n" * rows)
    monkeypatch.setenv("MAST_DATA", str(places[1]))
    assert len(mast.data.load(name, data_dir=places[0]).b) == 2
    assert mast.data.available(places[0])[name] == "data_dir"
    assert len(mast.data.load(name).b) == 4
    assert mast.data.available()[name] == "MAST_DATA"
    monkeypatch.delenv("MAST_DATA")
    assert len(mast.data.load(name).b) == 6
    assert mast.data.available()[name] == "cached"
    (tmp_path / "working-directory" / name).write_bytes(b"1 1:1\n2 1:1\n" * 4)
    assert len(mast.data.load(name).b) == 8


@pytest.mark.parametrize("inner", ["", "libsvm"])
@pytest.mark.parametrize(("suffix", "pack"), [("", bytes), (".gz", gzip.compress), (".bz2", bz2.compress)])
def test_names_and_subfolders(tmp_path, inner, suffix, pack):
    (tmp_path / inner).mkdir(exist_ok=True)
    (tmp_path / inner / f"own{suffix}").write_bytes(pack(TEXT))
    assert mast.data.load("own", data_dir=tmp_path).A.shape == (100, 3)


def test_a_users_folder_wins_over_the_embedded_set(tmp_path):
    source = mast.data.fetch("a1a")
    assert mast.data.available()["a1a"] == "embedded"
    (tmp_path / "a1a").write_bytes(gzip.decompress(source.read_bytes()))
    assert mast.data.load("a1a", data_dir=tmp_path).path == tmp_path / "a1a"


def test_a_known_set_must_have_its_checksum(tmp_path):
    (tmp_path / "a1a").write_bytes(altered())
    with pytest.raises(DataError) as caught:
        mast.data.load("a1a", data_dir=tmp_path)
    assert str(tmp_path / "a1a") in str(caught.value)
    assert lookup.checksum(altered()) in str(caught.value)
    assert mast.data.SETS["a1a"].sha256 in str(caught.value)
    assert mast.data.load(tmp_path / "a1a").A.shape == (2, 2), "by its path, a file is what the user says"


def test_a_known_name_in_the_working_directory_must_have_its_checksum(tmp_path):
    (tmp_path / "working-directory" / "a1a").write_bytes(altered())
    with pytest.raises(DataError, match=r"give its path \(\./a1a\)"):
        mast.data.load("a1a")
    assert mast.data.load("./a1a").A.shape == (2, 2)


def test_a_recorded_checksum_is_compared(tmp_path):
    (tmp_path / "phishing").write_bytes(altered())
    note = tmp_path / "phishing.sha256"
    note.write_text(lookup.checksum(altered()) + "  phishing\n")
    mast.data.load("phishing", data_dir=tmp_path)
    (tmp_path / "phishing").write_bytes(altered() * 2)
    with pytest.raises(DataError, match=r"changed since its first download.*delete .*phishing\.sha256"):
        mast.data.load("phishing", data_dir=tmp_path)
    note.write_text("damaged")
    with pytest.raises(DataError, match=r"phishing\.sha256: this should hold a sha256"):
        mast.data.load("phishing", data_dir=tmp_path)


def test_absent_and_offline(tmp_path, monkeypatch, cache):
    monkeypatch.setenv("MAST_DATA", str(tmp_path / "elsewhere"))
    for download in (True, False):
        with pytest.raises(DataError) as caught:
            mast.data.load("a5a", data_dir=tmp_path, download=download)
        for words in (
            "a5a.gz",
            str(tmp_path),
            str(tmp_path / "elsewhere"),
            str(cache),
            "http://127.0.0.1:9/a5a",
        ):
            assert words in str(caught.value)
        assert "\n" not in str(caught.value)
    assert not list(cache.glob("*"))


def test_unknown_names_and_folders(tmp_path):
    with pytest.raises(DataError, match="did you mean mushrooms"):
        mast.data.load("mushroom")
    with pytest.raises(DataError, match="the data folder does not exist"):
        mast.data.load("a1a", data_dir=tmp_path / "typo")


def test_fetch_copies_into_a_folder(tmp_path, cache):
    path = mast.data.fetch("a1a", tmp_path / "new" / "folder")
    assert path == tmp_path / "new" / "folder" / "a1a.gz"
    assert mast.data.load("a1a", data_dir=path.parent).path == path
    assert mast.data.fetch("a1a", path.parent) == path
    cache.mkdir(parents=True)
    (cache / "heart").write_bytes(altered())
    (cache / "heart.sha256").write_text(lookup.checksum(altered()) + "  heart\n")
    assert mast.data.fetch("heart", tmp_path / "new").read_bytes() == altered()
    assert (tmp_path / "new" / "heart.sha256").exists(), "what is known of the file goes with it"
    assert sorted(p.name for p in (tmp_path / "new").iterdir()) == ["folder", "heart", "heart.sha256"]


def test_fetch_copies_a_set_of_the_users_own(tmp_path, monkeypatch):
    (tmp_path / "from").mkdir()
    (tmp_path / "from" / "own").write_bytes(TEXT)
    monkeypatch.setenv("MAST_DATA", str(tmp_path / "from"))
    assert mast.data.fetch("own", tmp_path / "to").read_bytes() == TEXT


def test_the_catalogue_is_consistent():
    for name, known in mast.data.SETS.items():
        assert known.name == name
        assert known.address.endswith(name + known.packing)
    adult = [mast.data.SETS[f"a{i}a"].rows + mast.data.SETS[f"a{i}a.t"].rows for i in range(1, 9)]
    web = [mast.data.SETS[f"w{i}a"].rows + mast.data.SETS[f"w{i}a.t"].rows for i in range(1, 8)]
    assert set(adult) == {mast.data.SETS["a9a"].rows}, "a1a to a8a are parts of a9a, the rest is their test"
    assert set(web) == {mast.data.SETS["w8a"].rows}


@pytest.mark.parametrize("name", ["", ".", "a\0b", "x" * 5000, "../nothing", "/nothing/here", "ä", "-"])
def test_strange_names_are_absent(name):
    with pytest.raises(DataError):
        mast.data.load(name)


@pytest.mark.parametrize("name", [None, 3, b"a1a", ["a1a"]])
def test_names_are_text(name):
    with pytest.raises(ArgumentError, match="expected the name of a data set or a path"):
        mast.data.load(name)
