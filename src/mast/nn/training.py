"""Other ways to train: `RowOptimizer`, on submodels; `Average`, with several draws per step.

On submodels, the kept units are gathered, a small dense step is made, and what it changed comes home. One
step costs what a step of the small model costs, and the moving of its weights: gradients, optimizer
state and updates of dropped units are never made.

For plain SGD the result is that of masked training (`sparsify` and the usual loop): a dropped unit has no
gradient there either. With momentum, Adam and their kind it is the *lazy* variant: the state of
dropped units rests, where masked training would let it decay, and so does their weight decay. What Adam
counts for its bias correction is the steps of the run, not those in which a unit was kept; the count of
a parameter rests only while all of it is dropped, as in a branch that `Layers` drops.

BatchNorm: kept channels update their running statistics, those of dropped channels rest (in masked training
all are updated). Submodels and the whole model want `recalibrate` in either case.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.optim import SGD, Adadelta, Adam, Adamax, AdamW, NAdam, Optimizer, RAdam, RMSprop

from mast.errors import ArgumentError, MastError
from mast.nn.sparsifier import Sparsifier
from mast.nn.tensors.torch_private import STEPPED_MARK
from mast.nn.units import UnitDraw
from mast.nn.units.pool import Pool
from mast.randomness import Key, Purpose
from mast.support.checks import check_int

if TYPE_CHECKING:
    from mast.nn.units.compiled_cut import KeptUnits

FORMAT = 1  #: version of the state
_AHEAD = 16  # steps that are drawn at once ...
_MANY = 1 << 16  # ... unless there are more units than this
_KNOWN = (SGD, Adam, AdamW, NAdam, RAdam, Adamax, RMSprop, Adadelta)  # entry by entry, state from zero


class RowOptimizer:
    """Trains the units that each step's draw keeps, as a small dense model of their own.

    `sk.optimizer` makes one, and `sk.small` gives its small model to the training loop.

    Parameters
    ----------
    sk
        What `sparsify` returned for a structured sketch (`Neurons`, `Layers`), without a shift.
    optimizer
        The class of a torch optimizer that treats each weight by itself: SGD, AdamW and the like.
    options
        Its options, such as ``lr=0.1``. `optimizer.optimizer` is the torch optimizer made with them, for
        schedulers of learning rates: they do not take this one, whose parameters are others at every step.

    >>> import mast, torch
    >>> from torch import nn
    >>> model = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 2))
    >>> sk = mast.nn.sparsify(model, mast.nn.Neurons(mast.RandK(0.25)))
    >>> optimizer = mast.nn.RowOptimizer(sk, torch.optim.SGD, lr=0.1)
    >>> with optimizer.submodel() as small:
    ...     small(torch.ones(4, 3)).square().mean().backward()
    >>> optimizer.step()
    >>> sk.step, tuple(small[0].weight.shape)
    (1, (2, 3))
    """

    def __init__(self, sk: Sparsifier, optimizer: type[Optimizer], **options: Any) -> None:
        if not isinstance(sk, Sparsifier) or sk.unit_map is None:
            raise ArgumentError(
                "RowOptimizer takes the handle of a model sparsified with Neurons or Layers, got "
                + (repr(sk.sketch) if isinstance(sk, Sparsifier) else type(sk).__name__)
            )
        if sk.shift is not None:
            raise ArgumentError(
                "RowOptimizer needs shift=None: with a shift the dropped weights are v, and the model is "
                "not smaller"
            )
        if not (isinstance(optimizer, type) and issubclass(optimizer, _KNOWN)):
            raise ArgumentError(
                f"RowOptimizer is for optimizers that treat each weight by itself "
                f"({', '.join(kind.__name__ for kind in _KNOWN)}), got {optimizer!r}"
            )
        self.sk = sk
        self._pool = Pool(sk.unit_map, sk.model)
        trained = dict(sk.model.named_parameters())
        parameters = [p for name, p in self._pool.parameters.items() if trained[name].requires_grad]
        try:
            self.optimizer = optimizer(parameters, **options)
        except (TypeError, ValueError) as error:
            raise ArgumentError(f"{optimizer.__name__} does not take these options: {error}") from error
        self._stepping = False
        self.optimizer.register_step_pre_hook(self._refuse_other_steps)
        #: whole-size optimizer state by parameter name
        self.state: dict[str, dict[str, Any]] = {}
        self._ahead: list[tuple[UnitDraw, KeptUnits | None]] = []  # of the steps to come, the next one last
        self._drawn_from = sk.bound  # these draws
        self._small = sk.model  # of the last draw
        self._ready = False

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """The torch optimizer's: the place to change a learning rate."""
        return self.optimizer.param_groups

    @contextmanager
    def submodel(self) -> Iterator[nn.Module]:
        """The small model of the current draw, in the modes of the whole one; backward() belongs inside.

        It is valid until `step`. Entered again before that, it is the same model, and gradients add up.
        """
        self.sk.watched.refuse_removed("sk.small() cannot be used")
        waiting = any(p.grad is not None for p in self._pool.parameters.values())
        drawn = self._ahead[-1][0].key if self._ahead else None
        if drawn != self.sk.drawn or self._drawn_from is not self.sk.bound:
            if waiting:
                raise MastError(
                    "the small network of another draw has gradients, which would be lost: call "
                    "optimizer.step() after each draw, or optimizer.zero_grad() to drop them. A step with "
                    "several draws is made by the usual loop, without sk.small()"
                )
            self._draw_ahead()
        if not waiting:
            self._small = self._pool.model(*self._ahead[-1])
            trained = [p for p in self._pool.parameters.values() if p.requires_grad]
            self.param_groups[0]["params"] = trained  # for gradient scalers and clipping
        small = self._small
        whole = dict(self.sk.model.named_modules())
        for name, module in small.named_modules():  # norms and dropout may have modes of their own
            module.training = whole.get(name, self.sk.model).training
        self._ready = True
        try:
            yield small
        except BaseException:  # what fails inside is not stepped with
            self._ready = False
            self.zero_grad()
            raise

    def step(self) -> None:
        """Update the kept weights and their state, and go to the next draw."""
        if not self._ready:
            raise MastError("step() comes after `with sk.small() as net:` and a backward pass in it")
        if self._is_plain():
            self._pool.add(-float(self.param_groups[0]["lr"]))
        elif not (self._is_adam() and self._pool.adam(self.state, self.param_groups[0])):
            with torch.no_grad():
                self._any_step()
        setattr(self.optimizer, STEPPED_MARK, True)  # not every step is made by it
        self._pool.return_buffers()
        self.zero_grad()
        self._ready = False
        self._ahead.pop()
        self.sk.advance()

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drop the gradients of the small model, which are gone after each step anyway."""
        for p in self._pool.parameters.values():
            p.grad = None

    def _draw_ahead(self) -> None:
        """The draws of some steps at once: the first costs more than all others, which find a warm cache."""
        key, unit_map = self.sk.drawn, self.sk.unit_map
        assert unit_map is not None
        others = key != self.sk.key or self._drawn_from is not self.sk.bound  # a schedule may go on
        many = sum(group.units for group in unit_map.groups) > _MANY
        steps = 1 if others or many else _AHEAD
        self._drawn_from = self.sk.bound
        keys = [Key(key.seed, key.step + i, key.node) for i in reversed(range(steps))]
        self._ahead = [(draw, self._pool.units_of(draw)) for draw in map(self.sk.draw, keys)]

    # ---- the ways of updating ------------------------------------------------------------

    def _is_plain(self) -> bool:
        if type(self.optimizer) is not SGD:
            return False
        group = self.param_groups[0]
        return not (group["momentum"] or group["weight_decay"] or group["maximize"])

    def _is_adam(self) -> bool:
        group = self.param_groups[0]
        unusual = ("amsgrad", "maximize", "capturable", "differentiable")
        plain = type(self.optimizer) in (Adam, AdamW) and not any(group.get(name) for name in unusual)
        return plain and not any(isinstance(n, Tensor) for n in (group["lr"], *group["betas"]))

    def _any_step(self) -> None:
        """The torch optimizer itself, on the kept rows of weights and state."""
        x, parameters = self._pool.x(), self._pool.parameters
        self._pool.scale_gradients()
        self._pool.back_to_x()
        cut = self._pool.cut.parameters
        present = {name: kept for name, kept in cut.items() if parameters[name].grad is not None}
        self.optimizer.state.clear()
        for name, kept in present.items():
            if name in self.state:
                own = self.state[name].items()
                small = {key: kept.gather(t) if _has_shape(t, kept.shape) else t for key, t in own}
                self.optimizer.state[parameters[name]] = small
        self._stepping = True
        try:
            self.optimizer.step()
        finally:
            self._stepping = False
        for name, kept in present.items():
            kept.place(x[name], parameters[name].detach())
            whole = self.state.setdefault(name, {})
            for key, t in self.optimizer.state.pop(parameters[name], {}).items():
                if not _has_shape(t, kept.kept_shape):
                    whole[key] = t
                    continue
                if key not in whole:
                    whole[key] = torch.zeros(kept.shape, dtype=t.dtype, device=t.device)
                kept.place(whole[key], t)

    def _refuse_other_steps(self, *_: Any) -> None:
        if not self._stepping:
            raise MastError(
                "this step would move the small network alone, and not train the model: call step() "
                "of what sk.optimizer() returned; its `optimizer` is for schedulers"
            )

    # ---- resuming ----------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """What a resumed run needs besides the model's state and `sk.state_dict()`."""
        groups = [{k: v for k, v in group.items() if k != "params"} for group in self.param_groups]
        return {
            "format": FORMAT,
            "kind": type(self.optimizer).__name__,
            "groups": groups,
            "state": copy.deepcopy(self.state),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a state of the same kind of optimizer over the same model."""
        for field in ("format", "kind", "groups", "state"):
            if field not in state:
                raise ArgumentError(f"this is not the state of a RowOptimizer: it has no {field!r}")
        saved = f"{state['kind']} in format {state['format']}"
        present = f"{type(self.optimizer).__name__} in format {FORMAT}"
        if saved != present or len(state["groups"]) != len(self.param_groups):
            raise ArgumentError(f"the state is that of {saved}, this is {present}")
        shapes = {name: tuple(p.shape) for name, p in self._pool.x().items()}
        for name, own in state["state"].items():
            if name not in shapes:
                raise ArgumentError(f"the state has an entry for {name!r}, no parameter of the model")
            for key, t in own.items():
                if isinstance(t, Tensor) and t.dim() > 0 and not _has_shape(t, shapes[name]):
                    raise ArgumentError(
                        f"the state's {key} of {name!r} has shape {tuple(t.shape)}, not {shapes[name]}"
                    )
        self.state = copy.deepcopy(state["state"])
        for group, saved in zip(self.param_groups, state["groups"], strict=True):
            group.update(saved)


def _has_shape(t: Any, shape: tuple[int, ...]) -> bool:
    return isinstance(t, Tensor) and t.dim() > 0 and tuple(t.shape) == shape


# ---- several draws per step ----------------------------------------------------------------------------


class Average:
    """The mean of grad f_S over `draws` independent draws: less noise, for as many passes.

    ``estimator.backward(closure)`` stands where ``loss.backward()`` stood; `closure` computes the loss with
    the model and returns it, without a backward pass. It is called several times, so it should
    compute the same function each time: one batch, no dropout.

    The first draw is the one plain training would use, so ``draws=1`` is plain training.
    `mast.theory.averaged_draws` has the guarantee. With ``split=True`` the batch is divided into as many
    parts, and each has a draw of its own: as many rows pass through the model as without, but its weights
    are drawn and multiplied once per part. ``backward(closure, *batch)`` calls the closure with each part of
    the batch's tensors, and weighs the losses by their rows.

    >>> import mast, torch
    >>> model = torch.nn.Linear(3, 1)
    >>> sk = mast.nn.sparsify(model, mast.Bernoulli(0.5))
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    >>> estimator = mast.nn.Average(sk, draws=4)
    >>> loss = estimator.backward(lambda: model(torch.ones(2, 3)).square().mean())
    >>> optimizer.step()
    >>> estimator = mast.nn.Average(sk, draws=2, split=True)
    >>> loss = estimator.backward(lambda x: model(x).square().mean(), torch.ones(4, 3))
    """

    def __init__(self, sk: Sparsifier, draws: int, split: bool = False) -> None:
        if not isinstance(sk, Sparsifier):
            raise ArgumentError(f"an estimator takes what sparsify() returned, got {type(sk).__name__}")
        self.sk = sk
        self.draws, self.split = check_int("draws", draws, 1), bool(split)

    def key(self, j: int) -> Key:
        """Draw j of the current step."""
        now = self.sk.key
        return now if j == 0 else Key(Key(now.seed).child(j, Purpose.ESTIMATE).seed, now.step, now.node)

    def backward(self, closure: Callable[..., Tensor], *batch: Tensor) -> Tensor:
        """Add the mean gradient to `.grad`, and return the mean loss."""
        losses = []
        for j, (divisor, part) in enumerate(self._parts(batch)):
            with self.sk.at(self.key(j)):
                loss = _loss(partial(closure, *part)) / divisor
                loss.backward()  # type: ignore[no-untyped-call]
            losses.append(loss.detach())
        return sum(losses[1:], losses[0])

    def _parts(self, batch: tuple[Tensor, ...]) -> Iterator[tuple[float, tuple[Tensor, ...]]]:
        """For each draw what its loss is divided by, and what the closure takes."""
        if not self.split:
            for _ in range(self.draws):
                yield self.draws, batch
            return
        rows = {len(tensor) for tensor in batch}
        if len(rows) != 1 or min(rows) < self.draws:
            raise ArgumentError(
                f"split=True divides a batch into {self.draws} parts: pass its tensors after the closure, "
                f"all with the same number of rows, at least {self.draws}; got {sorted(rows) or 'none'}"
            )
        for part in zip(*(tensor.tensor_split(self.draws) for tensor in batch), strict=True):
            yield min(rows) / len(part[0]), part


def _loss(closure: Callable[[], Tensor]) -> Tensor:
    loss = closure()
    if not isinstance(loss, Tensor) or loss.numel() != 1:
        raise ArgumentError(
            "the closure must return the loss, a tensor with one number, before any backward pass"
        )
    return loss
