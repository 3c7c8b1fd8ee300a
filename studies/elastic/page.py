"""The page and the figure of the study, made from its numbers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from mast.experiments import style
from mast.support import files
from studies.elastic.contenders import SIZES, draws
from studies.elastic.rule import (
    ENOUGH,
    NETWORKS,
    STATEMENTS,
    WITHOUT_THE_LARGEST,
    Statement,
    Verdict,
    by_seed,
    decided,
    judge,
)
from studies.elastic.study import EQUAL_STEPS, TUNING, session_of
from studies.elastic.tasks import TASKS

LINES = (  # contender, share, words
    ("alone", 1.0, "each size alone"),
    ("slimmable", 1.0, "slimmable network, same seconds"),
    ("dynabert", 1.0, "DynaBERT's width stage, same seconds"),
    ("ours", 1.0, "**elastic, same seconds**"),
    ("ours", 0.7, "**elastic, .70 of them**"),
    ("ours", 0.35, "**elastic, .35 of them**"),
    ("ours", EQUAL_STEPS, "elastic, as many steps as one size alone"),
    ("smaller", 1.0, "elastic without 100 %, the seconds of three sizes"),
    ("smaller", 0.7, "elastic without 100 %, .70 of them"),
)
CUT = {
    "random": "random units, the best of eight draws by validation",
    "magnitude": "norm of a unit's weights",
    "torch-pruning": "Torch-Pruning, group norms",
    "taylor": "`taylor`",
    "output": "`output`",
    "activation": "`activation`",
}
INTRODUCTION = """\
# A pretrained network in every size

Real pretrained networks, cut to a quarter, a half and three quarters of their units (channels inside
blocks; heads and MLP units). One run of `mast.nn.elastic` is compared with training every size by itself,
with cuts that are not trained, and with two other ways to train all sizes at once. The page is written by
the study from its CSV files, which stand in `docs/studies/elastic`; a run goes on from them.

<!-- not run: it trains for an hour, in a checkout -->
```bash
pip install -e ".[studies]"
python -m studies.elastic --fast --out runs/elastic-fast      # a minute, stories260K alone
python -m studies.elastic --data-dir DIR --network resnet20   # what is missing of one network
```
"""

WITHOUT = """\
Whoever can keep the given network as the largest size need not train that size, and the others have all the
steps. *Three sizes*: 25, 50 and 75 % from one run against each of them alone, with the seconds that these
three take alone, by the first statement. *0.70 of theirs*: the same by the second. *With 100 % as given*:
these sizes and the given network against all four sizes alone, by the second statement,
because three sizes take .65 to .70 of the seconds of four. (The last column was added when its numbers were
known; two of its four gains are less than one standard error.) These are reported only.
"""

SETUP = """\
## How it was done

- **Networks.** MiniLM (all-MiniLM-L6-v2, 6 layers, 12 heads; token embeddings frozen), fine-tuned by us
  once for each task with 160 (SST-2, whole sentences) and 260 (TREC) steps of 32: seeds are about what
  follows. ResNet-20 and ResNet-56 with published CIFAR-10 weights, on lossless images, cropped and
  mirrored; the networks have seen all 50,000 training images before; judged on the first 4,000 and 2,000
  official test images, while the last ones are for validation. stories260K, a Llama of 260 thousand
  weights with grouped heads, on stories of 128 tokens that it sampled itself; judged on 256 others.
  Training goes epoch after epoch through 4,096 sentences or stories, or as many images as a size alone sees
  (6,400 and 3,200), each of which is cropped once.
- **Cut.** Units sorted by `activation` on 256 training rows; alone, slimmable, DynaBERT and elastic have
  the same cut. BatchNorm statistics are taken anew from 1,024 training rows for everybody.
- **Training.** AdamW, no decay, gradients clipped to 1, a rise over a tenth of the steps and a linear
  fall; the same batches for the same seed. The given network teaches by its logits (Kullback-Leibler),
  as they are (*distilled*) or at temperature 4 (*softened*); *alone* takes labels or the teacher, and
  so does elastic, for whose draws validation rows choose among three ways: evenly; *own rates*, small ones
  more often (.4, .3, .2, .1) with a learning rate for each size and no momentum; *small first*, the same
  with draws that go linearly from (.6, .25, .1, .05) to (.05, .1, .25, .6), while all rates move to that of
  the largest size. *Without 100 %*, the others are drawn as often as before, relative to each other.
  Slimmable: the largest learns labels and teaches the smallest and one of the middle sizes. DynaBERT: all
  sizes at each step, taught by logits (its width stage; hidden states and the depth stage are left out).
  Both may soften what teaches, run on slices written by hand, and have up to three seeds of their own.
- **Choice.** The learning rate of every contender is the best of three or more, a factor of 3 apart, on
  validation rows, with a seed that does not judge and half of the seconds. Each size alone has the best of
  these rates for itself; the rates of the sizes of elastic are those, times a common factor that is chosen
  like a rate. What is best: for slimmable networks and DynaBERT the mean over the four sizes, by which they
  are compared; for elastic the statements on equal seconds and on the largest size: the mean, the size that
  is most behind the size alone (plus .01), or the largest against the given network (plus .005), whichever
  is lowest.
- **Seconds.** CPU seconds of one thread. Steps are timed in turn, so that a busy machine hits all alike,
  and the number of steps follows; the column on its own clock is what a run took, under the load of its
  day. The four sizes alone count their steps as plain small networks, and the teacher's outputs if it
  teaches. Outputs count once per row that is seen, for everybody; sorting (in a warm process) counts for
  all but the sizes alone.
- **ResNet-56 in the literature.** Torch-Pruning reports 93.53 % before and 93.77 % after pruning to 2.1
  times fewer operations and long training. Half of the units inside blocks is two times fewer here: the
  column 50 % of [its tables](#resnet-56-on-cifar-10). Three CPU minutes for all four sizes, alone or
  from one run, close three fifths of the gap between the cut and the given network; the rest takes the hours
  of such a training.
"""


CHANGES = """\
## What was changed after seeing results

Settings and conditions were changed after each of five rounds of runs. Each time new seeds judged `elastic`
and the sizes alone, on the same test rows; slimmable networks and DynaBERT, which judge nothing, kept theirs.
[The rounds](elastic-rounds.md) have every change, with the numbers that led to it and what was tried in
vain."""


def write(results: Any, times: Any, page: Path, figure: Path) -> None:
    """Write both."""
    page.parent.mkdir(parents=True, exist_ok=True)
    files.write(page, ("\n".join(lines(results, times)) + "\n").encode())
    draw(results, times).savefig(figure, dpi=160)


def lines(results: Any, times: Any) -> Iterator[str]:
    """The page."""
    verdicts = judge(results)
    networks = [name for name in TASKS if name in set(results["network"])]
    yield INTRODUCTION
    yield "## The rule, and what it says\n"
    yield f"Committed before the runs. A statement holds if it does on {ENOUGH} of {NETWORKS} networks."
    yield "Differences are in shares of right answers on test rows (of next tokens for stories260K), paired"
    yield "over seeds.\n"
    counts = decided(verdicts)
    yield from table(
        ["statement", "holds on", ""],
        [
            [s.words, f"{counts[s.name][0]} of {counts[s.name][1]}", _verdict(s.moonshot, *counts[s.name])]
            for s in STATEMENTS
        ],
    )
    yield from _verdicts(networks, STATEMENTS, verdicts)
    yield WITHOUT
    yield from _verdicts(networks, WITHOUT_THE_LARGEST, verdicts)
    yield "![Accuracy against parameters](../images/elastic.png)\n"
    for name in networks:
        own = times[times["network"] == name]
        yield from _network(name, results[results["network"] == name], own)
    yield SETUP
    yield "## Seconds of a step\n"
    yield "In steps of the whole network alone; rivals and ours were timed in two sessions.\n"
    yield from table(["network", "", "25 %", "50 %", "75 %", "100 %"], list(_steps(times)))
    yield "## Settings that were chosen\n"
    yield from table(
        ["network", "contender", "setting", "rates and validation accuracy"], list(_settings(results))
    )
    yield CHANGES


def _verdicts(
    networks: Sequence[str], statements: Sequence[Statement], verdicts: Sequence[Verdict]
) -> Iterator[str]:
    """A row per network, a column per statement."""
    rows = [
        [TASKS[n].title, *(_cell([v for v in verdicts if v.of(n, s)]) for s in statements)] for n in networks
    ]
    return table(["network", *(s.name for s in statements)], rows)


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """A table of a page."""
    yield f"| {' | '.join(head)} |"
    yield "|" + "---|" * len(head)
    yield from (f"| {' | '.join(row)} |" for row in rows)
    yield ""


def _verdict(moonshot: bool, holds: int, run: int) -> str:
    if moonshot:
        return "reported only"
    return (
        "**holds**" if holds >= ENOUGH else "**does not hold**" if run - holds > NETWORKS - ENOUGH else "open"
    )


def _cell(found: list[Any]) -> str:
    return f"{'yes' if found[0].holds else '**no**'}: {found[0].measured}" if found else "not run"


def _network(name: str, results: Any, times: Any) -> Iterator[str]:
    """All contenders on one network."""
    test = results[results["rows"] == "test"]
    language = name == "stories260k"
    given = test[test["contender"] == "given"]
    yield f"## {TASKS[name].title}\n"
    if not given.empty:
        words = f", perplexity {np.exp(given['loss'].iloc[0]):.2f}" if language else ""
        count = f"{given['parameters'].iloc[0] / 1e6:.2f} million parameters"
        yield f"The given network has {given['accuracy'].iloc[0]:.4f}{words}, and {count}.\n"
    columns = [
        "accuracy, ± standard error of the mean over seeds",
        *(f"{100 * s:.0f} %" for s in SIZES),
        "mean",
    ]
    columns += ["seeds", "steps", "CPU seconds", "on its own clock"] + ["perplexity"] * language
    rows = [list(_line(test, times, *line, language)) for line in LINES if not by_seed(test, *line[:2]).empty]
    yield from table(columns, rows)
    cut = test[test["contender"] == "cut"]
    yield "Without training:\n"
    rows = [
        [words, *(_point(cut[cut["setting"] == how], size, language) for size in SIZES[:3])]
        for how, words in CUT.items()
        if how in set(cut["setting"])
    ]
    yield from table(["units chosen by", "25 %", "50 %", "75 %"], rows)


def _line(test: Any, times: Any, contender: str, share: float, words: str, language: bool) -> Iterator[str]:
    found = _by_size(test, contender, share, "accuracy")
    rows = test[(test["contender"] == contender) & (test["share"] == share)]
    yield words
    for values in (*(found[s] for s in SIZES), found.mean(axis=1)):
        error = f" ± {values.std(ddof=1) / np.sqrt(len(values)):.4f}" if len(values) > 1 else ""
        yield f"{values.mean():.4f}{error}"
    yield str(len(found))
    yield f"{rows['steps'].iloc[0]}" + (" each" if contender == "alone" else "")
    yield f"{timed(rows, times):.0f}"
    yield f"{_spent(rows):.0f}"
    if language:
        losses = _by_size(test, contender, share, "loss")
        yield " / ".join(f"{np.exp(losses[s].mean()):.2f}" for s in SIZES)


def _by_size(test: Any, contender: str, share: float, column: str) -> Any:
    """A row per seed; where the largest size was not trained, it is the given network."""
    found = by_seed(test, contender, share, column)
    if 1.0 not in found:
        found[1.0] = test[test["contender"] == "given"][column].iloc[0]
    return found


def timed(rows: Any, times: Any) -> float:
    """CPU seconds of a contender's training by the steps that were timed in turn: what the rule compares.

    They are seconds of the session of `elastic`: others are converted by what the sizes alone took in both.
    """
    contender, setting, steps = (rows[name].iloc[0] for name in ("contender", "setting", "steps"))
    task = TASKS[rows["network"].iloc[0]]
    sessions = {name: own.set_index(["what", "size"])["seconds"] for name, own in times.groupby("session")}
    ours = sessions.get("ours", sessions.get("rivals"))
    seconds = ours if contender == "alone" else sessions[session_of(contender)]
    seconds = seconds * (ours["alone"].sum() / seconds["alone"].sum())
    rows_once = min(steps, max(1, task.pool // task.batch)) * seconds["teacher", 1.0]
    taught = contender == "dynabert" or (contender != "slimmable" and "labels" not in setting)
    if contender == "alone":
        step, before = sum(seconds["alone", s] for s in SIZES), 0.0
    elif contender in ("ours", "smaller"):
        sizes = SIZES[:-1] if contender == "smaller" else SIZES
        drawn = draws(setting, sizes).mean(axis=0)
        step = sum(w * seconds["ours", s] for w, s in zip(drawn, sizes, strict=True))
        before = seconds["sorting", 0.0]
    else:
        step, before = seconds[contender, 1.0], seconds["sorting", 0.0]
    return float(steps * step + before + taught * rows_once)


def _spent(rows: Any) -> float:
    """CPU seconds of training, the mean over seeds; sorting counts where one network has all sizes."""
    if rows["contender"].iloc[0] == "alone":
        return float(rows.groupby("seed")["seconds"].sum().mean())
    return float((rows["seconds"] + rows["sorting"]).mean())


def _point(rows: Any, size: float, language: bool) -> str:
    row = rows[rows["size"] == size].iloc[0]
    return f"{row['accuracy']:.4f}" + (f" (perplexity {np.exp(row['loss']):.1f})" if language else "")


def _steps(times: Any) -> Iterator[list[str]]:
    for (network, session), rows in times.groupby(["network", "session"], sort=False):
        seconds = rows.set_index(["what", "size"])["seconds"]
        whole = seconds["alone", 1.0]
        for what in dict.fromkeys(rows["what"]):
            if what == "sorting":
                continue
            own = [f"{seconds[what, s] / whole:.2f}" if (what, s) in seconds else "" for s in SIZES]
            yield [f"{network}, {whole:.3f} s", f"{what} ({session})", *own]
        yield [f"{network}", f"sorting: {seconds['sorting', 0.0]:.1f} s", "", "", "", ""]


def _settings(results: Any) -> Iterator[list[str]]:
    chosen = results[
        (results["rows"] == "validation") & (results["contender"] != "cut") & (results["seed"] == TUNING)
    ]
    for (network, contender, setting), rows in chosen.groupby(
        ["network", "contender", "setting"], sort=False
    ):
        means = rows.groupby("rate")["accuracy"].mean()
        yield [
            network,
            contender,
            setting or "-",
            ", ".join(f"{rate:g}: {mean:.4f}" for rate, mean in means.items()),
        ]


def draw(results: Any, times: Any) -> Any:
    """Accuracy against parameters: cut plainly, alone, and elastic with two budgets."""
    networks = [n for n in TASKS if n in set(results[results["contender"] == "ours"]["network"])]
    networks = networks or list(dict.fromkeys(results["network"]))
    columns = min(3, len(networks))
    figure, axes = style.frames(-(-len(networks) // columns), columns, width=3.4, height=3.1)
    for ax in axes.flat[len(networks) :]:
        ax.set_axis_off()
    for ax, name in zip(axes.flat, networks, strict=False):
        test = results[(results["network"] == name) & (results["rows"] == "test")]
        given = test[test["contender"] == "given"]
        cut = test[(test["contender"] == "cut") & (test["setting"] == "activation")]
        cut = cut.set_index("parameters")["accuracy"]
        if not given.empty:
            cut[given["parameters"].iloc[0]] = given["accuracy"].iloc[0]
        for values, label, colour, marker, line in (
            (cut, "cut, not trained", style.GREY, "v", ":"),
            (_curve(test, "alone", 1.0), "each size alone", style.BLACK, "s", "-"),
            (_curve(test, "ours", 0.7), "elastic, .70 of the seconds", style.SKY, "o", "-"),
            (_curve(test, "ours", 1.0), "elastic, the same seconds", style.BLUE, "D", "-"),
        ):
            own = times[times["network"] == name]
            seconds = "0" if colour == style.GREY else _seconds_of(test, own, label)
            ax.plot(
                values.index / 1e6,
                values,
                line,
                marker=marker,
                color=colour,
                markersize=4,
                label=f"{label}: {seconds} s",
            )
        ax.set(title=TASKS[name].title, xlabel="Parameters (million)")
        ax.legend(fontsize="x-small", loc="lower right")
    for row in axes:
        row[0].set_ylabel("Test accuracy")
    return figure


def _curve(test: Any, contender: str, share: float) -> Any:
    rows = test[(test["contender"] == contender) & (test["share"] == share)]
    return rows.groupby("parameters")["accuracy"].mean()


def _seconds_of(test: Any, times: Any, label: str) -> str:
    contender, share = ("alone", 1.0) if "alone" in label else ("ours", 0.7 if ".70" in label else 1.0)
    rows = test[(test["contender"] == contender) & (test["share"] == share)]
    return f"{timed(rows, times):.0f}" if len(rows) else "-"
