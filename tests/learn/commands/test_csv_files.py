"""CSV files as data frames: what pandas reads, and what is refused by its line."""

import gzip

import numpy as np
import pytest

from mast.errors import DataError
from mast.learn.columns import as_numbers, kind_of
from mast.learn.commands.csv_files import convert_numbers, read_table


@pytest.fixture
def table(tmp_path):
    def make(text, texts=()):
        path = tmp_path / "t.csv"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return read_table(path, texts)

    return make


def test_quotes_commas_and_empty_lines(table):
    t = table('a,"b, c"\n1,"x\ny"\n\n2,"z ""q"""\n')
    assert list(t) == ["a", "b, c"]
    assert t.values.tolist() == [[1, "x\ny"], [2, 'z "q"']]
    assert t.index.name == "row"  # a cell has two lines


@pytest.mark.parametrize("delimiter", [",", ";", "\t"])
def test_delimiters(table, delimiter):
    assert table(f"a{delimiter}b\n1{delimiter}2\n").values.tolist() == [[1, 2]]


@pytest.mark.parametrize("end", ["", "\n"])
def test_lines_are_known(table, end):
    t = table(f"a,b\n1,2\n3,4{end}")
    assert (t.index.name, t.index.tolist()) == ("line", [2, 3])


def test_packed_with_a_byte_order_mark_and_windows_lines(table):
    t = table(gzip.compress(b"\xef\xbb\xbfa,b\r\n1,2\r\n"))
    assert (list(t), t.values.tolist()) == (["a", "b"], [[1, 2]])


def test_what_is_missing_and_what_has_spaces(table):
    t = table("a,b,c\n ?,x ,\n-, y,NA\n3,None,na\n")
    assert t.isna().to_numpy().tolist() == [[True, False, True], [True, False, True], [False, True, True]]
    assert t["b"].tolist()[:2] == ["x", "y"]


def test_columns_that_are_asked_for_as_texts(table):
    assert table("a,b\n007,007\n", ["a", "other"]).values.tolist() == [["007", 7]]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "empty"),
        ("a,b\n", "no rows"),
        ("a,b\n1,2\n3\n", "line 3: found 1 values, expected 2"),
        ("a,b\n1,2,3\n", "line 2: found 3 values"),
        ("a,b\n1,2\n3,4\n1,2,3\n", "line 4: found 3 values"),
        ('a,b\n"1,2",\n3\n', "line 3: found 1 values"),
        ("a,b\n1,\n2,\n3\n", "line 4: found 1 values"),
        ("a,a\n1,2\n", "two columns are called 'a'"),
        ("a,\n1,2\n", "column 2 has no name"),
        ("1,2\n3,4\n", "names of the columns"),
        (b"a,b\n1,\xff\n", "line 2: this is not UTF-8"),
        ('a,b\n1,"x\n', "line 2"),
        (b"\x1f\x8b\x08", "gzip"),
    ],
)
def test_refuses_with_the_line(table, text, message):
    with pytest.raises(DataError, match=message):
        table(text)


def test_blanks_in_the_last_column_are_no_short_rows(table):
    assert table("a,b\n1,\n2,3\n")["b"].isna().tolist() == [True, False]
    assert table('a,b\n"1,5",\n2,3\n')["b"].isna().tolist() == [True, False]


@pytest.mark.parametrize(
    ("cells", "message"),
    [
        (["1"] * 11 + ["oops"], "t.csv, line 13: column 'a' holds numbers, but here 'oops'"),
        (["3,5", "4,25", "3,5"], "column 'a' holds numbers with commas, such as '3,5'"),
        (["1,200", "1,500.25", "700,000"], "holds numbers with commas"),
    ],
)
def test_mistakes_in_numbers_are_refused(table, cells, message):
    t = table("a;b\n" + "".join(f"{cell};{i}\n" for i, cell in enumerate(cells)))
    with pytest.raises(DataError, match=message):
        convert_numbers(t, "t.csv")


def test_numbers_that_are_too_long_for_integers_are_numbers(table):
    t = convert_numbers(table(f"a,b\n{10**30},x\n5,y\n"), "t.csv")
    assert kind_of(t["a"]) == "number"
    np.testing.assert_array_equal(as_numbers(t["a"]), [1e30, 5.0])
