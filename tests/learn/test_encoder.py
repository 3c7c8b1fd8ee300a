"""TableEncoder: every type of column as numbers, what is missing stays missing, and nothing silently lost."""

import datetime
import decimal
import warnings
from pathlib import Path

import numpy as np
import pandas
import pytest
import scipy.sparse
from sklearn.base import clone
from sklearn.compose import make_column_transformer
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

import mast
from mast.errors import ArgumentError, DataError
from mast.learn import ColumnsWarning
from mast.learn.validation import EncodedRows
from mast.support import files

TABLES = Path(__file__).parents[3] / "shared" / "data" / "tables"
NAN = np.nan


@parametrize_with_checks([mast.TableEncoder(), mast.TableEncoder(ids=None)])
def test_checks_of_scikit_learn(estimator, check):
    check(estimator)


def encoded(frame, **parameters):
    """The frame of features that an encoder of its own makes of a frame."""
    return mast.TableEncoder(**parameters).set_output(transform="pandas").fit_transform(frame)


def one(values, **parameters):
    """The features of a single column, beside one that is always used."""
    frame = pandas.DataFrame({"c": values})
    beside = np.arange(len(frame)) % 2 * 1.0
    return encoded(frame.assign(beside=beside), **parameters).drop(columns="beside")


class TestNumbers:
    def test_they_are_standardised_by_what_is_there(self):
        out = one([1.0, NAN, 3.0, 5.0])["c"]
        expected = (np.array([1, NAN, 3, 5]) - 3) / np.sqrt(8 / 3)
        np.testing.assert_allclose(out, expected, rtol=1e-15)

    @pytest.mark.parametrize(
        "values",
        [
            pandas.array([1, None, 3], dtype="Int64"),
            pandas.array([1, None, 3], dtype="Float64"),
            pandas.Series([1, None, 3], dtype=object),
            pandas.Series([1.0, pandas.NA, 3], dtype=object),
            pandas.Series([decimal.Decimal(1), None, decimal.Decimal(3)]),
            pandas.to_timedelta([1, None, 3], unit="D"),
            np.array([1, NAN, 3], dtype=np.float32),
        ],
    )
    def test_of_every_type(self, values):
        np.testing.assert_array_equal(one(values)["c"], [-1, NAN, 1])

    def test_infinity_and_texts_are_refused_by_row_and_column(self):
        frame = pandas.DataFrame({"c": [1.0, 2.0, 3.0]}, index=["x", "y", "z"])
        encoder = mast.TableEncoder().fit(frame)
        with pytest.raises(DataError, match="row y: column 'c' holds 'inf'"):
            encoder.transform(frame.replace(2.0, np.inf))
        with pytest.raises(DataError, match="row x: column 'c' held numbers in training, here 'many'"):
            encoder.transform(frame.astype(object).replace(1.0, "many"))
        with pytest.raises(DataError, match="here it holds dates"):
            encoder.transform(frame.assign(c=pandas.Timestamp("2020-01-01")))
        with pytest.raises(DataError, match="column 'c' are too large to be standardised"):
            mast.TableEncoder().fit(frame.assign(c=[1e308, -1e308, 1e308]))
        with pytest.raises(DataError, match="complex"):
            mast.TableEncoder().fit(frame * 1j)
        np.testing.assert_array_equal(encoder.transform(frame.astype(str)), encoder.transform(frame))


class TestCategories:
    @pytest.mark.parametrize(
        "values",
        [
            ["x", "y", None, "x"],
            pandas.array(["x", "y", None, "x"], dtype="string"),
            pandas.Categorical(["x", "y", None, "x"], categories=["z", "y", "x"]),
            np.array(["x", "y", NAN, "x"], dtype=object),
        ],
    )
    def test_a_missing_one_is_nan_in_all_its_columns(self, values):
        out = one(values)
        assert list(out) == ["c_x", "c_y"]
        np.testing.assert_array_equal(out, [[1, 0], [0, 1], [NAN, NAN], [1, 0]])

    @pytest.mark.parametrize("values", [[True, False, None], pandas.array([True, False, None], "boolean")])
    def test_booleans_are_categories_also_where_they_are_numbers_later(self, values):
        frame = pandas.DataFrame({"c": values})
        encoder = mast.TableEncoder().fit(frame)
        assert list(encoder.get_feature_names_out()) == ["c_False", "c_True"]
        expected = [[0, 1], [1, 0], [NAN, NAN]]
        for later in (values, [1.0, 0.0, NAN], ["TRUE", "false", None]):
            np.testing.assert_array_equal(encoder.transform(pandas.DataFrame({"c": later})), expected)

    def test_whole_numbers_as_categories_survive_a_blank(self):
        frame = pandas.DataFrame({"c": pandas.Categorical([1, 2, 1])})
        encoder = mast.TableEncoder().fit(frame)
        served = encoder.transform(pandas.DataFrame({"c": [2.0, NAN, 1.0]}))
        np.testing.assert_array_equal(served, [[0, 1], [NAN, NAN], [1, 0]])

    def test_empty_texts_and_question_marks_are_values_in_a_frame(self):
        assert list(one(["", "?", None, "x"])) == ["c_", "c_?", "c_x"]

    def test_mixed_cells_are_texts(self):
        assert list(one([1, "a", 2.5, datetime.date(2020, 1, 1)])) == ["c_1", "c_2.5", "c_2020-01-01", "c_a"]
        with pytest.raises(DataError, match="column 'c' holds lists"):
            one([[1], [2], [3]])

    def test_unseen_ones_are_missing_and_said(self):
        frame = pandas.DataFrame({"job": ["cook", "nurse"], "city": ["a", "b"]})
        encoder = mast.TableEncoder().fit(frame)
        other = pandas.DataFrame({"job": ["judge", "cook"], "city": ["c", "d"]})
        with pytest.warns(ColumnsWarning) as said:
            out = encoder.transform(other)
        assert [str(w.message) for w in said] == [
            "unseen in training, so missing: job 'judge'; city 'c', 'd'"
        ]
        assert said[0].filename == __file__
        np.testing.assert_array_equal(out, [[NAN] * 4, [1, 0, NAN, NAN]])

    def test_rare_ones_are_one_feature(self):
        often = [f"v{i}" for i in range(9) for _ in range(10)]
        frame = pandas.DataFrame({"c": [*often, "p", "p", "q"]})
        encoder = mast.TableEncoder().fit(frame)
        assert list(encoder.get_feature_names_out()) == [*(f"c_v{i}" for i in range(9)), "c_(rare)"]
        with pytest.warns(ColumnsWarning, match="unseen"):
            out = encoder.transform(pandas.DataFrame({"c": ["q", "p", "new", "v0"]}))
        assert out[:2, 9].tolist() == [1, 1]
        assert np.isnan(out[2]).all()
        assert out[3, 0] == 1
        few = mast.TableEncoder().fit(frame[frame["c"] != "p"])  # ten values: they all stay
        assert "c_q" in few.get_feature_names_out()

    def test_a_column_has_at_most_a_hundred_features(self):
        frame = pandas.DataFrame({"c": [f"v{i % 130:03}" for i in range(130 * 6)] + ["v129"]})
        names = mast.TableEncoder().fit(frame).get_feature_names_out()
        assert len(names) == 100
        assert {"c_v000", "c_v097", "c_v129", "c_(rare)"} <= set(names)  # the more frequent, then by name

    def test_texts_that_are_all_rare_are_left_out(self):
        names = [f"name {i // 2}" for i in range(60)]
        with pytest.warns(ColumnsWarning, match="'c' is a text whose values are all rare"):
            assert one(names).shape == (60, 0)


class TestDates:
    DAYS = np.array([18262.0, 18263.0, NAN, 18266.0])  # of the year 2020, since 1970

    @pytest.mark.parametrize(
        "values",
        [
            pandas.to_datetime(["2020-01-01", "2020-01-02", None, "2020-01-05"]),
            pandas.to_datetime(["2020-01-01", "2020-01-02", None, "2020-01-05"], utc=True),
            pandas.PeriodIndex(["2020-01-01", "2020-01-02", None, "2020-01-05"], freq="D"),
            [datetime.date(2020, 1, 1), datetime.date(2020, 1, 2), None, datetime.date(2020, 1, 5)],
            [
                datetime.datetime(2020, 1, 1),
                datetime.datetime(2020, 1, 2),
                None,
                datetime.datetime(2020, 1, 5),
            ],
            ["2020-01-01", "2020-01-02", None, "2020-01-05"],
            ["2020-01-01", "2020-01-02 00:00", None, "2020-01-05T00:00:00"],
            ["01/01/2020", "01/02/2020", None, "01/05/2020"],
            ["1.1.2020", "2.1.2020", None, "5.1.2020"],
            ["Jan 1, 2020", "Jan 2, 2020", None, "Jan 5, 2020"],
            pandas.array(["2020-01-01", "2020-01-02", None, "2020-01-05"], dtype="string"),
        ],
    )
    def test_are_one_number(self, values):
        there = self.DAYS[~np.isnan(self.DAYS)]
        out = one(values)
        assert list(out) == ["c"]
        np.testing.assert_allclose(out["c"], (self.DAYS - there.mean()) / there.std(), rtol=1e-9)

    def test_days_first_where_it_cannot_be_otherwise(self):
        out = one(["01/02/2020", "13/02/2020", "25/02/2020"])["c"]
        np.testing.assert_allclose(np.diff(out), [out[1] - out[0]] * 2, rtol=1e-9)

    @pytest.mark.parametrize(
        "values", [["2020", "2021"], ["10:30", "11:30"], ["3.5", "4.5"], ["A1-20", "A2-20"]]
    )
    def test_other_texts_are_categories(self, values):
        assert one(values * 3).shape[1] == 2

    def test_texts_that_are_no_dates_later_are_missing_and_said(self):
        frame = pandas.DataFrame({"c": ["2020-01-01", "2020-01-03"]})
        encoder = mast.TableEncoder().fit(frame)
        with pytest.warns(ColumnsWarning, match="so missing: c 'soon'"):
            out = encoder.transform(pandas.DataFrame({"c": ["soon", "2020-01-02"]}))
        np.testing.assert_array_equal(out, [[NAN], [0]])
        dates = pandas.DataFrame({"c": pandas.to_datetime(["2020-01-03", None])})
        np.testing.assert_array_equal(encoder.transform(dates), [[1], [NAN]])
        with pytest.raises(DataError, match="held dates in training"):
            encoder.transform(pandas.DataFrame({"c": [1.0, 2.0]}))

    def test_a_column_of_three_hundred_dates_is_one_feature(self):
        days = pandas.date_range("2020-01-01", periods=300).strftime("%Y-%m-%d")
        assert one(days).shape == (300, 1)


class TestIdentifiers:
    FRAME = pandas.DataFrame(
        {
            "code": [f"x{i}" for i in range(30)],
            "row": np.arange(30)[::-1] + 7,
            "customer_id": np.arange(30) ** 2,
            "PassengerId": np.arange(30) ** 2,
            "square": np.arange(30) ** 2,
            "idle": np.arange(30) ** 2,
            "real": np.arange(30.0),
            "twice": np.arange(30) // 2,
        }
    )

    def test_are_left_out_and_named(self):
        with pytest.warns(
            ColumnsWarning, match="'code' is an identifier, whose texts are all different; 'row'"
        ):
            encoder = mast.TableEncoder().fit(self.FRAME)
        assert set(encoder.dropped_) == {"code", "row", "customer_id", "PassengerId"}
        assert list(encoder.get_feature_names_out()) == ["square", "idle", "real", "twice"]

    def test_absent_ones_are_not_missed(self):
        with pytest.warns(ColumnsWarning):
            encoder = mast.TableEncoder().fit(self.FRAME)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            encoder.transform(self.FRAME[["twice", "real", "idle", "square"]])

    def test_not_in_short_tables_and_not_in_arrays(self):
        assert mast.TableEncoder().fit(self.FRAME[:19].drop(columns="code")).dropped_ == {}
        assert mast.TableEncoder().fit(np.arange(40).reshape(20, 2)).dropped_ == {}

    def test_the_parameter_overrides(self):
        for ids in (None, ()):
            with pytest.warns(ColumnsWarning, match="'code' is a text whose values are all rare"):
                assert set(mast.TableEncoder(ids).fit(self.FRAME).dropped_) == {"code"}
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            encoder = mast.TableEncoder(["code", "real"]).fit(self.FRAME)
        assert encoder.dropped_ == {"code": "named by ids", "real": "named by ids"}
        with pytest.raises(ArgumentError, match="not there: 'nobody'"):
            mast.TableEncoder(["nobody"]).fit(self.FRAME)
        with pytest.raises(ArgumentError, match="ids must be"):
            mast.TableEncoder("code").fit(self.FRAME)


class TestFrames:
    def test_empty_and_constant_columns_are_left_out_by_name(self):
        frame = pandas.DataFrame(
            {"a": [1, 2], "b": [None, None], "c": ["x", None], "d": [3.0, 3.0], "e": [NAN, NAN]}
        )
        with pytest.warns(ColumnsWarning, match="left out: 'b' is empty; 'e' is empty"):
            encoder = mast.TableEncoder().fit(frame)
        assert encoder.dropped_ == {"b": "empty", "c": "constant", "d": "constant", "e": "empty"}
        with pytest.raises(DataError, match=r"no column is left to learn from \('d' is constant\)"):
            mast.TableEncoder().fit(frame[["d"]])

    def test_columns_are_found_by_name_and_absent_ones_are_missing(self):
        frame = pandas.DataFrame({"a": [1.0, 2.0, 4.0], "b": ["x", "y", "x"], "c": [1.0, 0.0, 2.0]})
        encoder = mast.TableEncoder().fit(frame)
        np.testing.assert_array_equal(encoder.transform(frame[["c", "b", "a"]]), encoder.transform(frame))
        with pytest.warns(ColumnsWarning) as said:
            out = encoder.transform(frame[["c"]].assign(other=1))
        assert [str(w.message) for w in said] == [
            "absent, so missing in every row: 'a', 'b'",
            "unknown to the model, so ignored: 'other'",
        ]
        assert np.isnan(out).tolist() == [[True, True, True, False]] * 3
        with pytest.raises(DataError, match="none of the model's columns"):
            encoder.transform(frame[["c"]].rename(columns={"c": "z"}))

    def test_two_columns_of_one_name_are_refused(self):
        frame = pandas.DataFrame([[1, 2], [3, 4]], columns=["a", "a"])
        with pytest.raises(DataError, match="two columns are called 'a'"):
            mast.TableEncoder().fit(frame)

    def test_names_that_meet_stay_apart(self):
        frame = pandas.DataFrame({"a": ["b_c", "d"], "a_b": ["c", "e"]})
        assert list(encoded(frame)) == ["a_b_c", "a_d", "a_b_c_2", "a_b_e"]

    def test_columns_without_names_and_lists(self):
        frame = pandas.DataFrame([[1.0, "x"], [3.0, "y"]])
        assert list(mast.TableEncoder().fit(frame).get_feature_names_out()) == ["x0", "x1_x", "x1_y"]
        out = mast.TableEncoder().fit_transform([[1.0, "x"], [3.0, "y"]])
        np.testing.assert_array_equal(out, [[-1, 1, 0], [1, 0, 1]])

    def test_wide_tables_are_sparse_and_frames_stay_dense(self):
        codes = np.arange(60 * 12)
        frame = pandas.DataFrame({f"c{j}": [f"v{i % 60}" for i in codes] for j in range(20)})
        frame.iloc[3, 2] = None
        frame["number"] = codes * 0.5
        encoder = mast.TableEncoder().fit(frame)
        out = encoder.transform(frame)
        assert scipy.sparse.issparse(out)
        assert out.shape == (720, len(encoder.groups_))
        assert np.isnan(out.toarray()[3]).sum() == 60
        dense = encoder.set_output(transform="pandas").transform(frame)
        np.testing.assert_array_equal(dense, out.toarray())
        np.testing.assert_allclose(encoder.missing_shares(out)[:4], [0, 0, 0, 1 / 21])
        numbers = pandas.DataFrame(
            np.arange(4400.0).reshape(2, 2200) ** 2, columns=[f"n{j}" for j in range(2200)]
        )
        assert isinstance(mast.TableEncoder().fit_transform(numbers), EncodedRows)

    def test_the_same_frame_gives_the_same_features_in_any_order_of_rows(self):
        generator = np.random.default_rng(0)
        frame = pandas.DataFrame(
            {"a": generator.integers(0, 50, 500).astype(str), "b": generator.random(500)}
        )
        order = generator.permutation(500)
        out = encoded(frame)
        np.testing.assert_allclose(encoded(frame.iloc[order]), out.iloc[order], rtol=1e-12)
        assert list(out) == list(encoded(frame.iloc[order]))

    def test_twenty_thousand_columns_take_no_patience(self):
        frame = pandas.DataFrame(
            np.arange(40_000.0).reshape(2, 20_000), columns=[f"c{j}" for j in range(20_000)]
        )
        assert mast.TableEncoder().fit_transform(frame).shape == (2, 20_000)

    def test_polars(self):
        polars = pytest.importorskip("polars", reason="polars is not installed")
        content = {
            "age": [1, None, 3],
            "job": ["cook", None, "nurse"],
            "day": [datetime.date(2020, 1, 1), None, datetime.date(2020, 1, 3)],
            "ok": [True, None, False],
        }
        ours = pandas.DataFrame(content)
        theirs = polars.DataFrame(content).with_columns(polars.col("job").cast(polars.Categorical))
        encoder = mast.TableEncoder().fit(theirs)
        expected = mast.TableEncoder().fit_transform(ours)
        np.testing.assert_array_equal(encoder.transform(theirs), expected)
        np.testing.assert_array_equal(encoder.transform(theirs.select("ok", "day", "age", "job")), expected)
        np.testing.assert_array_equal(encoder.transform(ours), expected)
        out = encoder.set_output(transform="polars").transform(theirs)
        assert out.columns == ["age", "job_cook", "job_nurse", "day", "ok_False", "ok_True"]
        y = ["a", "b", "a"]
        model = mast.MastClassifier(random_state=0).fit(theirs, y)
        np.testing.assert_array_equal(model.predict_proba(theirs), model.predict_proba(ours))

    def test_polars_types_without_one_of_numpy(self):
        polars = pytest.importorskip("polars", reason="polars is not installed")
        large = polars.DataFrame({"size": polars.Series([2**100, None, 2**101], dtype=polars.Int128)})
        np.testing.assert_allclose(mast.TableEncoder().fit_transform(large)[:, 0], [-1.0, np.nan, 1.0])
        for cells in ([{"a": 1}, {"a": 2}], polars.Series([[1, 2], [3, 4]], dtype=polars.Array(int, 2))):
            with pytest.raises(DataError, match="column 'odd' holds lists or the like"):
                mast.TableEncoder().fit(polars.DataFrame({"odd": cells}))


# ---- what follows ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def people():
    """A frame with every type of column, and a class that depends on it."""
    generator, n = np.random.default_rng(0), 600
    frame = pandas.DataFrame(
        {
            "age": generator.normal(40, 10, n),
            "job": generator.choice(["cook", "nurse", "judge", "clerk"], n),
            "member": generator.random(n) < 0.5,
            "since": pandas.Timestamp("2020-01-01") + pandas.to_timedelta(generator.integers(0, 900, n), "D"),
            "plan": pandas.Categorical(generator.choice(["a", "b"], n)),
        }
    )
    days = (frame["since"] - frame["since"].mean()).dt.days / 260
    margin = (frame["age"] - 40) / 10 + 2 * (frame["job"] == "cook") - 2 * frame["member"] + days
    return frame, np.where(margin + generator.logistic(size=n) > 0.3, "yes", "no"), margin


def blanked(frame, share):
    return frame.mask(np.random.default_rng(1).random(frame.shape) < share)


class TestEstimators:
    def test_a_frame_with_texts_and_dates_is_encoded_by_itself(self, people):
        frame, y, margin = people
        model = mast.MastClassifier(random_state=0).fit(frame[:400], y[:400])
        assert isinstance(model.sketch_, mast.Grouped)
        assert model.groups_.tolist() == [0, 1, 1, 1, 1, 2, 2, 3, 4, 4]
        assert model.missing_ == "conditional"
        assert model.n_features_in_ == 5
        assert list(model.feature_names_in_) == list(frame)
        assert model.score(frame[400:], y[400:]) > 0.75
        largest = max(np.mean(y[400:] == label) for label in ("yes", "no"))
        assert model.score(blanked(frame[400:], 0.5), y[400:]) > largest
        regressor = mast.MastRegressor(random_state=0).fit(frame[:400], margin[:400])
        assert regressor.score(frame[400:], margin[400:]) > 0.9
        assert model.score_sparsified(frame[400:], y[400:], 0.5, 5).shape == (5,)

    @pytest.mark.parametrize(
        "model",
        [mast.MastClassifier(), mast.MastRegressor(), mast.MaskedTraining(LogisticRegression(max_iter=1000))],
    )
    def test_the_encoder_learns_nothing_from_rows_of_weight_0(self, people, model):
        frame, y, margin = people
        target = margin.to_numpy() if isinstance(model, mast.MastRegressor) else y
        weights = np.arange(600.0) % 2
        there = weights > 0
        with_outliers = frame.assign(age=frame["age"].where(there, 1e9), job=frame["job"].where(there, "spy"))
        with pytest.warns(ColumnsWarning, match="unseen in training, so missing: job 'spy'"):
            weighted = clone(model).fit(with_outliers, target, weights)
        alone = clone(model).fit(frame[there], target[there])
        assert np.array_equal(weighted.predict(frame), alone.predict(frame))

    def test_a_pipeline_with_the_encoder_is_the_same_model(self, people, tmp_path):
        frame, y, _ = people
        model = mast.MastClassifier(random_state=0).fit(frame, y)
        pipeline = make_pipeline(mast.TableEncoder(), mast.MastClassifier(random_state=0)).fit(frame, y)
        served = blanked(frame, 0.4)
        assert pipeline[-1].groups_.tolist() == model.groups_.tolist()
        assert np.array_equal(pipeline.predict_proba(served), model.predict_proba(served))
        clone(pipeline)
        mast.learn.save_pipeline(pipeline, tmp_path / "p")
        again = mast.learn.load_pipeline(tmp_path / "p")
        assert np.array_equal(again.predict_proba(served), pipeline.predict_proba(served))
        assert list(again.named_steps) == ["tableencoder", "mastclassifier"]
        with pytest.raises(DataError, match="'pipeline', not a linear model"):
            mast.MastClassifier.load(tmp_path / "p")
        usual = make_pipeline(mast.TableEncoder(), LogisticRegression())
        with pytest.raises(ArgumentError, match="a file takes a pipeline of a TableEncoder"):
            mast.learn.save_pipeline(usual, tmp_path / "q")

    def test_damaged_files_are_refused(self, people, tmp_path):
        frame, y, _ = people
        path = tmp_path / "m"
        mast.MastClassifier(random_state=0).fit(frame, y).save(path)
        content, arrays = files.load(path)
        for change in (
            {"columns": content["encoder"]["columns"][1:]},
            {"columns": [content["encoder"]["columns"][0]] * 5},
            {"names": ["a"]},
            {"dropped": None},
            {"columns": [{**column, "scale": 0.0} for column in content["encoder"]["columns"]]},
        ):
            files.save(path, content | {"encoder": content["encoder"] | change}, arrays)
            with pytest.raises(DataError, match="damaged"):
                mast.MastClassifier.load(path)

    def test_a_frame_that_lacks_columns(self, people):
        frame, y, _ = people
        model = mast.MastClassifier(random_state=0).fit(frame, y)
        with pytest.warns(ColumnsWarning, match="'since'"):
            fewer = model.decision_function(frame.drop(columns="since"))
        assert np.array_equal(fewer, model.decision_function(frame.assign(since=None)))

    def test_groups_survive_frames_between_steps(self, people):
        """The sketch draws columns after set_output too, in any order, and another column's name is none."""
        frame, y = people[0][:100], people[1][:100]
        model = make_pipeline(mast.TableEncoder(), mast.MastClassifier(random_state=0)).fit(frame, y)
        framed = clone(model).set_output(transform="pandas").fit(frame, y)
        assert np.array_equal(framed[-1].groups_, model[-1].groups_)
        served = model.decision_function(frame)  # another order in memory rounds differently
        np.testing.assert_allclose(framed.decision_function(frame), served, rtol=1e-9)
        features = framed[0].transform(frame)
        turned = mast.MastClassifier(random_state=0).fit(features[features.columns[::-1]], y)
        assert np.array_equal(turned.groups_, framed[-1].groups_[::-1])
        trees = mast.MaskedTraining(LogisticRegression(max_iter=1000)).fit(features, y)
        assert np.array_equal(trees.groups_, model[-1].groups_)
        assert mast.MastClassifier().fit(features.iloc[:, :2].assign(extra=1.0), y).groups_ is None

    def test_a_column_called_groups_is_a_column(self, people):
        numbers, y = people[0][["age"]].assign(groups=np.arange(600.0) % 7), people[1]
        assert mast.MastClassifier().fit(numbers, y).groups_ is None
        assert mast.MaskedTraining(LogisticRegression()).fit(numbers, y).groups_ is None

    def test_scores_with_blanks_of_polars(self, people):
        polars = pytest.importorskip("polars", reason="polars is not installed")
        frame, y = people[0][:100], people[1][:100]
        theirs = polars.DataFrame(
            {name: [None if pandas.isna(cell) else cell for cell in column] for name, column in frame.items()}
        )
        model, half = (
            mast.MastClassifier(random_state=0).fit(frame, y),
            mast.make_missing_scorer(0.5, draws=3),
        )
        assert half(model, theirs, y) == half(model, theirs.lazy(), y) == half(model, frame, y)

    def test_a_search_and_scores_with_blanks(self, people):
        frame, y, _ = people
        half = mast.make_missing_scorer(0.5, draws=2)
        search = GridSearchCV(mast.MastClassifier(random_state=0), {"alpha": [0.01, 1.0]}, scoring=half, cv=3)
        assert search.fit(frame, y).best_score_ > 0.6
        assert cross_val_score(mast.MastClassifier(random_state=0), frame, y, cv=3).min() > 0.7

    def test_sketches_draw_columns(self, people):
        frame, y = people[0][:100], people[1][:100]
        model = mast.MastClassifier("randk:2", missing="scale", random_state=0).fit(frame, y)
        kept = model.sketch_.draw(10).diagonal() > 0
        assert len(set(model.groups_[kept])) == 2
        of_features = mast.Grouped(mast.Bernoulli(0.5), [0] * 5 + [1] * 5)
        assert mast.MastClassifier(of_features).fit(frame, y).sketch_.labels.tolist() == [0] * 5 + [1] * 5
        plain = mast.MastClassifier(mast.Identity(), random_state=0).fit(frame, y)
        assert isinstance(plain.sketch_, mast.Identity)

    def test_files(self, people, tmp_path):
        frame, y, margin = people
        served = blanked(frame, 0.4)[["since", "age", "member", "plan", "job"]]
        model = mast.MastClassifier(random_state=0).fit(frame, y)
        model.save(tmp_path / "m")
        again = mast.MastClassifier.load(tmp_path / "m")
        assert np.array_equal(again.predict_proba(served), model.predict_proba(served))
        assert list(again.encoder_.get_feature_names_out()) == list(model.encoder_.get_feature_names_out())
        regressor = mast.MastRegressor(random_state=0).fit(frame, margin)
        regressor.save(tmp_path / "r")
        assert np.array_equal(
            mast.MastRegressor.load(tmp_path / "r").predict(served), regressor.predict(served)
        )


# ---- real tables -------------------------------------------------------------------------------------


def table(name, **options):
    path = TABLES / name
    if not path.exists():
        pytest.skip(f"{name} is not among the data beside the repository")
    return pandas.read_csv(path, **options)


def test_the_census_beside_one_hot_encoding_that_ignores():
    """Blank cells that become zeros are worse than blank cells that stay blank."""
    frame = table("adult_census_income.csv.gz", na_values=["?", " ?"], skipinitialspace=True)[:4000]
    target = frame.columns[-1]
    y, frame = frame[target].astype(str).to_numpy(), frame.drop(columns=target)
    texts = [name for name in frame if not pandas.api.types.is_numeric_dtype(frame[name])]
    numbers = [name for name in frame if name not in texts]
    usual = make_pipeline(
        make_column_transformer(
            (make_pipeline(SimpleImputer(), StandardScaler()), numbers),
            (OneHotEncoder(handle_unknown="ignore"), texts),
        ),
        LogisticRegression(max_iter=1000),
    )
    ours = mast.MastClassifier(random_state=0)
    train, test = slice(0, 2000), slice(2000, None)
    served = blanked(frame[test], 0.5)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        usual.fit(frame[train], y[train])
        ours.fit(frame[train], y[train])
        score, rival = (
            mast.make_missing_scorer(0, scoring="roc_auc")(model, served, y[test]) for model in (ours, usual)
        )
    assert score > rival


def test_a_trial_with_dates_blanks_and_a_hundred_columns():
    frame = table("medicaldata_opt.csv.gz")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ColumnsWarning)
        out = mast.TableEncoder().fit(frame)
        features = out.transform(frame)
    assert features.shape[0] == len(frame)
    columns = frame[[part.name for part in out.columns_]].isna().to_numpy()
    np.testing.assert_array_equal(np.isnan(features), columns[:, out.groups_])
