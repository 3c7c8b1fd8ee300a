"""Many runs at once: methods x step sizes x seeds, in parallel, each finished one kept on disk."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from mast import __version__, files
from mast.checkpoint import FORMAT
from mast.checks import whole
from mast.errors import ArgumentError, DataError, StepSizeWarning
from mast.locks import exclusive, lock_of
from mast.methods import METHODS, Method, make
from mast.problem import AbstractProblem
from mast.progress import Progress
from mast.randomness import Key
from mast.resume import identity_of
from mast.run import minimize, start_of
from mast.trace import COLUMNS, SAMPLES, table_of, trace_steps

if TYPE_CHECKING:
    import pandas

KIND = "run of a sweep"
MethodSpec = str | tuple[str, Mapping[str, Any]] | Method


@dataclass(frozen=True)
class Cell:
    """One run of a sweep."""

    method: Method
    step_size: float | str
    seed: int
    label: str


def sweep(
    problem: AbstractProblem,
    methods: Sequence[MethodSpec] = ("dsgd",),
    step_sizes: Sequence[float | str] = ("theory",),
    seeds: Iterable[int] = range(5),
    steps: int = 10_000,
    *,
    jobs: int = 1,
    cache: str | Path | bool = True,
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
    progress
        Show a progress bar; by default on a terminal only.

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

    cells = _cells(methods, step_sizes, seeds)
    if whole("jobs", jobs) == 0:
        raise ArgumentError("jobs must not be 0; -1 means one for each processor")
    folder = _folder(cache, problem, cells)
    common = {"steps": steps, "x0": x0, "trace": trace_steps(steps, trace), "samples": samples, "tol": tol}
    frames: dict[int, pandas.DataFrame] = {}
    with Progress(len(cells), "sweep", progress) as bar:
        for number, cell, size, status, table in _results(problem, cells, common, folder, jobs):
            frame = pandas.DataFrame(table, columns=list(COLUMNS)).astype({"step": "int64", "bytes": "int64"})
            frame.insert(0, "status", status)
            frame.insert(0, "seed", cell.seed)
            frame.insert(0, "step_size", size)
            frame.insert(0, "method", cell.label)
            frames[number] = frame
            bar.advance(len(frames))
    return pandas.concat([frames[i] for i in range(len(cells))], ignore_index=True)


def _cells(
    methods: Sequence[MethodSpec], step_sizes: Sequence[float | str], seeds: Iterable[int]
) -> list[Cell]:
    """All combinations, checked before any work."""
    for name, value in (("methods", methods), ("step_sizes", step_sizes), ("seeds", seeds)):
        if isinstance(value, str) or not isinstance(value, Iterable):
            raise ArgumentError(f"{name} is a list, also if it has one element; got {value!r}")
    sizes = list(step_sizes)
    if any(callable(size) for size in sizes):
        raise ArgumentError('the step sizes of a sweep are numbers or "theory"; for a schedule use minimize')
    numbers = [Key(seed).seed for seed in seeds]
    cells = []
    for spec in methods:
        method, label = _method(spec)
        cells += [Cell(method, size, seed, label) for size in sizes for seed in numbers]
    if not cells:
        raise ArgumentError("the sweep is empty: give at least one method, step size and seed")
    return cells


def _method(spec: MethodSpec) -> tuple[Method, str]:
    """A method with its label; an unknown name or option is refused."""
    if isinstance(spec, str):
        return make(spec, {}), spec
    if isinstance(spec, Method):
        return spec, _label(spec.name, spec.options())
    try:
        name, options = spec
        chosen = dict(options)
    except (TypeError, ValueError):
        raise ArgumentError(
            f"a method is a name, a pair of a name and its options, or a Method, got {spec!r}"
        ) from None
    return make(name, chosen), _label(name, chosen)


def _label(name: str, options: Mapping[str, Any]) -> str:
    return " ".join([name, *(f"{option}={value}" for option, value in options.items())])


def _folder(cache: str | Path | bool, problem: AbstractProblem, cells: list[Cell]) -> Path | None:
    if cache is False:
        return None
    if cache is True:
        known = all(type(cell.method) in METHODS.values() for cell in cells)
        if not known or not all(p.objective.fingerprint_exact for p in problem.problems):
            return None  # two of them might look the same, and nobody chose this folder
        import platformdirs

        cache = Path(platformdirs.user_cache_dir("mast")) / "sweeps"
    folder = Path(cache)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DataError(f"{folder}: the folder cannot be made: {error.strerror or error}") from error
    return folder


def _results(
    problem: AbstractProblem, cells: list[Cell], common: dict[str, Any], folder: Path | None, jobs: int
) -> Any:
    """(number, cell, step size, status, table) of each cell, as they get done."""
    if jobs == 1:
        for number, cell in enumerate(cells):
            yield _one(problem, number, cell, common, folder)
        return
    from joblib import Parallel, delayed

    pool = Parallel(n_jobs=jobs, return_as="generator_unordered")
    yield from pool(delayed(_one)(problem, number, cell, common, folder) for number, cell in enumerate(cells))


def _one(
    problem: AbstractProblem, number: int, cell: Cell, common: dict[str, Any], folder: Path | None
) -> tuple[int, Cell, float, str, Any]:
    """Run a cell, or read it from the folder."""
    from threadpoolctl import threadpool_limits

    with threadpool_limits(1), warnings.catch_warnings():  # one thread: the same bits in any process
        warnings.simplefilter("ignore", StepSizeWarning)  # sweeps look beyond the limit on purpose
        path = None
        if folder is not None:
            name = _name(problem, cell, common)
            path = folder / f"{name}.cell"
            if path.exists():
                _tidy(path)
                return number, cell, *_stored(path)
        # another process that sweeps over the same cell computes it, and we wait for its result
        with contextlib.nullcontext() if path is None else exclusive(path, wait=True):
            if path is not None and path.exists():
                return number, cell, *_stored(path)
            if path is not None:
                files.clear_leftovers(path.parent, path.name)
            return number, cell, *_computed(problem, cell, common, path)


def _computed(
    problem: AbstractProblem, cell: Cell, common: dict[str, Any], path: Path | None
) -> tuple[float, str, Any]:
    """The step size, the status and the table of a run, kept at the path if there is one."""
    result = minimize(
        problem,
        cell.method,
        step_size=cell.step_size,
        seed=cell.seed,
        checkpoint=None if path is None else path.with_suffix(".part"),
        progress=False,
        **common,
    )
    if result.status == "interrupted":  # its checkpoint stays, and the next sweep continues it
        raise KeyboardInterrupt
    assert isinstance(result.step_size, float)
    table = table_of(result.rows)
    if path is not None:
        numbers = {"step_size": result.step_size, "status": result.status, "steps": common["steps"]}
        files.save(path, {"kind": KIND, "name": path.stem, **numbers}, {"trace": table})
        path.with_suffix(".part").unlink(missing_ok=True)
    return result.step_size, result.status, table


def _tidy(path: Path) -> None:
    """Delete what a process leaves beside its result if it is killed right after writing it."""
    for left in (path.with_suffix(".part"), lock_of(path)):
        with contextlib.suppress(OSError):
            left.unlink()  # nobody needs them: whoever waits for the lock finds the result


def _stored(path: Path) -> tuple[float, str, Any]:
    """The same from a file; a damaged one, and one of another run, is refused."""
    description, arrays = files.load(path)
    table = arrays.get("trace", np.zeros(0))
    size, status = description.get("step_size"), description.get("status")
    if description.get("kind") != KIND or description.get("name") != path.stem:
        raise DataError(f"{path} holds another run than its name says: delete it, and it is computed again")
    if (
        not isinstance(size, float)
        or not isinstance(status, str)
        or table.shape[1:] != (len(COLUMNS),)
        or table.dtype != np.float64
    ):
        raise DataError(f"{path} is damaged: delete it, and it is computed again")
    return size, status, table


def _name(problem: AbstractProblem, cell: Cell, common: dict[str, Any]) -> str:
    """The file name of a cell: a sum of everything that decides its result."""
    bound = cell.method.bind(problem, cell.seed)
    identity = identity_of(bound, cell.step_size, None, start_of(problem, common["x0"]))
    measured = (common["trace"], common["samples"], common["tol"])
    return files.digest(FORMAT, KIND, __version__, sorted(identity.items()), *measured)
