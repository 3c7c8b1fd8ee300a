"""Readers of users' files: whatever stands in one, it is read or refused, soon, and with an error of ours."""

import os
import signal

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import mast
from faults.amounts import times
from mast.errors import MastError
from mast.learn.commands import train
from mast.learn.commands.csv_files import convert_numbers, read_table
from mast.learn.commands.trained_model import TrainedModel

pytestmark = pytest.mark.faults
many = settings(
    max_examples=times(60, 2000),
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)

numbers = st.one_of(
    st.floats(width=64).map(repr),
    st.integers(-(10**30), 10**30).map(str),
    st.sampled_from(
        ["nan", "-inf", "1e999", "1e-999", "0x10", "1_0", "+.5", "5.", ".", "-", "١٢", "1,5", "1d3"]
    ),
    st.text(alphabet="0123456789", min_size=1, max_size=1200),
)
pairs = st.builds(lambda i, v: f"{i}:{v}", st.one_of(st.integers(-2, 40), st.integers(0, 2**70)), numbers)
lines = st.builds(lambda label, rest: " ".join([label, *rest]), numbers, st.lists(pairs, max_size=6))
libsvm = st.lists(st.one_of(lines, st.text(max_size=30)), max_size=8).map("\n".join)

cell = st.one_of(numbers, st.text(max_size=12), st.sampled_from(["", "NA", "?", "a", "b", '"a', '"a,b"']))
rows = st.integers(1, 5).flatmap(
    lambda width: st.lists(st.lists(cell, min_size=width, max_size=width).map(",".join), max_size=12)
)
marks = st.text('a1,;"\n\r\t .-é\0', max_size=80)
csv = st.builds(
    lambda head, body: "\n".join([head, *body]), st.sampled_from(["a,b", "y", "a,b,c,y", ""]), rows
)


@pytest.fixture(autouse=True)
def no_hang():
    """A reader that has not ended after minutes is ended."""
    if hasattr(signal, "SIGALRM"):
        signal.alarm(times(120, 1200))
        yield
        signal.alarm(0)
    else:
        yield


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    path = tmp_path_factory.mktemp("readers") / "file.csv"

    def write(content: str | bytes):
        raw = content.encode("utf-8", "surrogatepass") if isinstance(content, str) else content
        path.write_bytes(raw)
        return path

    return write


def refused(read) -> bool:
    """Whether it was refused; errors that are not ours come through."""
    try:
        read()
    except MastError as error:
        return bool(str(error).strip())
    return False


@many
@given(st.one_of(libsvm, st.binary(max_size=300), st.text(max_size=100)), st.sampled_from(["binary", "raw"]))
def test_libsvm(file, content, labels):
    path = file(content)
    if not refused(lambda: mast.data.load(path, labels=labels)):
        A, b = mast.data.load(path, labels=labels)
        assert np.isfinite(A.data).all()
        assert np.isfinite(b).all()
        assert labels == "raw" or set(b) <= {-1.0, 1.0}
        assert A.shape[0] == b.size


@many
@given(st.one_of(csv, marks, st.binary(max_size=300), st.text(max_size=100)))
def test_csv(file, content):
    path = file(content)
    if not refused(lambda: read_table(path)):
        table = read_table(path)
        assert len(table) > 0
        assert len(set(table.columns)) == table.shape[1] > 0


@settings(many, max_examples=times(25, 1000))
@given(st.one_of(csv, marks))
def test_training_on_any_table(file, tmp_path_factory, content):
    """From the file to the predictions: where training accepts a table, predicting does too."""
    path = file(content)
    out = tmp_path_factory.getbasetemp() / f"model{os.getpid()}"
    if not refused(lambda: train(str(path), out, target="y")):
        trained = TrainedModel.load(out)
        X = trained.rows(str(path), None).X
        assert len(trained.model.predict(X)) == X.shape[0]


def test_one_long_cell_does_not_make_all_cells_long(file):
    """A table of 40,000 rows with one text of 100,000 characters took 16 GB as an array of texts."""
    path = file("a,y\n" + "\n".join(f"{i % 7},{i % 2}" for i in range(40_000)) + f"\n{'x' * 100_000},1\n")
    with pytest.raises(MastError, match="holds numbers, but here 'xxx"):
        train(str(path), path.parent / "model", target="y")


def test_a_number_with_underscores_is_a_text(file):
    """Python reads 1_0 as ten; tables do not."""
    assert convert_numbers(read_table(file("a,b\n1_0,1\n1_0,2\n")), "t.csv")["a"].tolist() == ["1_0", "1_0"]
