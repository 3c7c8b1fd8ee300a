"""A federation in one process: the real strategy and the real ClientApp, without Ray and without a wire."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity

from mast.engines.flower.records import PARTITION
from mast.randomness import Key, Purpose, uniform

RUN = 1  # the number of the only run
_FAILED = 0  # code of an error without a name


class LocalGrid(Grid):
    """A grid of `nodes` clients of one app.

    Where the app raises, an error comes back at once, as from Flower.

    >>> from flwr.app import ConfigRecord
    >>> app = ClientApp()
    >>> @app.query()
    ... def number(message, context):
    ...     said = ConfigRecord({"mine": context.node_config["partition-id"]})
    ...     return Message(RecordDict({"config": said}), reply_to=message)
    >>> grid = LocalGrid(app, 3)
    >>> questions = [Message(RecordDict(), node_id, "query") for node_id in grid.get_node_ids()]
    >>> sorted(reply.content["config"]["mine"] for reply in grid.send_and_receive(questions))
    [0, 1, 2]
    """

    def __init__(self, app: ClientApp, nodes: int) -> None:
        self.app = app
        # As Flower's, the ids are large numbers without order.
        by_id = {1 + int(uniform(Key(RUN, 0, i), Purpose.CHOICE) * 2**62): i for i in range(nodes)}
        self.contexts = {
            node_id: Context(
                run_id=RUN,
                node_id=node_id,
                node_config={PARTITION: i, "num-partitions": nodes},
                state=RecordDict(),
                run_config={},
            )
            for node_id, i in by_id.items()
        }
        ensure_task_identity()
        self._replies: dict[str, Message] = {}
        self._count = 0

    def set_run(self, run: Any) -> None:
        """There is one run only."""

    @property
    def run(self) -> Any:
        """There is one run only."""
        return None

    def create_message(
        self,
        content: RecordDict,
        message_type: str,
        dst_node_id: int,
        group_id: str,
        ttl: float | None = None,
    ) -> Message:
        """A message, as Flower's older programs make them."""
        return Message(content, dst_node_id, message_type, ttl=ttl, group_id=group_id)

    def get_node_ids(self) -> Iterable[int]:
        """All clients, in no order."""
        return sorted(self.contexts)

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        """Bring messages to their clients, which answer at once."""
        ids = []
        for message in messages:
            self._count += 1
            name = str(self._count)
            message.metadata.__dict__["_message_id"] = name  # as Flower's grids do
            self._replies[name] = self._answer(message)
            ids.append(name)
        return ids

    def _answer(self, message: Message) -> Message:
        context = self.contexts[message.metadata.dst_node_id]
        try:
            return self.app(message, context)
        except Exception as error:  # as Flower's engines do
            return Message(Error(code=_FAILED, reason=f"{type(error).__name__}: {error}"), reply_to=message)

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        """The replies to messages, each once, in no order."""
        found = [self._replies.pop(name) for name in message_ids if name in self._replies]
        return sorted(found, key=lambda reply: reply.metadata.src_node_id)

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        """Both."""
        return self.pull_messages(self.push_messages(messages))


def ensure_task_identity() -> None:
    """Flower's messages name the process that makes them; one that no engine started has no name yet."""
    for name, value in (("run_id", RUN), ("task_id", RUN), ("node_id", 1)):
        try:
            getattr(TaskIdentity, name)
        except RuntimeError:
            setattr(TaskIdentity, name, value)
