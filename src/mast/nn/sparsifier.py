"""The handle of a sparsified model, which `mast.nn.sparsify` returns."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from torch import Tensor, nn
from torch.optim import Optimizer

from mast.errors import ArgumentError, BiasedSketchError, MastError
from mast.nn.calls import Calls, sampled
from mast.nn.files.deltas import save_delta
from mast.nn.files.state import restore, state_of
from mast.nn.files.submodels import save_draw
from mast.nn.optimizers import OptimizerSteps
from mast.nn.submodels import BestDraw, best_submodel, make_submodel, pick, weight_draw
from mast.nn.tensors.bound import BoundSketch, bind
from mast.nn.tensors.selection import Selection, shifts_of
from mast.nn.tensors.sparsified import SparsifiedWeights
from mast.nn.tensors.top_share import PrunedWeights, TopShare
from mast.nn.tensors.weights import Calibration, Shift, WatchedModel
from mast.nn.units import BoundUnits, Structured, UnitDraw, UnitMap, parse
from mast.nn.validation import signs_of_training, warn_of_checkpoints
from mast.randomness import Key
from mast.sketches import Constants, Sketch
from mast.sketches.draws import Draw, ModelDraw
from mast.sketches.lists import member_key

if TYPE_CHECKING:
    from mast.nn.report import DensityReport
    from mast.nn.sorting import SortedUnits
    from mast.nn.training import RowOptimizer


class Sparsifier:
    """A sparsified model's handle: its draws, its submodels, and the way back. Made by `sparsify`."""

    def __init__(
        self,
        model: nn.Module,
        sketch: Sketch | TopShare,
        unit_map: UnitMap | None,
        selection: Selection,
        shift: Shift,
        key: Key,
    ) -> None:
        self.model, self._sketch = model, sketch
        self.unit_map = unit_map  #: of a structured sketch
        #: the sketched weights; of all other parameters, why they are not sketched
        self.weights, self.unsketched = selection
        self.trained = signs_of_training(model)  #: why the weights look pretrained, if they do
        self.checks_submodels = False
        self.sorting: SortedUnits | None = None  #: of the units, by `elastic`
        self._row_optimizer: RowOptimizer | None = None  # the last one that `optimizer` made
        self._member_of: int | None = None  # the thread that is inside `member`
        # What the other files of this room use: the model as it was, y, and what makes the draw advance.
        self.watched = WatchedModel(model, self.weights)
        self.values = SparsifiedWeights(self.weights, self.bind(sketch), shifts_of(self.weights, shift), key)
        self.optimizer_steps = OptimizerSteps(self)
        self.calls = Calls(self)  # from here on the model is another
        self.optimizer_steps.follow()
        warn_of_checkpoints(self)

    @property
    def sketch(self) -> Sketch | TopShare:
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
    def sketch(self, sketch: Sketch | TopShare | str) -> None:
        sketch = parse(sketch) if isinstance(sketch, str) else sketch
        self.watched.refuse_inside("the sketch cannot change")
        kind, now = type(self._sketch).__name__, type(sketch).__name__
        if (self.unit_map is not None or isinstance(sketch, Structured)) and kind != now:
            raise ArgumentError(
                f"the model was sparsified with {kind}, and another sketch has to be over the same units, "
                f"got {sketch!r}: call sk.remove() and sparsify() again"
            )
        self.values.bound = self.bind(sketch)
        self._sketch = sketch
        self.values.forget_all()

    # ---- where the draws stand -----------------------------------------------------------

    @property
    def bound(self) -> BoundSketch:
        """The sketch over the weights of this model."""
        return self.values.bound

    @property
    def key(self) -> Key:
        """Seed, step and node of the current draw."""
        return self.values.key

    @property
    def step(self) -> int:
        """The number of the current draw: how many optimizer steps were made."""
        return self.key.step

    @property
    def seed(self) -> int:
        """The seed of all draws."""
        return self.key.seed

    @property
    def node(self) -> int:
        """The node of all draws."""
        return self.key.node

    @property
    def dim(self) -> int:
        """How many weights are sketched."""
        return sum(w.count for w in self.weights)

    @property
    def density(self) -> float:
        """The expected share of the sketched weights that a draw keeps."""
        return sum(self.bound.share(i) * w.count for i, w in enumerate(self.weights)) / self.dim

    @property
    def constants(self) -> Constants | None:
        """Of S over all trainable parameters, the identity on what is not sketched; None if it has none."""
        sketched = {w.name for w in self.weights}
        rest = any(p.requires_grad and name not in sketched for name, p in self.model.named_parameters())
        try:
            return Constants.of_parts([self.bound.constants()] + [Constants(1.0, 1.0, 1.0)] * rest)
        except BiasedSketchError:
            return None

    @property
    def members(self) -> int | None:
        """How many draws there are, if the sketch is a list of them (Sampled, Nested, PermK); else None."""
        return self.sketch.members if isinstance(self.sketch, Sketch) else None

    def member_key(self, number: int) -> Key:
        """A key that draws this member of the list."""
        if not isinstance(self.sketch, Sketch):
            raise ArgumentError(f"{self.sketch!r} is no list of draws: lists are Sampled, Nested and PermK")
        return member_key(self.sketch, number)

    @property
    def shift(self) -> Mapping[str, Tensor] | None:
        """v by name, or None."""
        return self.values.shift

    def advance(self) -> None:
        """Go to the next draw. Optimizer steps do this by themselves; a loop without optimizer calls it."""
        self.optimizer_steps.advance()

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
        with sampled(self.watched, self.values, Key(self.seed, step, self.node)):
            yield self

    @contextmanager
    def member(self, number: int) -> Iterator[Sparsifier]:
        """Inside, forward passes use this member of a list, in training and in evaluation.

        Several members may run before one backward(): their gradients add up. With activation checkpointing,
        call backward() inside, for each member. Optimizer steps advance the draw as ever, also inside.

        >>> import mast, torch
        >>> model = torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
        >>> sk = mast.nn.sparsify(model, mast.nn.Neurons(mast.Nested([0.25, 1.0], scaled=False)))
        >>> loss = 0.0
        >>> for i in (0, 1):
        ...     with sk.member(i):
        ...         loss = loss + model(torch.ones(1, 3)).square().sum()
        >>> loss.backward()
        """
        self.watched.refuse_inside("sk.member() cannot be used")
        self.watched.refuse_removed("sk.member() cannot be used")
        key, thread = self.member_key(number), threading.get_ident()
        if self._member_of not in (None, thread):
            raise MastError(
                "another thread is inside sk.member(), whose member is that of all calls of the model: use "
                "members in one thread at a time, or sk.submodel(member=...) for each thread"
            )
        before, self.values.member = (self._member_of, self.values.member), key
        self._member_of = thread
        self.values.forget_all()  # memory is not used again: graphs of other members need theirs
        try:
            yield self
        finally:
            self._member_of, self.values.member = before
            self.values.forget_all()

    def optimizer(self, kind: type[Optimizer], **options: Any) -> RowOptimizer:
        """An optimizer that steps on the kept units only; train with it on the networks of `small`.

        Schedulers of learning rates take its `optimizer`, which is the torch optimizer.

        >>> import mast, torch
        >>> model = torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
        >>> sk = mast.nn.sparsify(model, "neurons:.25")
        >>> optimizer = sk.optimizer(torch.optim.AdamW, lr=0.1)
        >>> for step in range(10):
        ...     with sk.small() as net:
        ...         net(torch.ones(4, 3)).square().mean().backward()
        ...     optimizer.step()
        """
        from mast.nn.training import RowOptimizer

        self._row_optimizer = RowOptimizer(self, kind, **options)
        return self._row_optimizer

    @contextmanager
    def small(self) -> Iterator[nn.Module]:
        """The small dense network of the current draw, for one step of what `optimizer` returned.

        Forward and backward passes belong inside. Used several times before the step, it gives the same
        network, and gradients add up. What the step changes comes home to the model, so that a step costs
        what is kept; state and weight decay of dropped units rest.
        """
        if self._row_optimizer is None:
            raise MastError(
                "sk.small() is for the steps of sk.optimizer(torch.optim.AdamW, lr=...): call that first"
            )
        with self._row_optimizer.submodel() as net:
            yield net

    @property
    def drawn(self) -> Key:
        """The key of the draw that forward passes use: that of a member inside `member`, else the step's."""
        return self.values.drawn

    @contextmanager
    def at(self, key: Key) -> Iterator[Sparsifier]:
        """With another draw than the current one in training forward passes, and nothing else changed."""
        with self.optimizer_steps.at(key):
            yield self

    def kept(self, key: Key | None = None) -> ModelDraw[Draw]:
        """The diagonal of S by parameter name, for the current or any other key."""
        return weight_draw(self, self.bound, self.drawn if key is None else key)

    def draw(self, which: int | Key | None = None) -> UnitDraw:
        """The kept units and their scales, by group, of a seed, a key, or the current key: structured only.

        >>> import mast
        >>> from torch import nn
        >>> model = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 2))
        >>> sk = mast.nn.sparsify(model, mast.nn.Neurons(mast.RandK(2)))
        >>> sk.draw(7)["0.weight"]
        <draw: keeps 2 of 8 coordinates>
        """
        if not isinstance(self.bound, BoundUnits):
            raise ArgumentError(
                f"{self.sketch!r} acts on single weights, not on units: sk.kept(key) says what it keeps"
            )
        key = self.drawn if which is None else which if isinstance(which, Key) else Key(which)
        return self.bound.draw(key)

    def bind(self, sketch: Sketch | TopShare) -> BoundSketch:
        """Another sketch of the same kind, over the weights of this model."""
        if isinstance(sketch, TopShare):
            before = self.bound if hasattr(self, "values") else None  # the first one has none
            return PrunedWeights(self.weights, sketch, lambda: self.shift, before)
        return bind(sketch, self.weights) if self.unit_map is None else self.unit_map.bind(sketch)

    # ---- what comes out of it ------------------------------------------------------------

    def submodel(
        self,
        seed: int | Key | UnitDraw = 0,
        *,
        member: int | None = None,
        density: float | None = None,
        budget: str | float | None = None,
        calibrate: Calibration = None,
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
        return make_submodel(self, pick(self, seed, member, density, budget), calibrate)

    def best(
        self,
        evaluate: Callable[[nn.Module], float],
        draws: int = 20,
        *,
        density: float | None = None,
        budget: str | float | None = None,
        calibrate: Calibration = None,
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
        return best_submodel(self, evaluate, draws, density, budget, calibrate)

    def report(
        self,
        evaluate: Callable[[nn.Module], float],
        densities: Sequence[float] = (0.9, 0.7, 0.5, 0.3),
        *,
        draws: int = 20,
        calibrate: Calibration = None,
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
            What the model is called with (a tensor, a tuple, or a dict of keyword arguments), for counting
            operations and measuring the time of a call.
        """
        from mast.nn.report import report

        return report(self, evaluate, densities, draws, calibrate, plain, example)

    def save_delta(self, path: str | Path, **options: Any) -> Path:
        """Write one submodel as a sparse delta to the shift, with the options of `mast.nn.save_delta`."""
        return save_delta(self, path, **options)

    def save_submodel(
        self,
        path: str | Path,
        seed: int | Key | UnitDraw = 0,
        *,
        member: int | None = None,
        density: float | None = None,
        budget: str | float | None = None,
        calibrate: Calibration = None,
        model: nn.Module | None = None,
        about: Mapping[str, Any] | None = None,
    ) -> Path:
        """Write one submodel to a file that `mast.nn.load_submodel` reads into a model of the same class.

        `member`, `density`, `budget` and `calibrate` are those of `submodel`, `about` is that of
        `mast.nn.save_submodel`, and `model` is what `submodel` returned for this draw, if it has been trained
        since.
        """
        picked = pick(self, seed, member, density, budget)
        model = make_submodel(self, picked, calibrate) if model is None else model
        return save_draw(self, path, picked, model, about or {})

    def state_dict(self) -> dict[str, Any]:
        """What a resumed run needs besides the model's and the optimizer's states."""
        return state_of(self)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where `state` was taken; an error that names what differs if that was another setup."""
        restore(self, state)

    def remove(self) -> None:
        """Give the model back as it was: nothing of this remains in it."""
        self.watched.refuse_inside("remove() cannot be called")
        self.watched.release()
        self.optimizer_steps.unfollow()
        self.values.forget_all()

    def __deepcopy__(self, memo: Any) -> None:
        if id(self.model) not in memo:  # its copy is a plain model, which has no handle
            self.__reduce__()

    def __reduce__(self) -> NoReturn:
        raise MastError(
            "a handle belongs to one model and is neither copied nor pickled, nor is a file written of what "
            "holds it: save the model's state_dict() and sk.state_dict(), which is what a resumed run needs"
        )

    def __repr__(self) -> str:
        return (
            f"<Sparsifier of {type(self.model).__name__}: {self.sketch.label()}; {len(self.weights)} "
            f"parameters with {self.dim:,} weights; seed {self.seed}, step {self.step}>"
        )

    def __str__(self) -> str:
        from mast.nn.report import overview

        return overview(self)
