"""The file of a trace: what is damaged is refused by its line, what a kill cut short is dropped."""

import json

import numpy as np
import pytest

import mast
from mast.errors import DataError
from mast.trace import COLUMNS, TraceFile

PROBLEM = mast.Problem(mast.Quadratic([[2.0, 1.0], [1.0, 2.0]], [3.0, 3.0]), mast.PermK(2))
ROUND = {"loss": 0.5, "step": 1, "seconds": 0.25, "bytes": 80}


@pytest.fixture
def saved(tmp_path):
    """A run of 61 rows, saved in a folder."""
    return mast.minimize(PROBLEM, "dsgd", steps=60, trace=1).save(tmp_path / "run")


@pytest.fixture
def trace(tmp_path):
    trace = TraceFile(tmp_path / "trace.jsonl")
    for step in range(1, 6):
        trace.add(ROUND | {"step": step})
    return trace


def steps(trace):
    return [row["step"] for row in trace.rows()]


def lines_of(trace):
    return trace.path.read_bytes().splitlines(keepends=True)


WRONG = {
    "cut": lambda line: line[: len(line) // 2] + b"\n",
    "no JSON": lambda line: b"what is this\n",
    "empty": lambda line: b"\n",
    "zeros": lambda line: bytes(len(line)) + b"\n",
    "no text": lambda line: b"\xff" + line,
    "a list": lambda line: b"[1, 2]\n",
    "a number": lambda line: b"3\n",
    "two in one": lambda line: line.rstrip() + line,
    "without bytes": lambda line: line.replace(b"bytes", b"byt"),
    "without step": lambda line: line.replace(b"step", b"stp"),
    "without seconds": lambda line: line.replace(b"seconds", b"s"),
    "text for a number": lambda line: line.replace(b"0.5", b'"0.5"'),
    "a truth for a number": lambda line: line.replace(b"80", b"true"),
    "nothing for a number": lambda line: line.replace(b"80", b"null"),
    "a part for a whole number": lambda line: line.replace(b"80", b"80.5"),
    "a huge number": lambda line: line.replace(b"80", b"1" + b"0" * 30),
    "an infinite number": lambda line: line.replace(b"0.5", b"1e999"),
    "no number": lambda line: line.replace(b"0.5", b"NaN"),
    "a negative number": lambda line: line.replace(b"80", b"-80"),
    "a name twice": lambda line: line.replace(b'"loss"', b'"bytes"'),
    "nested": lambda line: line.replace(b"0.5", b"{}"),
    "nested deeply": lambda line: b"[" * 100_000 + b"\n",
    "an earlier step": lambda line: line.replace(b'"step": 3', b'"step": 2'),
}


@pytest.mark.parametrize("how", WRONG)
def test_a_damaged_line_is_refused_by_its_number(trace, how):
    lines = lines_of(trace)
    for at in (2, 4):
        changed = [*lines]
        changed[at] = WRONG[how](
            lines[2].replace(b'"step": 3', b'"step": %d' % (at + 1)) if at != 2 else lines[2]
        )
        if how == "an earlier step" and at == 4:
            changed[at] = lines[2]
        trace.path.write_bytes(b"".join(changed))
        before = trace.path.read_bytes()
        for read in (trace.rows, lambda: trace.truncate_after(9), lambda: trace.replace([])):
            with pytest.raises(DataError, match=rf"trace\.jsonl: line {at + 1} is not a row of a trace"):
                read()
        assert trace.path.read_bytes() == before


def test_wherever_a_kill_cuts_the_last_line_it_is_dropped(trace):
    content = b"".join(lines_of(trace))
    last = len(lines_of(trace)[-1])
    trace.path.write_bytes(content[:-1])  # whole, but for the end of the line
    assert steps(trace) == [1, 2, 3, 4, 5]
    trace.truncate_after(5)
    assert trace.path.read_bytes() == content
    for cut in range(2, last + 1):
        for tail in (b"", bytes(10)):  # some file systems leave zeros
            trace.path.write_bytes(content[:-cut] + tail)
            assert steps(trace) == [1, 2, 3, 4]
        trace.truncate_after(4)
        assert trace.path.read_bytes() == content[:-last]
    trace.path.write_bytes(content[:20])
    assert steps(trace) == []


def test_what_is_done_again_is_taken_out_first(trace, tmp_path):
    before = lines_of(trace)
    trace.truncate_after(3)
    assert lines_of(trace) == before[:3]
    trace.add(ROUND | {"step": 4}, durable=True)
    assert steps(trace) == [1, 2, 3, 4]
    trace.truncate_after(0)
    assert trace.path.read_bytes() == b""
    TraceFile(tmp_path / "none").truncate_after(3)
    assert [path.name for path in tmp_path.iterdir()] == ["trace.jsonl"]


FOREIGN = {
    "notes": b"what took a year",
    "lines": b"what\ntook\na year\n",
    "one object": b'{"mine": 1}',
    "objects": b'{"mine": 1}\n{"mine": 2}\n',
    "an open object": b'{"mine": [1, 2',
    "bytes": bytes(range(256)),
}


@pytest.mark.parametrize("content", FOREIGN.values(), ids=FOREIGN)
def test_a_file_of_the_users_is_not_overwritten(tmp_path, content):
    path = tmp_path / "trace.jsonl"
    path.write_bytes(content)
    result = mast.minimize(PROBLEM, "dsgd", steps=5)
    trace = TraceFile(path)
    for write in (lambda: result.save(tmp_path), lambda: trace.truncate_after(0), lambda: trace.replace([])):
        with pytest.raises(
            DataError, match=r"trace\.jsonl: line 1 is not a row of a trace .*; move the file away"
        ):
            write()
    assert path.read_bytes() == content
    assert [p.name for p in tmp_path.iterdir()] == ["trace.jsonl"]


def test_a_run_comes_back_as_it_was_saved(saved):
    again = mast.Result.load(saved)
    assert again.trace["step"].tolist() == list(range(61))
    assert list(again.trace.columns) == list(COLUMNS)
    again.save(saved)  # over itself
    assert mast.Result.load(saved).rows == again.rows


@pytest.mark.parametrize("column", COLUMNS)
def test_a_column_that_is_missing_is_named_by_its_line(saved, column):
    rows = [json.loads(line) for line in (saved / "trace.jsonl").read_text().splitlines()]
    del rows[7][column]
    (saved / "trace.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(DataError, match=r"does not hold a finished run: .*trace\.jsonl: line 8 is not"):
        mast.Result.load(saved)


def test_many_mutations_are_refused_or_change_a_number_only(saved):
    """No mutation makes a shorter trace, or one with other columns or steps."""
    path, random = saved / "trace.jsonl", np.random.default_rng(0)
    content, whole = path.read_bytes(), mast.Result.load(saved).trace
    refused = 0
    for trial in range(400):
        changed = bytearray(content)
        at, length = int(random.integers(len(content))), int(random.integers(1, 200))
        kind = trial % 5
        if kind == 0:
            changed[at] ^= 1 << int(random.integers(8))
        elif kind == 1:
            del changed[at : at + length]
        elif kind == 2:
            changed[at:at] = random.bytes(length)
        elif kind == 3:
            changed[at:at] = changed[max(0, at - length) : at]
        else:
            changed = changed[:at]
        path.write_bytes(changed)
        try:
            found = mast.Result.load(saved).trace
        except DataError:
            refused += 1
        else:
            assert found["step"].tolist() == whole["step"].tolist()
            assert list(found.columns) == list(whole.columns)
            assert (found.dtypes == whole.dtypes).all()
    assert refused > 300
