"""`sparsify(model, sketch)` and the handle it returns."""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor, nn
from torch.optim import Optimizer

from mast.checks import choice
from mast.errors import ArgumentError, MastError
from mast.loggers import logger
from mast.nn import optimizers
from mast.nn.optimizers import holds
from mast.nn.passes.calls import Calls
from mast.nn.passes.checkpointing import warn_of_checkpoints
from mast.nn.passes.explicit import sampled
from mast.nn.passes.values import Values
from mast.nn.row_draws import RowDraws
from mast.nn.structure import Structure, Structured, UnitDraw, parse, structure_of
from mast.nn.structure.choosing import choose_scaled
from mast.nn.structure.drawing import UnitDrawing
from mast.nn.tensors.drawing import Drawing
from mast.nn.tensors.selection import choose
from mast.nn.tensors.top_share import TopDrawing
from mast.nn.tensors.ways import drawing_of
from mast.nn.tensors.weights import Batches, Keep, Shift, Where, refuse_sharded, shifts_of, unwrapped
from mast.randomness import Key
from mast.sketches import Sketch
from mast.sketches.kept import KeptTensors

if TYPE_CHECKING:
    from mast.nn.choices import BestDraw
    from mast.nn.report import DensityReport


def sparsify(
    model: nn.Module,
    sketch: Sketch | str,
    *,
    shift: Shift = None,
    keep: Mapping[str, Keep] | None = None,
    where: Where | None = None,
    seed: int = 0,
    node: int = 0,
    example: Any = None,
    strict: bool = False,
    check: bool = True,
    draws: str = "batch",
) -> Sparsifier:
    """Make a model's training forward passes use y = v + S(x - v), a new draw of S for each optimizer step.

    The model is changed in place and stays what it was: same parameters, same `state_dict` keys, same
    type. In training mode its calls compute with y and gradients are S' grad f(y); in
    `eval()` mode they compute with x. Copies of the model are plain models.

    Parameters
    ----------
    model
        Any module. `DistributedDataParallel` is looked through; sharded parameters are refused.
    sketch
        The distribution of S. Bernoulli and Gaussian sketches act on each weight by itself,
        all others on the sketched weights as one vector, in the order of `named_parameters`. A text is
        read by `mast.nn.parse`: ``"neurons:.5"``.
    shift
        v: None is 0, "init" is a copy of the weights as they are now, or a mapping from names to tensors.
    keep
        Keep probabilities of their own for parameters whose names match a pattern (the last match counts);
        1 leaves a parameter out. Other values than 1, and tensors with one probability per entry, such as
        `mast.nn.keep_probabilities` makes, are for Bernoulli sketches.
    where
        Which parameters to sketch: a name pattern, several, or a function of name and parameter. By
        default the trainable weights of linear, convolutional, recurrent, attention and embedding layers, and
        what other layers name as weights: no biases, norms, tokens, tables of positions or scales.
        ``print(sk)`` lists all parameters, and why some are left out.
    seed, node
        Part of the key of every draw. Processes that shall have different sketches pass different nodes.
    example
        For `Neurons` and `Layers`: what the model is called with (a tensor, a tuple, or a dict of keyword
        arguments). The model is run on it to see which weights belong to one unit, so that any model can be
        cut: of transformers, timm, torchvision, with hooks, with branches of Python. What cannot be cut is
        kept whole, and ``print(sk)`` says why. Without an example, the input is guessed from the
        model's layers.
    strict
        Refuse the model, with the same table, if units stay whole only because they could not be followed.
    check
        With an example: each submodel is compared with the whole model under the same draw, in training and
        in eval mode, before it is returned.
    draws
        "batch" is one draw per step. With "row", for `Neurons`, every row of the batch (the first
        dimension) has a draw of its own, as with dropout; ``sk.sample(step)`` still has one for all.

    >>> import mast, torch
    >>> model = torch.nn.Linear(2, 2)
    >>> sk = mast.nn.sparsify(model, mast.Bernoulli(0.5), seed=1)
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    >>> model(torch.ones(1, 2)).sum().backward()
    >>> model.weight.grad
    tensor([[2., 0.],
            [2., 0.]])
    >>> optimizer.step()
    >>> sk.step
    1
    """
    sketch = parse(sketch) if isinstance(sketch, str) else sketch
    return Sparsifier(
        model,
        sketch,
        shift=shift,
        keep=keep or {},
        where=where,
        seed=seed,
        node=node,
        example=example,
        strict=strict,
        check=check,
        draws=draws,
    )


class Sparsifier:
    """A sparsified model's handle: its draws, its submodels, and the way back. Made by `sparsify`."""

    def __init__(
        self,
        model: nn.Module,
        sketch: Sketch,
        *,
        shift: Shift,
        keep: Mapping[str, Keep],
        where: Where | None,
        seed: int,
        node: int,
        example: Any = None,
        strict: bool = False,
        check: bool = True,
        draws: str = "batch",
    ) -> None:
        self.model = unwrapped(model)
        self._sketch = sketch
        self._key = Key(seed, 0, node)
        self.structure: Structure | None = None  # of a structured sketch
        self.checks_submodels = check and example is not None
        if isinstance(sketch, Structured):
            if any(np.ndim(share) for share in keep.values()):
                raise ArgumentError(
                    "keep with one probability per entry is for single weights, not for units"
                )
            shares = {pattern: float(share) for pattern, share in keep.items()}
            for name, p in self.model.named_parameters():
                refuse_sharded(name, p)
            self.structure = structure_of(self.model, sketch, shares, where, example=example, strict=strict)
            self.selection = choose_scaled(self.model, self.structure)
        elif isinstance(getattr(sketch, "sketch", None), Structured):
            kind, inner = type(sketch).__name__, type(sketch.sketch).__name__  # type: ignore[attr-defined]
            raise ArgumentError(f"{inner} goes outside: write {inner}({kind}(...)), not {kind}({inner}(...))")
        else:
            self.selection = choose(self.model, where, keep)
        self.weights = self.selection.weights
        self.drawing = self.drawing_for(sketch)
        self._values = Values(self.weights, self.drawing, self._shifts(shift))
        self._calls = Calls(self, self.model, self.weights, self._values, lambda: self._key)
        self._stepped: weakref.WeakSet[Optimizer] = weakref.WeakSet()  # since the draw last advanced
        self._validated: weakref.WeakSet[Optimizer] = weakref.WeakSet()
        self._stepping = False  # an optimizer's step() is under way, or a draw that was asked for
        self._passes_before = (
            0  # forward passes before the last step of an optimizer without sketched weights
        )
        self._steps_elsewhere = 0  # of such optimizers in this draw
        self._warned: set[str] = set()
        self._calls.watch()
        self._rows: RowDraws | None = None
        if choice("draws", draws, ("batch", "row")) == "row":
            self._rows = RowDraws(self)
            self._values.dense = True
        optimizers.follow(self)
        warn_of_checkpoints(self.model, {id(w.parameter) for w in self.weights})

    @property
    def sketch(self) -> Sketch:
        """The distribution of S. Another of the same kind may be set, also as text: it holds at once.

        The draws go on: seed, step and node stay as they are. A schedule sets it between two steps.

        >>> import mast, torch
        >>> sk = mast.nn.sparsify(torch.nn.Linear(2, 2), mast.Bernoulli(0.9))
        >>> sk.sketch = "bernoulli:.5"
        >>> sk.density
        0.5
        """
        return self._sketch

    @sketch.setter
    def sketch(self, sketch: Sketch | str) -> None:
        sketch = parse(sketch) if isinstance(sketch, str) else sketch
        if self._calls.inside:
            raise MastError("the sketch cannot change inside a forward pass or sk.sample()")
        kind, now = type(self._sketch).__name__, type(sketch).__name__
        if (self.structure is not None or isinstance(sketch, Structured)) and kind != now:
            raise ArgumentError(
                f"the model was sparsified with {kind}, and another sketch has to be over the same units, "
                f"got {sketch!r}: call sk.remove() and sparsify() again"
            )
        self.drawing = self._values.drawing = self.drawing_for(sketch)
        self._sketch = sketch
        self._values.forget_all()

    # ---- where the draws stand -----------------------------------------------------------

    @property
    def step(self) -> int:
        """The number of the current draw: how many optimizer steps were made."""
        return self._key.step

    @property
    def seed(self) -> int:
        """The seed of all draws."""
        return self._key.seed

    @property
    def node(self) -> int:
        """The node of all draws."""
        return self._key.node

    @property
    def key(self) -> Key:
        """Seed, step and node of the current draw."""
        return self._key

    @property
    def dim(self) -> int:
        """How many weights are sketched."""
        return self.selection.dim

    @property
    def density(self) -> float:
        """The expected share of the sketched weights that a draw keeps."""
        return sum(self.drawing.share(i) * w.count for i, w in enumerate(self.weights)) / self.dim

    @property
    def members(self) -> int | None:
        """How many draws there are, if the sketch is a list of them (Sampled, Nested, PermK); else None."""
        return self.sketch.members

    @property
    def shift(self) -> Mapping[str, Tensor] | None:
        """v by name, or None."""
        return self._values.shift

    def advance(self) -> None:
        """Go to the next draw. Optimizer steps do this by themselves; a loop without optimizer calls it."""
        self._move(Key(self.seed, self.step + 1, self.node))
        self._stepped.clear()
        self._calls.used = False
        self._steps_elsewhere = 0

    def log(self, target: Any, **numbers: float) -> None:
        """Send the numbers of this step to TensorBoard, MLflow, Weights & Biases or a function.

        The step is that of the current draw, and the expected density is sent beside the numbers, so that the
        curve of a schedule is there too. See `mast.logger` for what `target` may be.
        """
        logger(target)(self.step, {**numbers, "density": self.density})

    def concerns(self, optimizer: Optimizer) -> bool:
        """Whether the optimizer holds a sketched parameter; if all of these are frozen, any of the model."""
        try:
            sketched = [w.parameter for w in self.weights]
        except MastError:  # the model was changed: its next forward pass says so
            return False
        if holds(optimizer, sketched):
            return True
        return not any(p.requires_grad for p in sketched) and holds(optimizer, self.model.parameters())

    # ---- draws ---------------------------------------------------------------------------

    @contextmanager
    def sample(self, step: int) -> Iterator[Sparsifier]:
        """The explicit form: inside, parameters hold the y of this step, and `.grad` receives S'grad.

        The context has to cover backward(). Optimizer steps belong after it.

        >>> import mast, torch
        >>> model = torch.nn.Linear(2, 2)
        >>> sk = mast.nn.sparsify(model, mast.Bernoulli(0.5), seed=1)
        >>> with sk.sample(0):
        ...     (model.weight == 0).tolist()
        [[False, True], [False, True]]
        """
        if self._calls.inside:
            raise MastError("sk.sample() cannot be used inside another sk.sample() or a forward pass")
        key = Key(self.seed, step, self.node)
        self._calls.check()
        self._values.begin_pass()
        made = [self._values.current(i, key) for i in range(len(self.weights))]
        self._calls.sampling = self._calls.used = True
        try:
            with sampled(self.model, self.weights, made):
                yield self
        except BaseException:
            self._values.forget_all()
            raise
        finally:
            self._calls.sampling = False
            self._values.forget()

    @contextmanager
    def at(self, key: Key) -> Iterator[Sparsifier]:
        """With another draw than the current one in training forward passes, and nothing else changed."""
        before, stepping = self._key, self._stepping
        self._move(key)
        self._stepping = True  # whoever names the draw may change x while it stays
        try:
            yield self
        finally:
            self._stepping = stepping
            self._move(before)

    def kept(self, key: Key | None = None) -> KeptTensors:
        """The diagonal of S by parameter name, for the current or any other key."""
        key = self._key if key is None else key
        return KeptTensors(
            {w.name: self.drawing.kept(i, key, w.parameter) for i, w in enumerate(self.weights)}
        )

    def draw(self, which: int | Key | None = None) -> UnitDraw:
        """The kept units and their scales, by space, of a seed, a key, or the current key: structured only.

        >>> import mast
        >>> from torch import nn
        >>> model = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 2))
        >>> sk = mast.nn.sparsify(model, mast.nn.Neurons(mast.RandK(2)))
        >>> sk.draw(7)["0.weight"]
        <draw: keeps 2 of 8 coordinates>
        """
        if not isinstance(self.drawing, UnitDrawing):
            raise ArgumentError(
                f"{self.sketch!r} acts on single weights, not on units: sk.kept(key) says what it keeps"
            )
        key = self._key if which is None else which if isinstance(which, Key) else Key(which)
        return self.drawing.draw(key)

    def drawing_for(self, sketch: Sketch) -> Drawing:
        """How another sketch of the same kind is drawn over the weights of this model."""
        if self.structure is None:
            drawing = drawing_of(sketch, self.weights)
            if isinstance(drawing, TopDrawing):
                drawing.shift = lambda: self.shift
            return drawing
        return self.structure.drawing(sketch)

    # ---- what comes out of it ------------------------------------------------------------

    def submodel(
        self,
        seed: int | Key | UnitDraw = 0,
        *,
        member: int | None = None,
        density: float | None = None,
        budget: str | float | None = None,
        calibrate: Batches = None,
    ) -> nn.Module:
        """A plain copy of the model with the weights v + S(x - v) of the draw (seed, step 0, node 0).

        With a structured sketch (`Neurons`, `Layers`) the copy is smaller: it has the kept units only, and
        computes what the whole model computes with the weights of the draw. That needs v = 0 on what is
        dropped.

        Parameters
        ----------
        seed
            The draw: its seed, its whole key, or what `sk.draw` returned.
        member
            Instead of a seed, the number of a draw of a list: `sk.members` says how many there are.
        density
            The share to keep, instead of the sketch's own.
        budget
            What the submodel may cost: "25% flops" or "40% params" of the whole model, or a number of
            parameters. The largest density at which the draw of this seed costs no more is taken.
        calibrate
            Batches from which BatchNorm layers take their statistics anew; False if you call
            `mast.nn.recalibrate` yourself.
        """
        from mast.nn.submodels import submodel

        return submodel(self, self._which(seed, member), calibrate, density, budget)

    def best(
        self,
        evaluate: Callable[[nn.Module], float],
        draws: int = 20,
        *,
        density: float | None = None,
        budget: str | float | None = None,
        calibrate: Batches = None,
    ) -> BestDraw:
        """The best of the submodels of the seeds 0 .. draws - 1, by the score of `evaluate`: the highest.

        It is chosen, so its score is better than it deserves: score it again on data that had no part in the
        choice. The other options are those of `submodel`.

        >>> import mast, torch
        >>> model = torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
        >>> sk = mast.nn.sparsify(model, mast.nn.Neurons(mast.RandK(0.5)))
        >>> found = sk.best(lambda net: -net(torch.ones(1, 3)).square().sum().item(), draws=4)
        >>> found.score == max(found.scores), found.model[0].out_features
        (True, 4)
        """
        from mast.nn.choices import best

        return best(self, evaluate, draws, density, budget, calibrate)

    def report(
        self,
        evaluate: Callable[[nn.Module], float],
        densities: Sequence[float] = (0.9, 0.7, 0.5, 0.3),
        *,
        draws: int = 20,
        calibrate: Batches = None,
        plain: nn.Module | None = None,
        example: Any = None,
    ) -> DensityReport:
        """What `evaluate` says of submodels of each density, and what they cost: a DataFrame with a plot.

        Parameters
        ----------
        evaluate
            A function of a model, in eval mode, that returns a number.
        densities
            The shares to keep; 1 is the model itself.
        draws
            How many submodels of each density are scored.
        calibrate
            Batches from which BatchNorm layers take their statistics anew, for each submodel; or False.
        plain
            The same network trained plainly: its submodels of the same draws are scored beside.
        example
            An input, or a tuple of inputs, for counting operations and measuring the time of a call.
        """
        from mast.nn.report import report

        return report(self, evaluate, densities, draws, calibrate, plain, example)

    def save_delta(self, path: str | Path, **options: Any) -> Path:
        """Write one submodel as a sparse delta to the shift, with the options of `mast.nn.save_delta`."""
        from mast.nn.files.deltas import save_delta

        return save_delta(self, path, **options)

    def save_submodel(
        self,
        path: str | Path,
        seed: int | Key | UnitDraw = 0,
        *,
        member: int | None = None,
        density: float | None = None,
        budget: str | float | None = None,
        calibrate: Batches = None,
        model: nn.Module | None = None,
        about: Mapping[str, Any] | None = None,
    ) -> Path:
        """Write one submodel to a file that `mast.nn.load_submodel` reads into a model of the same class.

        `member`, `density`, `budget` and `calibrate` are those of `submodel`, `about` is that of
        `mast.nn.save_submodel`, and `model` is what `submodel` returned for this draw, if it has been trained
        since.
        """
        from mast.nn.choices import drawing_for
        from mast.nn.files.submodels import save_draw
        from mast.nn.submodels import key_of

        which = self._which(seed, member)
        if model is None:
            model = self.submodel(which, density=density, budget=budget, calibrate=calibrate)
        drawing = drawing_for(self, key_of(which), density, budget)
        return save_draw(self, path, which, drawing, model, about or {})

    def state_dict(self) -> dict[str, Any]:
        """What a resumed run needs besides the model's and the optimizer's states."""
        from mast.nn.state import state_of

        return state_of(self)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where `state` was taken; an error that names what differs if that was another setup."""
        from mast.nn.state import restore

        restore(self, state)

    def remove(self) -> None:
        """Give the model back as it was: nothing of this remains in it."""
        if self._calls.inside:
            raise MastError("remove() cannot be called inside a forward pass or sk.sample()")
        self._calls.unwatch()
        if self._rows is not None:
            self._rows.remove()
        optimizers.unfollow(self)
        self._values.forget_all()

    def __repr__(self) -> str:
        return (
            f"<Sparsifier of {type(self.model).__name__}: {self.sketch.label()}; {len(self.weights)} "
            f"parameters with {self.dim:,} weights; seed {self.seed}, step {self.step}>"
        )

    def __str__(self) -> str:
        from mast.nn.report import overview

        return overview(self)

    # ---- inside --------------------------------------------------------------------------

    def _which(self, seed: int | Key | UnitDraw, member: int | None) -> int | Key | UnitDraw:
        """The draw that a seed or the number of a member names."""
        if member is None:
            return seed
        if seed != 0:
            raise ArgumentError("a draw is named by its seed or by member, not by both")
        return self.sketch.member_key(member)

    def _move(self, key: Key) -> None:
        if self._calls.inside:
            raise MastError("the draw cannot advance inside a forward pass or sk.sample()")
        self._key = key
        self._values.forget()

    def _before_step(self, optimizer: Optimizer) -> None:
        if self._calls.sampling:
            raise MastError(
                "optimizer.step() inside sk.sample() would move the sparsified weights and lose the step: "
                "call it after the context"
            )
        self._calls.check()
        self._stepping = True
        if optimizer not in self._validated:
            from mast.nn.validation import warn_at_first_step

            self._validated.add(optimizer)
            warn_at_first_step(self, optimizer)

    def _after_step(self, optimizer: Optimizer) -> None:
        """Advance, unless another optimizer has done so since the last forward pass: theirs is one step."""
        self._stepping = False
        if not self._stepped or optimizer in self._stepped or self._calls.used:
            self.advance()
        self._stepped.add(optimizer)

    def _after_other_step(self, optimizer: Optimizer) -> None:
        """An optimizer without sketched parameters has stepped: if it trains this model alone, draws rest."""
        passes = self._calls.count
        if passes == self._passes_before or not holds(optimizer, self.model.parameters()):
            return
        self._passes_before = passes
        self._steps_elsewhere += 1
        if self._steps_elsewhere == 2:
            self._warn_once(
                f"{type(optimizer).__name__} has made two steps with one draw: it holds none of the sketched "
                "parameters, so its steps do not advance the draw. Call sk.advance() after each of them, "
                "or sketch what it trains (where=)"
            )

    def _notice_changes(self) -> None:
        """Warn of loops that change x again and again while the draw stays as it is."""
        if not self._stepping:
            self._warn_once(
                "the weights have changed three times since the draw did: they are not trained by a torch "
                "optimizer, whose steps advance the draw. Call sk.advance() after each step of your own"
            )

    def _warn_once(self, message: str) -> None:
        if message not in self._warned:
            self._warned.add(message)
            warnings.warn(message, stacklevel=4)

    def _shifts(self, shift: Shift) -> dict[str, Tensor] | None:
        return shifts_of(self.weights, shift)
