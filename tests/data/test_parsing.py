"""The compiled parser says what the readable one says: the same bits, or the same first fault."""

import gzip
import random
import struct

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from mast.data import faults, libsvm, reference
from mast.data.faults import Fault

quick = settings(
    max_examples=300,
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


def compare(text, **options):
    """Parse with both and return what the compiled one says."""
    fast, slow = libsvm.parse(text, **options), reference.parse(text, **options)
    if isinstance(slow, Fault):
        assert fast == slow
        assert faults.describe(fast, text, options.get("n_features")).startswith(f"line {slow.line}: ")
        return fast
    assert not isinstance(fast, Fault), faults.describe(fast, text, options.get("n_features"))
    pairs = [pair for row in slow.pairs for pair in row]
    assert fast.labels.tobytes() == np.array(slow.labels, dtype=float).tobytes()
    assert fast.data.tobytes() == np.array([value for _, value in pairs], dtype=float).tobytes()
    assert fast.indices.tolist() == [column for column, _ in pairs]
    assert np.diff(fast.indptr).tolist() == [len(row) for row in slow.pairs]
    assert fast.lines.tolist() == slow.lines
    assert fast.width == max((column + 1 for column, _ in pairs), default=0)
    return fast


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


@quick
@given(valid)
def test_valid_files_are_read_to_the_same_bits(text):
    assert not isinstance(compare(text), Fault)


@quick
@given(st.lists(st.integers(0, 2**64 - 1), min_size=1, max_size=20))
def test_every_double_comes_back(patterns):
    numbers = [struct.unpack("<d", struct.pack("<Q", pattern))[0] for pattern in patterns]
    numbers = [x for x in numbers if np.isfinite(x)]
    rows = compare("\n".join(f"{x!r} 1:{x!r}" for x in numbers).encode())
    assert rows.labels.tobytes() == np.array(numbers, dtype=float).tobytes()


def decimals():
    """Numbers of all sizes, and exact ties: halfway between two doubles, as 54-bit odd integers are."""
    rng = random.Random(0)
    for _ in range(20_000):
        yield f"{rng.getrandbits(rng.randrange(1, 64))}e{rng.randrange(-345, 290)}"
        yield f"{rng.getrandbits(rng.randrange(1, 64))}e{rng.randrange(-30, 30)}"
        tie = (1 << 53 | rng.getrandbits(53) | 1) << rng.randrange(6)
        yield f"{tie}"
        yield f"{tie * 5}e-1"
        small = (
            2 * rng.getrandbits(20) + 1
        )  # odd: small * 2^-k has its last digit 5, k digits behind the point
        k = rng.randrange(1, 20)
        yield f"{(1 << 53) + small}.5" if k == 1 else f"{small * 5**k}e-{k}"


def test_rounding_is_pythons():
    tokens = list(decimals())
    rows = libsvm.parse("\n".join(tokens).encode())
    assert rows.labels.tobytes() == np.array([float(token) for token in tokens]).tobytes()


@pytest.mark.parametrize("name", ["a1a", "a5a", "w8a"])
def test_real_files(shared, name):
    rows = compare(gzip.decompress((shared / "libsvm" / f"{name}.gz").read_bytes()))
    assert rows.indices.dtype == rows.indptr.dtype == np.int32


# --- faults ----------------------------------------------------------------------------------------

BAD = {
    b"1 1:1\nx 1:1": (faults.BAD_LABEL, 2, "'x'"),
    b"1,2 1:1": (faults.BAD_LABEL, 1, "several labels"),
    b"nan 1:1": (faults.BAD_LABEL, 1, "NaN and infinity are refused"),
    b"-inf 1:1": (faults.BAD_LABEL, 1, "NaN and infinity are refused"),
    b"1_0 1:1": (faults.BAD_LABEL, 1, "'1_0'"),
    b"0x1 1:1": (faults.BAD_LABEL, 1, "'0x1'"),
    b"1:1": (faults.BAD_LABEL, 1, "'1:1'"),
    b"1 1": (faults.BAD_FEATURE, 1, "'1'"),
    b"1 :1": (faults.BAD_FEATURE, 1, "':1'"),
    b"1 -3:1": (faults.BAD_FEATURE, 1, "'-3:1'"),
    b"1 1.5:1": (faults.BAD_FEATURE, 1, "'1.5:1'"),
    b"1 qid:3 1:1": (faults.BAD_FEATURE, 1, "qid:"),
    b"1 1:1\n\n\n1 2:": (faults.BAD_VALUE, 4, "'2:'"),
    b"1 2: 5": (faults.BAD_VALUE, 1, "'2:'"),
    b"1 2:1:1": (faults.BAD_VALUE, 1, "'2:1:1'"),
    b"1 2:NaN": (faults.BAD_VALUE, 1, "NaN and infinity are refused"),
    b"1 2:+Infinity": (faults.BAD_VALUE, 1, "NaN and infinity are refused"),
    b"1 2:1e": (faults.BAD_VALUE, 1, "'2:1e'"),
    b"1 2:1e+": (faults.BAD_VALUE, 1, "'2:1e+'"),
    b"1 2:.": (faults.BAD_VALUE, 1, "'2:.'"),
    b"1 2:1.2.3": (faults.BAD_VALUE, 1, "'2:1.2.3'"),
    b"1 2:\xff\xfe": (faults.BAD_VALUE, 1, r"xff"),
    b"1 0:1": (faults.INDEX_ZERO, 1, "zero_based=True"),
    b"1 2147483648:1": (faults.INDEX_TOO_LARGE, 1, "at most 2147483647"),
    b"1 99999999999999999999999999999:1": (faults.INDEX_TOO_LARGE, 1, "at most 2147483647"),
    b"1 000000000000000000001:1": (faults.INDEX_TOO_LARGE, 1, "at most 2147483647"),
    b"1 3:1 3:1": (faults.DUPLICATE, 1, "already"),
    b"1 3:1 2:1": (faults.NOT_ASCENDING, 1, "ascend"),
    b"1 3:" + b"1" * 1001: (faults.TOO_LONG, 1, "1000 characters"),
    b"0." + b"0" * 999 + b" 3:1": (faults.TOO_LONG, 1, "1000 characters"),
    b"1 3:1e309": (faults.OVERFLOW, 1, "'3:1e309'"),
    b"1 1:1\n-1e99999999999999999999 1:1": (faults.OVERFLOW, 2, "double precision"),
    b"1 1:1\n1 3:1e309\nx": (faults.OVERFLOW, 2, "'3:1e309'"),
    b"\0\0\0\0": (faults.BAD_LABEL, 1, "binary"),
    b"<!DOCTYPE html>": (faults.BAD_LABEL, 1, "web page"),
}


@pytest.mark.parametrize(("text", "expected"), BAD.items())
def test_faults_are_named_with_their_line(text, expected):
    code, line, words = expected
    fault = compare(text)
    assert (fault.code, fault.line) == (code, line)
    said = faults.describe(fault, text)
    assert words in said
    assert said.isprintable()


def test_limits_that_are_still_right():
    rows = compare(b"1 2147483647:" + b"1" * 300 + b"0e-300")
    assert rows.width == 2**31 - 1
    assert compare(b"1 00000000000000000001:1").width == 1


def test_number_of_features():
    assert compare(b"1 3:1", n_features=3).width == 3
    fault = compare(b"1 3:1\n1 4:1", n_features=3)
    assert (fault.code, fault.line) == (faults.INDEX_BEYOND, 2)
    assert "n_features=3" in faults.describe(fault, b"1 3:1\n1 4:1", 3)


def test_zero_based():
    assert compare(b"1 0:5 2:1", zero_based=True).indices.tolist() == [0, 2]
    assert compare(b"1 2:1", zero_based=True, n_features=2).code == faults.INDEX_BEYOND
    assert compare(b"1 2147483647:1", zero_based=True).code == faults.INDEX_BEYOND


# --- anything --------------------------------------------------------------------------------------

alphabet = b"0123456789:.+-eE# \t\r\nnaifqd,_x\0\xff"


@quick
@given(st.binary(max_size=200))
@example(b"")
@example(b"\xef\xbb\xbf")
def test_any_bytes(text):
    compare(text)


@quick
@given(st.lists(st.sampled_from(list(alphabet)), max_size=60).map(bytes), st.booleans())
def test_bytes_that_resemble_the_format(text, zero_based):
    compare(text, zero_based=zero_based)
    compare(text, zero_based=zero_based, n_features=5)


@quick
@given(valid.filter(len), st.data())
def test_valid_files_with_one_change(text, data):
    at = data.draw(st.integers(0, len(text) - 1))
    with_ = data.draw(st.sampled_from([b"", *(bytes([c]) for c in alphabet)]))
    compare(text[:at] + with_ + text[at + 1 :])
