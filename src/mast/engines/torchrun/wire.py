"""torch.distributed as a wire: buffers of bytes from rank to rank by gloo, and facts (JSON) by the store.

Messages are made and read in main memory, so gloo carries them, also where the nodes compute on GPUs. Gloo
corrupts tensors that are not contiguous without a word, so every buffer is checked. Nothing is pickled. A
rank that fails leaves word in the store before it closes its connections, so the others say why they end.
"""

from __future__ import annotations

import contextlib
import datetime
import itertools
import json
import os
import re
import socket
import time
import traceback
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch.distributed.distributed_c10d import PrefixStore
from torch.distributed.rendezvous import rendezvous

from mast.errors import ArgumentError, DataError, MastError
from mast.support.checks import check_number

Bytes = NDArray[np.uint8]
Wait = Callable[[], None]  #: returns when a buffer is there
LOOPBACK = ("localhost", "127.0.0.1", "::1")
FAILURE_SECONDS = 3.0  #: seconds in which the others hear why a rank ends
HEAD_START = 5.0  #: seconds that others wait longer than rank 0, which knows whom it lost, ...
LOST_SECONDS = 1.0  #: ... and in which it says so after its connections are gone
OURS = str(Path(__file__).parents[2])
LIBRARIES = ("site-packages", "dist-packages", str(Path(traceback.__file__).parent), "<")
_stores: list[Any] = []  # that of all ranks: rank 0 may have to offer it until its process ends
_wires = itertools.count()  # each has its own names in the store


class LostRankError(MastError, ConnectionError):
    """Another rank died, hangs, or is slower than the timeout."""


def this_rank() -> tuple[int, int]:
    """The rank of this process, and how many there are, as torchrun says it; (0, 1) without torchrun."""
    return int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))


def my_nodes(count: int) -> list[int]:
    """The nodes, of 0 .. count-1, that this rank should have: consecutive ones, shared out evenly.

    Without torchrun they are all of them.

    >>> my_nodes(3)
    [0, 1, 2]
    >>> [rank_of(node, 6, ranks=4) for node in range(6)]
    [0, 0, 1, 2, 2, 3]
    """
    rank, ranks = this_rank()
    return [node for node in range(count) if rank_of(node, count, ranks) == rank]


def rank_of(node: int, nodes: int, ranks: int) -> int:
    """The rank that `my_nodes` gives a node to."""
    return node * ranks // nodes


class Wire:
    """This process's end: `rank` of `ranks`. With one rank nothing is started, and nothing travels.

    All ranks make theirs together, and use it as a context. Silence of `timeout` seconds is an error.
    """

    def __init__(self, timeout: float) -> None:
        self.rank, self.ranks = this_rank()
        self.timeout = check_number("timeout, in seconds,", timeout, above=0, most=24 * 3600)
        self.phase = "before the first round"  #: for messages
        self._facts = itertools.count()
        self._store: Any = None
        self._group: Any = None
        self._ours = False  # whether the default group of torch is ours to end
        self._buffers: dict[Any, Bytes] = {}
        if self.ranks > 1:
            with self.naming_rank(0):
                self._store = _store(self._seconds)

    @property
    def _seconds(self) -> datetime.timedelta:
        return datetime.timedelta(seconds=self.timeout + (HEAD_START if self.rank else 0))

    def connect(self) -> None:
        """Let buffers travel: a group of gloo, beside that of the script if it has made one."""
        if self.ranks == 1:
            return
        if os.environ.get("MASTER_ADDR") in LOOPBACK:  # all on this machine: then gloo stays on it, too
            names = {name for _, name in socket.if_nameindex()}
            for name in sorted(names & {"lo", "lo0"}):
                os.environ.setdefault("GLOO_SOCKET_IFNAME", name)
        with self.naming_rank(0):
            self._ours = not dist.is_initialized()
            if self._ours:
                known = {"store": self._store, "rank": self.rank, "world_size": self.ranks}
                dist.init_process_group("gloo", timeout=self._seconds, **known)
                self._group = dist.group.WORLD
            else:
                self._group = dist.new_group(backend="gloo", timeout=self._seconds)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        """Leave: with an error, say so first. The store may be rank 0's own, so it ends last."""
        if error is not None:
            self._publish_failure(error)
        if self._group is not None:
            dist.destroy_process_group(None if self._ours else self._group)
            self._group = None
        with contextlib.suppress(RuntimeError):
            if self._store is not None:
                self._store.set(f"left/{self.rank}", "yes")
                if error is not None or self.rank == 0:
                    self._wait_for_others(self.timeout if error is None else FAILURE_SECONDS)

    def _publish_failure(self, error: BaseException) -> None:
        """Tell the other ranks why this one ends; the first failure counts."""
        with contextlib.suppress(RuntimeError):
            if self._store is not None:
                lost = isinstance(error, LostRankError)
                text = str(error) if lost else f"rank {self.rank}: {in_one_line(error)}"
                self._store.compare_set("fault", "", json.dumps([lost, text]))

    def _wait_for_others(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while not self._store.check([f"left/{rank}" for rank in range(self.ranks)]):
            if time.monotonic() > end:
                return
            time.sleep(0.01)

    @contextlib.contextmanager
    def naming_rank(self, rank: int) -> Iterator[None]:
        """Turn what torch says of a lost connection to a rank, or of a timeout, into words."""
        try:
            yield
        except RuntimeError as error:  # torch's DistError and gloo's exceptions are among these
            if isinstance(error, MastError):
                raise
            if isinstance(error, dist.DistNetworkError):  # the store is gone, with rank 0
                self._store = None
            self._raise_published_failure(LOST_SECONDS if self.rank else 0.0)
            reason = re.sub(r"^\[[^]]*\] *", "", str(error).splitlines()[0])  # without gloo's source file
            raise self._lost(rank, f" ({reason.split('. ')[0]})") from None

    def _lost(self, rank: int, reason: str = "") -> LostRankError:
        return LostRankError(
            f"rank {self.rank} lost rank {rank} {self.phase}: it died, hangs, or is slower than the timeout "
            f"of {self.timeout:g} s{reason}"
        )

    def _raise_published_failure(self, seconds: float = 0.0) -> None:
        """Raise what another rank said before it ended, if one did, or does so within `seconds`."""
        end = time.monotonic() + seconds
        try:
            while self._store is not None:
                if self._store.check(["fault"]):
                    lost, text = json.loads(self._store.get("fault"))
                    raise LostRankError(text) if lost else DataError(text)
                if time.monotonic() >= end:
                    return
                time.sleep(0.01)
        except MastError:
            raise
        except RuntimeError:
            self._store = None

    # ---- messages --------------------------------------------------------------------------

    def send(self, buffer: Bytes, rank: int, tag: int) -> Wait:
        """Begin to send; call what is returned, which waits, before the buffer changes."""
        with self.naming_rank(rank):
            return partial(self._wait, rank, dist.isend(_tensor(buffer), rank, self._group, tag))

    def receive(self, buffer: Bytes, rank: int, tag: int) -> Wait:
        """Begin to receive into a buffer of the right size; call what is returned to wait for it."""
        with self.naming_rank(rank):
            return partial(self._wait, rank, dist.irecv(_tensor(buffer), rank, self._group, tag))

    def _wait(self, rank: int, work: Any) -> None:
        """Return when a buffer is there; if it will not be, the error names the rank."""
        with self.naming_rank(rank):
            work.wait()

    def buffer(self, name: Any, size: int) -> Bytes:
        """A buffer of `size` bytes, used again under its name: fresh memory costs as much as filling it."""
        buffer = self._buffers.get(name)
        if buffer is None or buffer.size < size:
            buffer = self._buffers[name] = np.empty(size + size // 16, dtype=np.uint8)
        return buffer[:size]

    # ---- facts -----------------------------------------------------------------------------

    def all_gather(self, fact: Any) -> list[Any]:
        """The facts (JSON) of all ranks, on every rank, by rank."""
        if self.ranks == 1:
            return [fact]
        number = next(self._facts)
        with self.naming_rank(0):
            self._store.set(f"{number}/{self.rank}", json.dumps(fact))
        return [json.loads(self._fact(f"{number}/{rank}", rank)) for rank in range(self.ranks)]

    def _fact(self, name: str, rank: int) -> bytes:
        """What a rank said, when it has said it."""
        end = time.monotonic() + self._seconds.total_seconds()
        with self.naming_rank(rank):
            while True:
                failed = self._store.check(["fault"])  # first: what was said before the failure is there then
                if self._store.check([name]):
                    raw: bytes = self._store.get(name)
                    return raw
                if failed:
                    self._raise_published_failure()
                if time.monotonic() > end:
                    raise self._lost(rank)
                time.sleep(0.01)

    def broadcast(self, fact: Any) -> Any:
        """Rank 0's fact (JSON), on every rank."""
        return self.all_gather(fact if self.rank == 0 else None)[0]


def _tensor(buffer: Bytes) -> torch.Tensor:
    if buffer.dtype != np.uint8 or buffer.ndim != 1 or not buffer.flags.c_contiguous:
        raise ArgumentError("only contiguous buffers of bytes travel: gloo corrupts others silently")
    return torch.from_numpy(buffer)


def _store(timeout: datetime.timedelta) -> Any:
    """The store where ranks find each other; those of a restart must not find the addresses of the last ones.

    torchrun's own store outlives the ranks. On one machine the number of the restart tells them apart. Each
    machine counts its own restarts, so between machines each start needs another store.
    """
    attempt = "0"
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
        attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
        restarts = os.environ.get("TORCHELASTIC_MAX_RESTARTS", "0")
        if os.environ.get("GROUP_WORLD_SIZE", "1") != "1" and restarts != "0":
            raise ArgumentError(
                "set TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 on every machine before torchrun, or leave out "
                "--max-restarts: restarted ranks would find the addresses of those that are gone"
            )
    if not _stores:
        _stores.append(next(rendezvous("env://", timeout=timeout))[0])
    return PrefixStore(f"mast/{attempt}/{next(_wires)}", _stores[0])


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
