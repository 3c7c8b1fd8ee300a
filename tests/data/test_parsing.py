"""LIBSVM text is read to the last bit, or refused with the first bad line."""

import gzip
import random
import struct

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from mast.data import libsvm
from mast.errors import DataError

thorough = settings(
    max_examples=300,
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


def read(text, **options):
    """Rows, or the words of the refusal."""
    try:
        rows = libsvm.parse_libsvm(text, **options)
    except DataError as error:
        return str(error)
    assert np.isfinite(rows.A.data).all()
    assert np.isfinite(rows.labels).all()
    assert rows.A.indices.dtype == rows.A.indptr.dtype == np.int32
    return rows


def readable(text):
    """Labels, how many pairs each row has, their indices from 0 and their values, if nothing is wrong."""
    lines = [line.partition(b"#")[0].split() for line in text.split(b"\n")]
    rows = [[token.split(b":") for token in tokens[1:]] for tokens in lines if tokens]
    return (
        [float(tokens[0]) for tokens in lines if tokens],
        [len(row) for row in rows],
        [int(index) - 1 for row in rows for index, _ in row],
        [float(value) for row in rows for _, value in row],
    )


# --- valid files -----------------------------------------------------------------------------------

blanks = st.sampled_from([" ", "  ", "\t", " \t "])
spelling = st.sampled_from(["{!r}", "{:.6g}", "{:+.17e}", "{:.3f}", "{:.25f}", "{:E}"])
finite = st.floats(allow_nan=False, allow_infinity=False)
number = st.one_of(
    st.builds(str.format, spelling, finite),
    st.builds(str, st.integers(-(10**25), 10**25)),
    st.builds("{}{}.{}e{}".format, st.sampled_from(["", "+", "-"]), st.integers(0, 10**9),
              st.integers(0, 10**9), st.integers(-30, 30)),
    st.sampled_from(["1", "-1", "0", "-0", "5.", ".5", "+.5E+3", "1e22", "1e23", "9007199254740993",
                     "4.9e-324", "1.7976931348623157e308", "0e999999999999", "2.4703282292062327e-324"]),
)  # fmt: skip


@st.composite
def line(draw):
    kind = draw(st.integers(0, 9))
    if kind == 0:
        return draw(st.sampled_from(["", "   ", "# nothing", "\t#1 1:1"]))
    indices = sorted(draw(st.sets(st.integers(1, draw(st.sampled_from([5, 300, 2**31 - 1]))), max_size=6)))
    parts = [draw(number)] + [f"{index}:{draw(number)}" for index in indices]
    end = draw(st.sampled_from(["", " ", "\r", " # said é", "#"]))
    return draw(blanks).join(parts) + end


valid = st.builds(
    lambda lines, end: "\n".join(lines).encode() + end, st.lists(line()), st.sampled_from([b"", b"\n"])
)


@thorough
@given(valid)
def test_valid_files_are_read_to_the_same_bits(text):
    labels, lengths, indices, values = readable(text)
    rows = read(text)
    assert rows.labels.tobytes() == np.array(labels, dtype=float).tobytes()
    assert rows.A.data.tobytes() == np.array(values, dtype=float).tobytes()
    assert rows.A.indices.tolist() == indices
    assert np.diff(rows.A.indptr).tolist() == lengths
    assert rows.A.shape == (len(labels), max(indices, default=-1) + 1)


@thorough
@given(st.lists(st.integers(0, 2**64 - 1), min_size=1, max_size=20))
def test_every_double_comes_back(patterns):
    numbers = [struct.unpack("<d", struct.pack("<Q", pattern))[0] for pattern in patterns]
    numbers = [x for x in numbers if np.isfinite(x)]
    rows = read("\n".join(f"{x!r} 1:{x!r}" for x in numbers).encode())
    assert rows.labels.tobytes() == np.array(numbers, dtype=float).tobytes()


def decimals():
    """Numbers of all sizes, and exact ties: halfway between two doubles, as 54-bit odd integers are."""
    rng = random.Random(0)
    for _ in range(4_000):
        yield f"{rng.getrandbits(rng.randrange(1, 64))}e{rng.randrange(-345, 290)}"
        yield f"{rng.getrandbits(rng.randrange(1, 64))}e{rng.randrange(-30, 30)}"
        tie = (1 << 53 | rng.getrandbits(53) | 1) << rng.randrange(6)
        yield f"{tie}"
        yield f"{tie * 5}e-1"


def test_rounding_is_pythons():
    numbers = list(decimals())
    rows = read("\n".join(f"{number} 1:{number}" for number in numbers).encode())
    expected = np.array([float(number) for number in numbers]).tobytes()
    assert rows.labels.tobytes() == rows.A.data.tobytes() == expected


@pytest.mark.parametrize("name", ["a1a", "a5a", "w8a"])
def test_real_files(shared, name):
    text = gzip.decompress((shared / "libsvm" / f"{name}.gz").read_bytes())
    rows, (labels, lengths, indices, values) = read(text), readable(text)
    assert rows.labels.tolist() == labels
    assert rows.A.indices.tolist() == indices
    assert rows.A.data.tolist() == values
    assert np.diff(rows.A.indptr).tolist() == lengths


# --- what is refused -------------------------------------------------------------------------------

BAD = {
    b"1 1:1\nx 1:1": "line 2: found 'x', expected a number as the label",
    b"1,2 1:1": "line 1: found '1,2', expected a number as the label (several labels",
    b"nan 1:1": "line 1: the label is 'nan'; NaN and infinity are refused",
    b"-inf 1:1": "line 1: the label is '-inf'; NaN and infinity are refused",
    b"1_0 1:1": "line 1: found '1_0', expected a number as the label",
    b"0x1 1:1": "line 1: found '0x1', expected a number as the label",
    b"1:1": "line 1: found '1:1', expected a number as the label",
    b"1 1": "line 1: found '1', expected index:value",
    b"1 :1": "line 1: found ':1', expected index:value",
    b"1 -3:1": "line 1: found '-3:1', expected index:value",
    b"1 +3:1": "line 1: found '+3:1', expected index:value",
    b"1 1_0:1": "line 1: found '1_0:1', expected index:value",
    b"1 1.5:1": "line 1: found '1.5:1', expected index:value",
    b"1 qid:3 1:1": "line 1: found 'qid:3'; ranking data (qid:) is not supported",
    b"1 1:1\n\n\n1 2:": "line 4: found '2:', expected index:value",
    b"1 2: 5": "line 1: found '2:', expected index:value",
    b"1 2:1:1": "line 1: found '2:1:1', expected index:value",
    b"1 2:NaN": "line 1: found '2:NaN'; NaN and infinity are refused",
    b"1 2:+Infinity": "line 1: found '2:+Infinity'; NaN and infinity are refused",
    b"1 2:1_0": "line 1: found '2:1_0', expected index:value",
    b"1 2:1e": "line 1: found '2:1e', expected index:value",
    b"1 2:1e+": "line 1: found '2:1e+', expected index:value",
    b"1 2:.": "line 1: found '2:.', expected index:value",
    b"1 2:1.2.3": "line 1: found '2:1.2.3', expected index:value",
    b"1 2:\xff\xfe": r"\\xff\\xfe', expected index:value",
    b"1 0:1": "line 1: found '0:1', but indices start at 1; zero_based=True",
    b"1 2147483648:1": "line 1: found '2147483648:1', but an index is at most 2147483647",
    b"1 99999999999999999999999999999:1": "but an index is at most 2147483647",
    b"1 3:1 3:1": "line 1: found '3:1', but this index already stands in the line",
    b"1 3:1 2:1": "line 1: found '2:1' after a larger index; indices of a line must ascend",
    b"1 3:" + b"1" * 5000: "a number too large for double precision",
    b"1 3:1e309": "line 1: found '3:1e309', a number too large for double precision",
    b"1 1:1\n-1e99999999999999999999 1:1": "line 2: found '-1e99999999999999999999', a number too large",
    b"1 1:1\n1 3:1e309\nx": "line 2: found '3:1e309'",
    b"\0\0\0\0": "binary",
    b"<!DOCTYPE html>": "web page",
}


@pytest.mark.parametrize(("text", "words"), BAD.items())
def test_what_is_wrong_is_said_with_its_line(text, words):
    message = read(text)
    assert words in message
    assert message.isprintable()


def test_limits_that_are_still_right():
    rows = read(b"1 2147483647:" + b"1" * 300 + b"0e-300")
    assert rows.A.shape[1] == 2**31 - 1
    assert read(b"1 00000000000000000001:1").A.shape[1] == 1


def test_number_of_features():
    assert read(b"1 3:1", n_features=3).A.shape[1] == 3
    assert read(b"1 3:1", n_features=5).A.shape[1] == 5
    assert read(b"1 3:1\n1 4:1", n_features=3).startswith("line 2: found '4:1', but n_features=3")


def test_zero_based():
    assert read(b"1 0:5 2:1", zero_based=True).A.indices.tolist() == [0, 2]
    assert "n_features=2" in read(b"1 2:1", zero_based=True, n_features=2)
    assert "at most 2147483646" in read(b"1 2147483647:1", zero_based=True)


def test_the_line_of_a_row():
    text = b"# a comment\n1 1:1\n\n-1 2:1 # another\n  \n3"
    assert [libsvm.line_of(text, row) for row in range(3)] == [2, 4, 6]


# --- anything --------------------------------------------------------------------------------------

alphabet = b"0123456789:.+-eE# \t\r\nnaifqd,_x\0\xff\x0b"


@thorough
@given(st.binary(max_size=200))
@example(b"")
@example(b"\xef\xbb\xbf")
def test_any_bytes(text):
    read(text)


@thorough
@given(st.lists(st.sampled_from(list(alphabet)), max_size=60).map(bytes), st.booleans())
def test_bytes_that_resemble_the_format(text, zero_based):
    read(text, zero_based=zero_based)
    read(text, zero_based=zero_based, n_features=5)


@thorough
@given(valid.filter(len), st.data())
def test_valid_files_with_one_change(text, data):
    at = data.draw(st.integers(0, len(text) - 1))
    with_ = data.draw(st.sampled_from([b"", *(bytes([c]) for c in alphabet)]))
    read(text[:at] + with_ + text[at + 1 :])
