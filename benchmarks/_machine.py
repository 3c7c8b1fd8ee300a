"""What this machine is, and what it can do at most: the numbers that benchmarks are held against."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

PACKAGES = ("numpy", "scipy", "numba", "scikit-learn", "torch", "torch-pruning", "flwr")
_TRIES = 7


@cache
def bandwidth() -> float:
    """Bytes a second through memory, on one thread: read and written by a copy that no cache can hold.

    >>> bandwidth() > 1e8
    True
    """
    import numpy as np

    source = np.ones(1 << 24)
    target = np.empty_like(source)
    return 2 * source.nbytes / _shortest(lambda: np.copyto(target, source))


@cache
def arithmetic(single: bool = False) -> float:
    """Floating-point operations a second, by a product of matrices in double (or single) precision.

    With as many threads as the library uses for it now.
    """
    import numpy as np

    n = 768
    a = np.ones((n, n), dtype=np.float32 if single else np.float64)
    return 2 * n**3 / _shortest(lambda: a @ a)


@cache
def loopback() -> float:
    """Bytes a second that one process can send to another on this machine, through a socket."""
    import socket
    import threading

    size = 1 << 24
    with socket.create_server(("127.0.0.1", 0)) as server:

        def take() -> None:
            connection, _ = server.accept()
            with connection:
                while connection.recv(1 << 20):
                    pass

        receiver = threading.Thread(target=take, daemon=True)
        receiver.start()
        with socket.create_connection(server.getsockname()) as sender:
            content = bytes(size)
            speed = size / _shortest(lambda: sender.sendall(content))
        receiver.join()
    return speed


def _shortest(job: Callable[[], Any]) -> float:
    """The shortest of several times."""
    times = []
    for _ in range(_TRIES):
        begun = time.perf_counter()
        job()
        times.append(time.perf_counter() - begun)
    return min(times)


@cache
def facts() -> dict[str, Any]:
    """The machine as plain data."""
    versions = {}
    for package in PACKAGES:
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return {
        "processor": _processor(),
        "cores": os.cpu_count(),
        "memory_bytes": _memory(),
        "bytes_a_second": bandwidth(),
        "flops": arithmetic(),
        "system": platform.system(),
        "python": platform.python_version(),
        "versions": versions,
        "threads": os.environ.get("OMP_NUM_THREADS", "not set"),
    }


@cache
def machine() -> str:
    """The facts about this machine that a reader of the numbers needs, in a line."""
    f = facts()
    room = f"{f['memory_bytes'] / 2**30:.0f} GB, " if f["memory_bytes"] else ""
    threads = f"OMP_NUM_THREADS {f['threads']}"
    return (
        f"{f['processor']} ({platform.machine()}), {f['cores']} cores, {room}copies at "
        f"{f['bytes_a_second'] / 1e9:.1f} GB/s, {f['flops'] / 1e9:.0f} GFLOPS (double), {threads}, "
        f"{f['system']}, Python {f['python']}, "
        + ", ".join(f"{name} {version}" for name, version in f["versions"].items())
    )


def _processor() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return platform.processor() or "processor"
    names = [line.partition(":")[2].strip() for line in text.splitlines() if line.startswith("model name")]
    return names[0] if names else platform.processor() or "processor"


def _memory() -> int | None:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):  # not on Windows
        return None
