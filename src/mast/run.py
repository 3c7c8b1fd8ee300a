"""The loop that all methods share: `minimize`, with trace, progress, checkpoints and a status.

The clock runs only while the method works, not while the trace is measured. A run advances in
bursts of about a tenth of a second on a copy of its state, so an interruption at any moment
leaves the state of a whole step behind.
"""

from __future__ import annotations

import contextlib
import time
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from mast.errors import ArgumentError, MastError, StepSizeWarning
from mast.methods import Method, make
from mast.methods.base import State
from mast.problem import AbstractProblem
from mast.randomness import Key
from mast.results import Result
from mast.resume import Position, SavedRun, Schedule, Terminated, identity_of, problem_identity
from mast.support.checks import (
    Array,
    check_choice,
    check_int,
    check_nonnegative,
    check_optional,
    check_positive,
    frozen,
    vector,
)
from mast.support.progress import Progress
from mast.theory import Guarantee
from mast.trace import SAMPLES, SOLVABLE, Measure, trace_steps

#: a number, "theory", or a function of the step
StepSize = float | str | Callable[[int], float]
BURST = 0.1  # seconds between looks at the clock
CHECKPOINT_EVERY = 5.0  # seconds between checkpoints
TOO_LARGE = 1e100  # a coordinate beyond this is a divergence


def minimize(
    problem: AbstractProblem,
    method: str | Method = "dsgd",
    steps: int = 10_000,
    step_size: StepSize = "theory",
    x0: ArrayLike | None = None,
    seed: int = 0,
    *,
    regime: str | None = None,
    trace: str | int | Iterable[int] = "log",
    samples: int = SAMPLES,
    tol: float | None = None,
    checkpoint: str | Path | None = None,
    progress: bool | None = None,
    callback: Callable[[int, Array], object] | None = None,
    on_interrupt: str = "raise",
    **options: Any,
) -> Result:
    """Minimise f_D with a method.

    Parameters
    ----------
    problem
        A `Problem` or `Nodes`.
    method
        One of "gd", "agd", "dsgd", "dsgd_sampled", "l_svrdsg", "s_page", "distributed", "gdci",
        "dcgd", "ist_naive", with its options as further keyword arguments; or a `Method` of one's own,
        such as ``MyMethod(option=1)``.
    steps
        How many steps to take.
    step_size
        "theory", a number, or a function of the step.
    x0
        The start; the shift (or 0) if None.
    seed
        Decides everything random.
    regime
        "strongly_convex", "convex" or "nonconvex"; the strongest that holds if None.
    trace
        When to measure: "log", a number of steps between measurements, or a list of steps.
    samples
        Draws for estimating f_D in the trace where it has no (cheap) exact form; 0 leaves it out.
    tol
        Stop with status "converged" when the squared gradient of f_D is at most this.
    checkpoint
        A file to save to and to continue from; one process at a time may use it.
    progress
        Show a bar on a terminal, and lines elsewhere; by default on a terminal only.
    callback
        A function that is called as ``callback(step, x)`` after each step, `step` being the number of
        steps taken and x read-only. The clock does not count it, but steps are then taken one by one,
        which is slower where a method has a compiled loop.
    on_interrupt
        What follows Ctrl-C once the checkpoint is written: "raise" raises `KeyboardInterrupt`, so that a
        script ends; "return" returns what there is, with the status "interrupted". With a checkpoint,
        SIGTERM writes it too, and then ends the process.

    >>> import mast
    >>> problem = mast.Problem(mast.Quadratic([[2.0, 1.0], [1.0, 2.0]], [3.0, 3.0]), mast.PermK(2))
    >>> result = mast.minimize(problem, "dsgd", steps=2000)
    >>> result.status, result.x.round(6), problem.minimizer()
    ('finished', array([0.75, 0.75]), array([0.75, 0.75]))
    """
    if not isinstance(problem, AbstractProblem):
        raise ArgumentError(f"minimize takes a Problem or Nodes, got {type(problem).__name__}")
    seed = Key(seed).seed
    steps = check_int("steps", steps, 0)
    tol = check_optional("tol", tol)
    check_choice("on_interrupt", on_interrupt, ("raise", "return"))
    method = make(method, options)
    bound = method.bind(problem, seed)
    start = start_of(problem, x0)
    guarantee, note = _guarantee(bound, regime)
    saved = None
    if checkpoint is not None:
        identity = identity_of(method, seed, step_size, regime, start) | problem_identity(problem)
        saved = SavedRun(checkpoint, identity)
    with contextlib.nullcontext() if saved is None else saved.held():
        if saved is not None and step_size == "theory":
            step_size = saved.step_size() or step_size  # a longer run continues with the one it began with
        schedule, chosen = _schedule(bound, step_size, steps, regime)
        bar = Progress(steps, bound.name, progress, unit="steps")
        run = _Run(bound, schedule, Measure(problem, samples), tol, saved, bar, callback)
        status = run.go(start, trace_steps(steps, trace), on_interrupt == "raise")
    end = run.position
    return Result(
        x=end.state.x.copy(),
        status=status,
        steps=end.t,
        step_size=chosen,
        guarantee=guarantee,
        note=note,
        method=bound.name,
        diverged_at=end.diverged_at,
        state=end.state,
        infimum=run.measure.infimum,
        estimated=not run.measure.exact,
        rows=end.rows,
    )


@dataclass
class _Run:
    """One run: the method, and the position that it has reached."""

    method: Method
    schedule: Schedule
    measure: Measure
    tol: float | None
    saved: SavedRun | None
    progress: Progress
    callback: Callable[[int, Array], object] | None
    position: Position = field(init=False)

    def go(self, x0: Array, stops: list[int], raising: bool) -> str:
        """Take all steps, measuring at the stops; returns the status, or raises an interruption again."""
        begun = time.perf_counter()
        self.position = Position(self.method.start(x0))
        self.position.seconds = time.perf_counter() - begun
        if self.saved is not None:
            self.saved.restore(self.position, stops, self.schedule)
        self.progress.first = self.position.t
        with self.progress:
            try:
                if not self.position.rows:
                    self._record()
                    self._save()  # a place that cannot be written to is better known before the work
                status = self._advance_to(stops)
            except KeyboardInterrupt as interruption:
                self._save()
                if raising or isinstance(interruption, Terminated):
                    raise
                if not self.position.rows or self.position.rows[-1]["step"] != self.position.t:
                    self._record()  # for the result only: a run that goes on measures here if it is a stop
                return "interrupted"
        self._save()
        return status

    def _advance_to(self, stops: list[int]) -> str:
        position = self.position
        if position.diverged_at is not None:
            return "diverged"
        if self._converged():
            return "converged"
        burst, last_saved = 1, time.monotonic()
        for stop in stops:
            while position.t < stop:
                count = min(burst, stop - position.t)
                took = self._burst(count)
                if position.diverged_at is not None:
                    self._record()
                    return "diverged"
                self.progress.advance(position.t)
                if count == burst and self.callback is None:
                    burst = max(1, min(int(burst * min(BURST / max(took, 1e-9), 8.0)), 1 << 20))
                if self.saved is not None and time.monotonic() - last_saved > CHECKPOINT_EVERY:
                    self._save()
                    last_saved = time.monotonic()
            if position.rows[-1]["step"] < position.t == stop:  # a continued run is beyond the first stops
                self._record()
                if self._converged():
                    return "converged"
        return "finished"

    def _burst(self, count: int) -> float:
        """Take `count` steps, or those up to the one that diverges; returns the seconds they took."""
        position = self.position
        if self.saved is not None:
            self.saved.check()
        state, took = self._advanced(count)
        position.seconds += took
        if _fine(state.x):
            position.state, position.t = state, position.t + count
            if self.callback is not None:
                self.callback(position.t, frozen(state.x.view()))
            return took
        for _ in range(count):  # again, step by step
            position.state, position.t = self._advanced(1)[0], position.t + 1
            if not _fine(position.state.x):
                position.diverged_at = position.t - 1
                break
        return took

    def _advanced(self, count: int) -> tuple[State, float]:
        """A copy of the state that is `count` steps further, and the seconds which these took."""
        t, state = self.position.t, self.position.state.copy()
        step_sizes = self.schedule(t, count)
        begun = time.perf_counter()
        with np.errstate(over="ignore", invalid="ignore"):
            self.method.advance(state, t, step_sizes)
        return state, time.perf_counter() - begun

    def _record(self) -> None:
        position = self.position
        row: dict[str, Any] = {"step": position.t, "passes": position.state.gradients / self.method.terms}
        row |= {"seconds": position.seconds, "bytes": position.state.bytes}
        position.rows.append(row | self.measure.at(position.state.x))

    def _converged(self) -> bool:
        return self.tol is not None and bool(self.position.rows[-1]["grad_sq"] <= self.tol)

    def _save(self) -> None:
        if self.saved is not None and self.position.rows:  # without them the first measurement was cut
            self.saved.save(self.position, self.schedule)


def _fine(x: Array) -> bool:
    return bool(np.abs(x).max(initial=0.0) < TOO_LARGE)  # False for NaN


def _guarantee(method: Method, regime: str | None) -> tuple[Guarantee | None, str]:
    """The statement that applies, or None and the reason."""
    try:
        guarantee = method.guarantee(regime, effort="quick" if method.problem.dim <= SOLVABLE else "none")
        return guarantee, guarantee.statement
    except MastError as error:
        if regime is not None:
            raise
        return None, str(error)


def _schedule(
    method: Method, step_size: StepSize, steps: int, regime: str | None
) -> tuple[Schedule, float | Callable[[int], float]]:
    """The step sizes of steps t .. t+count-1 as a function of (t, count), and what was chosen."""
    if callable(step_size):
        rule = step_size
        if steps > 0:
            _warn_above(method, check_nonnegative("the schedule's first step size", rule(0)), steps, regime)

        def sizes(t: int, count: int) -> Array:
            name = "the schedule's step size at step"
            return np.array([check_nonnegative(f"{name} {s}", rule(s)) for s in range(t, t + count)])

        return sizes, step_size
    if isinstance(step_size, str):
        if step_size != "theory":
            raise ArgumentError(f'step_size must be "theory", a number or a function, got {step_size!r}')
        size = method.default_step_size(steps, regime)
    else:
        size = check_positive("step_size", step_size)
        _warn_above(method, size, steps, regime)
    return (lambda t, count: np.full(count, size)), size


def _warn_above(method: Method, size: float, steps: int, regime: str | None) -> None:
    """Say so if a step size is above what theory allows."""
    try:
        limit = method.default_step_size(steps, regime)
    except MastError:
        return  # there is no limit; the result's note says why
    if size > limit * (1 + 1e-9):
        text = f"step size {size:.4g} is {size / limit:.3g} times the limit {limit:.4g} of {method.name}"
        warnings.warn(f"{text}: the run has no guarantee", StepSizeWarning, stacklevel=4)


def start_of(problem: AbstractProblem, x0: ArrayLike | None) -> Array:
    """The point a run starts from: x0, or the shift."""
    return problem.shift.copy() if x0 is None else vector("x0", x0, problem.dim).copy()
