"""Works on something in child processes that are killed at random moments, until one gets to its end.

    python nursery.py WORK FOLDER KILLS SERIES LEAST

The children are forked from this process, which has everything imported, so that a life costs milliseconds.
A series begins anew, is killed at most KILLS times, and gets to its end. There are SERIES of them, and more
where so many lives ended before their kill that fewer than LEAST were killed. The last line printed is JSON:
how many were, and whether the result of every series is that of an undisturbed run.
"""

import contextlib
import io
import json
import os
import random
import signal
import sys
import time
import traceback
from pathlib import Path

import numpy as np

import mast
import mast.run
from mast import data
from mast.errors import StepSizeWarning
from mast.randomness import Key, normal
from mast.support import files

SMALL = mast.Quadratic(np.diag([1.0, 2.0, 4.0, 3.0]) + 0.1, [1.0, -1.0, 2.0, 0.5])
A, B = mast.data.load("a1a")
ROWS = mast.Logistic(A[:400], B[:400], kappa=100)
NODES = mast.Nodes([mast.Problem(SMALL, mast.RandK(2)), mast.Problem(SMALL, mast.Bernoulli(0.5))])
RUNS = {
    "sampled": (mast.Problem(ROWS, mast.PermK(5)), "dsgd_sampled", 400_000, 1e-3),
    "variance_reduced": (mast.Problem(SMALL, mast.RandK(2)), "l_svrdsg", 6_000, "theory"),
    "page": (mast.Problem(SMALL, mast.RandK(2)), "s_page", 6_000, "theory"),
    "distributed": (NODES, "distributed", 2_500, 1e-2),
}


# ---- what is worked on: each leaves files in its folder, and reads its result from them ----------------


def minimise(name: str, folder: Path) -> list:
    problem, method, steps, size = RUNS[name]
    result = mast.minimize(problem, method, steps, size, seed=3, checkpoint=folder / "run", trace=steps // 40)
    timeless = [{k: v for k, v in row.items() if k != "seconds"} for row in result.rows]
    parts = [np.asarray(part).tobytes().hex() for part in vars(result.state).values()]
    return [result.status, result.steps, timeless, parts]


def sweep(folder: Path) -> list:
    table = mast.sweep(
        mast.Problem(SMALL, mast.RandK(2)),
        ["dsgd", ("l_svrdsg", {"p": 0.25})],
        [0.01, "theory"],
        seeds=range(3),
        steps=600,
        cache=folder / "cells",
        trace=100,
    )
    return [table.drop(columns="seconds").to_csv(), sorted(p.name for p in (folder / "cells").glob("*.*"))]


def reproduce(folder: Path) -> list:
    from mast.experiments import accuracy
    from mast.experiments.reproduce import reproduce

    accuracy.BLOCKS = (2, 3)
    with contextlib.redirect_stderr(io.StringIO()):
        report = reproduce("accuracy", folder / "out", "fast", str(_dataset(folder)), jobs=1)
    assert "</html>" in report.read_text()
    kept = {path.name: _timeless(path) for path in sorted((folder / "out" / "cells").glob("*.cell"))}
    return [kept, {p.name: p.read_text() for p in sorted((folder / "out" / "numbers").iterdir())}]


def _dataset(folder: Path) -> Path:
    path = folder / "small"
    if not path.exists():
        x = normal(Key(5), 0, 60 * 6).reshape(60, 6).round(2)
        data.save(path, x, np.where(x @ normal(Key(7), 0, 6) > 0, 1.0, -1.0))
    return path


def _timeless(path: Path) -> list:
    description, arrays = files.load(path)
    for name in ("seconds", "sum"):  # the sum covers the seconds
        description.pop(name)
    return [description, {name: value.tolist() for name, value in arrays.items()}]


WORK = {**{name: (lambda folder, n=name: minimise(n, folder)) for name in RUNS}}
WORK |= {"sweep": sweep, "reproduce": reproduce}


# ---- lives -----------------------------------------------------------------------------------------


def begin(work, folder: Path, answer: Path) -> int:
    """Fork a child that does the work and leaves its result as `answer`."""
    child = os.fork()
    if child:
        return child
    try:
        mast.run.CHECKPOINT_EVERY = 0.0  # after every burst, so that kills hit the writing too
        mast.run.BURST = 0.005
        files.write(answer, json.dumps(work(folder), sort_keys=True).encode())
        os._exit(0)
    except BaseException:
        traceback.print_exc()
        os._exit(1)


def end_of(child: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def whole_files(folder: Path) -> dict[str, int]:
    """The checkpoints and results in the folder, each of them loaded, with its step if it has one."""
    found = [p for p in folder.rglob("*") if p.suffix in (".cell", ".part", "") and p.is_file()]
    found = [p for p in found if p.read_bytes()[:4] == b"MAST" and not p.name.startswith(".")]
    return {str(p): files.load(p)[0].get("step", 0) for p in found}


def live(work, folder: Path, kills: int, series: int, least: int) -> dict:
    """An undisturbed run, and series of lives each of which ends where that run ended, or so it should."""
    undisturbed, expected = folder / "undisturbed", folder / "expected"
    undisturbed.mkdir()
    begun = time.monotonic()
    assert end_of(begin(work, undisturbed, expected)) == 0
    took = time.monotonic() - begun
    killed, number, same = 0, 0, True
    while number < series or killed < least:
        disturbed, result = folder / f"disturbed-{number}", folder / f"result-{number}"
        disturbed.mkdir()
        killed += disturb(work, disturbed, result, kills, took / 2, random.Random(number))
        same = same and result.read_bytes() == expected.read_bytes()
        number += 1
    return {"killed": killed, "same": same}


def disturb(work, folder: Path, result: Path, kills: int, longest: float, chance: random.Random) -> int:
    """Kill the work so often, or until a life is shorter than the wait for its kill; how often it was."""
    steps: dict[str, int] = {}
    for killed in range(kills):
        child = begin(work, folder, result)
        time.sleep(chance.uniform(0, longest))
        os.kill(child, signal.SIGKILL)
        code = end_of(child)
        assert code in (0, -signal.SIGKILL), f"a life ended by itself with the code {code}"
        if code == 0:
            return killed
        now = whole_files(folder)
        assert all(now.get(path, 0) >= step for path, step in steps.items() if not path.endswith(".part"))
        steps = now
    assert end_of(begin(work, folder, result)) == 0
    return kills


if __name__ == "__main__":
    import warnings

    warnings.simplefilter("ignore", StepSizeWarning)
    name, place, *amounts = sys.argv[1:]
    WORK[name](Path(place))  # compiles what is compiled
    print(json.dumps(live(WORK[name], Path(place), *map(int, amounts))))
