"""Ways a file gets damaged: bits flipped, ends cut or grown, parts lost, doubled, moved or overwritten."""

from collections.abc import Iterator

import numpy as np


def mutations(raw: bytes, count: int, seed: int = 0) -> Iterator[bytes]:
    """`count` damaged versions of a content, none of them equal to it."""
    generator = np.random.default_rng(seed)
    made = 0
    while made < count:
        damaged = _damaged(raw, made % 8, generator)
        if damaged != raw:
            made += 1
            yield damaged


def _damaged(raw: bytes, kind: int, generator: np.random.Generator) -> bytes:
    at = int(generator.integers(len(raw)))
    length = int(generator.integers(1, 1 + min(64, len(raw))))
    content = bytearray(raw)
    if kind == 0:
        content[at] ^= 1 << int(generator.integers(8))
    elif kind == 1:
        del content[at:]
    elif kind == 2:
        del content[at : at + length]
    elif kind == 3:
        content[at:at] = content[at : at + length]
    elif kind == 4:
        content[at : at + length] = bytes(len(content[at : at + length]))
    elif kind == 5:
        content[at : at + length] = generator.bytes(len(content[at : at + length]))
    elif kind == 6:
        content += generator.bytes(length)
    else:
        part = content[at : at + length]
        del content[at : at + length]
        to = int(generator.integers(len(content) + 1))
        content[to:to] = part
    return bytes(content)


FOREIGN = {
    "nothing": b"",
    "one byte": b"\0",
    "text": b"not what you are looking for\n",
    "a pickle": b"\x80\x04\x8c\x05posix\x8c\x06system\x93\x8c\x08exit 111\x85R.",
    "a zip file": b"PK\x03\x04" + bytes(60),
    "JSON": b'{"kind": "checkpoint", "format": 1}',
    "JSON, a list": b"[1, 2, 3]",
    "deep JSON": b"[" * 100_000,
    "a web page": b"<!DOCTYPE html><html><body>404</body></html>",
    "our mark alone": b"MAST1\n",
    "random": np.random.default_rng(7).bytes(4000),
}
