"""`torchrun --standalone --nproc-per-node 4 -m mast.cluster train.toml`."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

USAGE = "usage: torchrun --standalone --nproc-per-node N --max-restarts 3 -m mast.cluster train.toml"

# Seconds: torchrun stops all ranks when the first one ends, and rank 0 has something to say.
AFTER_RANK_0 = 3.0


def main(arguments: list[str]) -> int:
    """0: done. 1: a rank was lost, torchrun may start again. 2: what was asked for is wrong."""
    if len(arguments) != 1 or arguments[0].startswith("-"):
        print(USAGE, file=sys.stderr)
        return 0 if arguments in (["--help"], ["-h"]) else 2
    from mast.cluster import LostRankError, run
    from mast.errors import MastError

    first = os.environ.get("RANK", "0") == "0"
    try:
        source, folder = _source(arguments[0])
        result = run(source, folder=folder)
    except LostRankError as error:
        print(f"mast.cluster: {error}", file=sys.stderr)
        return 1
    except MastError as error:
        if first:
            print(f"mast.cluster: {error}", file=sys.stderr, flush=True)
        else:
            time.sleep(AFTER_RANK_0)
        return 2
    if first:
        print(f"{result.status} after {result.rounds} rounds, step size {result.step_size:.6g}")
        print(result.note)
        print(result.table())
        print(f"results in {result.folder}")
    return 0


def _source(name: str) -> tuple[Any, str]:
    """A TOML file, or the JSON form in which `run(dict, ranks=...)` hands settings on."""
    if not name.endswith(".json"):
        return name, "."
    import json

    stored = json.loads(Path(name).read_text(encoding="utf-8"))
    return stored["content"], stored["folder"]


if __name__ == "__main__":
    code = main(sys.argv[1:])
    sys.stdout.flush()
    sys.exit(code)
