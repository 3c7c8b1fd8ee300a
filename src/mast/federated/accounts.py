"""What a federation cost: bytes to and from each client, and seconds, round by round."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from flwr.app import MetricRecord


@dataclass(frozen=True)
class Row:
    """One round."""

    round: int  # from 1
    seconds: float  # from making the messages to the server's step, not counting waits for clients to come
    busy: float  # seconds that the slowest client worked
    invited: int
    answered: int
    down: int  # bytes of the records to all clients
    up: int  # and from them
    metrics: Mapping[str, float] = field(default_factory=dict)  # means of what the clients said

    def text(self) -> str:
        """For the log."""
        numbers = "".join(f", {name} {value:.4g}" for name, value in self.metrics.items())
        return (
            f"{self.answered} of {self.invited} answered in {self.seconds:.2f} s (work {self.busy:.2f} s), "
            f"{self.down} bytes down, {self.up} up{numbers}"
        )


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
    rows: list[Row] = field(default_factory=list)
    _down: int = field(default=0, init=False)  # of this round
    _up: int = field(default=0, init=False)
    _said: list[Mapping[str, float]] = field(default_factory=list, init=False)

    @classmethod
    def empty(cls, nodes: int) -> Accounts:
        """Nothing yet."""
        return cls(**{name: [0] * nodes for name in CLIENTS}, rows=[])

    def sent_to(self, node: int, size: int, values: int) -> None:
        """A message of this size, with so many bytes of values, went to a client."""
        self.down[node] += size
        self.values[node] += values
        self.messages[node] += 1
        self._down += size

    def came_from(self, node: int, size: int, metrics: Mapping[str, float]) -> None:
        """An answer came."""
        self.up[node] += size
        self.replies[node] += 1
        self._up += size
        if metrics:
            self._said.append(metrics)

    def close(self, t: int, seconds: float, *, invited: int, answered: Sequence[int], busy: float) -> None:
        """The round ends."""
        for node in answered:
            self.answers[node] += 1
        means = means_of(self._said)
        self.rows.append(Row(t, seconds, busy, invited, len(answered), self._down, self._up, means))
        self._down, self._up, self._said = 0, 0, []

    def metrics(self) -> MetricRecord:
        """The last round, as Flower's results hold it."""
        row = self.rows[-1]
        plain: dict[str, Any] = {
            "seconds": row.seconds, "invited": row.invited, "answered": row.answered,
            "bytes-down": row.down, "bytes-up": row.up,
        }  # fmt: skip
        return MetricRecord(plain | dict(row.metrics))

    def to_json(self) -> dict[str, Any]:
        """For a checkpoint."""
        own = {name: getattr(self, name) for name in CLIENTS}
        return own | {"rows": [asdict(row) for row in self.rows]}

    @classmethod
    def from_json(cls, said: Mapping[str, Any]) -> Accounts:
        """From a checkpoint."""
        return cls(**{name: said[name] for name in CLIENTS}, rows=[Row(**row) for row in said["rows"]])


def means_of(rows: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """The mean of each name over the rows that have it."""
    names = sorted({name for row in rows for name in row})
    return {name: mean([row[name] for row in rows if name in row]) for name in names}


def mean(values: Sequence[float]) -> float:
    """The mean of a few numbers."""
    return sum(values) / len(values)
