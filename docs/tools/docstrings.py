"""Docstrings as the reference shows them: written for the source, read by Markdown and Griffe.

Used by mkdocstrings as an extension of Griffe.
"""

from __future__ import annotations

import re
from typing import Any

import griffe


class Docstrings(griffe.Extension):
    """Rewrites every docstring before it is read."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Rewrite one docstring."""
        if obj.docstring is not None:
            obj.docstring.value = rewritten(obj.docstring.value)


def rewritten(text: str) -> str:
    """All changes, in their order; where sections are, Griffe finds the examples itself."""
    text = with_headings(with_tables(text))
    return text if "Examples\n---" in text else fenced(text)


def fenced(text: str) -> str:
    r"""The text with a fence around each example, which Markdown would take for a quotation.

    >>> fenced("Adds.\n\n>>> 1 + 1\n2\n\nThat is all.").splitlines()[2:6]
    ['```pycon', '>>> 1 + 1', '2', '```']
    """
    out: list[str] = []
    for block in re.split(r"\n[ \t]*\n", text):
        if block.startswith(">>>"):
            block = f"```pycon\n{block.rstrip()}\n```"
        out.append(block)
    return "\n\n".join(out)


def with_tables(text: str) -> str:
    r"""The text with tables that are drawn with `===` as Markdown's.

    >>> print(with_tables("==  =\nab  1\nc   2\n==  ="))
    | | |
    |---|---|
    | ab | 1 |
    | c | 2 |
    """
    lines, out, edges = text.splitlines(), [], []
    for number, line in enumerate(lines):
        ruler = re.fullmatch(r"=+( +=+)+", line.strip())
        if ruler and not edges:
            starts = [match.start() for match in re.finditer("=+", line)]
            edges = list(zip(starts, [*starts[1:], None], strict=True))
            headed = sum(bool(re.fullmatch(r"=+( +=+)+", later.strip())) for later in lines[number:]) > 2
            if not headed:
                out += ["|" + " |" * len(edges), "|" + "---|" * len(edges)]
        elif ruler:
            if headed:
                out.append("|" + "---|" * len(edges))
                headed = False
            else:
                edges = []
        elif edges:
            out.append("| " + " | ".join(line[a:b].strip() for a, b in edges) + " |")
        else:
            out.append(line)
    return "\n".join(out)


def with_headings(text: str) -> str:
    r"""The text with headings for prose and examples that follow a section such as Parameters.

    >>> with_headings("Adds.\n\nParameters\n----------\na\n    A term.\n\n>>> 1").splitlines()[-3:]
    ['Examples', '--------', '>>> 1']
    >>> with_headings("A box.\n\nAttributes\n----------\nsize : how large it is").splitlines()[-2:]
    ['size', '    how large it is']
    """
    lines = text.splitlines()
    out: list[str] = []
    section = ""
    for number, line in enumerate(lines):
        following = lines[number + 1] if number + 1 < len(lines) else ""
        starts = bool(line.strip()) and line == line.lstrip() and not (out and out[-1].strip())
        if following.startswith("---"):
            section = line
        elif section == "Attributes" and (named := re.match(r"([\w, ]+) : (.*)", line)):
            out.append(named[1])
            line = f"    {named[2]}"
        elif section and starts and not following.startswith(" "):
            heading = "Examples" if line.startswith(">>>") else "Notes"
            if section not in ("Examples", heading):
                out += [heading, "-" * len(heading)]
                section = heading
        out.append(line)
    return "\n".join(out)
