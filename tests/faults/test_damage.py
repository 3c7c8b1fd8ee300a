"""Cut, changed and foreign files are refused with a message: never another error, never a silent yes."""

import shutil

import pytest

from faults.amounts import times
from faults.artifacts import ARTIFACTS, network_artifacts
from faults.mutations import FOREIGN, mutations
from faults.tally import survived
from mast.errors import MastError

pytestmark = pytest.mark.faults
ALL = ARTIFACTS | network_artifacts()
each = pytest.mark.parametrize("name", ALL)
each_summed = pytest.mark.parametrize("name", [name for name in ALL if ALL[name].summed])


def refused(artifact, path) -> str | None:
    """What was said against the file, or None."""
    try:
        artifact.read(path)
    except MastError as error:
        return str(error)
    return None


@each
def test_damage_is_refused(name, tmp_path):
    artifact = ALL[name]
    path = artifact.make(tmp_path)
    raw, right = path.read_bytes(), artifact.read(path)
    refusals = 0
    for damaged in mutations(raw, times(40, 1000)):
        path.write_bytes(damaged)
        said = refused(artifact, path)
        if artifact.summed:
            assert said is not None, "a damaged file was accepted"
            refusals += 1
        if said is not None:
            assert len(said) > 20
            assert "\n" not in said
            assert str(path) in said or said.startswith(f"{path.parent} ")  # a result names its folder
    path.write_bytes(raw)
    assert artifact.read(path) == right  # and nothing of all that is remembered
    if artifact.summed:
        survived("damaged file", refusals, refusals, "refused in one line, by its checksum")


@each_summed
def test_every_byte_of_the_beginning_counts(name, tmp_path):
    """The mark, the sum and the line between: a change in any of them is a refusal."""
    artifact = ALL[name]
    path = artifact.make(tmp_path)
    raw = path.read_bytes()
    for at in range(0, 80, times(5, 1)):
        damaged = bytearray(raw)
        damaged[at] ^= 1 << at % 8
        path.write_bytes(bytes(damaged))
        assert refused(artifact, path), f"a change of byte {at} was accepted"


@each
def test_foreign_files_are_refused(name, tmp_path):
    artifact = ALL[name]
    path = artifact.make(tmp_path)
    for what, content in FOREIGN.items():
        path.write_bytes(content)
        assert refused(artifact, path), f"{what} was accepted"


@pytest.mark.parametrize("name", ["checkpoint of a run", "classifier", "trained model"])
def test_the_message_says_what_is_wrong(name, tmp_path):
    artifact = ALL[name]
    path = artifact.make(tmp_path)
    raw = path.read_bytes()
    for content, message in {
        raw[:-5] + b"xxxxx": "is damaged: its checksum does not fit",
        raw[: len(raw) // 2]: "is damaged: it is truncated",
        FOREIGN["text"]: "is not a file of MAST's",
    }.items():
        path.write_bytes(content)
        assert f"{path} {message}" in refused(artifact, path)


@each_summed
def test_whole_files_of_another_kind_are_refused(name, tmp_path):
    here = tmp_path / "here"
    here.mkdir()
    path = ALL[name].make(here)
    for number, (other, artifact) in enumerate(ALL.items()):
        if other == name:
            continue
        there = tmp_path / str(number)
        there.mkdir()
        shutil.copyfile(artifact.make(there), path)
        assert refused(ALL[name], path), f"a {other} was accepted as a {name}"


def test_the_data_that_is_accepted_under_a_name_is_the_data(tmp_path):
    """A change that gunzip does not see (in its header) leaves the rows; every other one is refused."""
    artifact = ALL["data set with a name"]
    path = artifact.make(tmp_path)
    raw, right = path.read_bytes(), artifact.read(path)
    accepted = 0
    for damaged in mutations(raw, times(30, 1000), seed=1):
        path.write_bytes(damaged)
        if refused(artifact, path) is None:
            assert artifact.read(path) == right
            accepted += 1
    assert accepted < times(30, 1000) / 4
