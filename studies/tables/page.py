"""The page of the study, from its text (page.md) and its numbers: one table per question, and the goals."""

from __future__ import annotations

from pathlib import Path
from string import Template
from typing import Any

import pandas

from studies.tables.contenders import CANDIDATES, CONTENDERS, OWN, TUNED
from studies.tables.data import TABLES

CHOSEN = "ours, chosen"
GOALS = {"auc": (0.005, 0.9), "log_loss": (0.0, 2 / 3), "r2": (0.01, 0.9)}  # tolerance, and share of the rows
NAMES = {"auc": "AUC", "log_loss": "Log-loss", "calibration_error": "Calibration error", "r2": "R²"}
ABLATION = [
    *("linear, mean", "linear, our imputer", "MAST"),
    *("trees", "trees, our imputer", "trees, copies (NaN)", "MaskedTraining(trees)"),
    CHOSEN,
]
TITLES = {"cells": "cells blank at random", "columns": "whole columns blank"}
LOWER = ("log_loss", "calibration_error")  # is better
SITUATION = ["table", "split", "blank", "share"]  # for which one candidate is chosen


def choices(validation: Any) -> Any:
    """The candidate with the best mean score over folds, for each table, split, kind and share."""
    scores = validation.groupby([*SITUATION, "contender"], as_index=False)["score"].mean()
    best = scores.groupby(SITUATION)["score"].idxmax()
    return scores.loc[best, [*SITUATION, "contender"]]


def with_chosen(scores: Any, validation: Any) -> Any:
    """All scores, and those of the candidate that cross-validation chose."""
    chosen = scores.merge(choices(validation), on=[*SITUATION, "contender"])
    return pandas.concat([scores, chosen.assign(contender=CHOSEN)], ignore_index=True)


def means(scores: Any, measure: str) -> Any:
    """Means over splits: a row per table, kind and share, a column per contender."""
    rows = scores[scores[measure].notna()] if measure in scores else scores.iloc[:0]
    wide = rows.pivot_table(
        index=["table", "blank", "share"], columns="contender", values=measure if len(rows) else None
    )
    order = [t.name for t in TABLES if t.name in wide.index.get_level_values(0)]
    return wide.reindex(order, level=0).reindex(columns=[c for c in [*CONTENDERS, CHOSEN] if c in wide])


def distances(wide: Any, measure: str) -> Any:
    """How far each contender is from the best of a row; 0 is the best."""
    return wide.sub(wide.min(axis=1), axis=0) if measure in LOWER else -wide.sub(wide.max(axis=1), axis=0)


def gaps(scores: Any, measure: str, without: set[str]) -> Any:
    """How far each contender is from the best of a row, without our own ones and these."""
    wide = means(scores, measure)
    return distances(wide.drop(columns=[*OWN, *without], errors="ignore"), measure)


def goals(scores: Any) -> list[str]:
    """A line for each goal: how many rows hold, and those that do not."""
    lines = []
    for measure, (tolerance, wanted) in GOALS.items():
        behind = gaps(scores, measure, TUNED)
        if behind.empty:
            continue
        fails = behind.index[behind[CHOSEN] > tolerance + 1e-12]
        held, rows = len(behind) - len(fails), len(behind)
        tuned = (gaps(scores, measure, set())[CHOSEN] <= tolerance + 1e-12).sum()
        near = f" or within {tolerance:g} of the best" if tolerance else ""
        reached = "" if held >= wanted * rows else "**not** "
        goal = f"the goal is {wanted:.0%}: {reached}reached."
        also = f" With *tuned* linear models among the others: {tuned} of {rows}."
        lines.append(f"- {NAMES[measure]} the best{near} in {held} of {rows} rows; {goal}{also}")
        for row in fails:
            name, blank, share = row
            best, gap = behind.loc[row].idxmin(), behind.loc[row, CHOSEN]
            lines.append(f"    - {name}, {share:.0%} of the {blank}: {best} is better by {gap:.3f}")
    return lines


def markdown(frame: Any) -> list[str]:
    """Lines of a table: the index, then texts."""
    head = [*frame.index.names, *frame.columns]
    lines = ["| " + " | ".join(head) + " |", "|---" * len(head) + "|"]
    for index, row in frame.iterrows():
        keys = index if isinstance(index, tuple) else [index]
        keys = [f"{key:.0%}" if isinstance(key, float) else key for key in keys]
        lines.append("| " + " | ".join([*keys, *map(str, row)]) + " |")
    return [*lines, ""]


def detail(scores: Any, measure: str, blank: str) -> list[str]:
    """All tables at all shares; bold is the best and what is within the tolerance of it."""
    wide = means(scores, measure)
    wide = wide[wide.index.get_level_values("blank") == blank].dropna(axis=1, how="all").droplevel("blank")
    if wide.empty:
        return []
    texts = wide.map(lambda v: "" if pandas.isna(v) else f"{v:.3f}")
    texts = texts.mask(distances(wide, measure) <= GOALS[measure][0] + 1e-12, "**" + texts + "**")
    return [f"## {NAMES[measure]}, {TITLES[blank]}", "", *markdown(texts)]


def complete(scores: Any) -> Any:
    """The numbers of the splits for which all tables are done, as far as there are any."""
    tables = scores.groupby("split")["table"].nunique()
    return scores[scores["split"].isin(tables.index[tables == tables.max()])]


def page(scores: Any, validation: Any) -> str:
    """The whole page: its text, and what the numbers say."""
    scores, validation = complete(scores), complete(validation)
    splits = ", ".join(map(str, sorted(scores["split"].unique())))
    scores = with_chosen(scores, validation)
    counts = choices(validation).groupby(["blank", "share", "contender"]).size().unstack(fill_value=0)
    ablation = []
    for measure in [name for name in NAMES if name in scores]:
        wide = means(scores, measure).reindex(columns=ABLATION).groupby(["blank", "share"]).mean()
        ablation += [f"{NAMES[measure]}:", "", *markdown(wide.map("{:.4f}".format))]
    parts = {
        "splits": [splits],
        "goals": goals(scores),
        "chosen": markdown(counts.reindex(columns=list(CANDIDATES), fill_value=0)),
        "ablation": ablation,
        "detail": [line for measure in GOALS for blank in TITLES for line in detail(scores, measure, blank)],
    }
    text = Template(Path(__file__).with_suffix(".md").read_text(encoding="utf-8"))
    return text.substitute({name: "\n".join(lines).strip() for name, lines in parts.items()})
