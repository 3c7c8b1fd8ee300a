"""Formulas become MathML; the whole site builds without warnings and asks no other server for anything."""

import json
import os
import re
import shutil
import subprocess
import sys
from xml.etree import ElementTree

import pytest

from documentation.blocks import PAGES, ROOT, tool


@pytest.fixture(scope="module")
def formulas():
    return tool("formulas")


def shape(element) -> str:
    """A MathML tree in one line: tags with their children, leaves as their text."""
    name = element.tag
    if not len(element):
        return (element.text or "").strip() or name
    return f"{name}({' '.join(shape(child) for child in element)})"


@pytest.mark.parametrize(
    ("latex", "expected"),
    [
        (r"x_i^2", "msubsup(x i 2)"),
        (r"\frac{a}{b_c}", "mfrac(mrow(a) mrow(msub(b c)))"),
        (r"\sqrt{1-p}", "msqrt(mrow(1 − p))"),
        (r"\mathcal{D}", "𝒟"),
        (r"\mathbb{E}", "𝔼"),
        (r"\left\{1, 2\right\}", "mrow({ 1 , 2 })"),
        (r"\bar{x}'", "msup(mover(mrow(x) ¯) mrow(′))"),
        (r"\text{a b}", "a\xa0b"),
        (r"a < b", "a < b"),
        (r"\lVert x \rVert", "‖ x ‖"),
        (r"0.25", "0.25"),
    ],
)
def test_formulas_become_trees(formulas, latex, expected):
    tree = ElementTree.fromstring(formulas.mathml(latex))
    row = tree[0][0]
    assert " ".join(shape(child) for child in row) == expected
    assert tree[0][1].text == latex


def test_limits_stand_below_in_display_only(formulas):
    assert "<munder>" in formulas.mathml(r"\min_x f", display=True)
    assert "<msub>" in formulas.mathml(r"\min_x f")


@pytest.mark.parametrize("latex", [r"\frac{a}", r"{a", r"a}", r"\unknown", r"\left( a", "a # b", "x^"])
def test_what_is_not_understood_stops_the_build(formulas, latex):
    with pytest.raises(ValueError, match=r"docs/tools/formulas\.py"):
        formulas.mathml(latex)


def test_every_formula_of_every_page_is_understood(formulas):
    count = 0
    for page in PAGES:
        text = re.sub(r"```.*?```|`[^`\n]*`", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
        for display, inline in re.findall(r"\$\$(.*?)\$\$|\$([^$\n]+)\$", text, flags=re.DOTALL):
            ElementTree.fromstring(formulas.mathml(display or inline, bool(display)))
            count += 1
    assert count > 200


@pytest.mark.parametrize("page", [ROOT / "README.md", ROOT / "CONTRIBUTING.md"], ids=lambda page: page.name)
def test_links_of_pages_beside_the_site_lead_somewhere(page):
    """mkdocs looks after the links inside docs/."""
    links = re.findall(r"\]\(([^)#\s]+)[^)]*\)", page.read_text(encoding="utf-8"))
    assert links or page.name != "README.md"
    for link in links:
        assert link.startswith("https://") or (page.parent / link).exists(), f"{page.name} links to {link}"


@pytest.mark.slow
def test_the_site_builds_without_warnings_and_is_complete(tmp_path):
    pytest.importorskip("mkdocs", reason="mkdocs is not installed: make docs installs it")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", tmp_path],
        cwd=ROOT,
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert "WARNING" not in done.stderr
    for page in tmp_path.rglob("*.html"):
        text = page.read_text(encoding="utf-8")
        asked = re.findall(r'<(?:script|link|img)[^>]+(?:src|href)="(https?://[^"]+)"', text)
        assert not asked, f"{page.name} asks another server for {asked}"
        assert "arithmatex" not in text, f"{page.name} has a formula that was not rendered"
        bare = re.sub(r"data:image/png;base64,[^\"]*", "", text)
        assert len(bare.encode()) < 300_000, f"{page.name} is too large: split it"
    _search_has_the_words_of_the_field(tmp_path)
    assert (tmp_path / "assets" / "STIXTwoMath.woff").is_file()  # the font of the formulas
    _search_from_the_disk(tmp_path)


def _search_has_the_words_of_the_field(site):
    """The index of the search has the terms that people look for, in more places than one."""
    index = json.loads((site / "search" / "search_index.json").read_text(encoding="utf-8"))
    texts = [f"{entry['title']} {entry['text']}".lower() for entry in index["docs"]]
    for term in ("pruning", "slimmable", "matryoshka", "heterofl", "missing values", "dropout"):
        assert sum(term in text for text in texts) >= 2, term


def _search_from_the_disk(site):
    """A page that is opened as a file finds what is looked for, in a browser."""
    if not (browser := shutil.which("chromium")):
        pytest.skip("the search was not tried: chromium is not installed")
    quiet = ["quic", "background-networking", "component-update", "sync", "gpu"]
    done = subprocess.run(
        [
            browser,
            *("--headless", "--no-sandbox", "--no-first-run", "--virtual-time-budget=15000", "--dump-dom"),
            *(f"--disable-{what}" for what in quiet),
            f"--user-data-dir={site / 'browser'}",
            f"file://{site}/index.html?q=Bernoulli",
        ],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert re.search(r"\d+ matching documents", done.stdout)
