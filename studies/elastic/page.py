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
CHANGED = (  # in the order in which it happened
    "Each size alone has a rate of its own, where at first all four shared one: a stronger rival. Changed "
    "when its validation scores on stories260K were seen, before any run of `elastic`.",
    "All contenders see the same rows. At first `elastic` saw new rows all the time and paid for the "
    "teacher's outputs on them. Changed when two of its tuning runs on stories260K had been made, which were "
    "repeated.",
    "Sorting is timed in a warm process; at first the seconds of imports and compilation counted too.",
    "ResNets train on, and are calibrated with, images that are cropped and mirrored as those were that they "
    "come from. At first they were plain, and calibration alone took the given ResNet-20 from .915 to .887.",
    "**First runs** had 40 to 80 steps of 8 to 16 rows for a size alone, and all contenders saw the same "
    "few rows again and again (numbers in `docs/studies/elastic/first`). With equal seconds `elastic` was "
    "behind: -.0040 on SST-2 (standard error .0034), -.0022 on TREC (.0038), -.0035 on stories260K "
    "(.0013, -.058 at its largest size). What stands above was decided after that, and is judged by other "
    "seeds: runs are two to five times as long, everybody trains epoch after epoch on one set of rows and "
    "pays for the teacher's outputs once per row, `elastic` may draw both ends more often (instead of the "
    "smaller sizes) or learn from labels, as sizes alone may, and ResNets choose rates by test images "
    "that do not judge (they have .999 on training images). Tried on validation rows before that, with "
    "one seed: `sk.small` instead of the plain loop (not better on ResNet-20).",
    "Tried on 1,000 validation rows of ResNet-20 after its results, with half of the seconds and one "
    "seed: SGD with momentum at one rate (.01), and averaged weights at two constant rates. The largest "
    "size had .893 and at most .887, where Adam had .897. One rate serves all sizes, and what the "
    "smallest needs (.003) takes the largest from .915 to .87; at .00033 it stays at .91 and the smallest "
    "falls from .66 to .49. A size alone has a rate of its own, which for the largest is next to none.",
    "**Second runs** had one rate for all sizes: +.0048 on TREC, -.0022 on SST-2 and -.0013 on ResNet-20 "
    "with equal seconds, -.044 at its largest size (numbers in `docs/studies/elastic/second`). After "
    "that, on validation rows with half of the seconds and the seed that does not judge, `elastic` was given "
    "a rate for each size: that of the size alone, with small sizes drawn more often (.4, .3, .2, .1) and "
    "no momentum. ResNet-20 went from .8011 to .8209 on the mean over sizes (25 % from .667 to .708, the "
    "largest from .866 to .888); with momentum it had .8159, with `sk.small` and momentum .8181 (.8006 with "
    "sizes drawn evenly), and with sizes that grow during the run .802 to .812. On stories260K one rate had "
    ".548 with and .551 without momentum, and the rest .521 to .549. So rates of their own are one more "
    "setting that validation rows choose from, and new seeds judge it.",
    "**MiniLM again**, with seeds that had not judged it and rates of their own among the settings. "
    "Validation rows chose them on TREC; on SST-2 one rate was ahead by .0003 (.8567 and .8564), so that it "
    "was judged: -.0037 with equal seconds, and +.0009 with .70 of them. Rates of their own, run on the same "
    "seeds to be told and not judged, have -.0006 (standard error .0035) with equal seconds, -.0107 at the "
    "largest size.",
    "Tried on validation rows of ResNet-20 after its results, with all seconds and one seed, where the "
    "largest size is .027 behind the size alone: both ends drawn more often (.025 behind), a third of the "
    "rate in units that a size shares with smaller ones (.044), a tenth of it for small sizes in "
    "weights that no size cuts (.030). No cure.",
    "**Third runs** had rates of their own on ResNet-20 and ResNet-56 and one rate on SST-2: +.0089 "
    "(standard error .0015), +.0131 and -.0037 with equal seconds, but -.030, -.0075 and -.010 at the "
    "largest size (numbers in `docs/studies/elastic/third`). At the end of such a run most steps, and the "
    "largest, are those of small sizes. So, on validation rows of ResNet-20 with all seconds and the seed "
    "that does not judge, draws and rates were changed during the run. Differences to sizes alone, from "
    "25 to 100 %: own rates +.070 / +.038 / -.014 / -.031; draws that go to (.1, .2, .3, .4) with rates "
    "that stay, +.015 / +.026 / -.008 / -.023; with rates that all end at .0005, +.018 / +.025 / +.002 / "
    "-.005 (at .00033 or .001: within .008 of that); with momentum -.002 / +.025 / -.002 / -.012; steeper "
    "draws, as they are now, +.026 / +.024 / -.007 / -.001. On stories260K such runs had .564 to .571 on "
    "the mean over sizes, and draws and rates that stay .577. *Small first* became one more setting, and "
    "settings are chosen by the statement that judges instead of the mean, which prefers own rates on "
    "ResNet-20. Networks whose choice changed are judged by new seeds.",
    "**Fourth runs** had small first on ResNet-20 and SST-2. On ResNet-20: +.0032 (standard error .0010) "
    "with equal seconds, -.0098 at the worst size, -.0072 with .70 of them, and the largest size .0123 "
    "behind the given network (numbers in `docs/studies/elastic/fourth`). That network is right about "
    ".999 of its training images, and sure of it, so that its probabilities say no more than labels; its "
    "logits at a higher temperature do. On validation rows of ResNet-20, with .70 of the seconds (without "
    "those of the teacher) and the seed that does not judge, from 25 to 100 %: labels .692 / .806 / .873 "
    "/ .902, temperature 2 .697 / .816 / .880 / .908, temperature 4 .706 / .833 / .882 / .916, 4 and "
    "labels .710 / .827 / .882 / .916. BatchNorm weights of its own for each size changed nothing (.685 / "
    ".804 / .871 / .906 with labels). Temperature 4 (*softened*) became one more way to teach, for "
    "everybody, and lifted sizes alone as much: on ResNet-20 from .8185 to .8360 on the mean. Settings are "
    "chosen by the statement on the largest size, too. Sorting became three times as fast. Fifteen rounds "
    "instead of five are timed: five on a busy machine gave `elastic` a tenth more steps on ResNet-20, so "
    "that the runs with softened logits that chose its setting were made again, and the others not.",
    "**Fifth runs** tried softened logits on the ResNets only, and small first not on TREC and stories260K "
    "(numbers in `docs/studies/elastic/fifth`). On validation rows of SST-2, with half of the steps and the "
    "middle rate, softened logits lift sizes alone from .845 to .850 on the mean. So all ways to teach, and "
    "all ways to draw but one (both ends more often, which was never chosen), are tried by everybody on "
    "MiniLM and stories260K, and new seeds judge. On the ResNets `elastic` trained on rows that were new for "
    "two to three times as long as for a size alone, and paid the teacher for each: with .70 of the seconds "
    "it was .0085 behind on ResNet-20 (standard error .0019) and .0048 on ResNet-56 (.0013). On validation "
    "rows of ResNet-20, with .70 of the seconds and the seed that does not judge, from 25 to 100 %: "
    ".706 / .831 / .890 / .913; with the 6,400 images of the 200 steps that a size alone has, again and "
    "again, .727 / .829 / .892 / .911, as more steps are left; with half as many .709 / .831 / .886 / .908. "
    "So the training rows of both ResNets are as many as a size alone sees in its steps (they were 16,384), "
    "for everybody, and new seeds judge. Settings stay as they were chosen before. Tried on the same "
    "validation rows and no better: an optimizer for each size, with momentum (-.008 on the mean) or without "
    "(-.003); draws that end at (0, .05, .25, .7) (-.004) or (.05, .1, .35, .5) (+.002); rates that all end "
    "at .0005 (-.003) or .0003 (-.004).",
)

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
Whoever can keep the given network as the largest size need not train that size. Then the other three have
all the steps: here the same statements for these three, against the seconds that they take alone.
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
  Slimmable and DynaBERT run on slices written by hand, with up to three seeds.
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
  times fewer operations and long training. Half of the units inside blocks is two times fewer here:
  .814 when cut, .884 trained alone, .886 from one run for all sizes, three CPU minutes each way, and
  .930 as given. So two cores close three fifths of the gap in minutes; the rest takes the hours of such
  a training.
"""


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
    yield "## What was changed after seeing results\n"
    yield from (f"- {sentence}" for sentence in CHANGED)


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
