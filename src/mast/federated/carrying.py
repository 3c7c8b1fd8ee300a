"""Messages there and replies back, within a finite time."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from flwr.app import Message
from flwr.serverapp import Grid

from mast.errors import ArgumentError

FIRST_LOOK, LAST_LOOK = 0.02, 0.5  # seconds between two looks for replies, less and less often


def send(grid: Grid, messages: Sequence[Message], timeout: float) -> list[Message]:
    """Send messages and wait for the replies, at most `timeout` seconds.

    Flower's own ``grid.send_and_receive`` looks for replies every three seconds only.
    """
    waiting = {name for name in grid.push_messages(messages) if name} if messages else set()
    deadline, pause = time.monotonic() + timeout, FIRST_LOOK
    replies: list[Message] = []
    while waiting:
        came = list(grid.pull_messages(list(waiting)))
        replies += came
        waiting -= {reply.metadata.reply_to_message_id for reply in came}
        if not waiting or time.monotonic() > deadline:
            break
        time.sleep(pause)
        pause = min(1.3 * pause, LAST_LOOK)
    return replies


def checked_seconds(name: str, value: Any) -> float:
    """A finite time: nothing here waits for ever."""
    if not isinstance(value, int | float) or not 0 < value < float("inf"):
        raise ArgumentError(f"{name} must be a positive, finite number of seconds, got {value!r}")
    return float(value)
