"""The server's side: a strategy of Flower's that gives every client its own submodel.

The mathematics is that of `mast.distributed.Server`. What is added here: who is there, which weights the
answers get when some are missing, checkpoints, and what all of it cost.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping
from logging import INFO, WARNING
from pathlib import Path
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result as FlowerResult
from flwr.serverapp.strategy import Strategy
from flwr.supercore import log

from mast.distributed import Message as ServerMessage
from mast.distributed import Server
from mast.distributed.participation import Dropouts
from mast.engines.flower.records import (
    METRICS,
    means_of,
    metric_record,
    pack_messages,
    payload,
    plain_numbers,
    record_of,
    refuse_mismatch,
    seal,
    send,
    shapes_of,
    vector_of,
)
from mast.engines.flower.registry import ClientRegistry, NoClientsError, NormLimit, valid_answers
from mast.engines.runs import RunFiles, node_table, result_of
from mast.errors import CheckpointError
from mast.results import Result, score_columns
from mast.support.checkpoint import refuse_other_run
from mast.support.checks import check_int, check_number, check_positive


class MastStrategy(Strategy):
    """Distributed DSGD with a sketch for each client, on Flower.

    Answers are summed in ascending order of the partitions, whatever order they arrive in, so that all
    engines give the same bits: those of ``mast.minimize(nodes, "distributed")`` if nobody drops out.

    Parameters
    ----------
    server
        A `mast.distributed.Server`: the point, capacities, participation, step size and optimizer.
    answering
        The probability that an invited client answers, one or one each; "unknown" (weights by the
        share that answered); "always". See `mast.distributed.participation` for what each makes unbiased.
    checkpoint
        A file, written after every `checkpoint_every` rounds and at the end. If it exists, the run
        goes on from it: rounds are counted over the whole run, so no draw is repeated. The trace stands
        beside it, in a file with the ending ``.trace.jsonl``. Of a symbolic link, its target counts.
    norm_limit
        Answers longer than this many times the running median of accepted ones are refused, with a warning;
        at the start they are measured by x. None takes all that are finite.
    gathering
        Seconds to wait for all clients at the start, and for any client if everybody is gone.
    least
        Clients without which it does not go on after that time.
    node_ids
        The node id of each partition, where SuperNodes are authenticated: no other node gets it. Without
        it a partition belongs to whoever claimed it first, as long as that node is there.
    evaluate_draws
        Submodels that each client scores at the end.
    """

    def __init__(
        self,
        server: Server,
        *,
        answering: Any = "unknown",
        checkpoint: str | Path | None = None,
        checkpoint_every: int = 1,
        norm_limit: float | None = 100.0,
        gathering: float = 120.0,
        least: int = 1,
        node_ids: Mapping[int, int] | None = None,
        evaluate_draws: int = 1,
    ) -> None:
        self.server = server
        self.dropouts = Dropouts(answering, server.participation.nodes)
        self.shapes = shapes_of(server)
        self.files = RunFiles(server, checkpoint)
        self.checkpoint_every = max(1, check_int("checkpoint_every", checkpoint_every))
        self.evaluate_draws = check_int("evaluate_draws", evaluate_draws)
        nodes, gathering = server.participation.nodes, check_positive("gathering", gathering)
        self.registry = ClientRegistry(nodes, gathering, check_int("least", least, 1, nodes), node_ids)
        self.norms = NormLimit(
            None if norm_limit is None else check_number("norm_limit", norm_limit, least=1)
        )
        self.scores: dict[int, list[dict[str, float]]] = {}  #: by client, one row of numbers per draw
        self.timeout = 600.0
        self._invited: Mapping[int, float] = {}  # with the weights of their answers
        self._node_ids: dict[int, int] = {}  # partition -> node id, in this round
        self._begun = 0.0
        self.resume()

    # ---- the whole run ---------------------------------------------------------------------

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord | None = None,
        num_rounds: int = 3,
        timeout: float = 600.0,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None = None,
    ) -> FlowerResult:
        """Train until `num_rounds` rounds are done in all, those of the checkpoint included.

        `timeout` is the most that a round waits for answers, in seconds: clients that fail, or that
        Flower knows to be gone, are not waited for. `initial_arrays` replaces the server's
        starting point, if the run is not continued. Rounds in the result count from 1 over the whole run.
        """
        self.timeout = check_positive("timeout", timeout)
        rounds = check_int("num_rounds", num_rounds)
        train_config = ConfigRecord() if train_config is None else train_config
        evaluate_config = ConfigRecord() if evaluate_config is None else evaluate_config
        result = FlowerResult()
        with self.files.locked():
            if self.files.checkpoint is not None:
                self.resume()  # another process may have gone on in the meantime
                self.files.truncate_trace()
            if self.server.t == 0 and initial_arrays is not None:
                self.server.x[...] = vector_of(initial_arrays, self.shapes, self.server.x.dtype)
            self.summary()
            if evaluate_fn is not None and self.server.t == 0:
                _keep(result.evaluate_metrics_serverapp, 0, evaluate_fn(0, self.arrays()))
            while self.server.should_continue(rounds):
                t = self.server.t + 1
                messages = self.configure_train(t, ArrayRecord(), train_config, grid)
                replies = send(grid, messages, self.timeout)
                refuse_mismatch(replies)
                if messages and not replies:
                    log(WARNING, "Nobody answered in %g s: is `timeout` too short for a round?", self.timeout)
                result.train_metrics_clientapp[t] = self._aggregate(replies)
                if evaluate_fn is not None:
                    _keep(result.evaluate_metrics_serverapp, t, evaluate_fn(t, self.arrays()))
            if self.server.diverged:
                log(WARNING, "The run diverged in round %d: take a smaller step size", self.server.t)
            self.save()
            result.arrays = self.arrays()
            if not self.server.diverged:
                try:
                    replies = send(grid, self._submodels(evaluate_config, grid), self.timeout)
                    scores = self.aggregate_evaluate(self.server.t, replies)
                    _keep(result.evaluate_metrics_clientapp, self.server.t, scores)
                except NoClientsError as error:
                    log(WARNING, "The model is trained, but was not scored: %s", error)
        return result

    # ---- a round of training ---------------------------------------------------------------

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> list[Message]:
        """One message for each invited client that is there, each with its own submodel.

        The round is the server's own (`server.t`), because Flower counts from 1 again after a restart.
        """
        server = self.server
        self._node_ids = self.registry.connected(grid)
        self._begun = time.perf_counter()
        self._invited = server.weights()
        messages = []
        for node in (node for node in self._invited if node in self._node_ids):
            message = seal(server.message(node), server.capacities[node])
            records = pack_messages(message, config=config)
            server.state.received[node] += payload(records) - message.size
            messages.append(self._addressed(records, node, MessageType.TRAIN))
        return messages

    def _addressed(self, records: Any, node: int, kind: str) -> Message:
        group = str(self.server.t + 1)
        return Message(records, self._node_ids[node], kind, ttl=self.timeout, group_id=group)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """The server's step, from the answers that came; failures are logged and do not stop the round."""
        metrics = self._aggregate(replies)
        return self.arrays(), metrics

    def _aggregate(self, replies: Iterable[Message]) -> MetricRecord:
        server = self.server
        replied = valid_answers(replies, server, self._node_ids, self._invited, self.norms)
        for node, weight in self.dropouts.weights(self._invited, sorted(replied)).items():
            answer, reply = replied[node]
            server.aggregate(answer, weight)  # in the order of sums: ascending partitions
            server.state.sent[node] += payload(reply.content) - answer.size
        server.finish_round(step=self.dropouts.estimates_gradient(self._invited, replied))
        records = [reply.content[METRICS] for _, reply in replied.values() if METRICS in reply.content]
        means = means_of([plain_numbers(record) for record in records])
        means.pop("passes", None)  # the column by which a trace of `mast.minimize` is known
        seconds = [answer.header.seconds for answer, _ in replied.values()]
        due = server.t % self.checkpoint_every == 0
        columns = means | {
            "invited": len(self._invited),
            "nodes": len(replied),
            "compute": max((s for s in seconds if math.isfinite(s) and s > 0), default=0.0),
        }
        row = self.files.add_round(time.perf_counter() - self._begun, due, columns)
        if due:
            self.save()
        log(INFO, "[round %d] %s", server.t, _in_words(row, means))
        return metric_record(row)

    # ---- scores ----------------------------------------------------------------------------

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> list[Message]:
        """Nothing to score between rounds: clients score the model that the run ends with."""
        return []

    def _submodels(self, config: ConfigRecord, grid: Grid) -> list[Message]:
        """One message for each client that is there, with `evaluate_draws` submodels."""
        if not self.evaluate_draws:
            return []
        self._node_ids = self.registry.connected(grid)
        messages = []
        for node in sorted(self._node_ids):
            draws = [self._submodel(node, draw) for draw in range(self.evaluate_draws)]
            messages.append(self._addressed(pack_messages(*draws, config=config), node, MessageType.EVALUATE))
        return messages

    def _submodel(self, node: int, draw: int) -> ServerMessage:
        """A client's submodel to score: of a draw that training never uses, or its largest."""
        server, capacity = self.server, self.server.capacities[node]
        key = server.participation.submodel_key(draw, node)
        part = capacity.largest_part(key)
        message = ServerMessage(server.header(node, part, key))
        part.gather(server.x, message.values)
        return seal(message, capacity)

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """The mean of the clients' numbers; each client's own are in `scores`."""
        nodes, scores = {node_id: node for node, node_id in self._node_ids.items()}, {}
        for reply in replies:
            if reply.has_error():
                log(WARNING, "A client could not score its submodels: %s", reply.error.reason)
                continue
            names = sorted(name for name in reply.content if name.startswith(METRICS))[: self.evaluate_draws]
            rows = [row for row in (plain_numbers(reply.content[name]) for name in names) if row]
            if rows and reply.metadata.src_node_id in nodes:
                scores[nodes[reply.metadata.src_node_id]] = rows
        self.scores = dict(sorted(scores.items()))
        means = means_of([row for rows in self.scores.values() for row in rows])
        return metric_record(means) if means else None

    @property
    def rows(self) -> list[dict[str, Any]]:
        """The rows of the trace, one per round."""
        return self.files.rows

    def result(self) -> Result:
        """What the run ended with so far: x, the trace, and what each client got, sent and scored."""
        nodes = node_table(self.server)
        for node, rows in self.scores.items():
            for name in dict.fromkeys(name for row in rows for name in row):
                nodes[node] |= score_columns(name, [row[name] for row in rows if name in row])
        return result_of(self.server, self.rows, nodes, "a server does not know the clients' smoothness")

    # ---- checkpoints and arrays ------------------------------------------------------------

    def save(self) -> None:
        """Write the checkpoint, if there is a file for it; the old one stays until the new one is whole."""
        clients = {str(node): own for node, own in (self.registry.identities or {}).items()}
        self.files.save({"norms": self.norms.accepted, "clients": clients, **self._rules()})

    def _rules(self) -> dict[str, str]:
        """What a checkpoint must agree in beside the server: what is done with the answers."""
        return {"answering": self.dropouts.label, "norm_limit": str(self.norms.limit)}

    def resume(self) -> None:
        """Go on from the checkpoint, if there is one."""
        file = self.files.checkpoint
        if file is None:
            return
        self.registry.identities = {}
        extra = self.files.load()
        if extra is None:
            return
        refuse_other_run(extra, self._rules(), str(file))
        norms, clients = extra.get("norms"), extra.get("clients")
        if not isinstance(norms, list) or not all(type(n) is float and 0 < n < math.inf for n in norms):
            raise CheckpointError(f"{file} is damaged: its 'norms' are not right")
        if not isinstance(clients, dict) or not all(
            node.isdecimal() and isinstance(own, dict) and all(isinstance(s, str) for s in own.values())
            for node, own in clients.items()
        ):
            raise CheckpointError(f"{file} is damaged: its 'clients' are not right")
        self.norms.accepted = norms
        self.registry.identities = {int(node): own for node, own in clients.items()}

    def arrays(self) -> ArrayRecord:
        """x, in its pieces."""
        return record_of(self.server.x, self.shapes)

    def summary(self) -> None:
        """Say what will be done."""
        server = self.server
        log(
            INFO,
            f"MAST: {len(server.capacities)} clients, {server.x.size} parameters, {server.optimizer.label}, "
            f"step size {server.step_size:g}, {server.local_steps} local step(s), answering: "
            f"{self.dropouts.label}",
        )
        if server.t:
            log(INFO, f"Going on after round {server.t} of {self.files.checkpoint}")


def _keep(metrics: dict[int, MetricRecord], t: int, record: MetricRecord | None) -> None:
    if record is not None:
        metrics[t] = record


def _in_words(row: Mapping[str, Any], means: Mapping[str, float]) -> str:
    """A row of the trace, for the log."""
    numbers = "".join(f", {name} {value:.4g}" for name, value in means.items())
    return (
        f"{row['nodes']} of {row['invited']} answered in {row['took']:.2f} s (work {row['compute']:.2f} s), "
        f"{row['down']} bytes down, {row['up']} up{numbers}"
    )
