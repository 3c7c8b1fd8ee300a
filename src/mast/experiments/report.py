"""The report: one HTML file that needs nothing else, for a screen of any size and for paper."""

from __future__ import annotations

import base64
import html
import json
import re
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from string import Template
from typing import Any

from mast.errors import DataError
from mast.experiments.experiment import NOISE, Table, verdict
from mast.support.progress import duration

MARKS = {
    "holds": '<span class="yes">✓ holds</span>',
    "within noise": '<span class="soft">≈ within noise</span>',
    "does not hold": '<span class="no">✗ does not hold</span>',
}
SOURCES = {"paper": "the paper says", "theory": "theory says", "beyond": "beyond the paper"}

_LOWERED = re.compile(r"(?<![A-Za-z])([A-Za-zφ]|kappa)_(\{[^}]*\}|[A-Za-z]+|[0-9]+)")
_RAISED = re.compile(r"\^(inf|[0-9]+)")

PIXELS = 0.7  # of a page, for each of a figure's
NARROW = 560  # of these: two such figures fit beside each other

PAGE = Path(__file__).with_suffix(".html")  # with places for what the report says


def page(sections: list[dict[str, Any]], out: Path, title: str) -> str:
    """The whole report of the sections in a folder."""
    claims = [claim for section in sections for claim in section["claims"]]
    verdicts = Counter(verdict(claim) for claim in claims)
    seconds, cells = (_counted_once(sections, what) for what in ("seconds", "cells"))
    return Template(PAGE.read_text(encoding="utf-8")).substitute(
        title=_t(title),
        held=f"{verdicts['holds']} of {len(claims)}",
        noise=verdicts["within noise"],
        data=_t(", ".join(sorted({d["name"] for s in sections for d in s["datasets"]}))),
        contents=_contents(sections),
        sections="\n".join(_section(section, out) for section in sections),
        broken=_broken(sections),
        facts=_facts(sections, f"{cells:.0f} cells, {duration(seconds)} of one processor core"),
    )


def _counted_once(sections: list[dict[str, Any]], what: str) -> float:
    """A sum over sections, without what one borrowed from another that is here too."""
    here = {section["name"] for section in sections}
    borrowed = sum(
        part[what]
        for section in sections
        for lender, part in section.get("borrowed", {}).items()
        if lender in here
    )
    return float(sum(section[what] for section in sections) - borrowed)


def _contents(sections: list[dict[str, Any]]) -> str:
    if len(sections) < 2:
        return ""
    items = []
    for s in sections:
        held = f"{sum(c['holds'] for c in s['claims'])} of {len(s['claims'])} claims hold"
        items.append(
            f'<li><a href="#{_t(s["name"])}">{_t(s["title"])}</a> <span class="soft">{held}</span></li>'
        )
    return f"<nav><ul>{''.join(items)}</ul></nav>"


def _section(section: dict[str, Any], out: Path) -> str:
    parts = [
        f'<section id="{_t(section["name"])}"><h2>{_t(section["title"])}</h2>',
        f"<p>{_prose(section['lead'])}</p>",
    ]
    if section["effort"] == "fast":
        parts.append('<p class="soft">A fast run: fewer seeds and less data than the paper\'s figure.</p>')
    # two narrow figures beside each other; every other one over the whole width
    figures = "".join(_figure(figure, out) for figure in section["figures"])
    parts.append(f'<div class="figures">{figures}</div>')
    if section["gains"]:
        parts += ["<h3>What was gained</h3>", _gains(section["gains"])]
    if section["claims"]:
        parts += ["<h3>Claims</h3>", _claims(section["claims"])]
    if section["choices"]:
        items = "".join(f"<li>{_prose(choice)}</li>" for choice in section["choices"])
        parts.append(f'<h3>Choices and details</h3><ul class="facts">{items}</ul>')
    numbers = ", ".join(_code(f"numbers/{name}.csv") for name in section["tables"])
    parts.append(
        f'<p class="facts soft">Numbers: {numbers}. {section["cells"]} cells, '
        f"{_t(duration(section['seconds']))} "
        f"of one core; written {_t(section['written'])}, effort “{_t(section['effort'])}”.</p>"
        '<details class="facts"><summary>All settings</summary>'
        f"{_settings(section['configuration'])}</details></section>"
    )
    return "\n".join(parts)


def _settings(configuration: dict[str, dict[str, Any]]) -> str:
    """Setting by setting, for each function that computed cells."""
    rows = [
        (_code(function), _t(name), _code(json.dumps(value, ensure_ascii=False)))
        for function, settings in configuration.items()
        for name, value in settings.items()
    ]
    return _table(("Function", "Setting", "Value, or all values"), rows)


def _figure(figure: dict[str, Any], out: Path) -> str:
    path = out / "figures" / f"{figure['name']}.png"
    try:
        content = path.read_bytes()
    except OSError as error:
        raise DataError(f"{path}: cannot be read, run the experiment again: {error.strerror}") from error
    picture = base64.b64encode(content).decode()
    # as wide as its letters are readable: a PNG's width is in its header
    width = int.from_bytes(content[16:20], "big") * PIXELS
    narrow = ' class="narrow"' if width < NARROW else ""
    return (
        f'<figure{narrow}><div class="wide"><img style="--wide: {width:.0f}px" alt="{_t(figure["title"])}. '
        f'{_t(figure["caption"])}" src="data:image/png;base64,{picture}"></div>'
        f"<figcaption><b>{_prose(figure['title'])}.</b> {_prose(figure['caption'])}</figcaption></figure>"
    )


def _claims(claims: list[dict[str, Any]]) -> str:
    """Claim by claim: what decides it, then the verdict and the measurement on each data set."""
    groups: dict[tuple[str, str, str], list[dict[str, Any]]] = {}
    for claim in claims:
        groups.setdefault((claim["claim"], claim["decides"], claim["source"]), []).append(claim)
    rows = []
    for (text, decides, source), members in groups.items():
        rows.append(
            f'<tr class="claim"><th colspan="3" scope="rowgroup">{_prose(text)} '
            f"<small>{_t(SOURCES[source])}; "
            f"decided by: {_prose(decides)}</small></th></tr>"
        )
        rows += [
            f'<tr><td class="verdict">{MARKS[verdict(member)]}</td><td>{_t(member["dataset"])}</td>'
            f"<td>{_evidence(member['measured'])}</td></tr>"
            for member in members
        ]
    return f'<table class="claims"><tbody>{"".join(rows)}</tbody></table>'


def _evidence(measured: str | Table) -> str:
    """A sentence, or a small table with headings in its first row and first column."""
    if isinstance(measured, str):
        return _prose(measured)
    head, *rows = ([_prose(cell) for cell in row] for row in measured)
    body = _row(head, "th") + "".join(map(_row, rows))
    return f'<div class="wide"><table class="small"><tbody>{body}</tbody></table></div>'


def _gains(gains: list[dict[str, Any]]) -> str:
    """Setting by setting: the baseline, MAST, and the difference with twice its standard error."""
    titles = ("Mean test accuracy", "MAST", "Baseline", "Gain", "What the baseline is")
    rows = []
    for gain in gains:
        ahead = f"<b>{gain['mast'] - gain['baseline']:+.3f}</b> ± {NOISE * gain['error']:.3f}"
        numbers = f"{gain['mast']:.3f}", f"{gain['baseline']:.3f}", ahead
        rows.append((_t(gain["setting"]), *numbers, _t(gain["rival"])))
    return _table(titles, rows)


def _broken(sections: list[dict[str, Any]]) -> str:
    """The claims that do not hold by more than noise, in one place."""
    broken: dict[tuple[str, str], list[str]] = {}
    for section in sections:
        for claim in section["claims"]:
            if verdict(claim) == "does not hold":
                broken.setdefault((section["name"], claim["claim"]), []).append(claim["dataset"])
    if not broken:
        return ""
    items = "".join(
        f'<li>{_prose(text)} <span class="soft">({_t(", ".join(data))})</span> <a '
        f'href="#{_t(name)}">numbers</a></li>'
        for (name, text), data in broken.items()
    )
    return f"<section><h2>What does not hold</h2><ul>{items}</ul></section>"


def _facts(sections: list[dict[str, Any]], effort: str) -> str:
    """Data with their checksums, the versions of everything, and what was computed."""
    data = {d["sha256"]: d for section in sections for d in section["datasets"]}
    rows = [
        (_t(d["name"]), f"{d['rows']:,} × {d['features']:,}", _code(d["sha256"]))
        for d in sorted(data.values(), key=lambda d: d["name"])
    ]
    table = _table(("Data", "Rows × features", "sha256 of the unpacked file"), rows)
    versions: dict[str, set[str]] = {}
    for section in sections:
        for package, version in section["versions"].items():
            versions.setdefault(package, set()).add(version)
    packages = ", ".join(f"{_t(name)} {_t('/'.join(sorted(each)))}" for name, each in versions.items())
    return (
        f'<section><h2>Data and versions</h2>{table}<p class="facts">Computed: {_t(effort)}. {packages}</p>'
        "</section>"
    )


def _table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    body = f"<thead>{_row(head, 'th')}</thead><tbody>{''.join(map(_row, rows))}</tbody>"
    return f'<div class="wide"><table>{body}</table></div>'


def _row(cells: Iterable[str], tag: str = "td") -> str:
    return f"<tr>{''.join(f'<{tag}>{cell}</{tag}>' for cell in cells)}</tr>"


def _code(text: str) -> str:
    return f"<code>{_t(text)}</code>"


def _t(text: Any) -> str:
    return html.escape(str(text))


def _prose(text: Any) -> str:
    """Text in which f_D, x_D*, f_{i,S} and f^inf are set as they are read.

    >>> _prose("f_D^inf & L_max")
    'f<sub>D</sub><sup>inf</sup> &amp; L<sub>max</sub>'
    """
    raised = _RAISED.sub(r"<sup>\1</sup>", _t(text))
    return _LOWERED.sub(lambda match: f"{match[1]}<sub>{match[2].strip('{}')}</sub>", raised)
