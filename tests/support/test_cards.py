"""Objects in a notebook: small tables that say what the text says, with nothing unescaped."""

from html.parser import HTMLParser

import numpy as np
import pytest

import mast
from mast.support import cards

PROBLEM = mast.Problem(mast.Quadratic([[2.0, 1.0], [1.0, 2.0]], [3.0, 3.0]), mast.PermK(2))


class Words(HTMLParser):
    """The text of a page; tags that do not match are an error."""

    def __init__(self, html):
        super().__init__()
        self.open, self.words = [], []
        self.feed(html)
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.words.append(data)


def words(thing):
    return Words(thing._repr_html_()).words


def test_a_problem_says_its_parts():
    shown = words(PROBLEM)
    assert "Quadratic in 2 dimensions" in shown
    assert repr(PROBLEM.sketch) in shown  # which has angle brackets or commas: escaped, and read back whole
    shifted = mast.Problem(PROBLEM.objective, mast.PermK(2), shift=np.array([3.0, 4.0]))
    assert "a point of length 5" in words(shifted)


def test_a_guarantee_says_its_statement_and_constants():
    guarantee = mast.guarantee(PROBLEM, "dsgd")
    shown = words(guarantee)
    assert {guarantee.statement, guarantee.limit_formula} <= set(shown)
    assert any(f"L_max = {guarantee.constants['L_max']:.4g}" in text for text in shown)


def test_a_result_says_how_it_ended():
    result = mast.minimize(PROBLEM, "dsgd", steps=50)
    shown = words(result)
    assert {"finished", "50", result.guarantee.statement} <= set(shown)
    assert f"{result.rows[-1]['f_D']:.6g}" in shown


def test_a_report_is_the_table_that_is_printed():
    torch = pytest.importorskip("torch")
    torch.manual_seed(0)
    sk = mast.nn.sparsify(torch.nn.Linear(4, 2), mast.Bernoulli(0.5))
    report = sk.report(lambda model: float(model.weight.detach().sum()), [1.0, 0.5], draws=3)
    shown = words(report)
    assert set(str(report).splitlines()[-1].split()) <= set(" ".join(shown).split())


def test_everything_is_escaped():
    html = cards.table("<script>", [("<b>", "a & b")], ("<i>",))
    assert "<script>" not in html
    assert Words(html).words == ["<script>", "<i>", "<b>", "a & b"]
