"""f_D as an average over draws: copies of the training rows, each row with draws of its own.

A sketch with few different draws is listed, and the average is f_D itself. Else draws are taken from
a pool that the seed decides. A row's place in the pool is a function of its content, so the order of rows
does not matter, and a row that stands there twice counts as one of twice the weight. Of a mixture
each row gets every component as often as its weight says.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import scipy.sparse
from numpy.typing import NDArray

from mast import randomness
from mast.errors import ArgumentError
from mast.learn.factors import Factors
from mast.learn.imputer import FeatureGaussian
from mast.learn.missing import Masks, row_hashes
from mast.randomness import Key
from mast.sketches import Bernoulli, DiagonalDraw, Identity, Sketch
from mast.sketches.over import Over
from mast.support.checks import Array, Indices, row_blocks

ROWS = 6000  #: of all copies together, where few rows are copied
COPIES = (4, 32)  #: at least and at most, where there is room; a multiple of the first
LARGE = 20_000  #: more rows than this are copied half as often
MANY_ROWS = 100_000  #: more rows than this are copied once
LISTED = 32  #: a support with at most LISTED draws is listed
ENTRIES = 40_000_000  #: of all copies together
POOL = 2048  #: draws in the pool, at most
SCALES = 20_000_000  #: entries of the pool
SYSTEMS = 1 << 23  #: entries of a pool of stand-ins, each counted d times


def with_ones(X: Any) -> Any:
    """The features and a last column of ones."""
    if scipy.sparse.issparse(X):
        ones = scipy.sparse.csr_array(np.ones((X.shape[0], 1)))
        return scipy.sparse.hstack([scipy.sparse.csr_array(X), ones], format="csr")
    return np.column_stack([X, np.ones(X.shape[0])])


class Copies(NamedTuple):
    """The rows of all copies, one copy below the other, and what each copy counts."""

    rows: Any
    weights: Array
    exact: bool  #: whether they are all there are


def copies_of(
    X: Any,
    sketch: Sketch,
    seed: int,
    gaussian: FeatureGaussian | None,
    ones: bool = False,
    listing: bool = True,
) -> Copies:
    """Copies of the rows under draws of the sketch: scaled, or with stand-ins for what was dropped.

    X may have NaN where there are stand-ins. `ones` adds a last column of them. With `listing` a short
    support is listed.
    """
    if not sketch.diagonal:
        raise ArgumentError(f"{sketch!r} is not diagonal: only averages over its support are possible")
    n, d = X.shape
    if listing and _is_listed(X, sketch):
        listed = [(p, draw) for p, draw in sketch.support(d) or [] if isinstance(draw, DiagonalDraw)]
        scales = np.stack([draw.diagonal() for _, draw in listed])
        which = np.broadcast_to(np.arange(len(listed)), (n, len(listed)))
        weights = np.array([p for p, _ in listed])
        return Copies(_sketched(X, scales, which, gaussian, ones), weights / weights.sum(), True)
    least, most = COPIES
    places = row_hashes(X)
    different = np.unique(places).size  # as if no row stood there twice
    wanted = min(max(ROWS // different // least, 1) * least, most)
    if different > LARGE:
        wanted = least // 2 if different <= MANY_ROWS else 1
    count = max(1, min(wanted, ENTRIES // max(_entries(X), 1)))
    room = min(POOL, SCALES // d) if gaussian is None else min(POOL // 4, max(64, SYSTEMS // d**3))
    groups = max(1, min(room // count, different))
    scales = pool(sketch, d, groups, count, Key(seed))
    first = (places % np.uint64(groups)).astype(np.int64) * count
    which = first[:, None] + np.arange(count)
    return Copies(_sketched(X, scales, which, gaussian, ones), np.full(count, 1 / count), False)


def _is_listed(X: Any, sketch: Sketch) -> bool:
    """Whether all draws are few enough to be listed."""
    size = sketch.support_size(X.shape[1])
    return size is not None and size <= LISTED and size * _entries(X) <= ENTRIES


def _entries(X: Any) -> int:
    return int(X.nnz) if scipy.sparse.issparse(X) else X.shape[0] * X.shape[1]


def _sketched(
    X: Any, scales: Array, which: NDArray[np.int64], gaussian: FeatureGaussian | None, ones: bool
) -> Any:
    """Each row under the draws that `which` names for it, (rows, copies), one copy below the other."""
    if scipy.sparse.issparse(X):
        lengths = np.diff(X.indptr)
        parts = []
        for column in which.T:
            data = X.data * scales[np.repeat(column, lengths), X.indices]
            parts.append(scipy.sparse.csr_array((data, X.indices, X.indptr), shape=X.shape))
        stacked = scipy.sparse.vstack(parts, format="csr")
        return with_ones(stacked) if ones else stacked
    (n, d), count = X.shape, which.shape[1]
    rows = np.empty((n * count, d + ones))
    rows[:, d:] = 1.0
    if gaussian is not None:
        _impute(rows[:, :d], X, scales != 0, which, gaussian)
        return rows
    for copy, column in enumerate(which.T):
        for part in row_blocks(n, d):
            rows[copy * n : (copy + 1) * n, :d][part] = X[part] * scales[column[part]]
    return rows


def _impute(out: Array, X: Array, masks: Masks, which: Indices, gaussian: FeatureGaussian) -> None:
    """Write rows with stand-ins for what their masks drop, and for what they miss anyway.

    `which` names masks for each row, (rows, copies); copies stand one below the other.
    """
    (n, d), mean, model = X.shape, gaussian.mean, gaussian.model
    if isinstance(model, Factors) or np.isnan(X).any():  # else each row has a mask of its own
        for copy, column in enumerate(which.T):
            out[copy * n : (copy + 1) * n] = gaussian.fill(X, masks[column])
        return
    order = np.argsort(which.T.ravel(), kind="stable")
    ends = np.searchsorted(which.T.ravel()[order], np.arange(len(masks) + 1))
    step = max(1, SCALES // (8 * d**2))
    for start in range(0, len(masks), step):
        for i, T in enumerate(model.apply_masks(masks[start : start + step], np.eye(d)), start):
            rows = order[ends[i] : ends[i + 1]]
            out[rows] = (X[rows % n] - mean) @ T.T + mean


# ---- the pool -------------------------------------------------------------------------------


def pool(sketch: Sketch, d: int, groups: int, count: int, key: Key) -> Array:
    """`groups` times `count` diagonals: in each group, components by their weights (systematic sampling)."""
    parts = sketch.components()
    if parts is None:
        return diagonals(sketch, d, groups * count, key)
    turn = np.modf(np.arange(1, groups + 1) * 0.6180339887498949)[0]
    position = ((np.arange(count) + turn[:, None]) / count).ravel()
    ends = np.cumsum([weight for weight, _ in parts])
    component = np.minimum(np.searchsorted(ends / ends[-1], position, side="right"), len(parts) - 1)
    out = np.empty((groups * count, d))
    for i, (_, part) in enumerate(parts):
        chosen = np.flatnonzero(component == i)
        if chosen.size:
            out[chosen] = pool(part, d, chosen.size, 1, key.child(i))
    return out


def diagonals(sketch: Sketch, d: int, count: int, key: Key) -> Array:
    """`count` draws of a sketch that is no mixture, as an array of diagonals."""
    if isinstance(sketch, Identity):
        return np.ones((count, d))
    if isinstance(sketch, Over):
        inner, labels = diagonals(sketch.sketch, sketch.size(d), count, key), sketch.labels_in(d)
        return inner if labels is None else np.column_stack([inner, np.ones(count)])[:, labels]
    if type(sketch) is Bernoulli:
        thresholds = sketch.thresholds
        if isinstance(thresholds, np.ndarray):
            thresholds = np.tile(thresholds, count)
        kept = randomness.bernoulli(key, thresholds, 0, count * d).reshape(count, d)
        return np.asarray(kept / np.asarray(sketch.keep))
    draws = (sketch.sample(d, Key(key.seed, key.step, index=i)) for i in range(count))
    return np.stack([draw.diagonal() for draw in draws if isinstance(draw, DiagonalDraw)])
