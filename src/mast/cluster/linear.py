"""Linear models on the cluster: each node has its own rows, in CSR form, and its own sketch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
import scipy.sparse

import mast
from mast import files
from mast.arrays import Array
from mast.cluster.settings import Settings
from mast.cluster.tasks import Task, shift_of, sketches_of
from mast.cluster.wire import Wire
from mast.errors import DataError
from mast.methods.distributed import Capacity, Facts, ProblemWorker, Roster, VectorCapacity, guarantee_of
from mast.methods.distributed.messages import Values
from mast.objectives import LeastSquares, Logistic, NonconvexLogistic
from mast.objectives.linear import LinearModel
from mast.problem import Problem
from mast.theory import Guarantee


class LinearTask(Task):
    """Logistic regression, least squares or non-convex logistic regression on shards of rows."""

    def __init__(self, settings: Settings, wire: Wire, mine: Sequence[int]) -> None:
        """Read the rows of this rank's nodes; all ranks must call this together."""
        self.settings = settings
        rows, test = {}, None
        classes: dict[str, tuple[float, float]] = {}  # by file, the labels that became -1 and +1
        with wire.together():
            rows = {i: _rows(settings, i, classes) for i in mine}
            test = None if settings.data.test is None else _load(settings, settings.data.test, classes)
        _check_labels(wire.collect(classes))
        width = max((A.shape[1] for A, _ in [*rows.values(), *([test] if test else [])]), default=0)
        self.dim = settings.data.n_features or max(wire.collect(width))
        self.sketches = sketches_of(settings)
        self.metric = "R²" if settings.model.kind == "least_squares" else "accuracy"
        with wire.together():
            shift = shift_of(settings, self.dim)
            self.shift = np.zeros(self.dim) if shift is None else shift
            self._capacities = {id(sketch): VectorCapacity(sketch, self.dim) for sketch in self.sketches}
            self.test = None if test is None else _widened(*test, self.dim)
            self.objectives = {i: _objective(settings, *_widened(*row, self.dim)) for i, row in rows.items()}

    def capacity(self, node: int) -> Capacity:
        """The node's sketch."""
        return self._capacities[id(self.sketches[node])]

    def start(self) -> Values:
        """The shift, or 0."""
        return self.shift.copy()

    def worker(self, node: int, run: int) -> ProblemWorker:
        """The node's rows and sketch."""
        return ProblemWorker(Problem(self.objectives[node], self.sketches[node], self.shift), run)

    def identity(self) -> dict[str, str]:
        """The dimension and the shift."""
        return {"number of features": str(self.dim), "shift": files.digest(self.shift)}

    def data(self, node: int) -> str:
        """Of the rows and the penalty."""
        return self.objectives[node].fingerprint()

    # ---- theory ----------------------------------------------------------------------------

    def facts(self, node: int) -> dict[str, Any]:
        """The node's smoothness and convexity; its data stay where they are."""
        return asdict(Facts.of(self.objectives[node]))

    def guarantee(self, facts: Sequence[Any], roster: Roster, settings: Settings) -> Guarantee:
        """Theorem 15, 16 or 5, as ``mast.minimize(..., "distributed")`` has it."""
        steps, regime = settings.nodes.local_steps, settings.server.regime
        known = [Facts(**fact) for fact in facts]
        return guarantee_of(self.sketches, self.dim, known, roster, steps, regime)

    # ---- scores ----------------------------------------------------------------------------

    def full_score(self, node: int, values: Values) -> float:
        """Of x itself."""
        return self.score(node, values.astype(np.float64))

    def score(self, node: int, model: Array) -> float:
        """On the test rows, or on the node's own if there are none."""
        f = self.objectives[node]
        A, b = (f.design.csr, f.labels) if self.test is None else self.test
        margins = A @ model
        if self.metric == "accuracy":
            return float(np.mean(np.where(margins > 0, 1.0, -1.0) == b))
        missed, spread = float(np.sum((b - margins) ** 2)), float(np.sum((b - b.mean()) ** 2))
        if spread == 0:  # labels that are all alike: as scikit-learn has it
            return 0.0 if missed else 1.0
        return 1 - missed / spread


def _rows(settings: Settings, node: int, classes: dict[str, tuple[float, float]]) -> tuple[Any, Array]:
    data, count = settings.data, settings.nodes.count or 1
    if data.files is not None:
        return _load(settings, data.files[node], classes)
    assert data.file is not None
    A, b = _load(settings, data.file, classes)
    if len(b) < count:
        raise DataError(f"{data.file} has {len(b)} rows, too few for {count} nodes")
    rows = split(len(b), node, count, data.split)
    return A[rows], b[rows]


def split(n: int, node: int, count: int, how: str) -> Any:
    """The rows of a node when n rows are shared among `count` nodes.

    >>> split(10, 1, 3, "contiguous"), split(10, 1, 3, "interleaved")
    (array([4, 5, 6]), array([1, 4, 7]))
    """
    if how == "interleaved":
        return np.arange(node, n, count)
    return np.array_split(np.arange(n), count)[node]


def _load(settings: Settings, name: str, classes: dict[str, tuple[float, float]]) -> tuple[Any, Array]:
    data = settings.data
    default = "raw" if settings.model.kind == "least_squares" else "binary"
    labels: Any = data.labels if data.labels is not None else default
    labels = tuple(labels) if isinstance(labels, list) else labels
    path = settings.path(name)
    loaded = mast.data.load(path if path.is_file() else name, data.n_features, labels=labels)
    if loaded.labels is not None:
        classes[name] = loaded.labels
    A, b = loaded
    return A, b


def _check_labels(by_rank: Sequence[dict[str, tuple[float, float]]]) -> None:
    """No label may mean one class in one file and the other class in another."""
    pairs = [(name, *pair) for part in by_rank for name, pair in part.items()]
    for one, negative, _ in pairs:
        for other, _, positive in pairs:
            if negative == positive:
                raise DataError(
                    f"the label {negative:g} is the class -1 in {one}, where it is the smaller one, but +1 "
                    f"in {other}: say which is which by labels = [negative, positive] in [data]"
                )


def _widened(A: Any, b: Array, d: int) -> tuple[Any, Array]:
    """The rows with d columns."""
    if A.shape[1] > d:
        raise DataError(f"the data have {A.shape[1]} features, more than n_features = {d}")
    if A.shape[1] == d:
        return A, b
    return scipy.sparse.csr_matrix((A.data, A.indices, A.indptr), shape=(A.shape[0], d)), b


def _objective(settings: Settings, A: Any, b: Array) -> LinearModel:
    model = settings.model
    if model.kind == "nonconvex_logistic":
        assert model.weight is not None
        return NonconvexLogistic(A, b, weight=model.weight)
    kind = Logistic if model.kind == "logistic" else LeastSquares
    return kind(A, b, l2=model.l2, kappa=model.kappa)
