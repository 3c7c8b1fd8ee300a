"""mast train, predict and evaluate: right answers, or one line and exit code 2."""

import json
import re

import numpy as np
import pandas
import pytest
from sklearn.compose import make_column_transformer
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

import mast
from mast.cli import app
from mast.support import files


@pytest.fixture
def run(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)

    def go(*arguments, code=0, remarks=""):
        with pytest.raises(SystemExit) as end:
            app([str(a) for a in arguments], prog_name="mast")
        out, err = capsys.readouterr()
        assert end.value.code == code, err
        if code == 2:
            assert err.startswith("mast: ")
            assert err.count("\n") == 1
            return err
        assert remarks in err
        return out

    return go


def predictions(out):
    """The first column of what `mast predict` prints."""
    header, *rows = out.splitlines()
    assert header.split(",")[:2] == ["prediction", "missing"]
    return [row.split(",")[0] for row in rows]


@pytest.fixture
def people(tmp_path):
    """A table with numbers, categories and gaps, and a target that depends on them."""
    generator = np.random.default_rng(0)
    lines = ["age,job,city,constant,pay"]
    for _ in range(300):
        age, job, city = generator.integers(20, 65), generator.integers(3), generator.integers(4)
        pay = "high" if age / 10 + 2 * job + generator.standard_normal() > 6.5 else "low"
        cells = [age, ["cook", "nurse", "judge"][job], f"c{city}", 1, pay]
        if generator.random() < 0.1:
            cells[int(generator.integers(3))] = ""
        lines.append(",".join(map(str, cells)))
    path = tmp_path / "people.csv"
    path.write_text("\n".join(lines) + "\n")
    return path


class TestTables:
    def test_from_training_to_evaluation(self, run, people, tmp_path):
        out = run("train", people, "--target", "pay", "--out", tmp_path / "m")
        assert "classification of 300 rows" in out
        assert "constant, which is constant" in out
        predicted = predictions(run("predict", tmp_path / "m", people))
        truth = [line.rsplit(",", 1)[1] for line in people.read_text().splitlines()[1:]]
        assert np.mean(np.array(predicted) == truth) > 0.8
        result = json.loads(run("evaluate", tmp_path / "m", people, "--json", "--draws", 10))
        assert result["whole"]["mast"] == np.mean(np.array(predicted) == truth)
        assert set(result["densities"]) == {"1", "0.75", "0.5", "0.25", "0.1"}
        assert (tmp_path / "m" / "evaluation.png").read_bytes()[:4] == b"\x89PNG"
        assert "as the sketch keeps" in run(
            "evaluate", tmp_path / "m", people, "--draws", 5, "--plot", "p.svg"
        )
        assert (tmp_path / "p.svg").read_bytes()[:5] == b"<?xml"

    def test_a_category_is_one_group(self, run, people, tmp_path):
        run("train", people, "--target", "pay", "--sketch", "bernoulli:0.5", "--out", tmp_path / "m")
        from mast.learn.commands.trained_model import TrainedModel

        sketch = TrainedModel.load(tmp_path / "m").model.sketch_
        assert isinstance(sketch, mast.Grouped)
        assert sketch.labels.tolist() == [0, 1, 1, 1, 2, 2, 2, 2]

    def test_predictions_need_no_target_and_ignore_other_columns(self, run, people, tmp_path):
        run("train", people, "--target", "pay", "--out", tmp_path / "m")
        bare = tmp_path / "bare.csv"
        bare.write_text("city,extra,job,age\nc1,?,judge,60\n,,,\n")
        out = run("predict", tmp_path / "m", bare, "--proba", remarks="ignored: 'extra'").splitlines()
        assert out[0] == "prediction,missing,p(high),p(low)"
        assert len(out) == 3
        assert [float(line.split(",")[1]) for line in out[1:]] == [0, 1]
        said = json.loads(run("predict", tmp_path / "m", bare, "--json", "--proba"))
        assert said[0]["p(high)"] + said[0]["p(low)"] == pytest.approx(1)
        run("predict", tmp_path / "m", bare, "--out", tmp_path / "p.csv")
        assert (tmp_path / "p.csv").read_text().splitlines()[0] == "prediction,missing"
        assert "no column 'pay'" in run("evaluate", tmp_path / "m", bare, code=2)

    def test_regression(self, run, tmp_path):
        path = tmp_path / "r.csv"
        x = np.linspace(-1, 1, 50)
        path.write_text("x,z,y\n" + "".join(f"{a},{a**2},{3 * a + 0.5}\n" for a in x))
        out = json.loads(
            run("train", path, "--target", "y", "--sketch", "identity", "--alpha", 1e-6, "--json")
        )
        assert out["task"] == "regression"
        assert out["held_out"]["rows"] == 10
        assert out["held_out"]["whole"]["mast"] > 0.999
        predicted = np.array([float(text) for text in predictions(run("predict", "model", path))])
        np.testing.assert_allclose(predicted, 3 * x + 0.5, atol=1e-2)

    def test_scores_are_those_of_rows_that_were_held_out(self, run, tmp_path):
        """A column of noise for each row: the training rows are fitted, others are guessed."""
        generator = np.random.default_rng(0)
        rows = [
            f"{','.join(f'{x:.4f}' for x in generator.standard_normal(60))},{i % 2}\n" for i in range(100)
        ]
        path = tmp_path / "noise.csv"
        path.write_text(",".join(f"x{j}" for j in range(60)) + ",y\n" + "".join(rows))
        said = json.loads(run("train", path, "--target", "y", "--json"))
        assert said["held_out"]["rows"] == 20
        assert said["held_out"]["whole"]["mast"] < 0.8
        truth = [row.rsplit(",", 1)[1].strip() for row in rows]
        seen = predictions(run("predict", "model", path))
        assert np.mean(np.array(seen) == truth) > 0.8  # the model that is written has seen all rows
        half = json.loads(run("train", path, "--target", "y", "--json", "--holdout", 0.5))
        assert half["held_out"]["rows"] == 50
        out = run("train", path, "--target", "y", "--holdout", 0)
        assert "held out" not in out
        assert predictions(run("predict", "model", path)) == seen
        assert "accuracy on 20 rows that were held out" in run("train", path, "--target", "y")

    def test_rows_without_a_target_are_left_out_and_counted(self, run, people, tmp_path):
        whole = people.read_text()
        run("train", people, "--target", "pay", "--out", tmp_path / "m")
        expected = run("predict", tmp_path / "m", people, "--proba")
        gaps = tmp_path / "gaps.csv"
        gaps.write_text(whole + "30,cook,c1,1,\n50,judge,,1,NA\n")
        out = run("train", gaps, "--target", "pay", "--out", tmp_path / "g")
        assert "2 rows without pay" in out
        assert "classification of 300 rows" in out
        assert run("predict", tmp_path / "g", people, "--proba") == expected
        said = json.loads(run("evaluate", tmp_path / "g", gaps, "--json", "--draws", 2, "--no-plot"))
        assert said["rows"] == 300
        assert "2 rows without 'pay' are left out" in said["remarks"]
        assert len(predictions(run("predict", tmp_path / "g", gaps))) == 302

    def test_the_usual_model_is_one_hot_encoding_with_means(self, run, people, tmp_path):
        run("train", people, "--target", "pay", "--out", tmp_path / "m", "--holdout", 0)
        said = json.loads(run("evaluate", tmp_path / "m", people, "--json", "--draws", 2, "--no-plot"))
        frame = pandas.read_csv(people)
        y, texts = frame.pop("pay"), ["job", "city"]
        known = [sorted(frame[name].dropna().unique()) for name in texts]  # a blank is no value
        usual = make_pipeline(
            make_column_transformer(
                (make_pipeline(StandardScaler(), SimpleImputer()), ["age"]),
                (OneHotEncoder(categories=known, handle_unknown="ignore"), texts),
            ),
            LogisticRegression(max_iter=1000),
        )
        assert said["whole"]["usual"] == usual.fit(frame, y).score(frame, y)

    def test_identifiers_and_dates(self, run, tmp_path):
        generator = np.random.default_rng(0)
        lines = ["id,name,day,x,y"]
        for i in range(60):
            x = generator.standard_normal()
            day = f"2024-{1 + i % 12:02}-{1 + i % 28:02}"
            lines.append(f"{i + 100},person {i},{day},{x:.4f},{'a' if x > 0 else 'b'}")
        path = tmp_path / "t.csv"
        path.write_text("\n".join(lines) + "\n")
        out = run("train", path, "--target", "y")
        assert "id, which is an identifier" in out
        assert "name, which is an identifier" in out
        assert "60 rows, 2 columns\n" in out
        out = run("train", path, "--target", "y", "--ids", "name", "--out", "other")
        assert "name, which is named by ids" in out
        assert "60 rows, 3 columns\n" in out
        assert len(run("predict", "other", path).splitlines()) == 61
        assert "id, which" not in run("train", path, "--target", "y", "--ids", "none", "--out", "all")
        out = run("predict", "model", path, "--keep", "id", "--keep", "name").splitlines()
        assert out[0] == "id,name,prediction,missing"
        assert out[1].startswith("100,person 0,")
        assert "no column 'nobody' to keep" in run("predict", "model", path, "--keep", "nobody", code=2)
        path.write_text("id,prediction,x\n007,1,2\n")
        kept = run("predict", "model", path, "--keep", "id", "--keep", "x", remarks="'day'")
        assert kept.splitlines()[1] == "007,2,a,0.5"
        assert "--keep prediction" in run("predict", "model", path, "--keep", "prediction", code=2)

    def test_numbers_as_classes(self, run, tmp_path):
        path = tmp_path / "n.csv"
        path.write_text("x,y\n" + "".join(f"{i % 7},{i % 3}\n" for i in range(30)))
        assert json.loads(run("train", path, "--target", "y", "--json"))["classes"] == {
            "0": 10,
            "1": 10,
            "2": 10,
        }
        said = json.loads(run("train", path, "--target", "y", "--json", "--task", "regress"))
        assert said["task"] == "regression"

    @pytest.mark.parametrize(
        ("text", "arguments", "message"),
        [
            ("a,y\n1,x\n2\n", [], "line 3: found 1 values"),
            ("a,y\n1,\n2,?\n", [], "the target 'y' is missing in every row"),
            ("a,y\n1,x\n2,z\n", ["--holdout", "1"], "--holdout"),
            ("a,y\n1,x\n2,x\n", [], "every row has the class x"),
            ("a,y\n", [], "no rows"),
            ("", [], "empty"),
            ("a,b\n1,2\n2,1\n", [], "no column 'y'"),
            ("a,y\n5,x\n5,z\n", [], "'a' is constant"),
            ("a,y\nNaN,x\n,z\n", [], "'a' is empty"),
            ("a,y\n1,x\n2,z\n", ["--drop", "b"], "no column 'b'"),
            ("a,y\n1,x\n2,z\n", ["--drop", "a"], "no column is left"),
            ("a,y\n1,x\n2,z\n", ["--ids", "b"], "not there: 'b'"),
            ("a,y\n1,x\n2,z\n", ["--sketch", "perm"], "unknown sketch"),
            ("a,y\n1,x\n2,z\n", ["--sketch", "randk:7"], "RandK"),
            ("a,y\n1,x\n2,z\n", ["--kappa", "1"], "kappa"),
            ("a,y\n1,x\n2,z\n", ["--task", "regress"], "text"),
            ("a,y\n1,x\n2,z\n", ["--task", "guess"], "auto, classify or regress"),
            ("a,y\n1,x\ninf,z\n", [], "column 'a'"),
        ],
    )
    def test_refuses(self, run, tmp_path, text, arguments, message):
        path = tmp_path / "t.csv"
        path.write_text(text)
        assert message in run("train", path, "--target", "y", *arguments, code=2)
        assert not (tmp_path / "model").exists()

    def test_a_csv_file_needs_a_target(self, run, people):
        assert "'age', 'job', 'city'" in run("train", people, code=2)

    def test_an_absent_column_is_missing_in_every_row(self, run, people, tmp_path):
        run("train", people, "--target", "pay", "--out", tmp_path / "m")
        other, blank, strange = (tmp_path / name for name in ("o.csv", "b.csv", "s.csv"))
        other.write_text("age,job\n60,judge\n25,cook\n,nurse\n")
        blank.write_text("age,job,city\n60,judge,\n25,cook,\n,nurse,?\n")
        out = run("predict", tmp_path / "m", other, "--proba", remarks="missing in every row: 'city'")
        assert out == run("predict", tmp_path / "m", blank, "--proba")
        assert [line.split(",")[1] for line in out.splitlines()[1:]] == ["0.333333", "0.333333", "0.666667"]
        assert [line.split(",")[0] for line in out.splitlines()[1:3]] == ["high", "low"]
        strange.write_text("height\n1\n")
        assert "none of the model's columns ('age', 'job', 'city')" in run(
            "predict", tmp_path / "m", strange, code=2
        )
        labelled = tmp_path / "l.csv"
        labelled.write_text("age,job,pay\n60,judge,high\n25,cook,low\n")
        said = json.loads(run("evaluate", tmp_path / "m", labelled, "--json", "--draws", 3, "--no-plot"))
        assert said["missing"] == pytest.approx(1 / 3)
        assert said["whole"]["mast"] == 1
        assert said["remarks"] == ["absent, so missing in every row: 'city'"]

    def test_labels_that_the_model_does_not_know(self, run, people, tmp_path):
        run("train", people, "--target", "pay", "--out", tmp_path / "m")
        other = tmp_path / "o.csv"
        other.write_text("age,job,city,pay\n60,judge,c1,rich\n30,cook,c0,low\n")
        message = run("evaluate", tmp_path / "m", other, code=2)
        assert "knows the labels high, low, and the file has others: rich" in message


class TestLibsvm:
    def test_a_set_by_name(self, run, tmp_path):
        said = json.loads(run("train", "a1a", "--json"))
        assert said["held_out"]["rows"] == 321
        A, b = mast.data.load("a1a")
        model = mast.MastClassifier(random_state=0).fit(A, b)
        predicted = predictions(run("predict", "model", "a1a"))
        assert [int(p) for p in predicted] == model.predict(A).astype(int).tolist()

    def test_a_million_columns(self, run, tmp_path):
        path = tmp_path / "wide"
        path.write_text("".join(f"{i % 2} {1 + i % 2}:1 {1000 * i + 5}:1 1000000:1\n" for i in range(30)))
        said = json.loads(run("train", path, "--json"))
        assert said["features"] == 10**6
        assert said["held_out"]["whole"]["mast"] == 1
        assert len(predictions(run("predict", "model", path))) == 30

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("1 1:1\n1 2:1\n", "every row has the class 1"),
            ("1 1:nan\n0 2:1\n", "NaN"),
            ("1 1:x\n", "line 1"),
            ("", "no rows"),
        ],
    )
    def test_refuses(self, run, tmp_path, text, message):
        path = tmp_path / "bad"
        path.write_text(text)
        assert message in run("train", path, code=2)

    def test_a_file_that_is_wider_than_the_model(self, run, tmp_path):
        (tmp_path / "a").write_text("0 1:1\n1 2:1\n")
        (tmp_path / "b").write_text("0 3:1\n")
        run("train", "./a")
        assert "n_features=2" in run("predict", "model", "./b", code=2)
        assert "no such" in run("predict", "model", tmp_path / "absent", code=2)


class TestModels:
    def test_no_model(self, run):
        assert "no model" in run("predict", "nowhere", "a1a", code=2)

    def test_foreign_and_damaged_ones(self, run, tmp_path):
        run("train", "a1a")
        path = tmp_path / "model" / "model.mast"
        raw = path.read_bytes()
        path.write_bytes(raw[:-1])
        assert "damaged" in run("predict", "model", "a1a", code=2)
        mast.MastClassifier().fit([[0.0], [1.0]], [0, 1]).save(path)
        assert "linear model" in run("evaluate", "model", "a1a", code=2)
        path.write_bytes(raw)
        description, arrays = files.load(path)
        for name in ("model", "columns", "target", "dropped"):
            files.save(path, {k: v for k, v in description.items() if k != name}, arrays)
            assert "damaged" in run("predict", "model", "a1a", code=2)

    def test_a_folder_that_cannot_be_made(self, run, tmp_path):
        (tmp_path / "file").write_text("")
        assert "cannot be made" in run("train", "a1a", "--out", tmp_path / "file" / "m", code=2)

    def test_a_picture_of_an_unknown_kind(self, run):
        run("train", "a1a")
        assert "picture" in run("evaluate", "model", "a1a", "--plot", "p.xyz", "--draws", 2, code=2)


@pytest.mark.parametrize("command", ["train", "predict", "evaluate"])
def test_examples_of_the_help_work_as_pasted(run, command):
    text = re.sub(r"\x1b\[[0-9;]*m", "", run(command, "--help"))
    examples = re.findall(r"^\s*mast ((?:train|predict|evaluate) .*?)\s*$", text, re.MULTILINE)
    assert examples
    for example in examples:
        run(*example.split())
