"""Rows of characters that every machine has: the source of Python's library, and Python's manual.

A network that continues text is trained on the source. One that has read the source is adapted to the manual.
"""

from __future__ import annotations

import hashlib
import sysconfig
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

LENGTH = 64  # characters that a row shows
ROWS = 64  # at most, of one document, so that no large one is most of the text
HELD = 400  # at most, that are validated and tested on
SYMBOLS = 97  # printable ASCII, the end of a line, and one for all the rest


def documents(name: str) -> list[str]:
    """The files of the library, or the topics of the manual, in order of their names.

    Topics repeat each other; a paragraph stays in the first that has it, so that no text is in two documents.
    """
    if name == "manual":
        from pydoc_data.topics import topics

        seen: set[str] = set()
        found = []
        for _, text in sorted(topics.items()):
            new = [paragraph for paragraph in text.split("\n\n") if paragraph not in seen]
            seen.update(new)
            found.append("\n\n".join(new))
        return found
    library = Path(sysconfig.get_path("stdlib"))
    return [path.read_text(encoding="utf-8", errors="replace") for path in sorted(library.glob("*.py"))]


@lru_cache(maxsize=2)
def rows(name: str) -> tuple[Any, Any, Any]:
    """Characters (rows, LENGTH), the characters that follow them, and the number of each row's document."""
    pieces, owners = [], []
    for number, text in enumerate(documents(name)):
        codes = _codes(text)
        count = min(ROWS, (len(codes) - 1) // LENGTH)
        pieces += [codes[i * LENGTH : (i + 1) * LENGTH + 1] for i in range(count)]
        owners += [number] * count
    table = np.stack(pieces)
    return table[:, :-1], table[:, 1:], np.array(owners)


def _codes(text: str) -> Any:
    """A number per character: 0 to 94 for printable ASCII, 95 for the end of a line, 96 for all the rest."""
    points = np.frombuffer(text.encode("utf-32-le"), dtype=np.uint32).astype(np.int64)
    printable = (points >= 32) & (points < 127)
    return np.where(printable, points - 32, np.where(points == 10, 95, SYMBOLS - 1))


def text_sum(name: str) -> str:
    """A checksum: the text is another one in every version of Python."""
    return hashlib.sha256("\0".join(documents(name)).encode()).hexdigest()
