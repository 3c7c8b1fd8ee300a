"""ONNX files of submodels, checked: onnxruntime computes what the model does, before the file is written."""

from __future__ import annotations

import contextlib
import copy
import inspect
import logging
import math
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from mast import __version__, files
from mast.errors import ArgumentError, MastError, optional_module
from mast.nn.tensors.torch_private import EXPORTER_LOG, tree_leaves
from mast.nn.tensors.weights import unwrapped

_LIMIT = 2**31 - 1  # bytes in a protobuf message
_CHATTER = (
    EXPORTER_LOG,  # torchvision is not installed
    "onnxscript.optimizer._constant_folding",  # attention splits what it does not fold
)


def export_onnx(
    module: nn.Module, path: str | Path, example: Any, *, tolerance: float = 1e-5, dynamic_batch: bool = True
) -> Path:
    """Write a model as an ONNX file, in `eval()` mode, after onnxruntime has given the same outputs.

    Parameters
    ----------
    module
        The model, such as `sk.submodel(seed)`.
    path
        Where to write; what stood there is replaced when the new file is complete.
    example
        An input, or a tuple of inputs; the first dimension of each is the batch.
    tolerance
        How far onnxruntime's outputs may be from torch's, relative to the largest number of an output
        that exceeds 1. They are compared for the example and for two other sizes of the batch.
    dynamic_batch
        Whether the file takes batches of any size; False: of the example's only.

    >>> import mast, torch, tempfile, pathlib
    >>> model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.ReLU())
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = mast.nn.export_onnx(model, folder + "/small.onnx", torch.ones(4, 3))
    ...     path.name, path.stat().st_size > 0
    ('small.onnx', True)
    """
    inputs = example if isinstance(example, tuple) else (example,)
    if not inputs or not all(isinstance(t, Tensor) and t.dim() > 0 and len(t) > 0 for t in inputs):
        raise ArgumentError(
            "the example is a tensor, or a tuple of tensors, whose first dimension is the batch"
        )
    inputs = tuple(t.detach() for t in inputs)
    model = copy.deepcopy(unwrapped(module)).eval().requires_grad_(False)
    size = sum(t.numel() * t.element_size() for t in model.state_dict().values() if isinstance(t, Tensor))
    if size > _LIMIT:
        raise ArgumentError(
            f"the model has {size:,} bytes; an ONNX file of one piece holds at most {_LIMIT:,}"
        )
    tries = [inputs]
    if dynamic_batch:  # with one and with three rows too
        three = tuple(torch.cat([t, t[:1], t[:1]])[-3:].contiguous() for t in inputs)
        tries += [tuple(t[:1] for t in inputs), three]
    expected = [_called(model, batch, dynamic_batch) for batch in tries]
    proto = _exported(model, inputs, dynamic_batch)
    _strip(proto)
    entry = proto.metadata_props.add()
    entry.key, entry.value = "mast_version", __version__
    content = proto.SerializeToString()
    session = _session(content)
    for batch, outputs in zip(tries, expected, strict=True):
        _compare(session.run(None, _fed(session, batch)), outputs, len(batch[0]), tolerance)
    files.write(Path(path), content)
    return Path(path)


def runner(path: str | Path, inputs: tuple[Tensor, ...]) -> Callable[[], list[Any]]:
    """A call of an ONNX file with these inputs, by onnxruntime on the CPU: it returns arrays."""
    session = _session(Path(path).read_bytes())
    fed = _fed(session, inputs)
    return lambda: list(session.run(None, fed))


def parameters_of(path: Path) -> int:
    """How many numbers of floating point an ONNX file holds as weights."""
    onnx = _library("onnx")
    floating = [getattr(onnx.TensorProto, name) for name in ("FLOAT", "DOUBLE", "FLOAT16", "BFLOAT16")]
    tensors = onnx.load(path).graph.initializer
    return sum(math.prod(t.dims) for t in tensors if t.data_type in floating)


def _library(name: str) -> Any:
    """One of the packages of the extra, imported."""
    return optional_module(name, "ONNX files need more packages", "onnx")


def _called(model: nn.Module, inputs: tuple[Tensor, ...], dynamic: bool) -> list[Any]:
    """The tensors and numbers that the model returns, in order."""
    try:
        with torch.no_grad():
            outputs = tree_leaves(model(*inputs))
    except Exception as error:
        fixed = ": it works for batches of one size (dynamic_batch=False)" if dynamic else ""
        raise ArgumentError(
            f"{type(model).__name__} does not take a batch of {len(inputs[0])}{fixed}: {_reason(error)}"
        ) from error
    return [output for output in outputs if isinstance(output, Tensor | int | float)]


def _exported(model: nn.Module, inputs: tuple[Tensor, ...], dynamic: bool) -> Any:
    onnx, _ = _library("onnx"), _library("onnxscript")  # the second for torch's exporter
    shapes = None
    if dynamic:
        # A batch of one would be taken for a constant.
        inputs = tuple(t if len(t) > 1 else torch.cat([t, t]) for t in inputs)
        batch = torch.export.Dim("batch")
        shapes = tuple({0: batch} for _ in inputs)
        if any(p.kind is p.VAR_POSITIONAL for p in inspect.signature(model.forward).parameters.values()):
            shapes = (shapes,)  # type: ignore[assignment]
    try:
        with _without_chatter():
            program: Any = torch.onnx.export(
                model, inputs, dynamo=True, dynamic_shapes=shapes, verbose=False, external_data=False
            )
        proto = program.model_proto
        onnx.checker.check_model(proto)
    except MastError:
        raise
    except Exception as error:
        fixed = " for batches of any size (dynamic_batch=False fixes the size)" if dynamic else ""
        raise ArgumentError(
            f"{type(model).__name__} cannot be exported to ONNX{fixed}: "
            f"{_reason(error)}. torch.onnx.export says more"
        ) from error
    return proto


@contextlib.contextmanager
def _without_chatter() -> Iterator[None]:
    """Without what torch's exporter says of itself, not of the model."""
    logs = {log: log.level for log in map(logging.getLogger, _CHATTER)}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # parts of torch that its exporter uses will change
        warnings.simplefilter("ignore", DeprecationWarning)
        warnings.filterwarnings("ignore", ".*_flat_weights", UserWarning)  # how recurrent layers are made
        warnings.filterwarnings("ignore", ".*axis name: batch will not be used")  # but once: it has one name
        for log in logs:
            log.setLevel(logging.ERROR)
        try:
            yield
        finally:
            for log, level in logs.items():
                log.setLevel(level)


def _strip(proto: Any) -> None:
    """Take out what says how the file was made: lines and paths of the user's code, longer than the model."""
    for part in [proto.graph, *proto.functions]:
        for piece in [part, *part.node, *part.value_info, *getattr(part, "initializer", [])]:
            piece.ClearField("doc_string")
            piece.ClearField("metadata_props")


def _compare(computed: list[Any], outputs: list[Any], batch: int, tolerance: float) -> None:
    """An error unless onnxruntime's outputs are those of torch."""
    # Sizes and other numbers among the outputs may be constants, which are no outputs of a file.
    expected = outputs if len(computed) == len(outputs) else [t for t in outputs if isinstance(t, Tensor)]
    if len(computed) != len(expected):
        raise MastError(f"the ONNX file has {len(computed)} outputs, the model {len(expected)}")
    for number, (theirs, ours) in enumerate(zip(computed, expected, strict=True)):
        a = torch.as_tensor(ours).cpu().double()
        largest = max(1.0, float(a[a.isfinite()].abs().max())) if a.isfinite().any() else 1.0
        try:
            torch.testing.assert_close(
                torch.as_tensor(theirs).double(), a, rtol=0, atol=tolerance * largest, equal_nan=True
            )
        except AssertionError as error:
            raise MastError(
                f"onnxruntime's output {number} for a batch of {batch} is not that of the model, and the "
                f"file was not written. {error}"
            ) from error


def _session(content: bytes) -> Any:
    onnxruntime = _library("onnxruntime")
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    return onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])


def _fed(session: Any, inputs: tuple[Tensor, ...]) -> dict[str, Any]:
    names = [i.name for i in session.get_inputs()]
    if len(names) != len(inputs):
        raise ArgumentError(f"the ONNX file takes {', '.join(names)}; it was given {len(inputs)} inputs")
    return {name: t.detach().cpu().contiguous().numpy() for name, t in zip(names, inputs, strict=True)}


def _reason(error: BaseException) -> str:
    """The first line of the innermost cause that says something."""
    while error.__cause__ is not None:
        error = error.__cause__
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
