"""Everything of PyTorch that MAST uses and PyTorch does not promise to keep, in one place.

Tried with the versions of `TRIED`. Classes and functions are imported from here. Attributes cannot be, so
`ATTRIBUTES` lists those that are used where they are needed; a test looks for others. A version of PyTorch
without one of these names is refused at import, by name.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch

from mast.errors import MissingExtraError

TRIED = ("2.8.0", "2.13.0", "2.15.0")  # the oldest, the one of constraints.txt and the newest


def _refusal(missing: object) -> MissingExtraError:
    return MissingExtraError(
        f"mast.nn uses a part of PyTorch that torch {torch.__version__} does not have: {missing}; it was "
        f"tried with torch {', '.join(TRIED)}: install one of these, or a newer version of MAST"
    )


try:
    from torch.nn.modules.batchnorm import _BatchNorm as BatchNorm
    from torch.nn.modules.batchnorm import _NormBase as NormBase
    from torch.nn.modules.conv import _ConvNd as Conv
    from torch.nn.modules.conv import _ConvTransposeNd as ConvTranspose
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_leaves
except ImportError as error:
    raise _refusal(error) from error

__all__ = [
    "ATTRIBUTES", "BILINEAR", "FSDP_MARK", "STEPPED_MARK", "BatchNorm", "Conv", "ConvTranspose", "NormBase",
    "OperationMode", "compiler_callback", "current_node", "graph_task_id", "holders", "make_parameter",
    "plain_kernels", "sequence_number", "tree_leaves", "without_fast_path",
]  # fmt: skip

ATTRIBUTES = {
    "Module": ("_parameters", "_buffers", "_modules", "_forward_pre_hooks", "_forward_hooks", "_call_impl",
               "_compiled_call_impl"),
    "Tensor": ("_version",),
    "UntypedStorage": ("_cdata",),
    "Node": ("_sequence_nr", "_set_sequence_nr"),
}  # fmt: skip


def _look_for_attributes() -> None:
    """Refuse a PyTorch without one of them."""
    with torch.inference_mode(False), torch.enable_grad():  # wherever the import stands
        node = torch.ones(1, requires_grad=True).clone().grad_fn
    for kind, example, names in (
        ("torch.nn.Module", torch.nn.Module(), ATTRIBUTES["Module"]),
        ("torch.Tensor", torch.Tensor, (*ATTRIBUTES["Tensor"], "_make_subclass")),
        ("torch.UntypedStorage", torch.UntypedStorage, ATTRIBUTES["UntypedStorage"]),
        ("torch._C", torch._C, ("_current_autograd_node", "_current_graph_task_id")),
        ("torch._C", torch._C, ("_get_mkldnn_enabled", "_set_mkldnn_enabled")),
        ("torch._C._autograd", torch._C._autograd, ("_get_sequence_nr",)),
        ("torch.ops.aten", torch.ops.aten, ("_trilinear",)),
        ("grad_fn", node, ATTRIBUTES["Node"]),
    ):
        for name in names:
            if not hasattr(example, name):
                raise _refusal(f"{kind}.{name}")


_look_for_attributes()

FSDP_MARK = "_fsdp_flattened"  # of parameters that FullyShardedDataParallel has put into one
STEPPED_MARK = "_opt_called"  # of optimizers: schedulers warn where it is not True
BILINEAR: Any = torch.ops.aten._trilinear  # what nn.Bilinear comes to

# What nn.Parameter(tensor, requires_grad) comes to, after many questions: make_parameter(nn.Parameter, ...).
make_parameter: Any = torch.Tensor._make_subclass
# How many hold a piece of memory, by its `_cdata`; None where torch does not say.
holders: Any = getattr(torch._C, "_storage_Use_Count", None)
# The number of the backward pass that this thread is in the middle of; -1 outside of any.
graph_task_id: Any = torch._C._current_graph_task_id
# The node of autograd's graph that this thread is going back through, if any.
current_node: Any = torch._C._current_autograd_node
# The number that the next node made by this thread will have: `_sequence_nr` of a node says when it was made.
sequence_number: Any = torch._C._autograd._get_sequence_nr
# What torch.compile would trace the next function with, if it is waiting to: a callable then.
_frames: Any = getattr(getattr(torch._C, "_dynamo", None), "eval_frame", None)
compiler_callback: Any = getattr(_frames, "get_eval_frame_callback", lambda: None)


class OperationMode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A mode whose `__torch_dispatch__` sees each operation, without loading the compiler (four seconds)."""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)  # type: ignore[no-untyped-call]

    if TYPE_CHECKING:

        def __init__(self) -> None: ...

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False


@contextmanager
def without_fast_path() -> Iterator[None]:
    """Without torch's kernel for whole encoder layers, which calls none of their modules."""
    fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)


@contextmanager
def plain_kernels() -> Iterator[None]:
    """Without fused kernels that hide what they do with heads and hidden units."""
    mkldnn = torch._C._get_mkldnn_enabled()
    torch._C._set_mkldnn_enabled(False)
    try:
        with without_fast_path():
            yield
    finally:
        torch._C._set_mkldnn_enabled(mkldnn)
