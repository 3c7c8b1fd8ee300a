"""`python -m mast.cluster train.toml --ranks 4`; and what torchrun runs as each rank."""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path

# Seconds: torchrun stops all ranks when the first one ends, and rank 0 has something to say.
AFTER_RANK_0 = 3.0


def main(arguments: list[str]) -> int:
    """0: done. 1: a rank was lost, torchrun may start again. 2: what was asked for is wrong."""
    parser = argparse.ArgumentParser("python -m mast.cluster", description=(__doc__ or "").split(";")[0])
    parser.add_argument("settings", help="a TOML file, see mast.cluster.settings")
    parser.add_argument("--ranks", type=int, help="processes to start on this machine, on 127.0.0.1")
    parser.add_argument(
        "--max-restarts", type=int, default=3, help="after a process died or hung (default: 3)"
    )
    asked = parser.parse_args(arguments)
    from mast.cluster import LostRankError
    from mast.cluster.processes import supervise
    from mast.cluster.running import run, start
    from mast.cluster.wire import RefusedError
    from mast.errors import MastError

    first = os.environ.get("RANK", "0") == "0"
    try:
        if asked.ranks is not None:
            return start(asked.settings, Path(), asked.ranks, asked.max_restarts, supervise)[0]
        result = run(asked.settings)
    except LostRankError as error:
        print(f"mast.cluster: {error}", file=sys.stderr)
        return 1
    except RefusedError:
        return 2
    except MastError as error:
        if first:
            print(f"mast.cluster: {error}", file=sys.stderr, flush=True)
        else:
            time.sleep(AFTER_RANK_0)
        return 2
    if first:
        print(f"{result.status} after {result.steps} rounds, step size {result.step_size:.6g}")
        print(result.note)
        print(result.table())
        print(f"results in {result.folder}")
    return 0


if __name__ == "__main__":
    code = main(sys.argv[1:])
    sys.stdout.flush()
    sys.exit(code)
