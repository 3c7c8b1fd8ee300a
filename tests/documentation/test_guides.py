"""Guides are short, have a figure, and lead to what was measured."""

import re

import pytest

from documentation.blocks import ROOT

NAV = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("  - Guides:\n")[2]
GUIDES = re.findall(r"^      - .*: (\S+\.md)$", NAV.partition("\n  - ")[0], re.MULTILINE)
DECISIONS = {"when-to-use.md", "comparison.md"}  # tables; the others are about a task
WORDS = 900


def text_of(page: str) -> str:
    return (ROOT / "docs" / page).read_text(encoding="utf-8")


def words_of(text: str) -> int:
    """Words outside of code blocks, comments and addresses of links."""
    prose = re.sub(
        r"^ *```.*?^ *``` *$|<!--.*?-->|(?<=\])\([^)]*\)", "", text, flags=re.MULTILINE | re.DOTALL
    )
    return sum(any(map(str.isalnum, word)) for word in re.split(r"[\s|]+", prose))


def test_what_counts_as_a_word():
    assert words_of("Two [words](a/page.md), and | more |\n```python\ncode = 1\n```\n<!-- none -->\n") == 4


@pytest.mark.parametrize("page", GUIDES)
def test_a_guide_is_short_and_has_a_figure(page):
    assert len(GUIDES) > 8
    text = text_of(page)
    assert words_of(text) <= WORDS
    assert page in DECISIONS or "![" in text


def test_the_front_page_is_short():
    assert len((ROOT / "README.md").read_text(encoding="utf-8").split()) <= WORDS


def test_every_decision_leads_to_a_study():
    rows = [line.split(" | ") for line in text_of("when-to-use.md").splitlines() if line.startswith("| [")]
    assert len(rows) > 10
    for *cells, guide in rows:
        assert len(cells) == 4
        for cell in cells:
            assert "](studies/" in cell, cell
        assert ".md" in guide
