"""torchrun for one machine that listens on 127.0.0.1 only: what ``python -m mast.cluster --ranks 4`` starts.

torchrun's own store listens on all addresses of a machine, whatever it is told. Here it gets a socket that is
bound to 127.0.0.1 already. The ranks share a secret, and all of them end with the process that started them.
Processes that were lost are started again; a rank that refuses its work, with code 2, is not.
"""

from __future__ import annotations

import os
import secrets
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

from mast.cluster.faults import end_with_parent

REFUSED = 2  #: the exit code of a rank that was asked for something wrong
LOST = 1  #: of one that lost another
SECRET = "MAST_CLUSTER_SECRET"  #: the variable with what ranks sign their words with


def launch(settings: Path, ranks: int, max_restarts: int) -> int:
    """Start so many ranks on this machine from another process, and wait for it; returns the exit code."""
    code = "import sys; from mast.cluster.launch import main; sys.exit(main(*sys.argv[1:]))"
    command = [sys.executable, "-c", code, str(settings), str(ranks), str(max_restarts)]
    process = subprocess.Popen(command)
    try:
        return process.wait()
    except BaseException:
        process.terminate()
        process.wait()
        raise


def main(settings: str, ranks: str, max_restarts: str) -> int:
    """That other process."""
    end_with_parent("mast.cluster: the process that started the ranks is gone, so they end")
    return supervise(Path(settings), int(ranks), int(max_restarts))


def supervise(settings: Path, ranks: int, max_restarts: int) -> int:
    """torchrun in this process, again and again until it ends well or there is no sense in it."""
    from torch import distributed
    from torch.distributed import run
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.elastic.rendezvous import c10d_rendezvous_backend

    torchrun: Any = run  # which has no types
    modules: list[Any] = [distributed, c10d_rendezvous_backend]
    store = _loopback_store(modules[0].TCPStore)
    for module in modules:
        module.TCPStore = store
    command = ["--standalone", f"--nproc-per-node={ranks}", "--monitor-interval=0.1", "-m", "mast.cluster"]
    arguments = torchrun.parse_args([*command, str(settings)])
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ[SECRET] = secrets.token_hex(32)
    for _ in range(max_restarts + 1):
        try:
            torchrun.run(arguments)
            return 0
        except ChildFailedError as error:
            if any(failure.exitcode == REFUSED for failure in error.failures.values()):
                return REFUSED
        except SignalException as error:
            return 128 + int(error.sigval)
    return LOST


def _loopback_store(kind: Any) -> Any:
    """torch's TCPStore, whose server listens on 127.0.0.1 instead of everywhere."""

    class LoopbackStore(kind):  # type: ignore[misc]
        def __init__(
            self,
            host_name: str,
            port: int,
            world_size: int | None = None,
            is_master: bool = False,
            **options: Any,
        ) -> None:
            if is_master:
                self._socket = socket.socket()
                self._socket.bind(("127.0.0.1", port))
                self._socket.listen(128)
                host_name, port = self._socket.getsockname()
                options["master_listen_fd"] = os.dup(self._socket.fileno())
            super().__init__(host_name, port, world_size, is_master, **options)

    return LoopbackStore
