"""The diagram of the architecture: the rooms of `src/mast` in bands, and the data's way through a run.

A room uses rooms of its own band and of the bands below. A test compares this with the source.
"""

from __future__ import annotations

from html import escape

# From top to bottom: a band's name, and its rooms with what each is for.
BANDS: dict[str, dict[str, str]] = {
    "front doors": {
        "cli": "the mast command",
        "experiments": "the paper's figures",
        "learn": "scikit-learn estimators",
        "nn": "PyTorch models",
        "engines": "carry messages",
        "cluster": "torchrun",
        "federated": "Flower",
    },
    "runs": {
        "run": "the loop",
        "sweeps": "many runs",
        "trace": "what is measured",
        "results": "x, trace, nodes",
        "resume": "a run, continued",
        "plots": "curve and bound",
        "advice": "before training",
        "allocation": "what to keep",
    },
    "methods": {
        "methods": "one method per file: x ← x − γ h",
        "distributed": "server, nodes and messages",
    },
    "mathematics": {
        "problem": "f_D, nodes",
        "objectives": "f",
        "sketches": "S",
        "theory": "guarantees",
    },
    "ground": {
        "data": "LIBSVM and friends",
        "randomness": "keyed draws",
        "support": "checks, files, checkpoints, progress",
        "errors": "what went wrong",
    },
}
FILLS = {
    "front doors": "#dbe4ff",
    "runs": "#d0ebff",
    "methods": "#ffe8cc",
    "mathematics": "#fff3bf",
    "ground": "#e9ecef",
}
WIDTH, LEFT, GAP, ROW, PER_ROW = 1000, 128, 10, 46, 6


def diagram() -> str:
    """The whole picture as SVG."""
    parts, y = [], 34
    parts.append(_text(16, 20, "Rooms: each uses its own band and those below", 15, weight="bold"))
    for band, rooms in BANDS.items():
        names = list(rooms)
        count = -(-len(names) // PER_ROW)
        length = -(-len(names) // count)
        rows = [names[start : start + length] for start in range(0, len(names), length)]
        height = len(rows) * (ROW + GAP) + GAP
        parts.append(
            f'<rect x="8" y="{y}" width="{WIDTH - 16}" height="{height}" rx="6" fill="{FILLS[band]}"/>'
        )
        parts.append(_text(20, y + height / 2 + 5, band, 13.5, weight="bold"))
        for number, row in enumerate(rows):
            parts += _rooms(row, rooms, y + GAP + number * (ROW + GAP))
        y += height + 8
    way, height = _way(y + 30)
    parts.append(_text(16, y + 20, "The data's way through a run", 15, weight="bold"))
    y += 30 + height
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {y:.0f}" font-family="sans-serif" '
        'role="img" aria-label="The rooms of the source and the way of the data through a run">\n'
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" '
        'orient="auto">'
        '<path d="M0 0 L8 4 L0 8 z" fill="#495057"/></marker></defs>\n'
        f'<rect width="{WIDTH}" height="{y:.0f}" fill="#ffffff"/>\n'
        + "\n".join([*parts, *way])
        + "\n</svg>\n"
    )


def _rooms(row: list[str], rooms: dict[str, str], y: float) -> list[str]:
    width = (WIDTH - LEFT - 16 - GAP * len(row)) / len(row)
    parts = []
    for column, name in enumerate(row):
        x = LEFT + column * (width + GAP)
        parts.append(_box(x, y, width, ROW, name, rooms[name], room=True))
    return parts


def _box(
    x: float, y: float, width: float, height: float, title: str, about: str, *, room: bool = False
) -> str:
    label = f' data-room="{title}"' if room else ""
    middle = x + width / 2
    family = "monospace" if room else "sans-serif"
    return (
        f'<rect{label} x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height}" rx="5" fill="#ffffff" '
        'stroke="#868e96"/>'
        + _text(middle, y + 19, title, 13, anchor="middle", weight="bold", family=family)
        + _text(middle, y + 36, about, 11.5, anchor="middle", colour="#495057")
    )


def _text(
    x: float, y: float, text: str, size: float, *, anchor: str = "start", weight: str = "normal",
    colour: str = "#212529", family: str = "sans-serif",
) -> str:  # fmt: skip
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" text-anchor="{anchor}" font-weight="{weight}" '
        f'fill="{colour}" font-family="{family}">{escape(text)}</text>'
    )


def _way(top: float) -> tuple[list[str], float]:
    """Boxes from left to right, and the arrows between them."""
    wide, high = 150, 50
    columns = [16, 216, 416, 616, 834]
    boxes = {
        "file": (columns[0], top, "a file, a name", "data.load"),
        "objective": (columns[1], top, "objective f", "value, gradient, L_f"),
        "sketch": (columns[1], top + 72, "sketch D", "L_D, mu_D, L_max"),
        "shift": (columns[1], top + 144, "shift v", "a model, or 0"),
        "problem": (columns[2], top + 72, "problem f_D", "E f(v + S(x − v))"),
        "theory": (columns[2], top + 168, "theory", "constants in, promise out"),
        "key": (columns[3], top, "key", "seed, step, node, index"),
        "method": (columns[3], top + 72, "method", "one step: x ← x − γ h"),
        "size": (columns[3], top + 168, "guarantee", "step size γ, bound"),
        "result": (columns[4], top + 72, "result", "x, trace, status"),
        "disk": (columns[4], top, "checkpoint", "state and key: same bits"),
        "plot": (columns[4], top + 168, "plot", "the curve, its bound"),
    }
    arrows = [
        ("file", "objective"), ("objective", "problem"), ("sketch", "problem"), ("shift", "problem"),
        ("problem", "method"), ("problem", "theory"), ("theory", "size"), ("size", "method"),
        ("key", "method"), ("method", "result"), ("method", "disk"), ("result", "plot"), ("size", "plot"),
    ]  # fmt: skip
    parts = [_arrow(boxes[a], boxes[b], wide, high) for a, b in arrows]
    parts.append(_text(columns[3] + wide / 2 + 6, top + 65, "draws S", 11.5, colour="#495057"))
    parts += [_box(x, y, wide, high, title, about) for x, y, title, about in boxes.values()]
    return parts, 168 + high + 16


def _arrow(
    a: tuple[float, float, str, str], b: tuple[float, float, str, str], wide: float, high: float
) -> str:
    if a[0] == b[0]:  # in one column
        x1 = x2 = a[0] + wide / 2
        y1, y2 = (a[1] + high, b[1]) if a[1] < b[1] else (a[1], b[1] + high)
    else:
        x1, x2 = a[0] + wide, b[0]
        y1, y2 = a[1] + high / 2, b[1] + high / 2
    line = f'<path d="M{x1} {y1} L{x2} {y2}" stroke="#495057" stroke-width="1.4"'
    return f'{line} fill="none" marker-end="url(#tip)"/>'
