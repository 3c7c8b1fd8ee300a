"""Files in pieces: the same columns and nearly the same models as from whole files, in little memory."""

import bz2
import gzip
import json
import tracemalloc

import numpy as np
import pandas
import pytest

from mast import files
from mast.cli import app
from mast.data.loading import load_pieces
from mast.errors import DataError
from mast.learn import commands, sources
from mast.learn.columns import ColumnLearner
from mast.learn.storage import Bundle
from mast.learn.tables import read_tables


def write_people(path, rows=3000, seed=0):
    """Two numbers and a category that decide a class; some cells are missing."""
    generator = np.random.default_rng(seed)
    age, height = generator.normal(40, 10, rows).round(2), generator.normal(170, 9, rows).round(1)
    job = generator.choice(["cook", "nurse", "clerk"], rows)
    margin = (age - 40) / 5 - (height - 170) / 9 + 2 * (job == "cook") + generator.logistic(size=rows)
    lines = ["age,height,job,pay,well"]
    for i in range(rows):
        cells = [
            str(age[i]),
            str(height[i]),
            job[i],
            f"{3 * margin[i] + age[i]:.3f}",
            "yes" if margin[i] > 0 else "no",
        ]
        if generator.random() < 0.1:
            cells[generator.integers(3)] = ""
        lines.append(",".join(cells))
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.fixture
def people(tmp_path):
    return write_people(tmp_path / "people.csv")


@pytest.fixture
def small_pieces(monkeypatch):
    monkeypatch.setattr(sources, "PIECE", 40_000)
    monkeypatch.setattr(sources, "PASSES", (2, 10))


class TestTables:
    def test_pieces_are_the_whole_table(self, people):
        whole = next(read_tables(people))[0]
        parts = [table for table, _ in read_tables(people, 10_000)]
        assert len(parts) > 5
        rows = [row for part in parts for row in part.cells.values.tolist()]
        assert rows == whole.cells.values.tolist()
        assert [line for part in parts for line in part.cells.index] == whole.cells.index.tolist()
        ends = [position for _, position in read_tables(people, 10_000)]
        assert ends == sorted(ends)
        assert ends[-1] == people.stat().st_size

    @pytest.mark.parametrize("pack", [gzip.compress, bz2.compress])
    def test_packed_files(self, people, pack):
        packed = people.with_name("people.csv.packed")
        packed.write_bytes(pack(people.read_bytes()))
        parts = [table for table, _ in read_tables(packed, 10_000)]
        assert sum(len(part.cells) for part in parts) == 3000
        packed.write_bytes(packed.read_bytes()[:-200])
        with pytest.raises(DataError, match="cannot be read"):
            list(read_tables(packed, 10_000))

    def test_a_line_of_a_later_piece_is_named(self, people):
        with people.open("a") as file:
            file.write("1,2\n")
        with pytest.raises(DataError, match="line 3002: found 2 values, expected 5"):
            list(read_tables(people, 10_000))
        people.write_bytes(people.read_bytes().replace(b"1,2\n", b"1,2,\xff,1,yes\n"))
        with pytest.raises(DataError, match="not UTF-8"):
            list(read_tables(people, 10_000))

    def test_columns_of_pieces_are_those_of_the_whole_table(self, people):
        whole, pieces = ColumnLearner("well"), ColumnLearner("well")
        for learner, size in ((whole, None), (pieces, 10_000)):
            for table, _ in read_tables(people, size):
                learner.add(table)
        for ours, theirs in zip(pieces.columns().parts, whole.columns().parts, strict=True):
            assert ours.features == theirs.features
            if hasattr(ours, "mean"):
                np.testing.assert_allclose([ours.mean, ours.scale], [theirs.mean, theirs.scale], rtol=1e-12)

    def test_a_text_among_the_numbers_of_a_later_piece(self, people):
        with people.open("a") as file:
            file.write("forty,170,cook,1,yes\n")
        with pytest.raises(DataError, match="line 3002: column 'age' holds numbers, but here 'forty'"):
            sources.training_data(str(people), "well", [], "auto", None, 10_000)

    def test_little_memory_however_long_the_file(self, people, tmp_path):
        longer = write_people(tmp_path / "longer.csv", 9000)

        def peak(path, size):
            tracemalloc.start()
            source = sources.training_data(str(path), "well", [], "auto", None, size)
            for _ in source.pieces():
                pass
            found = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
            return found

        peak(people, 10_000)  # what is imported counts once
        in_pieces, whole = peak(longer, 10_000), peak(longer, None)
        assert in_pieces < whole / 5
        assert in_pieces < 1.2 * peak(people, 10_000)


class TestLibsvm:
    def test_pieces_are_the_whole_file(self, tmp_path):
        generator = np.random.default_rng(0)
        path = tmp_path / "rows"
        lines = [f"{i % 3} {1 + i % 5}:{generator.random():.3f} 9:1" for i in range(500)]
        path.write_text("\n".join(lines))
        parts = list(load_pieces(path, 1000, 9))
        assert len(parts) > 3
        assert np.concatenate([labels for _, labels, _ in parts]).tolist() == [i % 3 for i in range(500)]
        path.write_text("\n".join([*lines, "1 2:x"]))
        with pytest.raises(DataError, match="line 501: found '2:x'"):
            list(load_pieces(path, 1000, 9))
        path.write_text("\n# nothing\n")
        with pytest.raises(DataError, match="no rows"):
            list(load_pieces(path, 1000))
        path.write_text("1\n2\n")
        for size in (None, 1000):
            with pytest.raises(DataError, match="no row has a feature"):
                commands.train(str(path), tmp_path / "m", size=size)

    def test_training_by_name(self, tmp_path, small_pieces):
        said = commands.train("a1a", tmp_path / "m", size=sources.PIECE)
        whole = commands.train("a1a", tmp_path / "w")
        assert (said["rows"], said["features"], said["classes"]) == (1605, 123, {"-1": 1210, "1": 395})
        assert said["method"] == "stochastic"
        assert said["iterations"] == 10
        for kept in ("mast", "plain"):
            assert abs(said["training"]["whole"][kept] - whole["training"]["whole"][kept]) < 0.02
        result = commands.evaluate(tmp_path / "m", "a1a", draws=5, size=sources.PIECE)
        assert result["rows"] == 1605


class TestCommands:
    @pytest.mark.parametrize("target", ["well", "pay"])
    def test_in_pieces_and_whole(self, people, tmp_path, small_pieces, target):
        drop = ["pay" if target == "well" else "well"]
        both = {
            size: commands.train(str(people), tmp_path / f"m{size}", target=target, drop=drop, size=size)
            for size in (None, sources.PIECE)
        }
        whole, pieces = both.values()
        for same in ("rows", "columns", "features", "classes", "task", "dropped", "alpha"):
            assert pieces[same] == whole[same]
        assert pieces["missing"]["share"] == pytest.approx(whole["missing"]["share"])
        for size, said in both.items():
            assert said["training"]["whole"]["mast"] == pytest.approx(
                whole["training"]["whole"]["mast"], abs=0.02
            )
            result = commands.evaluate(tmp_path / f"m{size}", str(people), draws=5, size=sources.PIECE)
            again = commands.evaluate(tmp_path / f"m{size}", str(people), draws=5)
            for density, scores in result["densities"].items():
                assert scores["mast"]["mean"] == pytest.approx(again["densities"][density]["mast"]["mean"])
            parts = [part for part, _ in commands.predict(tmp_path / f"m{size}", str(people), size=10_000)]
            assert len(parts) > 1
            rows = pandas.concat(parts)
            ((at_once, _),) = commands.predict(tmp_path / f"m{size}", str(people))
            assert rows["missing"].tolist() == at_once["missing"].tolist()
            if target == "well":
                assert rows["prediction"].tolist() == at_once["prediction"].tolist()
        assert Bundle.load(tmp_path / f"m{sources.PIECE}").model.missing_ == "conditional"

    def test_from_the_command_line(self, people, tmp_path, small_pieces, capsys, monkeypatch):
        monkeypatch.chdir(tmp_path)

        def run(*arguments, code=0):
            with pytest.raises(SystemExit) as end:
                app([*map(str, arguments)])
            captured = capsys.readouterr()
            assert end.value.code == code, captured.err
            return captured.out if code == 0 else captured.err

        said = json.loads(run("train", people, "--target", "well", "--stream", "always", "--json"))
        assert said["method"] == "stochastic"
        said = json.loads(run("train", people, "--target", "well", "--stream-above", "0.01", "--json"))
        assert said["method"] == "stochastic"
        printed = run("predict", "model", people, "--stream", "always", "--proba")
        assert printed == run("predict", "model", people, "--proba")
        assert len(printed.splitlines()) == 3001
        run("predict", "model", people, "--stream", "always", "--proba", "--out", "out.csv")
        assert (tmp_path / "out.csv").read_text() == printed
        assert "3,000 rows" in run(
            "evaluate", "model", people, "--stream", "always", "--draws", "3", "--no-plot"
        )
        assert "--stream" in run("train", people, "--target", "well", "--stream", "maybe", code=2)

    def test_what_stood_there_stays_if_a_later_piece_is_bad(self, people, tmp_path, small_pieces):
        commands.train(str(people), tmp_path / "m", target="well")
        (tmp_path / "out.csv").write_text("before")
        with people.open("a") as file:
            file.write("1,2\n")
        with pytest.raises(DataError, match="line 3002"), files.writing(tmp_path / "out.csv") as file:
            file.writelines(
                repr(p).encode() for p in commands.predict(tmp_path / "m", str(people), size=10_000)
            )
        assert (tmp_path / "out.csv").read_text() == "before"
        assert sorted(p.name for p in tmp_path.iterdir()) == ["m", "out.csv", "people.csv"]

    def test_columns_that_were_dropped_are_known_and_the_target_is_not_read_to_predict(
        self, people, tmp_path
    ):
        said = commands.train(str(people), tmp_path / "m", target="well", drop=["pay"])
        assert said["dropped"] == {"pay": "named by --drop"}
        ((whole, remarks),) = commands.predict(tmp_path / "m", str(people))
        assert remarks == []
        lines = people.read_text().splitlines()
        people.write_text("\n".join([lines[0], *(line.rsplit(",", 1)[0] + "," for line in lines[1:])]))
        for size in (None, 10_000):
            parts = [part for part, _ in commands.predict(tmp_path / "m", str(people), size=size)]
            assert pandas.concat(parts).values.tolist() == whole.values.tolist()
        with pytest.raises(DataError, match="line 2: the target 'well' is missing"):
            commands.evaluate(tmp_path / "m", str(people))

    @pytest.mark.parametrize("size", [None, 2000])
    def test_labels_are_numbers_or_texts_as_all_rows_say(self, tmp_path, monkeypatch, size):
        monkeypatch.setattr(sources, "VALUES", 100)
        path = tmp_path / "t.csv"
        path.write_text("x,y\n" + "".join(f"{i % 7},{i}\n" for i in range(500)) + "3,0.5\n")
        data = sources.training_data(str(path), "y", [], "auto", None, size)
        assert data.values.dtype == np.float64
        assert [rows.y for rows in data.pieces()][-1][-1] == 0.5
        path.write_text("x,y\n" + "".join(f"{i % 7},{i}\n" for i in range(500)) + "3,half\n")
        with pytest.raises(DataError, match="line 502: column 'y' holds numbers, but here 'half'"):
            sources.training_data(str(path), "y", [], "auto", None, size)
        assert sources.training_data(str(path), "y", [], "classify", None, size).values.dtype.kind == "U"
        with pytest.raises(DataError, match="No such file"):
            sources.training_data(str(tmp_path / "absent.csv"), "y", [], "auto", None, size)

    def test_a_missing_target_and_too_many_classes(self, people, tmp_path):
        with people.open("a") as file:
            file.write("1,2,cook,1,\n")
        with pytest.raises(DataError, match="line 3002: the target 'well' is missing"):
            commands.train(str(people), tmp_path / "m", target="well", size=10_000)
        with pytest.raises(DataError, match="no column 'worth'"):
            commands.train(str(people), tmp_path / "m", target="worth", size=10_000)
        with pytest.raises(DataError, match="too many for classes"):
            commands.train(
                str(people), tmp_path / "m", target="pay", drop=["well"], task="classify", size=10_000
            )
