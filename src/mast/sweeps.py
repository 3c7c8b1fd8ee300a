"""Many runs at once: methods x step sizes x seeds, in parallel, each finished one kept on disk."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Sized
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mast import __version__
from mast.errors import ArgumentError
from mast.methods import METHODS, Method, make
from mast.problem import AbstractProblem
from mast.randomness import Key
from mast.resume import identity_of, problem_identity
from mast.run import minimize, start_of
from mast.support import files
from mast.support.cells import LONGEST_WAIT, Cell, run_cells
from mast.support.checks import Array, check_int, check_list, check_nonnegative, refuse_too_large
from mast.trace import SAMPLES, frame, rows_of, table_of, trace_steps

if TYPE_CHECKING:
    import pandas

MethodSpec = str | tuple[str, Mapping[str, Any]] | Method


@dataclass(frozen=True)
class Run:
    """One run of a sweep."""

    problem: AbstractProblem
    method: Method
    label: str
    step_size: float | str
    seed: int
    x0: Array
    sha256: str  # of all of this


def sweep(
    problem: AbstractProblem,
    methods: Sequence[MethodSpec] = ("dsgd",),
    step_sizes: Sequence[float | str] = ("theory",),
    seeds: Iterable[int] = range(5),
    steps: int = 10_000,
    *,
    jobs: int = 1,
    cache: str | Path | bool = True,
    wait: float = LONGEST_WAIT,
    progress: bool | None = None,
    x0: Any = None,
    trace: str | int | Iterable[int] = "log",
    samples: int = SAMPLES,
    tol: float | None = None,
) -> pandas.DataFrame:
    """Run every combination and return all traces as one tidy DataFrame.

    Parameters
    ----------
    problem
        A `Problem` or `Nodes`.
    methods
        Names, pairs of a name and its options, such as ``("l_svrdsg", {"p": 0.1})``, or `Method` objects.
    step_sizes, seeds, steps, x0, trace, samples, tol
        As in `mast.minimize`.
    jobs
        Processes that work at the same time; the results do not depend on it.
    cache
        A folder for finished runs; True is one in the user's cache (for objectives and methods that can
        be told from each other for sure: not a `Function`, nor a method of one's own), False keeps
        nothing. What is there is not computed again, and a sweep that was cut continues within its runs.
    wait
        How many seconds to wait, at most, for another process that computes one of these runs.
    progress
        Show a bar on a terminal, and lines elsewhere; by default on a terminal only.

    Returns
    -------
    pandas.DataFrame
        The columns method, step_size, seed, status, and those of a trace.

    >>> import mast
    >>> problem = mast.Problem(mast.Quadratic([[2.0, 1.0], [1.0, 2.0]], [3.0, 3.0]), mast.PermK(2))
    >>> table = mast.sweep(problem, ["dsgd", "gd"], [0.02, 0.05], seeds=range(3), steps=100, cache=False)
    >>> table.groupby("method")["f_D"].min().round(3).to_dict()
    {'dsgd': -2.25, 'gd': -2.25}
    """
    import pandas

    runs = _runs(problem, methods, step_sizes, seeds, x0)
    if check_int("jobs", jobs) == 0:
        raise ArgumentError("jobs must not be 0; -1 means one for each processor")
    config = {"steps": steps, "trace": trace_steps(steps, trace), "samples": samples, "tol": tol}
    cells = [Cell("sweep", __version__, _table, config, run, resumable=True) for run in runs]
    folder = _folder(cache, problem, runs)
    finished = run_cells(
        cells, folder, jobs if jobs > 0 else None, progress, "sweep", "runs", check_nonnegative("wait", wait)
    )
    labels, traces = [], []
    for run, done in zip(runs, finished.cells, strict=True):
        with files.damage_refused(done.cell.file(folder or Path())):
            traces.append(frame(rows_of(done["trace"])))
            label = run.label, float(done["step_size"]), run.seed, str(done["status"])
            labels += [label] * len(traces[-1])
    named = pandas.DataFrame(labels, columns=["method", "step_size", "seed", "status"])
    return pandas.concat([named, pandas.concat(traces, ignore_index=True)], axis=1)


def _runs(
    problem: AbstractProblem,
    methods: Sequence[MethodSpec],
    step_sizes: Sequence[float | str],
    seeds: Iterable[int],
    x0: Any,
) -> list[Run]:
    """All combinations, checked before any work."""
    labelled = [_method(spec) for spec in check_list("methods", methods)]
    sizes = check_list("step_sizes", step_sizes)
    if any(callable(size) for size in sizes):
        raise ArgumentError('the step sizes of a sweep are numbers or "theory"; for a schedule use minimize')
    if isinstance(seeds, Sized):
        refuse_too_large(f"a sweep over {len(seeds):,} seeds", 100.0 * len(seeds))
    numbers = [Key(seed).seed for seed in check_list("seeds", seeds)]
    if not (labelled and sizes and numbers):
        raise ArgumentError("the sweep is empty: give at least one method, step size and seed")
    start, shared = start_of(problem, x0), problem_identity(problem)
    runs = []
    for (method, label), size, seed in product(labelled, sizes, numbers):
        identity = identity_of(method, seed, size, None, start) | shared
        digest = files.digest(sorted(identity.items()))
        runs.append(Run(problem, method, label, size, seed, start, digest))
    return runs


def _method(spec: MethodSpec) -> tuple[Method, str]:
    """A method with its label; an unknown name or option is refused."""
    try:
        if isinstance(spec, Method):
            name, chosen = spec.name, spec.options()
        else:
            name, options = (spec, {}) if isinstance(spec, str) else spec
            chosen = dict(options)
    except (TypeError, ValueError):
        raise ArgumentError(
            f"a method is a name, a pair of a name and its options, or a Method, got {spec!r}"
        ) from None
    label = " ".join([name, *(f"{option}={value}" for option, value in chosen.items())])
    return spec if isinstance(spec, Method) else make(name, chosen), label


def _folder(cache: str | Path | bool, problem: AbstractProblem, runs: list[Run]) -> Path | None:
    if cache is False:
        return None
    if cache is not True:
        if not str(cache):
            raise ArgumentError("cache is a folder, True or False, got an empty path")
        return files.as_path("cache", cache)
    known = all(type(run.method) in METHODS.values() for run in runs)
    if not known or not all(p.objective.fingerprint_exact for p in problem.problems):
        return None  # two of them might look the same, and nobody chose this folder
    import platformdirs

    return Path(platformdirs.user_cache_dir("mast")) / "sweeps"


def _table(config: Mapping[str, Any], run: Run, part: Path | None) -> dict[str, Any]:
    """The step size, the status and the trace of a run; what it has if it is stopped stays in `part`."""
    result = minimize(
        run.problem,
        run.method,
        step_size=run.step_size,
        x0=run.x0,
        seed=run.seed,
        checkpoint=part,
        progress=False,
        **config,
    )
    return {"step_size": result.step_size, "status": result.status, "trace": table_of(result.rows)}
