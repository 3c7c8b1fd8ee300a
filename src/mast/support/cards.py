"""How our objects look in a notebook: a title above a small table, everything escaped."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

_LEFT = 'style="text-align:left"'


def card(title: str, facts: Mapping[str, Any]) -> str:
    """Names and values; what is None or empty is left out.

    >>> "&lt;PermK&gt;" in card("Problem", {"sketch": "<PermK>", "shift": None})
    True
    """
    return table(title, [(name, _text(value)) for name, value in facts.items() if value not in (None, "")])


def table(title: str, rows: Iterable[Sequence[str]], head: Sequence[str] = ()) -> str:
    """Rows of text, each with a heading in its first cell, below an optional row of headings.

    >>> table("Scores", [("<a>", "1")]).replace(' style="text-align:left"', "")
    '<div><b>Scores</b><table><tr><th>&lt;a&gt;</th><td>1</td></tr></table></div>'
    """
    lines = [[_cell("th", text) for text in head]] if head else []
    lines += [[_cell("td" if number else "th", text) for number, text in enumerate(row)] for row in rows]
    body = "".join(f"<tr>{''.join(line)}</tr>" for line in lines)
    return f"<div><b>{escape(title)}</b><table>{body}</table></div>"


def _cell(tag: str, text: str) -> str:
    return f"<{tag} {_LEFT}>{escape(text)}</{tag}>"


def _text(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)
