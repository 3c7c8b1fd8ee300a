"""What came out of a federation: bytes and scores by client and capacity, as tables and as a plot."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from mast import files
from mast.federated.accounts import Accounts, mean, means_of


@dataclass
class Report:
    """Everything that is worth showing at the end; `save(folder)` writes tables and, with matplotlib, a plot.

    >>> accounts = Accounts.empty(2)
    >>> for node in (0, 1):
    ...     accounts.sent_to(node, 100 + node, 80)
    ...     accounts.came_from(node, 90, {})
    >>> accounts.close(1, 2.0, invited=2, answered=[0, 1], busy=1.0)
    >>> report = Report(["a", "b"], 400, accounts, {0: [{"accuracy": 0.5}, {"accuracy": 0.7}], 1: []})
    >>> print(report.text())
    client  capacity  answers  bytes down a round  bytes up a round  share of the model  accuracy
    0       a               1                 100                90                 0.2       0.6
    1       b               1                 101                90                 0.2
    """

    capacities: list[str]
    full: int  # bytes of the whole model
    accounts: Accounts
    scores: dict[int, list[dict[str, float]]]

    def clients(self) -> list[dict[str, Any]]:
        """One row a client."""
        a, rows = self.accounts, []
        for node, capacity in enumerate(self.capacities):
            row: dict[str, Any] = {
                "client": node,
                "capacity": capacity,
                "answers": a.answers[node],
                "bytes down a round": round(a.down[node] / max(1, a.messages[node])),
                "bytes up a round": round(a.up[node] / max(1, a.replies[node])),
                "share of the model": round(a.values[node] / max(1, a.messages[node]) / self.full, 4),
            }
            rows.append(row | means_of(self.scores.get(node, [])))
        return rows

    def by_capacity(self) -> list[dict[str, Any]]:
        """One row a capacity: the means of its clients' scores and bytes, and how many draws were scored."""
        clients, rows = self.clients(), []
        for capacity in dict.fromkeys(self.capacities):
            nodes = [i for i, own in enumerate(self.capacities) if own == capacity]
            scored = [score for i in nodes for score in self.scores.get(i, [])]
            bytes_down = round(mean([clients[i]["bytes down a round"] for i in nodes]))
            row = {"capacity": capacity, "clients": len(nodes), "bytes down a round": bytes_down}
            rows.append(row | {"draws": len(scored)} | means_of(scored))
        return rows

    def rounds(self) -> list[dict[str, Any]]:
        """One row a round."""
        return [asdict(row) for row in self.accounts.rows]

    def text(self) -> str:
        """The clients' table, for a terminal."""
        return table(self.clients())

    def save(self, folder: str | Path) -> Path:
        """Write ``report.json`` and, if matplotlib is there, ``report.png``; returns the first."""
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        content = {
            "full model, bytes": self.full,
            "clients": self.clients(),
            "capacities": self.by_capacity(),
            "rounds": self.rounds(),
        }
        path = folder / "report.json"
        files.write(path, json.dumps(_plain(content), indent=1, allow_nan=False).encode())
        try:
            from mast.federated.picture import draw
        except ImportError:  # the extra `plots` is not installed
            return path
        draw(self, folder / "report.png")
        return path


def _plain(content: Any) -> Any:
    """The same without NaN and infinity, which JSON does not know: null stands for them."""
    if isinstance(content, dict):
        return {name: _plain(value) for name, value in content.items()}
    if isinstance(content, list):
        return [_plain(value) for value in content]
    return None if isinstance(content, float) and not math.isfinite(content) else content


def table(rows: list[dict[str, Any]]) -> str:
    """Rows under their names; numbers to the right."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    cells = [[_cell(row.get(name)) for name in names] for row in rows]
    right = [all(not isinstance(row.get(name), str) for row in rows) and name != "client" for name in names]
    width = [max(len(name), *(len(line[i]) for line in cells)) for i, name in enumerate(names)]
    lines = [
        "  ".join(
            text.rjust(w) if r and line is not names else text.ljust(w)
            for text, w, r in zip(line, width, right, strict=True)
        ).rstrip()
        for line in [names, *cells]
    ]
    return "\n".join(lines)


def _cell(value: Any) -> str:
    if value is None:
        return ""
    return f"{value:.4g}" if isinstance(value, float) else str(value)
