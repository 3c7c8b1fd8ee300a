"""What a federation cost and what came out of it: bytes, seconds and scores, as tables and as a plot."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from mast import files

Numbers = Mapping[str, float]


@dataclass(frozen=True)
class FederatedRound:
    """What one round cost."""

    round: int  # from 1
    seconds: float  # from making the messages to the server's step, not counting waits for clients to come
    busy: float  # seconds that the slowest client worked
    invited: int
    answered: int
    down: int  # bytes of the records to all clients
    up: int  # and from them
    metrics: Numbers = field(default_factory=dict)  # means of the clients' numbers

    def text(self) -> str:
        """For the log."""
        numbers = "".join(f", {name} {value:.4g}" for name, value in self.metrics.items())
        return (
            f"{self.answered} of {self.invited} answered in {self.seconds:.2f} s (work {self.busy:.2f} s), "
            f"{self.down} bytes down, {self.up} up{numbers}"
        )

    def record(self) -> dict[str, Any]:
        """As Flower's results hold it."""
        return {
            "seconds": self.seconds, "invited": self.invited, "answered": self.answered,
            "bytes-down": self.down, "bytes-up": self.up, **self.metrics,
        }  # fmt: skip


CLIENTS = ("down", "up", "values", "messages", "replies", "answers")  # one number for each client


@dataclass
class Accounts:
    """Sums over the whole run, also over restarts.

    >>> accounts = Accounts.empty(2)
    >>> accounts.sent_to(0, 100, 80)
    >>> accounts.came_from(0, 90, {"loss": 0.5})
    >>> accounts.close(1, 2.0, invited=2, answered=[0], busy=1.0)
    >>> accounts.rows[-1].text()
    '1 of 2 answered in 2.00 s (work 1.00 s), 100 bytes down, 90 up, loss 0.5'
    >>> Accounts.from_json(accounts.to_json()) == accounts
    True
    """

    down: list[int]  # bytes of the records to each client
    up: list[int]
    values: list[int]  # bytes of the values of the model to each client
    messages: list[int]  # how many each client got
    replies: list[int]  # how many of its answers came
    answers: list[int]  # and how many of these counted
    rows: list[FederatedRound] = field(default_factory=list)
    _before: tuple[int, int] = field(default=(0, 0), init=False, compare=False)  # sums at the last close
    _metrics: list[Numbers] = field(default_factory=list, init=False)

    @classmethod
    def empty(cls, nodes: int) -> Accounts:
        """Nothing yet."""
        return cls(**{name: [0] * nodes for name in CLIENTS}, rows=[])

    def sent_to(self, node: int, size: int, values: int) -> None:
        """A message of this size, with so many bytes of values, went to a client."""
        self.down[node] += size
        self.values[node] += values
        self.messages[node] += 1

    def came_from(self, node: int, size: int, metrics: Numbers) -> None:
        """An answer came."""
        self.up[node] += size
        self.replies[node] += 1
        if metrics:
            self._metrics.append(metrics)

    def close(self, t: int, seconds: float, *, invited: int, answered: Sequence[int], busy: float) -> None:
        """The round ends."""
        for node in answered:
            self.answers[node] += 1
        down, up = sum(self.down), sum(self.up)
        sizes = down - self._before[0], up - self._before[1]
        self.rows.append(
            FederatedRound(t, seconds, busy, invited, len(answered), *sizes, means_of(self._metrics))
        )
        self._before, self._metrics = (down, up), []

    def to_json(self) -> dict[str, Any]:
        """For a checkpoint."""
        clients = {name: getattr(self, name) for name in CLIENTS}
        return clients | {"rows": [asdict(row) for row in self.rows]}

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> Accounts:
        """From a checkpoint."""
        rows = [FederatedRound(**row) for row in stored["rows"]]
        accounts = cls(**{name: stored[name] for name in CLIENTS}, rows=rows)
        accounts._before = sum(accounts.down), sum(accounts.up)
        return accounts


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
     client capacity  answers  bytes down a round  bytes up a round  share of the model accuracy
          0        a        1                 100                90                 0.2      0.6
          1        b        1                 101                90                 0.2
    """

    capacities: list[str]
    full: int  # bytes of the whole model
    accounts: Accounts
    scores: Mapping[int, Sequence[Numbers]]  # for each client one row of numbers per draw

    def clients(self) -> list[dict[str, Any]]:
        """One row per client."""
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
        """One row per capacity: the means of its clients' scores and bytes, and how many draws there were."""
        clients, rows = self.clients(), []
        for capacity, nodes in self.groups().items():
            scored = [score for i in nodes for score in self.scores.get(i, [])]
            bytes_down = round(sum(clients[i]["bytes down a round"] for i in nodes) / len(nodes))
            row = {"capacity": capacity, "clients": len(nodes), "bytes down a round": bytes_down}
            rows.append(row | {"draws": len(scored)} | means_of(scored))
        return rows

    def groups(self) -> dict[str, list[int]]:
        """The clients of each capacity."""
        return {
            capacity: [i for i, other in enumerate(self.capacities) if other == capacity]
            for capacity in dict.fromkeys(self.capacities)
        }

    def rounds(self) -> list[dict[str, Any]]:
        """One row per round."""
        return [asdict(row) for row in self.accounts.rows]

    def text(self) -> str:
        """The clients' table, for a terminal."""
        import pandas

        table = pandas.DataFrame(self.clients()).astype(object)
        text: str = table.where(table.notna(), "").to_string(index=False, float_format="{:.4g}".format)
        return text

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
        files.write_json(path, content)
        try:
            from mast.federated.picture import draw
        except ImportError:  # the extra `plots` is not installed
            return path
        draw(self, folder / "report.png")
        return path


def means_of(rows: Sequence[Numbers]) -> dict[str, float]:
    """The mean of each name over the rows that have it."""
    means = {}
    for name in sorted({name for row in rows for name in row}):
        values = [row[name] for row in rows if name in row]
        means[name] = sum(values) / len(values)
    return means
