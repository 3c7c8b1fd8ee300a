"""The runs of the study: timing, tuning and judging, each a few rows of CSV files; what is there is kept."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pandas
import torch

from mast.support import files
from studies.elastic.contenders import (
    CUTS,
    SIZES,
    WEIGHTS,
    Training,
    begin,
    cuts,
    draws,
    elastic,
    evaluate,
    train,
)
from studies.elastic.rows import Loaded, Task, logits
from studies.elastic.rule import merit

TUNING = 0  # the seed that chooses and does not judge
SHARES = (1.0, 0.7, 0.35)  # of the seconds that the four sizes take alone
EQUAL_STEPS = 0.0  # stands for a share: as many steps as one size has alone
SETTINGS = {
    "alone": ("distilled", "labels", "softened"),
    "ours": tuple(WEIGHTS),
    "slimmable": ("", "softened"),
    "dynabert": ("", "softened"),
}
RIVALS = ("alone", "slimmable", "dynabert")
COLUMNS = ["network", "contender", "setting", "share", "rate", "seed", "rows", "size", "steps", "seconds"]
COLUMNS += ["sorting", "parameters", "accuracy", "loss"]
Rates = dict[float, float]  # by size


class Store:
    """Rows of a CSV file; a run that is there is not made again."""

    def __init__(self, path: Path, columns: Sequence[str]) -> None:
        self.path = path
        empty = pandas.DataFrame(columns=list(columns))
        self.rows = pandas.read_csv(path, keep_default_na=False) if path.exists() else empty

    def find(self, **key: Any) -> Any:
        """The rows with these values."""
        rows = self.rows
        for name, value in key.items():
            rows = rows[rows[name] == value]
        return rows

    def add(self, rows: list[dict[str, Any]]) -> None:
        """Append, and write the file whole."""
        new = pandas.DataFrame(rows, columns=self.rows.columns)
        new = new if self.rows.empty else pandas.concat([self.rows, new], ignore_index=True)
        files.write(self.path, new.to_csv(index=False, float_format="%.6g").encode())
        self.rows = pandas.read_csv(self.path, keep_default_na=False)  # as a run that goes on sees it

    def once(self, key: dict[str, Any], make: Callable[[], list[dict[str, Any]]]) -> Any:
        """The rows of a run, made if they are not there."""
        if self.find(**key).empty:
            begun = time.process_time()
            self.add([key | row for row in make()])
            print(*(f"{v}" for v in key.values()), f"{time.process_time() - begun:.0f} s", flush=True)
        return self.find(**key)


@dataclass
class Study:
    """One network's part of the study."""

    loaded: Loaded
    results: Store
    times: Store
    rounds: int = 15  # of the timing
    rates: int = 6  # learning rates, at most
    draws: int = 8  # random cuts, of which validation rows choose the best

    @property
    def task(self) -> Task:
        """The task of the network."""
        return self.loaded.task

    def judge(self, *contenders: str) -> None:
        """Everything about some contenders: "cuts", the rivals, "ours"."""
        self.given()
        if "cuts" in contenders:
            self.cut()
        for name in contenders:
            if name == "cuts":
                continue
            self.seconds(session_of(name))
            setting, rates = self.tuned("ours" if name == "smaller" else name)
            shares = {"ours": (*SHARES, EQUAL_STEPS), "smaller": SHARES[:2]}.get(name, (1.0,))
            judged = name in ("alone", "ours", "smaller")
            seeds = self.task.seeds if judged else min(3, self.task.seeds)
            first = self.task.first if judged else self.task.rivals
            for share in shares:
                for seed in range(first, first + (min(2, seeds) if share == EQUAL_STEPS else seeds)):
                    self.run(name, setting, share, rates, seed, "test")

    # ---- one run -------------------------------------------------------------------------

    def run(self, name: str, setting: str, share: float, rates: Rates, seed: int, rows: str) -> Any:
        """Train a contender and look at all its sizes; on test rows it has the rates that were chosen."""
        key = {"network": self.task.name, "contender": name, "setting": setting, "share": share}
        key |= {"seed": seed, "rows": rows}
        if rows == "validation":
            key["rate"] = float(f"{rates[1.0]:.6g}")  # as it is written
        return self.results.once(key, lambda: list(self._run(name, setting, share, rates, seed, rows)))

    def _run(self, name: str, setting: str, share: float, rates: Rates, seed: int, rows: str) -> Any:
        steps = self.steps(name, setting, share)
        begun = time.process_time()
        parts = begin(name, self.loaded, seed, setting)
        sorting = time.process_time() - begun
        for part in parts:
            rate = rates[part.size]
            seconds = train(part, self.loaded, seed, rates, steps)
            row = {"rate": rate, "steps": steps, "seconds": seconds, "sorting": sorting}
            for size, network in part.networks().items():
                yield row | {"size": size} | evaluate(network, self.loaded, getattr(self.loaded, rows))

    def given(self) -> dict[str, float]:
        """The accuracy of the given network on test and validation rows."""
        key = {"network": self.task.name, "contender": "given", "setting": "", "share": 0.0, "rate": 0.0}
        key |= {"seed": 1}
        nothing, found = {"steps": 0, "seconds": 0.0, "sorting": 0.0, "size": 1.0}, {}
        for rows in ("test", "validation"):
            look = partial(evaluate, self.loaded.model, self.loaded, getattr(self.loaded, rows), False)
            made = self.results.once(key | {"rows": rows}, lambda: [nothing | look()])  # noqa: B023
            found[rows] = float(made["accuracy"].iloc[0])
        return found

    def cut(self) -> None:
        """Cuts without training."""
        key = {"network": self.task.name, "contender": "cut", "share": 0.0, "rate": 0.0}
        test = self.loaded.test
        for draw in range(self.draws):
            key |= {"setting": "random", "seed": draw, "rows": "validation"}
            self.results.once(key, lambda: self._cut("random", draw, self.loaded.validation, SIZES[:1]))  # noqa: B023
        found = self.results.find(**{k: v for k, v in key.items() if k != "seed"})
        best = int(found.sort_values("accuracy")["seed"].iloc[-1])
        key |= {"rows": "test", "seed": best}
        self.results.once(key, lambda: self._cut("random", best, test, SIZES[:3]))
        for how in CUTS:
            if how == "torch-pruning" and not self.task.name.startswith("resnet"):
                continue
            key |= {"setting": how, "seed": 1}
            self.results.once(key, lambda: self._cut(how, 1, test, SIZES[:3]))  # noqa: B023

    def _cut(self, how: str, seed: int, rows: Any, sizes: Sequence[float]) -> list[dict[str, Any]]:
        nothing = {"steps": 0, "seconds": 0.0, "sorting": 0.0}
        networks = cuts(self.loaded, how, seed, sizes)
        return [nothing | {"size": s} | evaluate(n, self.loaded, rows) for s, n in networks.items()]

    # ---- settings ------------------------------------------------------------------------

    def tuned(self, name: str) -> tuple[str, Rates]:
        """The setting and the rates that are best on validation rows, with half the seconds.

        Rivals have the best mean over sizes, and each size alone the best rate for itself; ours is chosen by
        what judges it (`rule.merit`). Settings are compared at the middle rate; rates go up and down by 3
        until the best one is between two others.
        """
        tried = [s for s in SETTINGS[name] if s in self.task.settings] or SETTINGS[name]
        score = {setting: self._scores(name, setting, self.task.rate) for setting in tried}
        merit = self._merit if name == "ours" else pandas.Series.mean
        setting = max(score, key=lambda s: merit(score[s]))
        rates = {self.task.rate: score[setting]}
        merits = {self.task.rate: merit(score[setting])}
        for factor in (1 / 3, 3.0):
            rate = self.task.rate
            while rate == _best(merits) and len(rates) < self.rates:
                rate = float(f"{rate * factor:.3g}")
                rates[rate] = self._scores(name, setting, rate)
                merits[rate] = merit(rates[rate])
        if name == "alone":
            return setting, {s: _best({rate: scores[s] for rate, scores in rates.items()}) for s in SIZES}
        return setting, self._rates(setting, _best(merits))

    def _merit(self, scores: Any) -> float:
        """By how much statements hold on validation rows, with half the steps for everybody."""
        setting, rates = self.tuned("alone")
        alone = {s: self._scores("alone", setting, rates[s])[s] for s in SIZES}
        return merit(scores, pandas.Series(alone), self.given()["validation"])

    def _rates(self, setting: str, rate: float) -> Rates:
        """One rate for all sizes; or the rates that they have alone, all changed by one factor."""
        if not setting.startswith(("own rates", "small first")):
            return dict.fromkeys(SIZES, rate)
        return {s: alone * rate / self.task.rate for s, alone in self.tuned("alone")[1].items()}

    def _scores(self, name: str, setting: str, rate: float) -> Any:
        """Validation accuracy by size."""
        found = self.run(name, setting, 0.5, self._rates(setting, rate), TUNING, "validation")
        return found.set_index("size")["accuracy"]

    # ---- seconds -------------------------------------------------------------------------

    def seconds(self, session: str) -> Any:
        """CPU seconds of one step of each contender, measured in turn, so that a busy machine hits all alike.

        Rivals and ours have sessions of their own, each with the sizes alone.
        """
        key = {"network": self.task.name, "session": session}
        return self.times.once(key, lambda: self._seconds(session))

    def _seconds(self, session: str) -> list[dict[str, Any]]:
        loaded, size = self.loaded, self.task.batch
        names = ("alone", "ours") if session == "ours" else RIVALS
        elastic(loaded, TUNING)  # the first call imports and compiles
        begun = time.process_time()
        elastic(loaded, TUNING)
        found: dict[tuple[str, float], list[float]] = {("sorting", 0.0): [time.process_time() - begun]}
        running = {}
        for name in names:
            parts = begin(name, loaded, TUNING, SETTINGS[name][0])
            trainings = [Training(part, dict.fromkeys(SIZES, 1e-6), 10**6) for part in parts]
            trainings *= len(SIZES) if name == "ours" else 1  # one network, in all its sizes
            sizes = SIZES if len(trainings) > 1 else (1.0,)
            running |= {(name, s): training for s, training in zip(sizes, trainings, strict=True)}
        found |= {key: [] for key in running}
        found["teacher", 1.0] = []
        for i, batch in enumerate(loaded.train.batches(size, self.rounds + 1, TUNING)):
            for (name, share), training in running.items():
                if name == "ours":
                    training.contender.weights = ([s == share for s in SIZES],) * 2  # draws this size
                taken = training.step(batch)
                found[name, share] += [taken] if i else []  # the first step makes what optimizers keep
            begun = time.process_time()
            with torch.no_grad():
                logits(loaded.model, batch)
            found["teacher", 1.0].append(time.process_time() - begun)
        return [
            {"what": name, "size": share, "seconds": float(pandas.Series(taken).median())}
            for (name, share), taken in found.items()
        ]

    def steps(self, name: str, setting: str, share: float) -> int:
        """How many steps a contender has for a share of the seconds that its sizes take alone.

        Those are their steps and, if they are taught, the given network's outputs for the rows they see.
        Outputs count once per row, for everybody. Sorting counts for all but the sizes alone.
        """
        alone = max(1, round(self.task.steps * (0.5 if share == 0.5 else 1)))
        if name == "alone" or share == EQUAL_STEPS:
            return alone
        times = self.seconds(session_of(name)).set_index(["what", "size"])["seconds"]
        epoch, teacher = max(1, len(self.loaded.train) // self.task.batch), times["teacher", 1.0]
        sizes = SIZES[:-1] if name == "smaller" else SIZES
        budget = self.task.steps * sum(times["alone", s] for s in sizes)
        if self.tuned("alone")[0] != "labels":
            budget += teacher * min(self.task.steps, epoch)
        if name in ("ours", "smaller"):
            drawn = draws(setting, sizes).mean(axis=0)
            own = sum(w * times["ours", s] for w, s in zip(drawn, sizes, strict=True))
        else:
            own = times[name, 1.0]
        left = share * budget - times["sorting", 0.0]
        teacher = 0.0 if name == "slimmable" or "labels" in setting else teacher
        steps = math.floor(left / (own + teacher))
        return max(1, steps if steps <= epoch else math.floor((left - teacher * epoch) / own))


def _best(scores: dict[float, float]) -> float:
    return max(scores, key=lambda rate: scores[rate])  # of equal ones the first


def session_of(name: str) -> str:
    """The timing session of a contender."""
    return "ours" if name in ("ours", "smaller") else "rivals"
