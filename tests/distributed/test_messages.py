"""The wire format: pinned bytes, and what is refused."""

import struct

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mast.distributed import SIZE, Header, Message, MessageKind
from mast.errors import ArgumentError, DataError
from mast.randomness import Key

RUN = 0xABCDEF0123456789
KEY = Key(2**63 + 5, 2**40 + 1, 77, 3)
HEADER = Header(MessageKind.ANSWER, 9, KEY, 2, np.dtype("<f4"), RUN, 4, seconds=0.125)


def test_the_layout_is_pinned():
    numbers = struct.pack("<3Q4IdQ", RUN, KEY.seed, KEY.step, KEY.node, KEY.index, 9, 4, 0.125, 2)
    # the version, an answer, float32; then the run, the key, the node, local steps, seconds, the count
    expected = b"MAST\x01\x00\x02\x01" + numbers
    assert HEADER.encode() == expected
    raw = Message.of(HEADER, [1.5, -2.0]).buffer.tobytes()
    assert raw == expected + np.array([1.5, -2.0], "<f4").tobytes()


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])  # machines may be busy
@given(
    seed=st.integers(0, 2**64 - 1),
    step=st.integers(0, 2**48 - 1),
    node=st.integers(0, 2**32 - 1),
    number=st.integers(0, 2**32 - 1),
    size=st.floats(allow_nan=False),
    wide=st.booleans(),
    kind=st.sampled_from(MessageKind),
)
def test_headers_come_back(seed, step, node, number, size, wide, kind):
    dtype = np.dtype("<f8" if wide else "<f4")
    seconds = size if kind is MessageKind.VALUES else 0.0
    header = Header(kind, number, Key(seed, step, node, node), 3, dtype, seed, 2, seconds)
    assert Header.decode(header.encode()) == header
    message = Message.decode(Message.of(header, [1, 2, 3]).buffer.tobytes())
    assert message.header == header
    assert message.values.tolist() == [1, 2, 3]
    assert message.values.dtype == dtype


def test_values_are_a_view_of_the_buffer():
    message = Message(Header(MessageKind.VALUES, 0, Key(0), 4))
    message.values[...] = [1, 2, 3, 4]
    assert np.shares_memory(message.values, message.buffer)
    assert message.buffer.flags.c_contiguous
    assert message.size == SIZE + 32


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda raw: raw[:40], "64 bytes"),
        (lambda raw: raw[:-1], "cut"),
        (lambda raw: raw + b"\0", "cut"),
        (lambda raw: b"PKPK" + raw[4:], "not a message"),
        (lambda raw: raw[:4] + b"\x02\x00" + raw[6:], "version 2"),
        (lambda raw: raw[:6] + b"\x07" + raw[7:], "kind 7"),
        (lambda raw: raw[:7] + b"\x09" + raw[8:], "dtype code 9"),
    ],
)
def test_damaged_messages_are_refused(change, said):
    raw = Message.of(HEADER, [1.5, -2.0]).buffer.tobytes()
    with pytest.raises(DataError, match=said):
        Message.decode(change(raw))


def test_arguments():
    with pytest.raises(ArgumentError, match="float32 or float64"):
        Header(MessageKind.VALUES, 0, Key(0), 1, np.dtype("float16")).encode()
    with pytest.raises(ArgumentError, match="holds 2 values"):
        Message.of(HEADER, [1.0])
    with pytest.raises(ArgumentError, match="contiguous buffer of 72 bytes"):
        Message(HEADER, np.empty(144, dtype=np.uint8)[::2])


@pytest.mark.parametrize(("field", "value"), [("node", 8), ("run", 1), ("count", 1), ("local_steps", 5)])
def test_a_message_that_is_not_the_expected_one_says_what_differs(field, value):
    from dataclasses import replace

    message = Message.of(HEADER, [1.0, 2.0])
    assert message.expect(HEADER) is message
    with pytest.raises(DataError, match="another run" if field == "run" else field):
        message.expect(replace(HEADER, **{field: value}))
