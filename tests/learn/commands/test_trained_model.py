"""Files to train on and to predict: what is read of them, and what is refused."""

import numpy as np
import pytest

from mast.errors import DataError
from mast.learn import commands
from mast.learn.commands.trained_model import training_rows


@pytest.fixture
def people(tmp_path):
    """Two numbers and a category that decide a class; some cells are missing."""
    generator, rows = np.random.default_rng(0), 300
    age, height = generator.normal(40, 10, rows).round(2), generator.normal(170, 9, rows).round(1)
    job = generator.choice(["cook", "nurse", "clerk"], rows)
    margin = (age - 40) / 5 - (height - 170) / 9 + 2 * (job == "cook") + generator.logistic(size=rows)
    lines = ["age,height,job,pay,well"]
    for i in range(rows):
        cells = [str(age[i]), str(height[i]), job[i], f"{margin[i]:.3f}", "yes" if margin[i] > 0 else "no"]
        if generator.random() < 0.1:
            cells[generator.integers(3)] = ""
        lines.append(",".join(cells))
    path = tmp_path / "people.csv"
    path.write_text("\n".join(lines) + "\n")
    return path


def test_columns_that_were_dropped_are_known_and_the_target_is_not_read_to_predict(people, tmp_path):
    said = commands.train(str(people), tmp_path / "m", target="well", drop=["pay"])
    assert said["dropped"] == {"pay": "named by --drop"}
    whole, remarks = commands.predict(tmp_path / "m", str(people))
    assert remarks == []
    lines = people.read_text().splitlines()
    people.write_text("\n".join([lines[0], *(line.rsplit(",", 1)[0] + "," for line in lines[1:])]))
    again, _ = commands.predict(tmp_path / "m", str(people))
    assert again.values.tolist() == whole.values.tolist()
    with pytest.raises(DataError, match="the target 'well' is missing in every row"):
        commands.evaluate(tmp_path / "m", str(people))


def test_labels_are_numbers_or_texts_as_all_rows_say(tmp_path):
    def read(task="auto"):
        return training_rows(str(path), "y", [], task, None)[1]

    path = tmp_path / "t.csv"
    path.write_text("x,y\n" + "".join(f"{i % 7},{i}\n" for i in range(500)) + "3,0.5\n")
    assert read()[-1] == 0.5
    path.write_text("x,y\n" + "".join(f"{i % 7},{i}\n" for i in range(500)) + "3,half\n")
    with pytest.raises(DataError, match="line 502: column 'y' holds numbers, but here 'half'"):
        read()
    assert read("classify").dtype.kind == "U"
    path.unlink()
    with pytest.raises(DataError, match="No such file"):
        read()


def test_targets_that_cannot_be_predicted(people, tmp_path):
    with pytest.raises(DataError, match="no column 'worth'"):
        commands.train(str(people), tmp_path / "m", target="worth")
    with pytest.raises(DataError, match="too many for classes"):
        commands.train(str(people), tmp_path / "m", target="pay", drop=["well"], task="classify")
    rows = tmp_path / "rows"
    rows.write_text("1\n2\n")
    with pytest.raises(DataError, match="no row has a feature"):
        commands.train(str(rows), tmp_path / "m")
