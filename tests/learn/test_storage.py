"""Models as files: the same bits come back, and nothing damaged or foreign does."""

import json

import numpy as np
import pytest
import scipy.sparse
from sklearn.datasets import make_classification, make_regression
from sklearn.linear_model import LogisticRegression

import mast
from mast.errors import ArgumentError, DataError
from mast.sketches.formats import describe, rebuild
from mast.support import files
from sketches.samples import SKETCHES, D


@pytest.fixture(scope="module")
def data():
    return make_classification(120, 8, n_informative=5, n_classes=3, random_state=1)


@pytest.mark.parametrize("name", SKETCHES)
def test_every_sketch_comes_back(name):
    sketch, arrays = SKETCHES[name], {}
    said = json.loads(json.dumps(describe(sketch, arrays)))
    again = rebuild(said, arrays)
    assert repr(again) == repr(sketch)
    for step in range(5):
        assert np.array_equal(again.draw(D, step=step).matrix(), sketch.draw(D, step=step).matrix())


LABELS = {
    "numbers": np.array([-1, 0, 7]),
    "floats": np.array([1.0, 2.0, 3.0]),
    "texts": np.array(["no", "perhaps", "yes, ü"]),
    "objects": np.array(["no", "perhaps", "yes"], dtype=object),
    "two": np.array([False, True, True]),
}


@pytest.mark.parametrize("labels", LABELS.values(), ids=LABELS)
@pytest.mark.parametrize("missing", ["conditional", "scale"])
@pytest.mark.parametrize(
    "sketch", ["auto", mast.Bernoulli(0.7), mast.Grouped(mast.PermK(2), [0, 0, 1, 1, 2, 2, 3, 3])]
)
def test_the_same_bits_come_back(data, tmp_path, labels, sketch, missing):
    X, y = data
    y = labels[y]
    model = mast.MastClassifier(sketch, missing=missing, class_weight="balanced", random_state=3).fit(X, y)
    model.save(tmp_path / "model.mast")
    again = mast.MastClassifier.load(tmp_path / "model.mast")
    assert np.array_equal(again.predict_proba(X), model.predict_proba(X))
    gaps = np.where(np.arange(X.size).reshape(X.shape) % 7 < 3, np.nan, X)
    assert np.array_equal(again.predict_proba(gaps), model.predict_proba(gaps))
    assert again.classes_.dtype == model.classes_.dtype
    assert np.array_equal(again.score_sparsified(X, y, draws=9), model.score_sparsified(X, y, draws=9))
    ours, theirs = again.get_params(), model.get_params()
    assert repr(ours.pop("sketch")) == repr(theirs.pop("sketch"))
    assert ours == theirs
    assert np.array_equal(again.fit(X, y).coef_, model.coef_)


def test_a_scale_without_a_limit_comes_back(data, tmp_path):
    X, y = data
    model = mast.MastClassifier(missing="scale", missing_scale=np.inf).fit(X, y)
    model.save(tmp_path / "model.mast")
    assert mast.MastClassifier.load(tmp_path / "model.mast").missing_scale == np.inf


def test_a_regressor_with_names_and_a_shift(tmp_path):
    import pandas

    X, y = make_regression(50, 4, random_state=0)
    frame = pandas.DataFrame(X, columns=["a", "b", "c", "ü"])
    model = mast.MastRegressor(shift=np.arange(4.0), random_state=np.random.RandomState(1)).fit(frame, y)
    model.save(tmp_path / "m")
    again = mast.MastRegressor.load(tmp_path / "m")
    assert np.array_equal(again.predict(frame), model.predict(frame))
    assert list(again.feature_names_in_) == ["a", "b", "c", "ü"]
    assert np.array_equal(again.shift, np.arange(4.0))
    assert np.array_equal(again.sparsify(seed=4).predict(frame), model.sparsify(seed=4).predict(frame))


def test_a_sparse_coef_and_an_estimator_as_shift(data, tmp_path):
    X, y = data
    model = mast.MastClassifier(shift=LogisticRegression().fit(X, y)).fit(X, y).sparsify()
    assert scipy.sparse.issparse(model.coef_)
    model.save(tmp_path / "m")
    assert np.array_equal(mast.MastClassifier.load(tmp_path / "m").predict_proba(X), model.predict_proba(X))


def test_what_cannot_be_written_is_refused(data, tmp_path):
    X, y = data

    class Mine(mast.Identity):
        pass

    for model in (
        mast.MastClassifier(Mine()).fit(X, y),
        mast.MastClassifier().fit(X, np.array([1, "a", 2.0], dtype=object)[y].astype(str)).set_params(tol=X),
    ):
        with pytest.raises(ArgumentError, match="written"):
            model.save(tmp_path / "m")
    with pytest.raises(Exception, match="not fitted"):
        mast.MastClassifier().save(tmp_path / "m")
    assert not list(tmp_path.iterdir())


def test_a_folder_that_is_not_there(data, tmp_path):
    model = mast.MastClassifier().fit(*data)
    with pytest.raises(DataError, match="cannot be written"):
        model.save(tmp_path / "absent" / "m")
    with pytest.raises(DataError, match="cannot be read"):
        mast.MastClassifier.load(tmp_path / "absent")


def test_other_files_are_refused(data, tmp_path):
    path = tmp_path / "m"
    files.save(path, {"kind": "checkpoint"}, {})
    with pytest.raises(DataError, match="checkpoint"):
        mast.MastClassifier.load(path)
    files.save(path, {"kind": "linear model", "format": 99}, {})
    with pytest.raises(DataError, match="99"):
        mast.MastClassifier.load(path)
    mast.MastClassifier().fit(*data).save(path)
    with pytest.raises(DataError, match="MastClassifier, not a MastRegressor"):
        mast.MastRegressor.load(path)
