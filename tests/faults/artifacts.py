"""The files MAST writes and reads again: how each is made, and how it is read. A new kind joins this list."""

import bz2
import gzip
import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import mast
from mast.data.lookup import EMBEDDED
from mast.errors import DataError
from mast.experiments.datasets import locate
from mast.experiments.reproduce import SECTION_FORMAT, read_sections, section_bytes
from mast.learn.commands import train
from mast.learn.commands.trained_model import TrainedModel
from mast.support import cells
from mast.support.files import load, load_array, save

PROBLEM = mast.Problem(mast.Quadratic(np.diag([1.0, 2.0, 4.0]), [1.0, 1.0, 1.0]), mast.RandK(2))
ROWS = np.array([[1.0, 0.0, 2.0], [0.0, 1.0, 0.0], [3.0, 1.0, 0.5], [0.0, 2.0, 1.0]])


@dataclass(frozen=True)
class Artifact:
    """A kind of file. `read` raises a MastError, or returns what can be compared with another reading.

    `summed` files carry a checksum: any change is refused. The others are text of the user's, where
    a change may be another right text. `open` and `seal` are there for files of fields and arrays:
    what such a file holds, and a file of MAST's with a right checksum around something else.
    """

    make: Callable[[Path], Path]
    read: Callable[[Path], Any]
    summed: bool = True
    open: Callable[[Path], tuple[dict[str, Any], dict[str, Any]]] | None = None
    seal: Callable[[Path, dict[str, Any], dict[str, Any]], Any] = save


Sealed = partial(Artifact, open=load)


def _checkpoint(folder: Path) -> Path:
    mast.minimize(PROBLEM, "l_svrdsg", 10, 0.005, checkpoint=folder / "run")
    return folder / "run"


def _continue(path: Path) -> Any:
    return mast.minimize(PROBLEM, "l_svrdsg", 10, 0.005, checkpoint=path).x.tolist()


def compute(config: Any, dataset: Any) -> dict[str, Any]:
    return {"total": 1.5, "values": np.arange(4.0)}


def _cell(folder: Path) -> cells.Cell:
    data = folder / "data"
    if not data.exists():
        mast.data.save(data, ROWS, [1.0, -1.0, 1.0, -1.0])
    return cells.Cell("test", 1, compute, {"a": 1}, locate(str(data)))


def _performed(folder: Path) -> Path:
    cells.perform(_cell(folder), folder)
    return _cell(folder).file(folder)


def _stored(path: Path) -> Any:
    done = cells.stored(_cell(path.parent), path.parent)
    if done is None:  # it is computed again then
        raise DataError(f"{path}: the cell counts as not there")
    return done["values"].tolist()


def _section(folder: Path) -> Path:
    (folder / "sections").mkdir()
    path = folder / "sections" / "accuracy.json"
    claim = {"claim": "it is better", "holds": True, "measured": "0.5"}
    path.write_bytes(
        section_bytes({"format": SECTION_FORMAT, "name": "accuracy", "claims": [claim], "seconds": 1.5})
    )
    return path


def _sections(path: Path) -> Any:
    found = read_sections(path.parents[1])
    if not found:  # of another version, so that it is not shown
        raise DataError(f"{path}: the section counts as not there")
    return found


def _classifier(folder: Path) -> Path:
    model = mast.MastClassifier(mast.Mixture([mast.PermK(2), mast.Bernoulli(0.5)]))
    model.fit(ROWS, ["a", "b", "c", "a"]).save(folder / "model")
    return folder / "model"


def _regressor(folder: Path) -> Path:
    mast.MastRegressor(shift=np.ones(3)).fit(ROWS, [1.0, 2.0, 3.0, 4.0]).save(folder / "model")
    return folder / "model"


def _trained(folder: Path) -> Path:
    table = "\n".join(f"{i},{'xyz'[i % 3]},{i % 2}" for i in range(12))
    (folder / "table.csv").write_text("size,kind,label\n" + table + "\n")
    train(str(folder / "table.csv"), folder / "out", target="label")
    return folder / "out" / "model.mast"


def _bundle(path: Path) -> Any:
    trained = TrainedModel.load(path.parent)
    X = trained.rows(str(path.parents[1] / "table.csv"), None).X
    return trained.model.predict(X).tolist()


def _vector(folder: Path) -> Path:
    np.save(folder / "x.npy", np.arange(5.0))
    return folder / "x.npy"


def _named_set(folder: Path) -> Path:
    (folder / "a1a.gz").write_bytes((EMBEDDED / "a1a.gz").read_bytes())
    return folder / "a1a.gz"


def _loaded(path: Path) -> Any:
    A, b = mast.data.load(path.name.partition(".")[0], data_dir=path.parent, download=False)
    return [A.data.tolist(), A.indices.tolist(), b.tolist()]


def _text(pack: Callable[[bytes], bytes]) -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        (folder / "rows").write_bytes(pack(b"+1 1:1 3:0.25\n-1 2:1e-3\n" * 20))
        return folder / "rows"

    return make


def _rows(path: Path) -> Any:
    A, b = mast.data.load(path)
    return [A.data.tolist(), b.tolist()]


ARTIFACTS = {
    "checkpoint of a run": Sealed(_checkpoint, _continue),
    "cell of an experiment": Sealed(_performed, _stored),
    "section of a report": Artifact(_section, _sections),
    "classifier": Sealed(_classifier, lambda p: mast.MastClassifier.load(p).predict_proba(ROWS).tolist()),
    "regressor": Sealed(_regressor, lambda p: mast.MastRegressor.load(p).predict(ROWS).tolist()),
    "trained model": Sealed(_trained, _bundle),
    "data set with a name": Artifact(_named_set, _loaded, summed=False),  # gzip's own header is not summed
    "vector in a file": Artifact(_vector, lambda p: load_array(p).tolist(), summed=False),
    "LIBSVM text": Artifact(_text(bytes), _rows, summed=False),
    "LIBSVM, packed": Artifact(_text(lambda raw: gzip.compress(raw, mtime=0)), _rows, summed=False),
    "LIBSVM, packed by bzip2": Artifact(_text(bz2.compress), _rows, summed=False),
}


def network_artifacts() -> dict[str, Artifact]:
    """The kinds of file that need PyTorch; none where it is not installed."""
    if importlib.util.find_spec("torch") is None:
        return {}
    from faults.network_artifacts import ARTIFACTS as found

    return found
