"""`sk.report`, how good submodels are at each density and what they cost; `print(sk)`, what is sketched."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import pandas as pd
from torch import nn

from mast.errors import ArgumentError
from mast.nn.batches import check_batches
from mast.nn.costs import flops, latencies, measure
from mast.nn.submodels import put_draw, recalibrate, score_of, small_model, warn_of_batch_norm, weight_draw
from mast.nn.tensors.bound import BoundSketch
from mast.nn.tensors.weights import Calibration
from mast.nn.units import BoundUnits, Structured
from mast.nn.units.unit_map import align_columns
from mast.plots import COLOURS, new_axes
from mast.randomness import Key, Purpose
from mast.sketches import Identity
from mast.sketches.base import percent
from mast.support.cards import table
from mast.support.checks import check_int, check_list
from mast.support.progress import Progress

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
                             structured sketches those of the smaller model; with a shift, which stands
                             where nothing is kept, those of the whole model
    ``delta, delta_bytes``   with a shift: the numbers x - v that are kept, which is what a delta file
                             holds besides what is not sketched and has changed
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

    def plot(self, ax: matplotlib.axes.Axes | None = None) -> matplotlib.axes.Axes:
        """Draw the scores against the density; without `ax`, in a new figure with the costs beside them."""
        table = self.sort_values("density")
        x = 100 * table["density"]
        if ax is None:
            ax, beside = new_axes(2, 8.4, 3.6)
            for name, (colour, line, label) in _COSTS.items():
                if name in table:
                    share = 100 * table[name] / table[name].max()
                    beside.plot(x, share, line, marker="o", markersize=4, color=colour, label=label)
            beside.set(xlabel="Density (% kept)", ylabel="Cost (% of the largest submodel here)")
            beside.set(title="What a submodel costs", ylim=(0, None))
            beside.legend()
        assert ax is not None
        names = [("", _BLUE, "-", "trained sparse")]
        if "plain_mean" in table:
            names.append(("plain_", _VERMILION, "--", "trained plainly"))
        for prefix, colour, line, label in names:
            low, high = table[prefix + "quartile_1"], table[prefix + "quartile_3"]
            ax.fill_between(x, low, high, color=colour, alpha=0.2, linewidth=0)
            ax.plot(x, table[prefix + "median"], line, marker="o", markersize=4, color=colour, label=label)
            for end, mark in (("lowest", "v"), ("highest", "^")):
                ax.plot(x, table[prefix + end], mark, markersize=3, color=colour, alpha=0.6, linestyle="none")
        ax.set(xlabel="Density (% kept)", ylabel=self.metric)
        ax.set_title("Median, quartiles (band), extremes (triangles)")
        ax.legend()
        return ax

    def __str__(self) -> str:
        return "\n".join([self.title, *align_columns(self._cells())])

    def _repr_html_(self) -> str:
        head, *rows = self._cells()
        return table(self.title, rows, head)

    def _cells(self) -> list[tuple[str, ...]]:
        """The table as people read it, its head first."""
        shown = [("density", "{density:.0%}"), (self.metric, "{mean:.4g}")]
        shown += [("quartiles", "{quartile_1:.4g} to {quartile_3:.4g}")]
        shown += [("range", "{lowest:.4g} to {highest:.4g}")]
        if "plain_mean" in self:
            shown += [("plain", "{plain_mean:.4g}"), ("range", "{plain_lowest:.4g} to {plain_highest:.4g}")]
        shown += [("parameters", "{parameters:,}"), ("size", "{kilobytes:,.1f} kB")]
        rows = self.assign(kilobytes=self["bytes"] / 1e3)
        if "delta" in self:
            shown += [("delta", "{delta:,} numbers, {delta_kilobytes:,.1f} kB")]
            rows = rows.assign(delta_kilobytes=self["delta_bytes"] / 1e3)
        if "flops" in self:
            shown += [("MFLOP", "{megaflops:,.3g}"), ("time", "{milliseconds:.3g} ms")]
            rows = rows.assign(megaflops=self["flops"] / 1e6, milliseconds=self["seconds"] * 1e3)
        head = tuple(name for name, _ in shown)
        return [head, *(tuple(form.format(**row) for _, form in shown) for row in rows.to_dict("records"))]


def report(
    sk: Sparsifier,
    evaluate: Callable[[nn.Module], float],
    densities: Sequence[float],
    draws: int,
    calibrate: Calibration = None,
    plain: nn.Module | None = None,
    example: Any = None,
) -> DensityReport:
    """Score the submodels of each density, and say what they cost."""
    check_int("draws", draws, 1)
    densities = check_list("densities", densities)
    if not densities:
        raise ArgumentError("densities has no entries: give the shares to keep, such as [0.5, 0.25]")
    sk.watched.check()
    if calibrate is None:
        warn_of_batch_norm(sk)
    none = calibrate is None or calibrate is False
    batches = None if none else list(check_batches("calibrate", calibrate))
    scratch = sk.watched.plain_copy().eval()
    sources = {"score": sk.watched.plain_copy().eval()}
    if plain is not None:
        sources["plain"] = _same_network(sk, plain)
    sketches: list[BoundSketch | None] = []  # None is the model itself
    for density in densities:
        sketch = sk.sketch.at(density)
        whole_model = isinstance(sketch.sketch if isinstance(sketch, Structured) else sketch, Identity)
        sketches.append(None if whole_model else sk.bind(sketch))
    root = Key(sk.seed).child(0, Purpose.ESTIMATE).seed  # not the draws of training
    grid = [(i, step) for i, d in enumerate(sketches) for step in range(1 if d is None else draws)]
    rows: list[dict[str, Any]] = []  # one per draw
    with Progress(len(grid) * len(sources), "submodels") as progress:
        for done, (i, step) in enumerate(grid):
            key = Key(root, step=step)
            rows.append({"number": i, "density": densities[i], "seed": key.seed, "step": step})
            for number, (name, source) in enumerate(sources.items()):
                model = _submodel(sk, sketches[i], key, source, scratch)
                if name == "score":
                    rows[-1] |= _cost(sk, sketches[i] if model is scratch else None, key, model)
                if batches is not None:
                    recalibrate(model, batches)
                rows[-1][name] = score_of(evaluate, model)
                progress.advance(done * len(sources) + number + 1)
    scores = pd.DataFrame(rows)
    result = DensityReport(_summary(scores))
    if example is not None:
        models = [
            _submodel(sk, sketches[i], Key(root, step=step), sources["score"], scratch)
            for i, step in _typical(scores)
        ]
        unlike = list({id(model): model for model in models}.values())  # of one size: only one
        times = {id(m): took for m, took in zip(unlike, latencies(unlike, example), strict=True)}
        operations = {id(m): flops(m, example) for m in unlike}
        result["flops"] = [operations[id(model)] for model in models]
        result["seconds"] = [times[id(model)] for model in models]
    result.scores = scores[["density", "seed", "step", "score"]]
    result.independent = getattr(sk.sketch, "independent", True)
    result.metric = getattr(evaluate, "__name__", "score").replace("<lambda>", "score")
    result.title = (
        f"{type(sk.model).__name__} sparsified with {type(sk.sketch).__name__}, {draws} draws per density"
    )
    if example is not None and (sk.unit_map is None or sk.shift is not None):
        result.title += "; operations and times are those of the whole model, only files are smaller"
    return result


def _submodel(
    sk: Sparsifier, bound: BoundSketch | None, key: Key, source: nn.Module, scratch: nn.Module
) -> nn.Module:
    """A smaller model of the source's weights where there is one; else those of the draw in `scratch`."""
    if isinstance(bound, BoundUnits) and sk.shift is None:
        return small_model(sk, bound.draw(key), source).eval()
    scratch.load_state_dict(source.state_dict())
    if bound is not None:
        put_draw(sk, weight_draw(sk, bound, key), scratch, source)
    return scratch


def _cost(sk: Sparsifier, bound: BoundSketch | None, key: Key, model: nn.Module) -> dict[str, int]:
    """Parameters and bytes of a submodel, and with a shift of its delta.

    With a sketch, they are what is left to store of a model of full size: where nothing is kept it is 0, or
    v, which is not left out.
    """
    cost, kept, kept_bytes, dim_bytes = measure(model), 0, 0, 0
    for i, w in enumerate(sk.weights):
        x = w.parameter.detach()
        count = w.count if bound is None else bound.kept(i, key, x).count
        kept, kept_bytes = kept + count, kept_bytes + count * x.element_size()
        dim_bytes += w.count * x.element_size()
    if sk.shift is not None:
        whole = {"parameters": cost.parameters, "bytes": cost.bytes}
        return whole | {"delta": kept, "delta_bytes": kept_bytes}
    if bound is None:
        return {"parameters": cost.parameters, "bytes": cost.bytes}
    return {"parameters": cost.parameters - sk.dim + kept, "bytes": cost.bytes - dim_bytes + kept_bytes}


def _summary(scores: pd.DataFrame) -> pd.DataFrame:
    """One row per density: ours first, then the plain network, then the costs."""
    groups = scores.groupby("number")
    parts = [groups["density"].agg(density="first", draws="size")]
    for name, prefix in (("score", ""), ("plain", "plain_")):
        if name in scores:
            statistics = groups[name].describe()[["mean", "25%", "50%", "75%", "min", "max"]]
            failed = groups[name].agg(lambda each: each.isna().any())
            statistics = statistics[~failed].reindex(failed.index)  # pandas leaves NaN out of its numbers
            parts.append(statistics.set_axis([prefix + title for title in STATISTICS], axis=1))
    costs = [name for name in ("parameters", "bytes", "delta", "delta_bytes") if name in scores]
    parts.append(groups[costs].mean().round().astype(int))
    return pd.concat(parts, axis=1).reset_index(drop=True)


def _typical(scores: pd.DataFrame) -> list[tuple[int, int]]:
    """Of each density the draw whose number of parameters is nearest to the mean."""
    mean = scores.groupby("number")["parameters"].transform("mean")
    nearest = (scores["parameters"] - mean).abs().groupby(scores["number"]).idxmin()
    return list(scores.loc[nearest, ["number", "step"]].itertuples(index=False, name=None))


def _same_network(sk: Sparsifier, plain: nn.Module) -> nn.Module:
    """A copy with the weights of the plainly trained network, if it is the same one."""
    if not isinstance(plain, nn.Module):
        raise ArgumentError(f"plain is the same network, trained plainly, got {type(plain).__name__}")
    copied = sk.watched.plain_copy()
    try:
        copied.load_state_dict(plain.state_dict())
    except RuntimeError as error:
        raise ArgumentError(f"plain is not the same network, trained plainly. {error}") from error
    return copied.eval()


def overview(sk: Sparsifier) -> str:
    """The table, in the order of `named_parameters`."""
    rows = [("parameter", "shape", "sketched")]
    shares = {w.name: sk.bound.share(i) for i, w in enumerate(sk.weights)}
    for name, p in sk.model.named_parameters():
        if name in shares:
            taken = [] if sk.unit_map is None else sk.unit_map.consumed_by(name)
            units = f", takes the units of {', '.join(taken)}" if taken else ""
            known = shares[name] == shares[name]
            verdict = f"yes{units}" + (f", keeps {percent(shares[name])}" if known else "")
        else:
            verdict = "no: " + sk.unsketched.get(name, "new since sparsify()")
        rows.append((name, " x ".join(map(str, p.shape)) or "scalar", verdict))
    total = sum(p.numel() for p in sk.model.parameters())
    shift = "no shift" if sk.shift is None else "a shift"
    lines = [
        f"{type(sk.model).__name__} sparsified with {sk.sketch.label()}; {shift}; seed {sk.seed}, node "
        f"{sk.node}, step {sk.step}",
        *([] if sk.unit_map is None else [sk.unit_map.table()]),
        *align_columns(rows),
        f"{sk.dim:,} of {total:,} weights are sketched, {percent(sk.density)} of them kept on average",
    ]
    return "\n".join(lines)
