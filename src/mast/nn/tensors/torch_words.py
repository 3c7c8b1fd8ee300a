"""The random words of `mast.randomness`, bit for bit, in plain torch: for parameters that are not on the CPU.

Philox4x32-10 in int64 arithmetic: products wrap modulo 2^64, as they should, and a mask of 32 bits after
each shift makes the sign irrelevant. Only the words of a key travel to the device, as Python numbers.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from mast.randomness import Key, Purpose
from mast.support.philox import stream_words

_LOW = 0xFFFFFFFF
_M0, _M1 = 0xD2511F53, 0xCD9E8D57
_W0, _W1 = 0x9E3779B9, 0xBB67AE85
_SLICE = 1 << 22  # blocks at a time: the int64 intermediates of more would dwarf the weights


def blocks(stream: tuple[int, int, int, int], first: int, last: int, device: torch.device) -> Tensor:
    """Blocks first .. last-1 of a stream, one per row, as int64.

    >>> blocks((0, 0, 0, 0), 0, 1, torch.device("cpu"))[0].tolist() == [
    ...     0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]
    True
    """
    j = torch.arange(first, last, dtype=torch.int64, device=device)
    c0, c1 = j & _LOW, j >> 32
    c2, c3 = torch.full_like(j, stream[2]), torch.full_like(j, stream[3])
    k0, k1 = stream[0], stream[1]
    for _ in range(10):
        p0, p1 = c0 * _M0, c2 * _M1
        c0, c2 = ((p1 >> 32) & _LOW) ^ c1 ^ k0, ((p0 >> 32) & _LOW) ^ c3 ^ k1
        c1, c3 = p1 & _LOW, p0 & _LOW
        k0, k1 = (k0 + _W0) & _LOW, (k1 + _W1) & _LOW
    return torch.stack((c0, c1, c2, c3), dim=1)


def torch_mask(key: Key, threshold: int, count: int, device: torch.device) -> Tensor:
    """Coordinates 0 .. count-1 of a Bernoulli mask, as bool.

    >>> torch_mask(Key(seed=7, step=3), 2**31, 4, torch.device("cpu"))
    tensor([ True,  True, False, False])
    """
    stream = _stream(key, Purpose.MASK)
    last = -(-count // 4)
    parts = [
        blocks(stream, first, min(first + _SLICE, last), device).flatten() < threshold
        for first in range(0, last, _SLICE)
    ]
    return torch.cat(parts)[:count]


def torch_normal(key: Key, count: int, device: torch.device) -> Tensor:
    """Standard normal numbers 0 .. count-1 in float64: the CPU's up to the rounding of log and cos."""
    stream = _stream(key, Purpose.NORMAL)
    last = -(-count // 2)
    parts = []
    for first in range(0, last, _SLICE):
        w = blocks(stream, first, min(first + _SLICE, last), device)
        radius = (-2 * (((w[:, 0] << 21 ^ w[:, 1] >> 11) + 1).double() * 2.0**-53).log()).sqrt()
        angle = 2 * math.pi * ((w[:, 2] << 21 ^ w[:, 3] >> 11).double() * 2.0**-53)
        parts.append(torch.stack((radius * angle.cos(), radius * angle.sin()), dim=1).flatten())
    return torch.cat(parts)[:count]


def _stream(key: Key, purpose: Purpose) -> tuple[int, int, int, int]:
    s0, s1, s2, s3 = stream_words(key.words(purpose)).tolist()
    return s0, s1, s2, s3
