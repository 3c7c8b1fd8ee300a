"""The server: rounds, checkpoint, and a result at the end."""

import contextlib
import json
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import ConfigRecord, Context
from flwr.serverapp import Grid, ServerApp

from mast.distributed import Participation, Server, stride_of
from mast.engines.flower.records import record_of, send, vector_of
from mast.errors import MissingExtraError
from mast.federated import MastStrategy
from mast_federation.fedavg import CountedFedAvg
from mast_federation.tasks import task_of

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """One run, or the rest of one that was stopped."""
    config = context.run_config
    out = Path(config["out"]) if config["out"] else None
    rows: dict[str, Any] = {}
    ends: dict[str, np.ndarray] = {}  # the whole models
    if config["strategy"] in ("mast", "compare"):
        strategy = sparse(grid, config, out)
        result = strategy.result()
        print(result.table())
        rows["mast"], ends["MAST"] = result.rows, result.x
        if out is not None:
            arrays = {name: array.numpy() for name, array in strategy.arrays().items()}
            np.savez(out / "model.npz", **arrays)
            result.save(out)
            with contextlib.suppress(MissingExtraError):  # a picture, where matplotlib is installed
                result.plot().figure.savefig(out / "nodes.png", dpi=130)
    if config["strategy"] in ("fedavg", "compare"):
        rows["fedavg"], ends["FedAvg"] = whole(grid, config)
    print(compared(config, ends, list(rows.values())))
    if config["strategy"] != "mast" and out is not None:
        (out / "rounds.json").write_text(json.dumps(rows, indent=1))


def compared(config: dict[str, Any], ends: dict[str, np.ndarray], rows: list[list[dict[str, Any]]]) -> str:
    """The accuracy of each whole model and its bytes, beside that of the largest class."""
    task, lines, largest = task_of(config), [], 0.0
    for (name, x), rounds in zip(ends.items(), rows, strict=True):
        accuracy, largest = task.score(x)
        megabytes = sum(row["down"] + row["up"] for row in rounds) / 1e6
        lines.append(f"{name}: {accuracy:.3f}, {megabytes:.2f} MB")
    return f"accuracy of the whole model: {'; '.join(lines)}; the largest class: {largest:.3f}"


def sparse(grid: Grid, config: dict[str, Any], out: Path | None) -> MastStrategy:
    """Train, every client the submodel that it can hold."""
    task = task_of(config)
    share = float(config["participation"])
    coupling, aggregation = "independent", config["aggregation"]
    if task.scheme is not None:
        coupling, aggregation = task.scheme.coupling, task.scheme.aggregation
    participation = Participation(
        task.seed, task.nodes, stride_of(task.capacities), coupling, participation=share
    )
    step_size = float(config["step-size"]) or task.default_step_size
    server = Server(
        task.start(task.scheme),
        task.capacities,
        participation,
        step_size=step_size,
        optimizer=config["optimizer"],
        aggregation=aggregation,
        local_steps=int(config["local-steps"]),
        local_step_size=float(config["local-step-size"]) or None,
        run=task.run,
    )
    strategy = MastStrategy(
        server,
        answering=float(config["answering"]) if config["answering"] else "unknown",
        checkpoint=None if out is None else out / "checkpoint.mast",
        evaluate_draws=int(config["draws"]),
        gathering=float(config["gathering"]),
    )
    strategy.start(grid, num_rounds=int(config["rounds"]), timeout=float(config["timeout"]))
    return strategy


def whole(grid: Grid, config: dict[str, Any]) -> tuple[list[dict[str, float]], np.ndarray]:
    """FedAvg of the whole model on the same data, to compare with: what rounds cost, and the model."""
    task = task_of(config)
    strategy = CountedFedAvg(task.nodes)
    step_size = float(config["local-step-size"]) or float(config["step-size"]) or task.default_step_size
    words = ConfigRecord({"step-size": step_size, "local-steps": int(config["local-steps"])})
    arrays = record_of(task.start(), task.shapes)
    for t in range(1, int(config["rounds"]) + 1):
        # Not `strategy.start`: it looks for replies every 0.1 or 3 seconds, and would be compared by that.
        messages = strategy.configure_train(t, arrays, words, grid)
        arrays = strategy.aggregate_train(t, send(grid, messages, float(config["timeout"])))[0] or arrays
    return strategy.rows, vector_of(arrays, task.shapes, task.start().dtype)
