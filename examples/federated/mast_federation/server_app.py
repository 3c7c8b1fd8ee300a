"""The server: rounds, checkpoint, and a report at the end."""

from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from mast.exchange import Roster, Server, stride_of
from mast.federated import MastStrategy
from mast.federated.theory import guarantee
from mast_federation.tasks import task_of

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """One run, or the rest of one that was stopped."""
    config = context.run_config
    task = task_of(config)
    roster = Roster(
        task.seed, task.nodes, stride_of(task.capacities), participation=float(config["participation"])
    )
    waiting = {"gathering": float(config["gathering"])}
    step_size = float(config["step-size"]) or task.default_step_size
    if step_size is None:
        step_size = guarantee(grid, task.capacities, roster, **waiting).max_step_size()
    server = Server(
        task.start(),
        task.capacities,
        roster,
        step_size=step_size,
        optimizer=config["optimizer"],
        local_steps=int(config["local-steps"]),
        run=task.run,
    )
    out = Path(config["out"]) if config["out"] else None
    strategy = MastStrategy(
        server,
        answering=float(config["answering"]) if config["answering"] else "unknown",
        checkpoint=None if out is None else out / "checkpoint.mast",
        shapes=task.shapes,
        evaluate_draws=10,
        **waiting,
    )
    strategy.start(grid, num_rounds=int(config["rounds"]), timeout=float(config["timeout"]))
    print(strategy.report().text())
    if out is not None:
        save(strategy, out)


def save(strategy: MastStrategy, out: Path) -> None:
    """The model and the report."""
    arrays: dict[str, Any] = {name: array.numpy() for name, array in strategy.arrays().items()}
    np.savez(out / "model.npz", **arrays)
    strategy.report().save(out)
