"""The picture of a federation: scores by capacity, bytes by client, seconds by round. Needs matplotlib."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from mast import files

if TYPE_CHECKING:
    from mast.federated.report import Report

FIRST, SECOND = "#1f5a94", "#d98a2b"


def draw(report: Report, path: Path) -> None:
    """Write the picture as PNG."""
    import io

    figure = Figure(figsize=(12, 3.8), layout="constrained")
    FigureCanvasAgg(figure)
    scores, sizes, times = figure.subplots(1, 3)
    _scores(scores, report)
    _bytes(sizes, report)
    _seconds(times, report)
    content = io.BytesIO()
    figure.savefig(content, format="png", dpi=130)
    files.write(path, content.getvalue())


def _scores(axes: Any, report: Report) -> None:
    """Every draw a point, the mean a bar."""
    named = [name for rows in report.scores.values() for row in rows for name in row]
    axes.set_title("score of submodels by capacity", fontsize=10)
    if not named:
        axes.text(0.5, 0.5, "nothing was scored", ha="center", transform=axes.transAxes)
        return
    name = named[0]
    groups = report.groups()
    for at, nodes in enumerate(groups.values()):
        values = [row[name] for i in nodes for row in report.scores.get(i, []) if name in row]
        if values:
            axes.plot([at] * len(values), values, "o", color=FIRST, alpha=0.35, markersize=5)
            axes.plot([at - 0.25, at + 0.25], [sum(values) / len(values)] * 2, color=SECOND, linewidth=2.5)
    axes.set_xticks(range(len(groups)), [_short(text) for text in groups], fontsize=7)
    axes.set_ylabel(name)


def _bytes(axes: Any, report: Report) -> None:
    rows = report.clients()
    places = range(len(rows))
    down = [row["bytes down a round"] / 1000 for row in rows]
    up = [row["bytes up a round"] / 1000 for row in rows]
    axes.bar([p - 0.2 for p in places], down, 0.4, color=FIRST, label="to the client")
    axes.bar([p + 0.2 for p in places], up, 0.4, color=SECOND, label="from the client")
    axes.axhline(report.full / 1000, color="0.4", linestyle="--", linewidth=1, label="the whole model")
    axes.set_title("payload of a round", fontsize=10)
    axes.set_xlabel("client")
    axes.set_ylabel("kB")
    if len(rows) <= 20:
        axes.set_xticks(list(places))
    axes.set_ylim(0, 1.35 * max([report.full / 1000, *down, *up]))
    axes.legend(fontsize=8, ncols=2, loc="upper right")


def _seconds(axes: Any, report: Report) -> None:
    rows = report.accounts.rows
    t = [row.round for row in rows]
    axes.plot(t, [row.seconds for row in rows], "o-", color=FIRST, markersize=3, label="the round")
    axes.plot(
        t,
        [max(row.busy, 1e-4) for row in rows],
        "o-",
        color=SECOND,
        markersize=3,
        label="work of the slowest client",
    )
    axes.set_yscale("log")
    axes.set_title("seconds", fontsize=10)
    axes.set_xlabel("round")
    axes.legend(fontsize=8)


def _short(label: str) -> str:
    """A capacity's name in two short lines: what is kept, and how much of it."""
    share = re.search(r"keeps ([^,)]*)", label)
    return f"{label.partition('(')[0]}\n{share[1] if share else ''}"
