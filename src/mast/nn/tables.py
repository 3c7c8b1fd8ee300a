"""What a sparsifier prints: every parameter, whether it is sketched, and why not if not."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from mast.sketches.base import percent

if TYPE_CHECKING:
    from mast.nn.sparsifier import Sparsifier


def overview(sk: Sparsifier) -> str:
    """The table, in the order of `named_parameters`."""
    rows = [("parameter", "shape", "sketched")]
    sketched = {w.name: i for i, w in enumerate(sk.weights)}
    for name, p in sk.model.named_parameters():
        if name in sketched:
            i = sketched[name]
            share = sk.drawing.share(i)
            verdict = f"yes, keeps {percent(share)}" if share == share else "yes"
        else:
            verdict = "no: " + sk.selection.others.get(name, (None, "new since sparsify()"))[1]
        rows.append((name, " x ".join(map(str, p.shape)) or "scalar", verdict))
    total = sum(p.numel() for p in sk.model.parameters())
    shift = "no shift" if sk.shift is None else "a shift"
    first = (
        f"{type(sk.model).__name__} sparsified with {sk.sketch._label()}; {shift}; seed {sk.seed}, node "
        f"{sk.node}, step {sk.step}"
    )
    last = f"{sk.dim:,} of {total:,} weights are sketched, {percent(sk.density)} of them kept on average"
    return "\n".join([first, *columns(rows), last])


def columns(rows: Sequence[tuple[str, ...]]) -> list[str]:
    """Rows of text with aligned columns.

    >>> columns([("a", "b"), ("long", "c")])
    ['  a     b', '  long  c']
    """
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return [
        ("  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))).rstrip()
        for row in rows
    ]
