"""Checkpoints: the whole state of a run in one file, from which it continues bit for bit.

A checkpoint holds arrays, numbers (JSON), and an identity: names and values that must agree for a
run to be continued. Another run's checkpoint is refused by the name of the field that differs, a damaged
one by the name of the file. `mast.minimize` and the servers of clusters and federations write files of this
one form.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from mast import __version__
from mast.errors import CheckpointError
from mast.support import files
from mast.support.identity import describe

__all__ = [
    "Checkpoint",
    "check_fields",
    "describe",
    "fill_arrays",
    "joined",
    "load_checkpoint",
    "refuse_other_run",
]

FORMAT = 2
Numbers = dict[str, Any]
Arrays = dict[str, NDArray[Any]]


class Checkpoint:
    """A file that a run saves to and continues from.

    Parameters
    ----------
    path
        The file, in a folder that exists; a symbolic link stays one, and what it points to is written.
    kind
        What the run is, such as "run" or "server": other kinds are refused.
    identity
        What must agree for the file to continue this run.

    >>> import numpy as np
    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     file = Checkpoint(Path(folder) / "c", "run", {"seed": "0"})
    ...     file.write({"step": 3}, {"x": np.zeros(2)})
    ...     numbers, arrays = file.read()
    >>> numbers, arrays["x"]
    ({'step': 3}, array([0., 0.]))
    """

    def __init__(self, path: str | Path, kind: str, identity: Mapping[str, str]) -> None:
        path = files.as_path("checkpoint", path)
        self.path = Path(os.path.realpath(path)) if path.is_symlink() else path
        self.kind, self.identity = kind, dict(identity)
        if not path.name:
            raise CheckpointError(f"the checkpoint {str(path)!r} is not the name of a file")
        if not path.parent.is_dir():
            raise CheckpointError(f"the folder of the checkpoint {str(path)!r} does not exist")

    def alone(self) -> contextlib.AbstractContextManager[None]:
        """Hold the file for one run: another process that asks for it meanwhile is refused."""
        return files.exclusive(self.path)

    def write(self, numbers: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> None:
        """Replace the file; the old one stays until the new one is whole."""
        head = {"kind": self.kind, "format": FORMAT, "mast": __version__, "identity": self.identity}
        files.save(self.path, head | {"numbers": dict(numbers)}, arrays)

    def read(self) -> tuple[Numbers, Arrays] | None:
        """The numbers and the arrays, or None if there is no file; another run's file is refused."""
        loaded = load_checkpoint(self.path, self.kind)
        if loaded is None:
            return None
        identity, numbers, arrays = loaded
        refuse_other_run(identity, self.identity, str(self.path))
        return numbers, arrays


def load_checkpoint(path: Path, kind: str) -> tuple[dict[str, Any], Numbers, Arrays] | None:
    """The identity, numbers and arrays of a checkpoint, whatever run it belongs to; None if it is absent."""
    if not path.exists():
        return None
    description, arrays = files.load(path)
    if description.get("kind") != kind or description.get("format") != FORMAT:
        raise CheckpointError(
            f"{path} is not a checkpoint of a {kind} for MAST {__version__}: it holds a "
            f"{description.get('kind')!s:.40}, written by MAST {description.get('mast', '0.1')!s:.40}"
        )
    check_fields(description, {"identity": dict, "numbers": dict}, str(path))
    return description["identity"], description["numbers"], arrays


def refuse_other_run(stored: Mapping[str, Any], identity: Mapping[str, str], where: str) -> None:
    """Refuse what belongs to another run, by the first field that differs."""
    for name, value in identity.items():
        if stored.get(name) != value:
            raise CheckpointError(
                f"{where} belongs to another run: its {name} is {stored.get(name)}, here it is {value}; "
                "use another file, or delete this one"
            )


def check_fields(numbers: Numbers, kinds: Mapping[str, Any], where: str) -> None:
    """Refuse stored numbers of which one is absent, not of its kind, negative, or too large for any use."""
    for name, kind in kinds.items():
        value: Any = numbers.get(name)
        numeric = isinstance(value, int | float)
        if not isinstance(value, kind) or isinstance(value, bool) or (numeric and not 0 <= value < 2**63):
            raise CheckpointError(f"{where} is damaged: its {name!r} is not right")


def fill_arrays(targets: Mapping[str, NDArray[Any]], arrays: Mapping[str, NDArray[Any]]) -> None:
    """Copy stored arrays into those of a fresh run; one that is absent or does not fit is refused."""
    for name, target in targets.items():
        source = arrays.get(name)
        if source is None or source.shape != target.shape or source.dtype != target.dtype:
            raise CheckpointError(f"the checkpoint is damaged: its {name!r} does not fit the run")
        target[...] = source


def joined(descriptions: Iterable[str]) -> str:
    """The descriptions, if they are few; else their sum. Addresses in default reprs do not count."""
    texts = [re.sub(r" at 0x[0-9a-f]+", "", text) for text in descriptions]
    return "; ".join(texts) if len(texts) <= 3 else f"{len(texts)} of them, {files.digest(*texts)}"
