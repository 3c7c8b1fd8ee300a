r"""Formulas of the pages as MathML, which browsers draw themselves: no script, no fonts, no network.

Used by mkdocs as a hook. It reads the part of LaTeX that the pages use, and stops the build at anything else.

>>> mathml(r"x^2 \le \frac{1}{L_f}").count("<mfrac>")
1
>>> mathml(r"\foo")
Traceback (most recent call last):
ValueError: \foo is not known to docs/tools/formulas.py, in the formula: \foo
"""

from __future__ import annotations

import html
import re
import unicodedata
from typing import Any

LETTERS = ("alpha beta gamma delta epsilon zeta eta theta kappa mu nu pi rho sigma tau phi psi omega "
           "Gamma Delta Sigma Phi Psi Omega")  # fmt: skip
GREEK = {
    name: unicodedata.lookup(f"GREEK {'CAPITAL' if name[0].isupper() else 'SMALL'} LETTER {name.upper()}")
    for name in LETTERS.split()
}
GREEK |= {"lambda": "λ", "Lambda": "Λ", "varepsilon": "ε", "ell": "ℓ", "infty": "∞"}
OPERATORS = {
    "le": "≤", "ge": "≥", "ne": "≠", "in": "∈", "to": "→", "cdot": "·", "circ": "∘", "nabla": "∇",
    "approx": "≈", "leftarrow": "←", "dots": "…", "ldots": "…", "mid": "∣", "sim": "∼", "times": "×",
    "pm": "±", "top": "⊤", "lbrace": "{", "rbrace": "}", "{": "{", "}": "}",
    "mapsto": "↦", "subset": "⊂", "odot": "⊙",
}  # fmt: skip
FENCES = {"lvert": "|", "rvert": "|", "lVert": "‖", "rVert": "‖", "langle": "⟨", "rangle": "⟩"}
LIMITS = {"sum": "∑", "min": "min", "max": "max", "sup": "sup", "inf": "inf"}
NAMES = {"ln", "log", "exp", "cos"}
SPACES = {",": "0.17em", ";": "0.28em", "quad": "1em", "qquad": "2em", " ": "0.25em"}
ACCENTS = {"bar": "¯", "hat": "^", "tilde": "~", "overline": "¯"}
STYLES = {
    "mathcal": "MATHEMATICAL SCRIPT",
    "mathbb": "MATHEMATICAL DOUBLE-STRUCK",
    "mathbf": "MATHEMATICAL BOLD",
}
EXCEPTIONS = {"mathcalE": "ℰ", "mathcalL": "ℒ", "mathbbR": "ℝ", "mathbbP": "ℙ"}  # older than their alphabets

TOKEN = re.compile(r"\\[A-Za-z]+|\\.|\d+(?:\.\d+)?|\s+|.", re.DOTALL)
TEXT = re.compile(r"\\(text|mathrm|operatorname)\{([^{}]*)\}")
FORMULA = re.compile(r'<(span|div) class="arithmatex">(?:\\\((.*?)\\\)|\\\[(.*?)\\\])</\1>', re.DOTALL)


def on_page_content(content: str, /, **_: Any) -> str:
    """The hook: replaces what the extension `arithmatex` has found in a page."""
    return FORMULA.sub(_rendered, content)


def _rendered(found: re.Match[str]) -> str:
    inline, display = found[2], found[3]
    return mathml(html.unescape(inline if display is None else display), display is not None)


def mathml(latex: str, display: bool = False) -> str:
    """One formula as a MathML element, with its source for those who read it aloud or copy it."""
    body, source = _Reader(latex, display).read(), html.escape(latex.strip())
    kind = "block" if display else "inline"
    style = ' displaystyle="true"' if r"\frac" in latex else ""  # fractions in the text stay readable
    return (
        f'<math display="{kind}"{style}><semantics><mrow>{body}</mrow>'
        f'<annotation encoding="application/x-tex">{source}</annotation></semantics></math>'
    )


class _Reader:
    """Reads a formula from left to right; each method returns MathML."""

    def __init__(self, latex: str, display: bool) -> None:
        self.source, self.display = latex, display
        self.texts: list[str] = []
        # Text is set aside first, since spaces count in it and nowhere else.
        self.tokens = TOKEN.findall(TEXT.sub(self._set_aside, latex))[::-1]

    def _set_aside(self, found: re.Match[str]) -> str:
        tag = "mtext" if found[1] == "text" else "mi"
        self.texts.append(f"<{tag}>{html.escape(found[2]).replace(' ', '&#160;')}</{tag}>")
        return rf"\settext{{{len(self.texts) - 1}}}"

    def read(self) -> str:
        row = self.row(ends=())
        if self.tokens:
            self.fail(self.tokens[-1])
        return row

    def fail(self, what: str) -> None:
        raise ValueError(
            f"{what or 'its end'} is not known to docs/tools/formulas.py, in the formula: {self.source}"
        )

    def peek(self) -> str:
        while self.tokens and self.tokens[-1].isspace():
            self.tokens.pop()
        return self.tokens[-1] if self.tokens else ""

    def take(self, expected: str = "") -> str:
        token = self.peek()
        if not token or (expected and token != expected):
            self.fail(token)
        return self.tokens.pop()

    def row(self, ends: tuple[str, ...]) -> str:
        """Atoms with their indices, up to one of `ends`, which stays."""
        parts = []
        while (token := self.peek()) and token not in ends:
            if token in ("}", "&", r"\\", r"\right", r"\end"):
                break
            parts.append(self.scripted())
        return "".join(parts)

    def scripted(self) -> str:
        """An atom with what stands below and above it."""
        token = self.peek()
        base = self.atom()
        below = above = ""
        primes = 0
        while (mark := self.peek()) in ("_", "^", "'"):
            self.take()
            if mark == "_":
                below = self.atom()
            elif mark == "^":
                above = self.atom()
            else:
                primes += 1
        if primes:
            above = f"<mrow><mo>{'′' * primes}</mo>{above}</mrow>"
        under = self.display and token.lstrip("\\") in LIMITS
        names = ("munder", "mover", "munderover") if under else ("msub", "msup", "msubsup")
        if below and above:
            return f"<{names[2]}>{base}{below}{above}</{names[2]}>"
        if below:
            return f"<{names[0]}>{base}{below}</{names[0]}>"
        return f"<{names[1]}>{base}{above}</{names[1]}>" if above else base

    def group(self) -> str:
        """What braces hold, or a single atom."""
        return self.atom()

    def atom(self) -> str:
        token = self.take()
        if token == "{":
            inside = self.row(ends=("}",))
            self.take("}")
            return f"<mrow>{inside}</mrow>"
        if token.startswith("\\"):
            return self.command(token[1:])
        if token[0].isdigit():
            return f"<mn>{token}</mn>"
        if token.isalpha():
            return f"<mi>{token}</mi>"
        if token in "|()[]":
            return f'<mo stretchy="false">{token}</mo>'
        if token in "+-=<>,;:/!.*":
            return f"<mo>{html.escape(token.replace('-', '−').replace('*', '∗'))}</mo>"
        self.fail(token)
        raise AssertionError

    def command(self, name: str) -> str:
        if name == "settext":
            self.take("{")
            number = int(self.take())
            self.take("}")
            return self.texts[number]
        if name in GREEK:
            return f"<mi>{GREEK[name]}</mi>"
        if name in OPERATORS:
            return f"<mo>{OPERATORS[name]}</mo>"
        if name in FENCES:
            return f'<mo stretchy="false">{FENCES[name]}</mo>'
        if name in LIMITS:
            return f"<mo movablelimits='false'>{LIMITS[name]}</mo>"
        if name in NAMES:
            return f"<mi>{name}</mi><mo>&#8289;</mo>"
        if name in SPACES:
            return f'<mspace width="{SPACES[name]}"/>'
        if name == "frac":
            return f"<mfrac>{self.group()}{self.group()}</mfrac>"
        if name == "sqrt":
            return f"<msqrt>{self.group()}</msqrt>"
        if name in ACCENTS:
            return f'<mover accent="true">{self.group()}<mo stretchy="false">{ACCENTS[name]}</mo></mover>'
        if name in STYLES:
            return f"<mi>{self.letter(name)}</mi>"
        if name == "left":
            return self.fenced()
        if name == "begin":
            return self.aligned()
        self.fail("\\" + name)
        raise AssertionError

    def letter(self, style: str) -> str:
        self.take("{")
        letter = self.take()
        self.take("}")
        case = "CAPITAL" if letter.isupper() else "SMALL"
        known = EXCEPTIONS.get(style + letter)
        return known or unicodedata.lookup(f"{STYLES[style]} {case} {letter.upper()}")

    def fenced(self) -> str:
        """What stands between left and right fences, with fences as tall as it is."""
        opening = self.fence()
        inside = self.row(ends=(r"\right",))
        self.take(r"\right")
        return f"<mrow>{opening}{inside}{self.fence()}</mrow>"

    def fence(self) -> str:
        token = self.take().lstrip("\\")
        return "" if token == "." else f'<mo stretchy="true" fence="true">{FENCES.get(token, token)}</mo>'

    def aligned(self) -> str:
        """Lines that are aligned at their signs, or the cases of a definition."""
        kind = ""
        self.take("{")
        while self.peek() != "}":
            kind += self.take()
        self.take("}")
        if kind not in ("aligned", "cases"):
            self.fail(kind)
        rows: list[list[str]] = [[]]
        while True:
            rows[-1].append(self.row(ends=("&", r"\\", r"\end")))
            token = self.take()
            if token == r"\\":
                rows.append([])
            elif token == r"\end":
                break
        self.take("{")
        while self.take() != "}":
            pass
        lines = "".join(
            "<mtr>" + "".join(f"<mtd>{cell}</mtd>" for cell in row) + "</mtr>" for row in rows if any(row)
        )
        table = f'<mtable class="{kind}" displaystyle="true">{lines}</mtable>'
        return f'<mrow><mo stretchy="true">{{</mo>{table}</mrow>' if kind == "cases" else table
