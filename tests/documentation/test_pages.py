"""Every code block on every page runs, and shows what it prints."""

import re
import textwrap
from pathlib import Path

import pytest

from documentation.blocks import (
    OPTIONS,
    PAGES,
    ROOT,
    RUN,
    SHOWN,
    Block,
    NearlyEqual,
    blocks_of,
    bring_files,
    lacks,
    run,
)

FENCES = re.compile(r"\s*(```|~~~)|.*<pre")
HERE = [page for page in PAGES if any(block.runs for block in blocks_of(page))]

# Blocks that cannot run where the tests do. Each says why on its page; a new one is counted here on purpose.
NOT_RUN = {
    "README.md": 1,
    "docs/elastic.md": 1,
    "docs/federated-deployment.md": 2,
    "docs/gpus.md": 1,
    "docs/index.md": 1,
    "docs/submodels.md": 1,
    "docs/tutorials/clusters.md": 1,
    "docs/studies/conditioning.md": 1,
    "docs/studies/density.md": 1,
    "docs/studies/elastic.md": 1,
    "docs/studies/federated.md": 1,
    "docs/studies/methods.md": 1,
    "docs/studies/scratch.md": 1,
    "docs/studies/tables.md": 1,
}


def name(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


@pytest.mark.parametrize("page", HERE, ids=name)
def test_the_blocks_of_a_page_run(page, tmp_path, monkeypatch):
    if package := lacks(page):
        pytest.skip(f"the page needs {package}")
    bring_files(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MPLBACKEND", "Agg")
    run([block for block in blocks_of(page) if block.runs and block.mark != "slow"], page)


@pytest.mark.slow
@pytest.mark.parametrize(
    "page", [page for page in HERE if any(b.mark == "slow" for b in blocks_of(page))], ids=name
)
def test_the_slow_blocks_of_a_page_run_too(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MPLBACKEND", "Agg")
    run([block for block in blocks_of(page) if block.runs], page)


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_every_block_says_what_it_is(page):
    blocks = blocks_of(page)
    for block in blocks:
        assert block.language in RUN + SHOWN, f"{name(page)}, line {block.line}: {block.language!r}"
    # and none is written in a way that the runner does not see
    fences = [line for line in page.read_text(encoding="utf-8").splitlines() if FENCES.match(line)]
    assert len(fences) == 2 * (len(blocks) + sum(block.output is not None for block in blocks))


def test_blocks_that_do_not_run_are_counted():
    found = {name(page): sum(b.mark.startswith("not run") for b in blocks_of(page)) for page in PAGES}
    assert {page: count for page, count in found.items() if count} == NOT_RUN


PAGE = """
# A page

```python
number = 20
print(number + 1)
```
```text
{answer}
```

```python
>>> number + 22
42

```

<!-- slow -->
```console
$ echo a \\
    b
a b
```

<!-- not run: there is no such command -->
```bash
no-such-command
```
"""


@pytest.mark.parametrize(
    ("shown", "printed", "same"),
    [
        ("0.84 and 0.94", "0.85 and 0.92", True),  # one row more or less
        ("0.84 and 0.94", "0.84 and 0.90", False),
        ("step 0.00632", "step 0.00634", True),
        ("step 0.00632", "step 0.00642", False),
        ("5.7e+11", "5.8e+11", True),
        ("5.7e+11", "5.7e+12", False),
        ("12 rows, 0.5", "13 rows, 0.5", False),  # whole numbers are exact
        ("[0.5]", "[0.5, 0.5]", False),
        ("0.84, ...", "0.84, and more", True),
    ],
)
def test_decimal_numbers_may_differ_a_little(shown, printed, same):
    assert NearlyEqual().check_output(shown + "\n", printed + "\n", OPTIONS) == same


def test_the_runner_itself(tmp_path, monkeypatch):
    """It fails where a page is wrong: an answer, a session, a command."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("documentation.blocks.ROOT", tmp_path)
    page = tmp_path / "page.md"

    def blocks(text: str) -> list[Block]:
        page.write_text(textwrap.dedent(text))
        return blocks_of(page)

    good = blocks(PAGE.format(answer=21))
    assert [block.language for block in good] == ["python", "python", "console", "bash"]
    assert [block.mark for block in good] == ["", "", "slow", "not run: there is no such command"]
    assert [block.runs for block in good] == [True, True, True, False]
    assert good[0].line == 4
    run([block for block in good if block.runs], page)
    for wrong in (
        PAGE.format(answer=22),
        PAGE.format(answer=21).replace("42", "43"),
        PAGE.format(answer=21).replace("a b\n", "a c\n"),
        PAGE.format(answer=21).replace("not run: there is no such command", "some comment"),
    ):
        with pytest.raises(AssertionError, match=r"page\.md, line \d+"):
            run([block for block in blocks(wrong) if block.runs], page)
