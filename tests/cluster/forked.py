"""Ranks without torchrun, forked from a process that has everything imported: a rank costs no start.

python forked.py RANKS train.toml
"""

import os
import socket
import sys
import traceback

from mast.cluster.__main__ import main
from mast.cluster.running import run  # noqa: F401  what `main` imports when it is called


def fork(ranks, work):
    """Call `work` in so many processes that find each other; their exit codes."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    children = []
    for rank in range(ranks):
        child = os.fork()
        if not child:
            os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(ranks)}
            os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
            _exit_with(work)
        children.append(child)
    return [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]


def _exit_with(work):
    code = 1
    try:
        code = work() or 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    codes = fork(int(sys.argv[1]), lambda: main(sys.argv[2:]))
    sys.exit(max(codes, key=abs))
