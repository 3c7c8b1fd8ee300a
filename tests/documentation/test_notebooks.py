"""The notebooks are the tutorials: the same cells, which run, and are on the site with what they printed."""

import json

import pytest

from documentation.blocks import ROOT, lacks, tool


@pytest.fixture(scope="module")
def notebooks():
    return tool("notebooks")


NAMES = ("researcher", "data-scientist", "deep-learning")


def tutorial(name):
    return ROOT / "docs" / "tutorials" / f"{name}.md"


def stored(name):
    return json.loads((ROOT / "docs" / "notebooks" / f"{name}.ipynb").read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", NAMES)
def test_a_notebook_has_the_cells_of_its_page(notebooks, name):
    made = notebooks.cells_of(tutorial(name).read_text(encoding="utf-8"))
    assert [cell["source"] for cell in stored(name)["cells"]] == [cell["source"] for cell in made], (
        f"the tutorial was changed: run `python docs/tools/notebooks.py {name}`"
    )


@pytest.mark.parametrize("name", NAMES)
def test_a_notebook_ran_and_its_picture_is_that_of_the_page(notebooks, name):
    cells = [cell for cell in stored(name)["cells"] if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1))
    page = notebooks.page(name, json.dumps(stored(name)))
    assert page.count("data:image/png;base64,") >= 1
    assert f"../images/tutorial-{name}.png" in tutorial(name).read_text(encoding="utf-8")
    assert (ROOT / "docs" / "images" / f"tutorial-{name}.png").is_file()


@pytest.mark.parametrize(
    "name", ["researcher", *(pytest.param(name, marks=pytest.mark.slow) for name in NAMES[1:])]
)
def test_the_cells_run(notebooks, name, monkeypatch):
    """Those of the other two run by default too, as blocks of their pages."""
    if package := lacks(tutorial(name)):
        pytest.skip(f"the notebook needs {package}")
    monkeypatch.setenv("MPLBACKEND", "Agg")
    cells = notebooks.cells_of(tutorial(name).read_text(encoding="utf-8"))
    notebooks.run(cells)
    pictures = [
        output["data"]["image/png"]
        for cell in cells
        for output in cell.get("outputs", [])
        if "image/png" in output.get("data", {})
    ]
    assert pictures


def test_a_cell_that_fails_says_so(notebooks):
    with pytest.raises(ZeroDivisionError):
        notebooks.run(notebooks.cells_of("```python\n1 / 0\n```\n"))
    with pytest.raises(RuntimeError, match="ended with 3"):
        notebooks.run(notebooks.cells_of("```console\n$ exit 3\n```\n"))
