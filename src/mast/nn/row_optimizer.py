"""Training on submodels: gather the kept units, make a small dense step, and bring home what it changed.

One step costs what a step of the small model costs, and the moving of its weights: gradients, optimizer
state and updates of dropped units are never made.

For plain SGD the result is that of masked training (`sparsify` and the usual loop): a dropped unit has no
gradient there either. With momentum, Adam and their kind it is the *lazy* variant: the state of
dropped units rests, where masked training would let it decay, and so does their weight decay. What one step
of Adam
counts (its bias correction) is the steps of the run, not those in which a unit was kept.

BatchNorm: kept channels update their running statistics, those of dropped channels rest (in masked training
all are updated). Submodels and the whole model want `recalibrate` in either case.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import SGD, Adadelta, Adam, Adamax, AdamW, NAdam, Optimizer, RAdam, RMSprop

from mast.errors import ArgumentError, MastError
from mast.nn.sparsifier import Sparsifier
from mast.nn.structure.cuts import Cut, Part
from mast.nn.structure.pouring import Places, Pool

FORMAT = 1  #: version of the state
_KNOWN = (SGD, Adam, AdamW, NAdam, RAdam, Adamax, RMSprop, Adadelta)  # entry by entry, state from zero


class RowOptimizer:
    """Trains the units that each step's draw keeps, as a small dense model of their own.

    Parameters
    ----------
    sk
        What `sparsify` returned for a structured sketch (`Neurons`, `Layers`), without a shift.
    optimizer
        The class of a torch optimizer that treats each weight by itself: SGD, AdamW and the like.
    options
        Its options, such as ``lr=0.1``. `rows.optimizer` is the torch optimizer made with them, for
        learning-rate schedulers.

    >>> import mast, torch
    >>> from torch import nn
    >>> model = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 2))
    >>> sk = mast.nn.sparsify(model, mast.nn.Neurons(mast.RandK(0.25)))
    >>> rows = mast.nn.RowOptimizer(sk, torch.optim.SGD, lr=0.1)
    >>> with rows.submodel() as small:
    ...     small(torch.ones(4, 3)).square().mean().backward()
    >>> rows.step()
    >>> sk.step, tuple(small[0].weight.shape)
    (1, (2, 3))
    """

    def __init__(self, sk: Sparsifier, optimizer: type[Optimizer], **options: Any) -> None:
        if not isinstance(sk, Sparsifier) or sk.structure is None:
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
        self._places = Places(sk.model)
        self._pool = Pool(sk.structure)
        self._trainable = [name for name, p in self._pool.parameters.items() if p.requires_grad]
        self.optimizer = optimizer([self._pool.parameters[name] for name in self._trainable], **options)
        #: whole-size optimizer state by parameter name
        self.state: dict[str, dict[str, Any]] = {}
        self._cut: Cut | None = None

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """The torch optimizer's: the place to change a learning rate."""
        return self.optimizer.param_groups

    @contextmanager
    def submodel(self) -> Iterator[nn.Module]:
        """The small model of the current draw, in training mode; backward() belongs inside.

        It is valid until `step`; its gradients start from None.
        """
        cut = self._cut = self._structure_cut()
        with torch.no_grad():
            small = self._pool.model(cut, self._x(), self._places.buffers())
        if small.training != self.sk.model.training:
            small.train(self.sk.model.training)
        try:
            yield small
        except BaseException:
            self._cut = None
            raise

    def step(self) -> None:
        """Update the kept weights and their state, and go to the next draw."""
        cut = self._cut
        if cut is None:
            raise MastError("step() comes after `with rows.submodel() as small:` and a backward pass in it")
        x = self._x()
        present = [part for part in cut.parts if self._pool.parameters[part.name].grad is not None]
        with torch.no_grad():
            for part in present:
                g = self._pool.parameters[part.name].grad
                if g is not None and part.scales is not None:
                    g.mul_(self._pool.scales[part.name])
            if self._is_plain():
                self._plain_step(x, present)
            else:
                self._any_step(x, cut, present)
            self._pool.return_buffers(cut, self._places.buffers())
        for part in present:
            self._pool.parameters[part.name].grad = None
        self._cut = None
        self.sk.advance()

    # ---- the two ways of updating ------------------------------------------------------------

    def _is_plain(self) -> bool:
        plain = ("momentum", "dampening", "weight_decay", "nesterov", "maximize")
        return type(self.optimizer) is SGD and not any(
            group[name] for group in self.param_groups for name in plain
        )

    def _plain_step(self, x: Mapping[str, Tensor], present: list[Part]) -> None:
        """x[kept] -= lr S'g, in one pass."""
        rate = float(self.param_groups[0]["lr"])
        for part in present:
            g = self._pool.parameters[part.name].grad
            assert g is not None
            part.slice.add(x[part.name], g, -rate)

    def _any_step(self, x: Mapping[str, Tensor], cut: Cut, present: list[Part]) -> None:
        """The torch optimizer itself, on the kept rows of weights and state."""
        self._pool.back_to_x(cut, x)
        parameters = self._pool.parameters
        self.param_groups[0]["params"] = [parameters[n] for n in self._trainable if n in parameters]
        self.optimizer.state.clear()
        for part in present:
            self._lend(part)
        self.optimizer.step()
        for part in present:
            part.slice.put(x[part.name], parameters[part.name].detach())
            self._take_back(part, x[part.name])

    def _lend(self, part: Part) -> None:
        p, whole = self._pool.parameters[part.name], self.state.get(part.name)
        if whole is not None:
            self.optimizer.state[p] = {
                key: part.slice.take(t) if _spans(t, part) else t for key, t in whole.items()
            }

    def _take_back(self, part: Part, x: Tensor) -> None:
        own = self.optimizer.state.pop(self._pool.parameters[part.name], {})
        whole = self.state.setdefault(part.name, {})
        for key, t in own.items():
            if isinstance(t, Tensor) and t.shape == part.slice.shape and t.dim() == x.dim() and t.dim() > 0:
                if key not in whole:
                    whole[key] = torch.zeros(x.shape, dtype=t.dtype, device=t.device)
                part.slice.put(whole[key], t)
            else:
                whole[key] = t

    def _structure_cut(self) -> Cut:
        assert self.sk.structure is not None
        return self.sk.structure.cut(self.sk.draw())

    def _x(self) -> dict[str, Tensor]:
        return self._places.parameters()

    # ---- resuming ----------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """What a resumed run needs besides the model's state and `sk.state_dict()`."""
        groups = [{k: v for k, v in group.items() if k != "params"} for group in self.param_groups]
        return {
            "format": FORMAT,
            "kind": type(self.optimizer).__name__,
            "groups": groups,
            "state": {name: {k: _copied(t) for k, t in own.items()} for name, own in self.state.items()},
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a state of the same kind of optimizer over the same model."""
        for field in ("format", "kind", "groups", "state"):
            if field not in state:
                raise ArgumentError(f"this is not the state of a RowOptimizer: it has no {field!r}")
        kind = type(self.optimizer).__name__
        if (
            state["kind"] != kind
            or state["format"] != FORMAT
            or len(state["groups"]) != len(self.param_groups)
        ):
            raise ArgumentError(
                f"the state is that of {state['kind']} in format {state['format']}, this is {kind} in "
                f"format {FORMAT}"
            )
        x = self._x()
        for name, own in state["state"].items():
            if name not in x:
                raise ArgumentError(
                    f"the state has an entry for {name!r}, which is no parameter of the model"
                )
            for key, t in own.items():
                if isinstance(t, Tensor) and t.dim() > 0 and t.shape != x[name].shape:
                    raise ArgumentError(
                        f"the state's {key} of {name!r} has shape {tuple(t.shape)}, the parameter "
                        f"{tuple(x[name].shape)}"
                    )
        self.state = {name: {k: _copied(t) for k, t in own.items()} for name, own in state["state"].items()}
        for group, saved in zip(self.param_groups, state["groups"], strict=True):
            group.update(saved)


def _spans(t: Any, part: Part) -> bool:
    return isinstance(t, Tensor) and t.dim() > 0 and tuple(t.shape) == part.slice.full


def _copied(t: Any) -> Any:
    return t.detach().clone() if isinstance(t, Tensor) else t
