"""`sk.report`, how good submodels are at each density and what they cost; `print(sk)`, what is sketched."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from torch import nn

from mast.cards import table
from mast.checks import whole
from mast.errors import ArgumentError
from mast.nn.costs import Cost, flops, latencies, measure
from mast.nn.structure.drawing import UnitDrawing
from mast.nn.structure.sketches import Structured
from mast.nn.structure.tables import text_of
from mast.nn.submodels import plain_copy, put_draw, recalibrate, smaller, warn_of_batch_norm
from mast.nn.tensors.drawing import Drawing
from mast.nn.tensors.weights import Batches
from mast.plots import COLOURS, new_axes
from mast.progress import Progress
from mast.randomness import Key, Purpose
from mast.sketches import Identity
from mast.sketches.base import percent

if TYPE_CHECKING:
    import matplotlib.axes

    from mast.nn.sparsifier import Sparsifier

STATISTICS = ("mean", "quartile_1", "median", "quartile_3", "lowest", "highest")
_BLUE, _VERMILION, _GREEN, _PINK = COLOURS[:4]
_COSTS = {"parameters": (_BLUE, "-", "parameters"), "flops": (_GREEN, "--", "operations"),
          "seconds": (_PINK, ":", "time")}  # fmt: skip


class DensityReport(pd.DataFrame):  # type: ignore[misc]
    """A DataFrame with one row per density. `print` shows it readably, `plot` draws it.

    `scores` has one row per draw: ``density``, ``seed`` and ``step`` of the draw's key, and ``score``. With
    ``sk.sketch = sk.sketch.at(density)``, ``sk.submodel(Key(seed, step))`` is that submodel again.

    =======================  =======================================================================
    ``density``, ``draws``   the share that is kept, and how many draws were scored
    ``mean`` ... ``highest`` of the scores of these draws
    ``parameters, bytes``    of a submodel, on average: what is kept, and what is not sketched; of
                             structured sketches those of the smaller model
    ``flops``, ``seconds``   of one call with the example; of the smaller model, if there is one: of the
                             draws, that whose number of parameters is nearest to their mean
    ``plain_mean`` ...       the same draws of the plainly trained network
    =======================  =======================================================================
    """

    _metadata = ("metric", "title", "scores", "independent")
    metric: str
    title: str
    scores: pd.DataFrame
    independent: bool

    @property
    def _constructor(self) -> Any:
        return pd.DataFrame  # a part of a report is a plain table

    @property
    def chance_of_worse(self) -> dict[float, float]:
        """By density: a new draw scores lower than `lowest` with at most this probability, 1/(draws + 1).

        Nothing is said of draws that depend on each other (`Rolling`).
        """
        if not self.independent:
            return {}
        tried = zip(self["density"], self["draws"], strict=True)
        return {float(density): 1 / (int(draws) + 1) for density, draws in tried if draws > 1}

    def to_frame(self) -> pd.DataFrame:
        """The same as a plain DataFrame."""
        return pd.DataFrame(self)

    def plot(self, ax: matplotlib.axes.Axes | None = None) -> matplotlib.axes.Axes:
        """Draw the scores against the density; without `ax`, in a new figure with the costs beside them."""
        return _plot(self, ax)

    def __str__(self) -> str:
        rows = [self._head()]
        rows += [self._line(row) for row in self.to_dict("records")]
        return "\n".join([self.title, *columns(rows)])

    def _repr_html_(self) -> str:
        return table(self.title, [self._line(row) for row in self.to_dict("records")], self._head())

    def _head(self) -> tuple[str, ...]:
        head = ["density", self.metric, "quartiles", "range"]
        head += ["plain", "range"] if "plain_mean" in self else []
        head += ["parameters", "size"]
        return (*head, *(["MFLOP", "time"] if "flops" in self else []))

    def _line(self, row: dict[Any, Any]) -> tuple[str, ...]:
        def scores(prefix: str = "") -> list[str]:
            return [
                f"{row[prefix + 'mean']:.4g}",
                f"{row[prefix + 'lowest']:.4g} to {row[prefix + 'highest']:.4g}",
            ]

        mean, span = scores()
        line = [f"{row['density']:.0%}", mean, f"{row['quartile_1']:.4g} to {row['quartile_3']:.4g}", span]
        line += scores("plain_") if "plain_mean" in row else []
        line += [f"{row['parameters']:,}", f"{row['bytes'] / 1e3:,.1f} kB"]
        if "flops" in row:
            line += [f"{row['flops'] / 1e6:,.3g}", f"{row['seconds'] * 1e3:.3g} ms"]
        return tuple(line)


def report(
    sk: Sparsifier,
    evaluate: Callable[[nn.Module], float],
    densities: Sequence[float],
    draws: int,
    calibrate: Batches = None,
    plain: nn.Module | None = None,
    example: Any = None,
) -> DensityReport:
    """Score the submodels of each density, and say what they cost."""
    whole("draws", draws, 1)
    sk._calls.check()
    if calibrate is None:
        warn_of_batch_norm(sk)
    sources = {"": plain_copy(sk).eval()}
    if plain is not None:
        sources["plain_"] = _alike(sk, plain)
    grid = [(d, _drawing_at(sk, d)) for d in densities]
    total = sum(1 if drawing is None else draws for _, drawing in grid) * len(sources)
    rows: list[dict[str, Any]] = []
    scores: list[dict[str, Any]] = []  # one per draw
    shown: list[nn.Module] = []  # one submodel per density
    with Progress(total, "submodels") as progress:
        batches = None if calibrate is None or calibrate is False else list(calibrate)
        scoring = _Scoring(sk, evaluate, batches, progress)
        for density, drawing in grid:
            row: dict[str, Any] = {"density": density, "draws": 1 if drawing is None else draws}
            costs: list[Cost] = []
            for prefix, source in sources.items():
                scored = [scoring.score(drawing, i, source) for i in range(row["draws"])]
                row |= _statistics(prefix, [score for score, _, _ in scored])
                costs = costs or [cost for _, cost, _ in scored]
                if not prefix:
                    keys = [scoring.key(i) for i in range(row["draws"])]
                    scores += [
                        {"density": density, "seed": key.seed, "step": key.step, "score": score}
                        for key, (score, _, _) in zip(keys, scored, strict=True)
                    ]
                    shown.append(_typical([(cost.parameters, model) for _, cost, model in scored]))
            row["parameters"] = round(np.mean([c.parameters for c in costs]))
            row["bytes"] = round(np.mean([c.bytes for c in costs]))
            rows.append(row)
    result = DensityReport(_ordered(pd.DataFrame(rows), plain is not None, shown, example))
    result.scores = pd.DataFrame(scores)
    result.independent = sk.sketch.independent
    result.metric = getattr(evaluate, "__name__", "score").replace("<lambda>", "score")
    result.title = (
        f"{type(sk.model).__name__} sparsified with {type(sk.sketch).__name__}, {draws} draws per density"
    )
    if example is not None and (sk.structure is None or sk.shift is not None):
        result.title += "; operations and times are those of the whole model, only files are smaller"
    return result


def _drawing_at(sk: Sparsifier, density: float) -> Drawing | None:
    """How submodels of a density are drawn; None where that is the model itself."""
    sketch = sk.sketch.at(density)
    inner = sketch.sketch if isinstance(sketch, Structured) else sketch
    return None if isinstance(inner, Identity) else sk.drawing_for(sketch)


class _Scoring:
    """Makes submodels of a source's weights and scores them."""

    def __init__(
        self,
        sk: Sparsifier,
        evaluate: Callable[[nn.Module], float],
        batches: list[Any] | None,
        progress: Progress,
    ) -> None:
        self.sk, self.evaluate, self.batches, self.progress = sk, evaluate, batches, progress
        self.root = Key(sk.seed).child(0, Purpose.ESTIMATE).seed  # not the draws of training
        self.scratch = plain_copy(sk).eval()
        self.done = 0

    def key(self, number: int) -> Key:
        """The key of one draw."""
        return Key(self.root, step=number)

    def score(self, drawing: Drawing | None, number: int, source: nn.Module) -> tuple[float, Cost, nn.Module]:
        """The score and the cost of one draw's submodel, and the submodel."""
        key = self.key(number)
        model = self._submodel(drawing, key, source)
        cost = measure(model)
        if drawing is not None and model is self.scratch:
            cost = self._without_dropped(drawing, key, cost)
        if self.batches is not None:
            recalibrate(model, self.batches)
        score = float(self.evaluate(model))
        self.done += 1
        self.progress.advance(self.done)
        return score, cost, model

    def _submodel(self, drawing: Drawing | None, key: Key, source: nn.Module) -> nn.Module:
        """A smaller model where there is one; else the weights of the draw in the scratch model."""
        sk = self.sk
        if isinstance(drawing, UnitDrawing) and sk.shift is None:
            return smaller(sk, drawing.draw(key), source).eval()
        self.scratch.load_state_dict(source.state_dict())
        if drawing is not None:
            put_draw(sk, drawing, key, self.scratch, source)
        return self.scratch

    def _without_dropped(self, drawing: Drawing, key: Key, cost: Cost) -> Cost:
        """What is left to store of a model of full size."""
        count, size = cost.parameters, cost.bytes
        for i, w in enumerate(self.sk.weights):
            x = w.parameter.detach()
            dropped = w.count - drawing.kept(i, key, x).count
            count, size = count - dropped, size - dropped * x.element_size()
        return Cost(count, size)


def _alike(sk: Sparsifier, plain: nn.Module) -> nn.Module:
    """The plainly trained network, if it is the same one."""
    for name, t in sk.model.state_dict().items():
        other = plain.state_dict().get(name)
        if other is None or other.shape != t.shape:
            raise ArgumentError(
                f"plain is not the same network, trained plainly: its {name!r} is "
                f"{'absent' if other is None else tuple(other.shape)}, that of the sparsified one "
                f"{tuple(t.shape)}"
            )
    copied = plain_copy(sk)
    copied.load_state_dict(plain.state_dict())
    return copied.eval()


def _typical(models: Sequence[tuple[int, nn.Module]]) -> nn.Module:
    """The model whose number of parameters is nearest to their mean: draws may keep more or fewer units."""
    mean = np.mean([count for count, _ in models])
    return min(models, key=lambda pair: abs(pair[0] - mean))[1]


def _statistics(prefix: str, scores: Sequence[float]) -> dict[str, float]:
    s = pd.Series(scores)
    low, middle, high = s.quantile([0.25, 0.5, 0.75])
    statistics = [s.mean(), low, middle, high, s.min(), s.max()]
    if s.isna().any():  # which pandas leaves out: submodels that fail would make the others look like all
        statistics = [float("nan")] * len(statistics)
    return dict(zip([prefix + name for name in STATISTICS], statistics, strict=True))


def _ordered(table: pd.DataFrame, plain: bool, shown: Sequence[nn.Module], example: Any) -> pd.DataFrame:
    """Ours first, then the plain network, then the costs; with an example also those of a call."""
    first = ["density", "draws", *STATISTICS]
    last = ["plain_" + name for name in STATISTICS] if plain else []
    table = table[[*first, *last, "parameters", "bytes"]].copy()
    if example is not None:
        models = list({id(model): model for model in shown}.values())  # of one size: only one
        operations = {id(model): flops(model, example) for model in models}
        times = dict(zip(operations, latencies(models, example), strict=True))
        table["flops"] = [operations[id(model)] for model in shown]
        table["seconds"] = [times[id(model)] for model in shown]
    return table


# ---- the picture -----------------------------------------------------------------------------


def _plot(report: DensityReport, ax: matplotlib.axes.Axes | None) -> matplotlib.axes.Axes:
    """Median, quartiles and range of the scores; into `ax`, or into a new figure with the costs beside it."""
    table = report.to_frame().sort_values("density")
    if ax is None:
        ax, beside = new_axes(2, 8.4, 3.6)
        _costs(beside, table)
    assert ax is not None
    names = [("", _BLUE, "-", "trained sparse")]
    if "plain_mean" in table:
        names.append(("plain_", _VERMILION, "--", "trained plainly"))
    for prefix, colour, line, label in names:
        x = 100 * table["density"]
        low, high = table[prefix + "quartile_1"], table[prefix + "quartile_3"]
        ax.fill_between(x, low, high, color=colour, alpha=0.2, linewidth=0)
        ax.plot(x, table[prefix + "median"], line, marker="o", markersize=4, color=colour, label=label)
        for end, mark in (("lowest", "v"), ("highest", "^")):
            ax.plot(x, table[prefix + end], mark, markersize=3, color=colour, alpha=0.6, linestyle="none")
    ax.set_xlabel("Density (% kept)")
    ax.set_ylabel(report.metric)
    ax.set_title("Median, quartiles (band), extremes (triangles)")
    ax.legend()
    return ax


def _costs(ax: Any, table: Any) -> None:
    """Each cost as a share of the largest."""
    for name, (colour, line, label) in _COSTS.items():
        if name in table:
            share = 100 * table[name] / table[name].max()
            ax.plot(100 * table["density"], share, line, marker="o", markersize=4, color=colour, label=label)
    ax.set_xlabel("Density (% kept)")
    ax.set_ylabel("Cost (% of the largest submodel here)")
    ax.set_ylim(bottom=0)
    ax.set_title("What a submodel costs")
    ax.legend()


# ---- text ------------------------------------------------------------------------------------


def overview(sk: Sparsifier) -> str:
    """The table, in the order of `named_parameters`."""
    rows = [("parameter", "shape", "sketched")]
    sketched = {w.name: i for i, w in enumerate(sk.weights)}
    for name, p in sk.model.named_parameters():
        if name in sketched:
            i = sketched[name]
            share = sk.drawing.share(i)
            verdict = f"yes, keeps {percent(share)}" if share == share else "yes"
        else:
            verdict = "no: " + sk.selection.others.get(name, "new since sparsify()")
        rows.append((name, " x ".join(map(str, p.shape)) or "scalar", verdict))
    total = sum(p.numel() for p in sk.model.parameters())
    shift = "no shift" if sk.shift is None else "a shift"
    first = (
        f"{type(sk.model).__name__} sparsified with {sk.sketch.label()}; {shift}; seed {sk.seed}, node "
        f"{sk.node}, step {sk.step}"
    )
    if sk.structure is not None:
        first += "\n" + text_of(sk.structure)
    last = f"{sk.dim:,} of {total:,} weights are sketched, {percent(sk.density)} of them kept on average"
    return "\n".join([first, *columns(rows), last])


def columns(rows: Sequence[tuple[str, ...]]) -> list[str]:
    """Rows of text with aligned columns.

    >>> columns([("a", "b"), ("long", "c")])
    ['  a     b', '  long  c']
    """
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return [
        ("  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))).rstrip()
        for row in rows
    ]
