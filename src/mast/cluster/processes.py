"""The processes of a run: torchrun for one machine, how ranks end with it, and what is said of a fault.

torchrun's own store listens on all addresses of a machine, whatever it is told. What ``python -m mast.cluster
--ranks 4`` starts gets a socket that is bound to 127.0.0.1 already. The ranks share a secret, and all of them
end with the process that started them. Processes that were lost are started again; a rank that refuses its
work, with code 2, is not.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback
from pathlib import Path
from typing import Any

from mast.errors import MastError

REFUSED = 2  #: the exit code of a rank that was asked for something wrong
LOST = 1  #: of one that lost another
SECRET = "MAST_CLUSTER_SECRET"  #: the variable with what ranks sign their words with
_parent = [os.getppid()]  # who started this process: noted before anything heavy is imported, ...
if hasattr(os, "register_at_fork"):  # ... and again where it was forked
    os.register_at_fork(after_in_child=lambda: _parent.__setitem__(0, os.getppid()))
OURS = str(Path(__file__).parents[1])
LIBRARIES = ("site-packages", "dist-packages", str(Path(traceback.__file__).parent), "<")


def launch(settings: Path, ranks: int, max_restarts: int) -> int:
    """Start so many ranks on this machine from another process, and wait for it; returns the exit code."""
    code = "import sys; from mast.cluster.processes import main; sys.exit(main(*sys.argv[1:]))"
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


# ---- faults ----------------------------------------------------------------------------------------


def in_one_line(error: BaseException) -> str:
    """An exception as one line: its kind, the first line it says, and where in the user's own code.

    >>> in_one_line(ValueError("too small"))
    'ValueError: too small'
    """
    if isinstance(error, MastError):
        return str(error)
    lines = str(error).strip().splitlines()
    text = f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not frame.filename.startswith(OURS) and not any(part in frame.filename for part in LIBRARIES)
    ]
    return f"{text} ({Path(frames[-1].filename).name}, line {frames[-1].lineno})" if frames else text


def end_with_parent(words: str, every: float = 0.25) -> None:
    """End this process soon after the one that started it is gone: nobody would start it again.

    Otherwise the ranks of a launcher that was killed would go on, and hold the folder of the results.
    """

    def watch() -> None:
        while os.getppid() == _parent[0]:
            time.sleep(every)
        print(words, file=sys.stderr, flush=True)
        os._exit(1)

    threading.Thread(target=watch, name="mast-parent", daemon=True).start()


def end_stopped_siblings() -> None:
    """Kill ranks of this machine that are stopped (SIGSTOP): the launcher would wait half a minute for them.

    Only processes of the same launcher, as the system tells it; where it does not, nothing is done.
    """
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError, ValueError, IndexError):
            state, parent = (folder / "stat").read_text().rpartition(")")[2].split()[:2]
            if state == "T" and int(parent) == _parent[0] and int(folder.name) != os.getpid():
                os.kill(int(folder.name), signal.SIGKILL)
