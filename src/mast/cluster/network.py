"""Networks on the cluster: each node trains the part of the model that it can hold, on its own rows."""

from __future__ import annotations

import copy
import importlib
import importlib.util
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, TypeGuard

import torch
from torch import Tensor, nn

from mast import files
from mast.checkpoint import describe
from mast.cluster.settings import Settings
from mast.cluster.tasks import Task, shift_of, sketches_of
from mast.cluster.wire import Wire
from mast.errors import ArgumentError, DataError
from mast.methods.distributed import Capacity
from mast.methods.distributed.messages import Values
from mast.nn import recalibrate
from mast.nn.nodes import NetworkWorker, NodeRows, VectorLayout, capacity_of, module_identity, torch_seeded
from mast.nn.nodes.worker import LOSSES, Batches, Loss
from mast.nn.structure.sketches import Structured
from mast.nn.tensors.torch_private import NormBase
from mast.randomness import Key

_SCORED_AT_ONCE = 1024  # rows


class NetworkTask(Task):
    """A network that a function of the user's makes, on data that another one gives."""

    def __init__(self, settings: Settings, wire: Wire, mine: Sequence[int]) -> None:
        """Make the model and read the data of this rank's nodes; all ranks must call this together."""
        self.settings = settings
        with wire.together(f"the functions of {settings.folder}"):
            self.sketches = sketches_of(settings)
            light = wire.rank > 0 and all(isinstance(self.sketches[node], Structured) for node in mine)
            self.model = _model(settings, light and settings.model.shift is None)
            self.layout = VectorLayout(self.model)
            self.shift = self._shift()
            self._capacities: dict[int, Capacity] = {}
            for node in range(len(self.sketches)) if wire.rank == 0 else mine:
                self.capacity(node)
            self.loss: Loss = LOSSES.get(settings.model.loss) or _function(settings, settings.model.loss)
            self.batches: dict[int, Batches] = {node: _batches(settings, node) for node in mine}
            self.test = _test(settings)
            score = settings.model.score
            self.scoring = None if score is None else _function(settings, score)
        default = "accuracy" if settings.model.loss == "cross_entropy" else "-loss"
        self.metric = default if score is None else "score"

    def capacity(self, node: int) -> Capacity:
        """The node's sketch of this model."""
        sketch = self.sketches[node]
        if id(sketch) not in self._capacities:
            self._capacities[id(sketch)] = capacity_of(self.model, sketch, keep=self.settings.model.keep)
        return self._capacities[id(sketch)]

    def _shift(self) -> Values | None:
        if self.settings.model.shift == "start":
            return self.layout.read(self.model)
        shift = shift_of(self.settings, self.layout.dim)
        return None if shift is None else shift.astype(self.layout.dtype)

    def start(self) -> Values:
        """The shift, or the model as its function made it."""
        return self.layout.read(self.model) if self.shift is None else self.shift.copy()

    def worker(self, node: int, run: int) -> NetworkWorker:
        """The node's part of the model, its loss and its rows."""
        return NetworkWorker(
            self.capacity(node),
            self.model if isinstance(self.sketches[node], Structured) else copy.deepcopy(self.model),
            self.loss,
            self.batches[node],
            shift=self.shift,
            run=run,
        )

    def identity(self) -> dict[str, str]:
        """Modules, functions, what is not trained, the shift, and the version of torch."""
        settings = self.settings.model
        frozen = [p for n, p in self.model.named_parameters() if n not in self.layout.slices]
        made = {"factory of the model": settings.factory, "loss": settings.loss, "score": settings.score}
        made |= {"data factory": self.settings.data.factory}
        return {
            **{name: _without_digest(text) for name, text in module_identity(self.model).items()},
            **_sources(self.settings, {name: text for name, text in made.items() if text}),
            "shapes of the model": files.digest(*self.layout.shapes.items(), *self.layout.slices),
            "frozen parameters": files.digest(*map(_bytes, frozen)),
            "buffers": files.digest(*map(_bytes, _buffers(self.model))),
            "shift": "none" if self.shift is None else files.digest(self.shift),
            "version of torch": torch.__version__,
        }

    def data(self, node: int) -> str:
        """Of the rows; of a function that gives batches, of its first batch."""
        rows = self.batches[node]
        if isinstance(rows, NodeRows):
            return files.digest(_bytes(rows.inputs), _bytes(rows.targets), rows.batch_size)
        with torch_seeded(Key(0)):
            first = rows(Key(0))
        parts = first if isinstance(first, tuple | list) else []
        tensors = [part for part in parts if isinstance(part, Tensor)]
        return files.digest(_without_digest(describe(rows)), *map(_bytes, tensors))

    # ---- scores ----------------------------------------------------------------------------

    def full_score(self, node: int, values: Values) -> float:
        """Of the whole model; on a rank that has its skeleton only, it is made for this once."""
        if any(p.is_meta for p in self.model.parameters()):
            self.model = _model(self.settings, light=False)
        return self.score(node, self._whole(values))

    def save(self, values: Values, folder: Path) -> None:
        """The model's state as model.safetensors."""
        from safetensors.torch import save

        node = next(iter(self.batches), None)
        model = self._whole(values).eval()
        state = (model if node is None else self._calibrated(model, node)).state_dict()
        state = {name: tensor.detach().contiguous().clone() for name, tensor in state.items()}
        files.write(folder / "model.safetensors", save(state))

    def _whole(self, values: Values) -> nn.Module:
        model = copy.deepcopy(self.model)
        self.layout.write(values, model)
        return model

    def _calibrated(self, model: nn.Module, node: int) -> nn.Module:
        """Ready to be used; statistics of norms are those of the node's rows."""
        rows = self.batches[node]
        model.eval()
        return recalibrate(model, _pieces(rows.inputs)) if isinstance(rows, NodeRows) else model

    def score(self, node: int, model: nn.Module) -> float:
        """On the test rows, or on the node's own, unless the settings name a function."""
        model = self._calibrated(model, node)
        if self.scoring is not None:
            return float(self.scoring(model))
        batch: Any = self.test
        if batch is None:
            rows = self.batches[node]
            batch = (rows.inputs, rows.targets) if isinstance(rows, NodeRows) else rows(Key(0))
        with torch.no_grad():
            if self.metric != "accuracy":
                return -float(self.loss(model, batch))
            inputs, targets = batch
            pairs = zip(_pieces(inputs), _pieces(targets), strict=True)
            right = [(model(x).argmax(-1) == y).float().sum() for x, y in pairs]
            return float(sum(right) / targets.numel())


def _pieces(rows: Tensor) -> tuple[Tensor, ...]:
    return torch.split(rows, _SCORED_AT_ONCE)


# ---- what the settings name -------------------------------------------------------------------------


def _function(settings: Settings, name: str | None) -> Callable[..., Any]:
    """The function that ``file.py:function`` or ``module:function`` names."""
    where, _, attribute = str(name).partition(":")
    try:
        is_file = where.endswith(".py")
        module = _module(settings.folder / where) if is_file else importlib.import_module(where)
    except (ImportError, OSError) as error:
        raise ArgumentError(f"{name!r} cannot be imported: {error}") from error
    named: Callable[..., Any] | None = getattr(module, attribute, None)
    if not callable(named):
        raise ArgumentError(f"{where} has no function {attribute!r}")
    return named


def _module(path: Path) -> ModuleType:
    """The module that a file makes, made once; a file that was changed makes another one.

    One that fails is forgotten, so that it can be mended.
    """
    name = f"mast_cluster_{files.digest(str(path.resolve()), path.read_bytes())}"
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, path.resolve())
        assert spec is not None
        assert spec.loader is not None
        sys.modules[name] = module = importlib.util.module_from_spec(spec)
        try:
            spec.loader.exec_module(module)
        except BaseException:
            del sys.modules[name]
            raise
    return sys.modules[name]


def _without_digest(description: str) -> str:
    """A description of classes and functions, whose modules have other names when their file was changed."""
    return re.sub(r"\bmast_cluster_[0-9a-f]+\.", "", description)


def _sources(settings: Settings, names: Mapping[str, str]) -> dict[str, str]:
    """The functions that the settings name, each by its source, and the files that they stand in."""
    functions, texts = {}, {}
    for field, name in names.items():
        if name in LOSSES:
            functions[field] = name
            continue
        functions[field] = f"{name}, source {describe(_function(settings, name))}"
        where = name.partition(":")[0]
        if where.endswith(".py"):
            texts[f"file {where}"] = describe(_module(settings.folder / where))
    return functions | texts


def _model(settings: Settings, light: bool) -> nn.Module:
    """The model, the same on every rank; without values where a skeleton is enough."""
    make = _function(settings, settings.model.factory)
    if light:
        try:
            with torch.device("meta"):
                model = make()
            if isinstance(model, nn.Module) and _only_shapes_matter(model):
                return model
        except (RuntimeError, NotImplementedError):  # it computes with values: then it has to have them
            pass
    with torch_seeded(Key(settings.run.seed)):
        model = make()
    if not isinstance(model, nn.Module):
        raise ArgumentError(f"factory in [model] must give a torch module, got {type(model).__name__}")
    return model


def _only_shapes_matter(model: nn.Module) -> bool:
    """Whether nothing but statistics of norms, which training does not use, is in the model unless sent."""
    return all(p.requires_grad and p.is_meta for p in model.parameters()) and not _buffers(model)


def _buffers(model: nn.Module) -> list[Tensor]:
    """The buffers but those of norms: training mode does not use what these hold."""
    norms = {id(b) for m in model.modules() if isinstance(m, NormBase) for b in m.buffers()}
    return [b for b in model.buffers() if id(b) not in norms]


def _bytes(tensor: Tensor) -> Any:
    """A tensor of any type as bytes, for a digest."""
    return tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy()


def _batches(settings: Settings, node: int) -> Batches:
    """A node's rows, or a function of a key that the user's function gave."""
    given = _function(settings, settings.data.factory)(node, settings.nodes.count)
    if _is_pair(given, f"node {node}"):
        return NodeRows(*given, settings.data.batch_size)
    if callable(given):
        batches: Batches = given
        return batches
    raise ArgumentError(
        f"factory in [data] must give a pair of tensors (inputs, targets), or a function of a key that gives "
        f"batches, got {type(given).__name__}"
    )


def _test(settings: Settings) -> Any:
    made = None if settings.data.test is None else _function(settings, settings.data.test)()
    _is_pair(made, "the test")
    return made


def _is_pair(given: Any, whose: str) -> TypeGuard[tuple[Tensor, Tensor]]:
    """Whether a function gave inputs and targets; if they are not finite, that is an error."""
    if not (isinstance(given, tuple) and len(given) == 2 and all(isinstance(t, Tensor) for t in given)):
        return False
    for name, tensor in zip(("inputs", "targets"), given, strict=True):
        if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
            raise DataError(f"the {name} of {whose} hold NaN or infinity")
    return True
