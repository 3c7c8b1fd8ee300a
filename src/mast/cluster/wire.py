"""torch.distributed as a wire for buffers of bytes: point to point, sizes known to both sides, timeouts.

Messages are made and read in main memory, so gloo carries them, also where the nodes compute on GPUs. Gloo
corrupts tensors that are not contiguous without a word, so every buffer is checked. Nothing is pickled:
what is not a message travels as JSON.
"""

from __future__ import annotations

import contextlib
import datetime
import hmac
import json
import os
import re
import socket
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch.distributed import distributed_c10d as c10d
from torch.distributed.rendezvous import rendezvous

from mast.cluster.processes import SECRET, in_one_line
from mast.errors import ArgumentError, DataError, MastError

Bytes = NDArray[np.uint8]
LOOPBACK = ("localhost", "127.0.0.1", "::1")
REFUSED_BEFORE = "mast/refused"  # in the store, which outlives the ranks
LARGEST_FACT = 1 << 30  # bytes
FIRST_CONTACT = 120.0  #: seconds in which the ranks must have found each other


class LostRankError(MastError, ConnectionError):
    """Another rank died, hangs, or is slower than the timeout."""


class RefusedError(MastError):
    """torchrun started the ranks again after one refused its work, and had said why: all refuse at once."""


class Wire:
    """This process's end: `rank` of `ranks`. With one rank nothing is started, and nothing travels."""

    def __init__(self) -> None:
        self.rank = int(os.environ.get("RANK", "0"))
        self.ranks = int(os.environ.get("WORLD_SIZE", "1"))
        self.timeout = FIRST_CONTACT
        self._store: Any = None
        self._secret = os.environ.get(SECRET, "").encode()
        if self.ranks > 1:
            with self.watched("while the ranks met"):
                store, _, _ = next(rendezvous("env://", timeout=_seconds(FIRST_CONTACT)))
                refused = store.check([REFUSED_BEFORE])
            if refused:
                raise RefusedError("a rank refused its work before torchrun started all of them again")
            self._for_good = store
            # a restarted group must not find the addresses of the last one
            attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
            self._store = c10d.PrefixStore(f"mast/{attempt}", store)

    def first_words(self, word: Any) -> list[Any]:
        """The words (JSON) of all ranks, by rank, before anything is started."""
        if self.ranks == 1:
            return [word]
        with self.watched("before the start"):
            everybody = range(self.ranks)
            self._store.set(f"word/{self.rank}", self._signed(word))
            self._store.wait([f"word/{rank}" for rank in everybody], _seconds(FIRST_CONTACT))
            words = [self._read(self._store.get(f"word/{rank}"), rank) for rank in everybody]
            self._store.set(f"heard/{self.rank}", "yes")
            if self.rank == 0:  # who may keep the store: the others must have heard before it ends
                self._store.wait([f"heard/{rank}" for rank in everybody], _seconds(FIRST_CONTACT))
            return words

    def start(self, timeout: float) -> None:
        """Connect the ranks; from now on, silence of `timeout` seconds is an error."""
        self.timeout = timeout
        if self.ranks == 1:
            return
        if os.environ.get("MASTER_ADDR") in LOOPBACK:  # all on this machine: then gloo stays on it, too
            names = {name for _, name in socket.if_nameindex()}
            for name in sorted(names & {"lo", "lo0"}):
                os.environ.setdefault("GLOO_SOCKET_IFNAME", name)
        with self.watched("while the ranks were connected"):
            dist.init_process_group(
                "gloo", store=self._store, rank=self.rank, world_size=self.ranks, timeout=_seconds(timeout)
            )

    @contextlib.contextmanager
    def watched(self, when: str) -> Iterator[None]:
        """Turn what torch says of lost connections and timeouts into an error that people understand."""
        try:
            yield
        except RuntimeError as error:  # torch's DistError and gloo's exceptions are among these
            if isinstance(error, MastError):
                raise
            fault = self._fault()
            if fault is not None:
                raise DataError(fault) from error
            reason = re.sub(r"^\[[^]]*\] *", "", str(error).splitlines()[0])  # without gloo's source file
            raise LostRankError(
                f"rank {self.rank} lost another rank {when}: it died, hangs, or is slower than the timeout "
                f"of {self.timeout:g} s ({reason.split('. ')[0]})"
            ) from error

    def confess(self, fault: str) -> None:
        """Leave word of why this rank ends, for those who will miss it."""
        if self._store is not None:
            with contextlib.suppress(RuntimeError):
                self._store.set("fault", fault if self.rank == 0 else f"rank {self.rank}: {fault}")
                self._for_good.set(REFUSED_BEFORE, "yes")

    def _fault(self) -> str | None:
        """Why another rank ended, if it left word."""
        with contextlib.suppress(RuntimeError):
            if self._store is not None and self._store.check(["fault"]):
                return str(self._store.get("fault").decode())
        return None

    def close(self) -> None:
        """Leave."""
        if self.ranks > 1 and dist.is_initialized():
            dist.destroy_process_group()

    # ---- messages --------------------------------------------------------------------------

    def send(self, buffer: Bytes, rank: int, tag: int) -> Any:
        """Begin to send; `wait()` on what is returned before the buffer changes."""
        return dist.isend(_tensor(buffer), rank, tag=tag)

    def receive(self, buffer: Bytes, rank: int, tag: int) -> Any:
        """Begin to receive into a buffer of the right size."""
        return dist.irecv(_tensor(buffer), rank, tag=tag)

    def go(self, t: int) -> int:
        """Rank 0 says to all which round begins, -1 for the end; also the sign that it lives."""
        number = torch.tensor([t], dtype=torch.int64)
        if self.ranks > 1:
            dist.broadcast(number, 0)
        return int(number.item())

    # ---- facts -----------------------------------------------------------------------------

    def tell(self, fact: Any) -> Any:
        """Rank 0's fact (JSON), on every rank."""
        return self.collect(fact if self.rank == 0 else None)[0]

    def spread(self, buffer: Bytes) -> None:
        """Rank 0's bytes, into the buffers of every rank."""
        if self.ranks > 1:
            with self.watched("between rounds"):
                dist.broadcast(_tensor(buffer), 0)

    def collect(self, fact: Any) -> list[Any]:
        """The facts (JSON) of all ranks, on every rank, by rank."""
        if self.ranks == 1:
            return [fact]
        raw = bytearray(self._signed(fact))
        sizes = torch.zeros((self.ranks, 1), dtype=torch.int64)
        with self.watched("between rounds"):
            dist.all_gather(list(sizes), torch.tensor([len(raw)]))
            most = int(sizes.max())
            if int(sizes.min()) < 0 or most > LARGEST_FACT:
                raise DataError(f"another rank announces a fact of {most} bytes")
            padded = torch.zeros(most, dtype=torch.uint8)
            padded[: len(raw)] = torch.frombuffer(raw, dtype=torch.uint8)
            rows = torch.empty((self.ranks, most), dtype=torch.uint8)
            dist.all_gather(list(rows), padded)
        return [self._read(rows[i, : int(sizes[i])].numpy().tobytes(), i) for i in range(self.ranks)]

    def _signed(self, fact: Any) -> bytes:
        """A fact as JSON, behind its sum under the secret that the launcher gave all ranks."""
        text = json.dumps(fact).encode()
        return hmac.digest(self._secret, text, "sha256") + text

    def _read(self, raw: bytes, rank: int) -> Any:
        """A fact that another rank told; one that was not signed with the secret of this run is refused."""
        mark, text = raw[:32], raw[32:]
        if not hmac.compare_digest(mark, hmac.digest(self._secret, text, "sha256")):
            raise DataError(
                f"what came in the name of rank {rank} was not signed with the secret of this run"
            )
        return json.loads(text)

    def agree(self, error: str | None) -> None:
        """Go on if no rank has an error; else all ranks stop with the first one, and none is left waiting."""
        for rank, text in enumerate(self.collect(error)):
            if text is not None:
                raise DataError(text if rank == 0 else f"rank {rank}: {text}")

    @contextlib.contextmanager
    def together(self, functions: str = "") -> Iterator[None]:
        """Work that each rank does for itself: if one rank fails, all ranks stop with its error.

        `functions` names the user's functions that are called, if any: whatever they raise counts.
        """
        error = None
        try:
            yield
        except LostRankError:
            raise
        except MastError as failure:
            error = str(failure)
        except Exception as failure:
            if not functions:
                raise
            error = f"{functions}: {in_one_line(failure)}"
        self.agree(error)


class Buffers:
    """Buffers that are used again, one for each name: fresh memory costs as much as filling it."""

    def __init__(self) -> None:
        self._buffers: dict[Any, Bytes] = {}

    def take(self, name: Any, size: int) -> Bytes:
        """A buffer of `size` bytes; what it held before under this name is lost."""
        buffer = self._buffers.get(name)
        if buffer is None or buffer.size < size:
            buffer = self._buffers[name] = np.empty(size + size // 16, dtype=np.uint8)
        return buffer[:size]


def _tensor(buffer: Bytes) -> torch.Tensor:
    if buffer.dtype != np.uint8 or buffer.ndim != 1 or not buffer.flags.c_contiguous:
        raise ArgumentError("only contiguous buffers of bytes travel: gloo corrupts others silently")
    return torch.from_numpy(buffer)


def _seconds(timeout: float) -> datetime.timedelta:
    return datetime.timedelta(seconds=timeout)


def under_torchrun() -> bool:
    """Whether this process is one of several that torchrun started."""
    return "RANK" in os.environ and "WORLD_SIZE" in os.environ


def rank_of(node: int, nodes: int, ranks: int, on_server: bool) -> int:
    """The rank that has a node: nodes are dealt to the ranks in runs as even as can be.

    >>> [rank_of(i, 6, 4, True) for i in range(6)], [rank_of(i, 2, 4, False) for i in range(2)]
    ([0, 0, 1, 2, 2, 3], [1, 2])
    """
    first = 0 if on_server or ranks == 1 else 1
    return first + node * (ranks - first) // max(nodes, 1)
