"""Federated training on Flower: submodels against FedAvg of the whole model, on examples/federated.

Bytes are those of the records, which Flower counts; seconds are those of a round on the simulation engine
(Ray, two workers), without its start. What HTTP and polling add on the deployment engine is measured by
``benchmarks/_federated_wire.py``.
"""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from statistics import median

from _bench import Row, versus

TITLE = "A federation"
EXAMPLE = Path(__file__).parents[1] / "examples" / "federated"
NETWORK = 'task="network" strategy="compare" hidden="1024 1024" rounds=6 local-steps=5 draws=0'


def rows() -> Iterator[Row]:
    if any(importlib.util.find_spec(package) is None for package in ("flwr", "ray", "torch")):
        return  # the extra is not installed
    yield from payload()
    yield from compared()


def payload() -> Iterator[Row]:
    """What the records weigh, for 10^6 coordinates: values, and little more."""
    import numpy as np
    from flwr.app import ConfigRecord
    from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects

    import mast
    from mast.distributed import Participation, ProblemWorker, Server, VectorCapacity
    from mast.engines.flower.records import payload, unpack_messages
    from mast.federated import LocalGrid, MastStrategy, client

    d, sketches = 10**6, [mast.Bernoulli(0.5), mast.RandK(0.25), mast.PermK(100)]
    f = mast.Function(lambda x: (0.5 * float(x @ x), x), d, smoothness=1.0)
    workers = [ProblemWorker(mast.Problem(f, sketch)) for sketch in sketches]
    server = Server(
        np.ones(d), [VectorCapacity(s, d) for s in sketches], Participation(0, 3, 100), step_size=0.1
    )
    grid = LocalGrid(client(lambda context: workers[context.node_config["partition-id"]]), 3)
    messages = MastStrategy(server).configure_train(1, None, ConfigRecord(), grid)
    for direction, found in (("to a client", messages), ("from a client", grid.send_and_receive(messages))):
        values = [unpack_messages(message.content)[0].values.nbytes for message in found]
        records = [payload(message.content) for message in found]
        framed = [sum(len(o.deflate()) for o in get_all_nested_objects(m).values()) for m in found]
        _, ours, allowed = max(
            (r / (1.02 * v + 8000), r, 1.02 * v + 8000) for r, v in zip(records, values, strict=True)
        )
        detail = ", ".join(
            f"{v} + {r - v} + {w - r}" for v, r, w in zip(values, records, framed, strict=True)
        )
        yield versus(
            f"records {direction}, float64, 10^6 coordinates", ours, "1.02 x values + 8 kB", allowed, 1.0,
            detail=f"bytes of values + record + Flower's framing: {detail}", unit="B",
        )  # fmt: skip


def compared() -> Iterator[Row]:
    """Four clients that hold 100, 75, 50 and 25 % of the hidden units, then FedAvg, in one run."""
    with tempfile.TemporaryDirectory(prefix="mast-") as folder:
        command = [sys.executable, str(EXAMPLE / "run.py"), "simulation"]
        command += ["--out", folder, "--run-config", f"{NETWORK} gathering=240.0"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=600)
        if done.returncode:
            raise RuntimeError(f"the example failed:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
        found = json.loads((Path(folder) / "rounds.json").read_text())
    ours, theirs = found["mast"], found["fedavg"]
    job = "federated round, MLP 64-1024-1024-10, 4 clients that hold 25 to 100 % of its units"
    worst = max(("down", "up"), key=lambda way: ours[-1][way] / theirs[-1][way])
    detail = ", ".join(f"{ours[-1][kind]} against {theirs[-1][kind]} bytes {kind}" for kind in ("down", "up"))
    yield versus(
        f"{job}: bytes", ours[-1][worst], "FedAvg of the whole model", theirs[-1][worst], 0.5,
        detail=detail, unit="B",
    )  # fmt: skip
    took = [median(row["took"] for row in run[1:]) for run in (ours, theirs)]  # the first makes the clients
    detail = "five local steps, median of five rounds"
    yield versus(f"{job}: seconds", took[0], "FedAvg of the whole model", took[1], 1.0, detail=detail)
