"""CSV files and what becomes of their columns."""

import gzip
from dataclasses import asdict

import numpy as np
import pytest
import scipy.sparse

from mast.errors import DataError
from mast.learn.columns import CategoryColumn, FeatureColumns, NumberColumn, learn_columns, sketch_of
from mast.learn.tables import read_table


@pytest.fixture
def table(tmp_path):
    def make(text, name="t.csv"):
        path = tmp_path / name
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return read_table(path)

    return make


class TestReading:
    def test_quotes_commas_and_line_numbers(self, table):
        t = table('a,"b, c"\n1,"x\ny"\n\n2,"z ""q"""\n')
        assert t.names == ["a", "b, c"]
        assert t.cells.values.tolist() == [["1", "x\ny"], ["2", 'z "q"']]
        assert t.cells.index.tolist() == [3, 5]

    @pytest.mark.parametrize("delimiter", [",", ";", "\t"])
    def test_delimiters(self, table, delimiter):
        assert table(f"a{delimiter}b\n1{delimiter}2\n").cells.values.tolist() == [["1", "2"]]

    def test_packed_with_a_byte_order_mark_and_windows_lines(self, table):
        t = table(gzip.compress(b"\xef\xbb\xbfa,b\r\n1,2\r\n"))
        assert (t.names, t.cells.values.tolist()) == (["a", "b"], [["1", "2"]])

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("", "empty"),
            ("a,b\n", "no rows"),
            ("a,b\n1,2\n3\n", "line 3: found 1 values, expected 2"),
            ("a,b\n1,2,3\n", "line 2: found 3 values"),
            ("a,a\n1,2\n", "two columns are called 'a'"),
            ("a,\n1,2\n", "column 2 has no name"),
            ("1,2\n3,4\n", "names of the columns"),
            (b"a,b\n1,\xff\n", "line 2: this is not UTF-8"),
            ('a,b\n1,"x\n', "line 2"),
            (b"\x1f\x8b\x08", "gzip"),
        ],
    )
    def test_refuses_with_the_line(self, table, text, message):
        with pytest.raises(DataError, match=message):
            table(text)


class TestColumns:
    def test_numbers_are_standardised_and_missing_ones_are_nan(self, table):
        t = table("a,b\n1,x\n3,y\n,x\nNA,y\n")
        columns = learn_columns(t)
        X = columns.apply(t)
        assert columns.parts == [
            NumberColumn("a", 2.0, pytest.approx(np.sqrt(0.5))),
            CategoryColumn("b", ["x", "y"]),
        ]
        np.testing.assert_allclose(X[:, 0], [-np.sqrt(2), np.sqrt(2), np.nan, np.nan])
        np.testing.assert_array_equal(X[:, 1:], [[1, 0], [0, 1], [1, 0], [0, 1]])
        assert columns.owners.tolist() == [0, 1, 1]
        assert columns.feature_names == ["a", "b=x", "b=y"]
        again = FeatureColumns.from_json(asdict(columns))
        np.testing.assert_array_equal(again.apply(t), X)
        np.testing.assert_allclose(columns.missing_shares(X), [0, 0, 0.5, 0.5])

    def test_unknown_and_missing_categories_are_missing(self, table):
        columns = learn_columns(table("b,c\nx,1\ny,2\n"))
        other = table("c,b\n1,z\n1,\n1,y\n")
        X = columns.apply(other)
        np.testing.assert_array_equal(X[:, :2], [[np.nan, np.nan], [np.nan, np.nan], [0, 1]])
        np.testing.assert_allclose(columns.missing_shares(X), [0.5, 0.5, 0])

    def test_many_categories_make_a_sparse_matrix(self, table):
        columns = learn_columns(table("a,b\n" + "".join(f"c{i % 250},{i}\n" for i in range(600))))
        X = columns.apply(table("a,b\nc7,1\n,2\n"))
        assert scipy.sparse.issparse(X)
        np.testing.assert_allclose(columns.missing_shares(X), [0, 0.5])
        assert X.toarray()[0, :250].sum() == 1

    def test_constant_and_empty_columns_are_left_out_by_name(self, table):
        columns = learn_columns(table("a,b,c,d\n1,5,x,\n2,5,x,\n"))
        assert [p.name for p in columns.parts] == ["a"]
        assert columns.dropped == {"b": "constant", "c": "constant", "d": "empty"}
        with pytest.raises(DataError, match=r"no column is left.*'b' is constant"):
            learn_columns(table("a,b\n1,5\n2,5\n"), "a")

    @pytest.mark.parametrize(
        ("cells", "message"),
        [
            (["1"] * 11 + ["oops"], "line 13: column 'a' holds numbers, but here 'oops'"),
            (["1", "inf"], "line 3: column 'a' holds 'inf'"),
            (["1", "1e999"], "line 3: column 'a' holds '1e999'"),
            ([f"id{i}" for i in range(60)], "column 'a' has 60 different texts.*--drop 'a'"),
            (["3,5", "4,25", "3,5"], "column 'a' holds numbers with commas, such as '[34],2?5'"),
            (["1,200", "1,500.25", "700,000"], "holds numbers with commas"),
            (["1e200", "2", "-1e200"], "t.csv: the numbers of column 'a' are too large"),
        ],
    )
    def test_refuses_with_the_columns_name(self, table, cells, message):
        t = table("a;b\n" + "".join(f"{cell};{i}\n" for i, cell in enumerate(cells)))
        with pytest.raises(DataError, match=message):
            learn_columns(t)

    def test_another_table_may_lack_columns_and_have_others(self, table):
        columns = learn_columns(table("a,b,d\n1,2,3\n2,5,3\n"))
        other = table("a,c,d,y\n1,2,3,4\n")
        np.testing.assert_array_equal(columns.apply(other), [[-1, np.nan]])
        assert columns.compare(other, "y") == [
            "absent, so missing in every row: 'b'",
            "unknown to the model, so ignored: 'c'",
        ]
        with pytest.raises(DataError, match=r"t.csv: the table has none of the model's columns"):
            columns.compare(table("c\n2\n"), None)
        with pytest.raises(DataError, match="'a' held numbers in training"):
            columns.apply(table("a,b\nx,1\ny,2\n"))


def test_many_columns_with_a_gap_take_no_patience(table):
    """Twenty thousand columns, looked at one by one: no step may look through all of them for each."""
    header = ",".join(f"c{j}" for j in range(20_000))
    t = table(header + "\n" + ",".join(["1"] * 19_999) + ",\n" + ",".join(["2"] * 20_000) + "\n")
    columns = learn_columns(t, "c0")
    assert len(columns.parts) == 19_998
    assert columns.dropped == {"c19999": "constant"}
    assert columns.apply(t).shape == (2, 19_998)


def test_categories_are_groups():
    assert sketch_of("permk:2", np.array([0, 1, 1])).labels.tolist() == [0, 1, 1]
    assert repr(sketch_of("permk:2", np.arange(3))).startswith("<PermK(2")
