"""Does everything that writes files in a place that cannot take them, and prints what became of it as JSON.

    python bad_places.py full FOLDER     a disk without room: a small tmpfs, or a limit on the size of files
    python bad_places.py limit FOLDER    the same by a limit alone
    python bad_places.py readonly FOLDER a folder that may be read but not written

Each operation is first done in the folder while it is good. Then the place goes bad, and the operation
is repeated in a child process: it must end with an error of ours, with the first result as it was.
"""

import contextlib
import ctypes
import io
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np

import mast
from mast import cli
from mast.errors import MastError
from mast.experiments import accuracy
from mast.experiments.reproduce import reproduce
from mast.learn.commands import evaluate, train

PROBLEM = mast.Problem(mast.Quadratic(np.diag([1.0, 2.0, 4.0]), [1.0, 1.0, 1.0]), mast.RandK(2))
ROWS = np.random.default_rng(0).normal(size=(60, 4))
LABELS = np.where(ROWS[:, 0] > 0, 1.0, -1.0)


def run(folder: Path, again: bool) -> None:
    """A checkpoint; when repeated, of more steps, so that there is something to write."""
    mast.minimize(PROBLEM, "dsgd", 60 if again else 30, 0.01, checkpoint=folder / "run")


def sweep(folder: Path, again: bool) -> None:
    mast.sweep(PROBLEM, ["dsgd"], [0.01], range(4 if again else 2), 20, cache=folder / "cells")


def model(folder: Path, again: bool) -> None:
    mast.MastClassifier().fit(ROWS, LABELS).save(folder / "model.mast")


def dataset(folder: Path, again: bool) -> None:
    mast.data.save(folder / "rows", ROWS, LABELS)


def fetched(folder: Path, again: bool) -> None:
    mast.data.fetch("a1a", folder / ("more" if again else "sets"))


def trained(folder: Path, again: bool) -> None:
    train(str(folder.parent / "small"), folder / "out", sketch="permk:2")


def pictured(folder: Path, again: bool) -> None:
    if not again:
        train(str(folder.parent / "small"), folder / "out", sketch="permk:2")
    evaluate(folder / "out", str(folder.parent / "small"), draws=3, plot=folder / "picture.png", insist=True)


def predicted(folder: Path, again: bool) -> None:
    if not again:
        train(str(folder.parent / "small"), folder / "out", sketch="permk:2")
    where = [
        "predict",
        str(folder / "out"),
        str(folder.parent / "small"),
        "--out",
        str(folder / "predicted.csv"),
    ]
    with contextlib.redirect_stdout(io.StringIO()):
        cli.app(where, standalone_mode=False)


def reproduced(folder: Path, again: bool) -> None:
    accuracy.BLOCKS = (2, 3) if again else (2,)
    with contextlib.redirect_stderr(io.StringIO()):
        reproduce("accuracy", folder / "out", "fast", str(folder.parent / "small"), jobs=1)


OPERATIONS = [run, sweep, model, dataset, fetched, trained, pictured, predicted, reproduced]


def contents(folder: Path) -> dict[str, bytes]:
    """All files but locks."""
    found = (path for path in sorted(folder.rglob("*")) if path.is_file() and not path.name.endswith("lock"))
    return {str(path.relative_to(folder)): path.read_bytes() for path in found}


def attempt(operation, folder: Path, spoil) -> str:
    """The name of the error that the operation ends with in a spoilt place, tried by a child process."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            spoil()
            operation(folder, True)
            said = "nothing"
        except MastError as error:
            said = f"MastError: {error}"
        except BaseException as error:
            said = f"{type(error).__name__}: {error}"
        os.write(writer, said.encode()[:4000])
        os._exit(0)
    os.close(writer)
    os.waitpid(child, 0)
    with os.fdopen(reader) as answer:
        return answer.read()


def limited() -> None:
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (16, 16))


class Rights(ctypes.Structure):
    """One word of Linux's capset: what is in force, what may be taken up again, what children get."""

    _fields_ = [(name, ctypes.c_uint32) for name in ("effective", "permitted", "inheritable")]


def bound_by_permissions() -> None:
    """Nobody else writes to a read-only file; root does, unless it gives up the right to.

    It stays who it is and may still read everything: Python itself may lie in a folder for root alone.
    """
    if os.getuid() == 0:
        read_everything = 1 << 2  # CAP_DAC_READ_SEARCH, without CAP_DAC_OVERRIDE
        header = (ctypes.c_uint32 * 2)(0x20080522, 0)  # version 3, this process
        for kept in (read_everything, 0):  # a container may have taken it already
            if ctypes.CDLL(None, use_errno=True).capset(header, (Rights * 2)(Rights(kept, kept, 0))) == 0:
                return
        raise OSError(ctypes.get_errno(), "root cannot give up its rights")


def fill(folder: Path) -> Path:
    """A file that takes all the room there is."""
    path = folder.parent / "ballast"
    with contextlib.suppress(OSError), path.open("wb", buffering=0) as file:
        while True:
            file.write(bytes(512))
    return path


def examine(operation, base: Path, how: str) -> dict:
    folder = base / operation.__name__
    folder.mkdir()
    ballast = None
    operation(folder, False)
    before = contents(folder)
    if how == "full":
        ballast = fill(folder)
    if how == "readonly":
        for path in [folder, *folder.rglob("*")]:
            path.chmod(0o555 if path.is_dir() else 0o444)
    spoil = {"limit": limited, "readonly": bound_by_permissions}.get(how, lambda: None)
    said = attempt(operation, folder, spoil)
    after = contents(folder)
    if ballast is not None:
        ballast.unlink()
    if how == "readonly":
        for path in [folder, *folder.rglob("*")]:
            path.chmod(0o777)
    operation(folder, True)  # when the place is good again, it works
    return {
        "said": said,
        "lost": [name for name in before if after.get(name) != before[name]],
        "left": [name for name in after if name not in before],
    }


def main(how: str, base: Path) -> dict:
    mounted = how == "full" and not subprocess.call(
        ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(base)], stderr=subprocess.DEVNULL
    )
    if how == "full" and not mounted:
        how = "limit"
    try:
        mast.data.save(base / "small", ROWS, LABELS)
        found = {}
        for operation in OPERATIONS:
            found[operation.__name__] = examine(operation, base, how)
            if mounted:  # the next one needs the room
                shutil.rmtree(base / operation.__name__)
        return found
    finally:
        if mounted:
            subprocess.run(["umount", str(base)], check=True)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    print(json.dumps(main(sys.argv[1], Path(sys.argv[2]))))
