"""The record of a forward pass: its operations, what each is made of, and the modules that call them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.utils.weak import WeakIdKeyDictionary

from mast.errors import ArgumentError
from mast.nn.tensors.torch_private import OperationMode, plain_kernels
from mast.nn.units.dependencies import layer_rules, tensor_rules
from mast.nn.units.dependencies.examples import Example, first_line, fork_generators, tensors_in
from mast.nn.units.dependencies.graph import Arguments, Options, tensors

aten = torch.ops.aten
WEIGHTED = (
    aten.addmm, aten.mm, aten.bmm, aten.baddbmm, aten.convolution, aten.linear, aten.native_batch_norm,
    aten.native_layer_norm, aten.native_group_norm, aten._native_batch_norm_legit,
)  # fmt: skip
NORMS = (
    aten.native_batch_norm, aten._native_batch_norm_legit, aten._native_batch_norm_legit_no_training,
    aten.native_group_norm, aten.native_layer_norm, aten.cudnn_batch_norm,
)  # fmt: skip
PRODUCTS = (aten.mul, aten.mul_, aten.div, aten.div_)
SUMS = (aten.add, aten.add_)
MOVES = {
    kind
    for kind, rule in layer_rules.RULES.items()
    if rule in (tensor_rules.move, tensor_rules.reshape, tensor_rules.copy_labels)
}
COPIES = {kind for kind, rule in layer_rules.RULES.items() if rule is tensor_rules.copy_labels}
# Operations that make 0 of 0, so that a branch whose last weight is 0 is 0.
ZERO_STAYS = MOVES | {
    aten.relu, aten.relu_, aten.gelu, aten.silu, aten.silu_, aten.tanh, aten.leaky_relu, aten.hardswish,
    aten.hardswish_, aten.hardtanh, aten.elu, aten.mish, aten.native_dropout, aten.neg, aten.index,
    aten.index_select, aten.avg_pool2d, aten.max_pool2d_with_indices, aten.mean, aten.sum,
    aten.constant_pad_nd,
}  # fmt: skip


@dataclass
class Operation:
    """One operation of a forward pass, by the numbers of others."""

    ancestors: int  # all operations that its value depends on, as bits
    inputs: list[int]
    kind: Any  # of ATen; None for an input of the model
    is_move: bool = False  # it puts entries elsewhere, and does no more
    last_weights: tuple[str, ...] = ()  # the parameters at the end of its computation: if they are 0, it is 0
    users: list[int] = field(default_factory=list)


@dataclass
class ModuleCall:
    """One call of a module: its operations are those from first to last - 1."""

    module: str
    first: int
    last: int = 0
    outer: int | None = None
    output: int | None = None
    tuple_size: int | None = None  # of the output, if it is no single tensor


class Recording(OperationMode):
    """A mode that records one forward pass: which operations each one uses, and which module calls it."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self.names = {id(m): name for name, m in model.named_modules()}
        self.open: list[nn.Module] = []  # the modules whose code is running, the innermost last
        self.operations: list[Operation] = []
        self.calls: list[ModuleCall] = []
        self.uses: dict[str, list[int]] = {}  # of parameters: the operations that compute with them
        self.outputs: set[int | None] = set()  # operations whose values the model returns
        self._numbers: list[int | None] = []  # of what was seen; moving a parameter is no operation
        self._effects: list[int] = []  # operations that matter even if nobody looks at their values
        self._at: Any = WeakIdKeyDictionary()
        self._names: Any = WeakIdKeyDictionary()
        for name, p in reversed(list(model.named_parameters())):
            self._names[p] = name
        self._owners = {p.untyped_storage().data_ptr(): name for name, p in model.named_parameters()}
        self._open_calls: list[int] = []  # the numbers of calls that have not ended

    def run(self, example: Example) -> list[Tensor]:
        """Call the model: the tensors of its output. Its inputs are operations, too, without inputs."""
        for given in tensors(example.args, dict(example.options)):
            self._add(None, False, [], [], [given])
        hooks = [
            register_module_forward_pre_hook(self._enter),
            register_module_forward_hook(self._leave, always_call=True),
        ]
        try:
            with fork_generators(), torch.no_grad(), plain_kernels(), self:
                output = list(tensors_in(example.call(self.model)))
        except ArgumentError:
            raise
        except Exception as error:  # whatever the model does with an input that does not suit it
            config, missing = getattr(self.model, "config", None), ""
            if example.unlabelled and getattr(config, "is_encoder_decoder", False):
                missing = (
                    ". Its labels were left out: a model that makes its decoder's inputs of them needs those "
                    "in the batch, such as decoder_input_ids"
                )
            if example.paired and "required positional argument" in str(error):
                missing = (
                    ". The batch is a pair, which is always inputs and targets: two inputs are a dict of "
                    "keyword arguments, or ((first, second), None)"
                )
            raise ArgumentError(
                f"the model cannot be run on the example: {first_line(error)}{missing}"
            ) from error
        finally:
            for hook in hooks:
                hook.remove()
        self.outputs = {self._at.get(t) for t in output}
        return output

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Arguments = (), kwargs: Options | None = None
    ) -> Any:
        options = dict(kwargs or {})
        if func._schema.is_mutable and args and isinstance(args[0], Tensor):
            self._refuse_changed_parameters(args[0])
        out = func(*args, **options)
        self.on_operation(func, args, options, out)
        return out

    def _refuse_changed_parameters(self, target: Tensor) -> None:
        address = target.untyped_storage().data_ptr()
        if address and address in self._owners:
            raise ArgumentError(
                f"the model's forward() changes its parameter {self._owners[address]!r} in place: it cannot "
                "be run on an example without a change of its weights"
            )

    def on_operation(self, func: Any, args: Arguments, options: Options, out: Any) -> None:
        """Record an operation of ATen, with its arguments and its result."""
        given = tensors(args, options)
        named = [self._names.get(t) for t in given]
        operations = [self._at.get(t) for t in given]
        results = tensors(out)
        is_move = func.is_view or func.overloadpacket in MOVES
        if is_move and named and named[0] is not None and operations[0] is None:
            self._numbers.append(None)
            for result in results:
                self._names[result] = named[0]  # still the parameter
            return
        self._numbers.append(len(self.operations))
        # What else shares memory that was written to is not known, nor what Python does with a number. All
        # operations of a recurrent layer are one, whichever are needed.
        recurrent = any(isinstance(module, nn.RNNBase) for module in self.open)
        if func._schema.is_mutable or not results or recurrent:
            self._effects.append(len(self.operations))
        self._add(func.overloadpacket, is_move, [s for s in operations if s is not None], named, results)

    def needed(self) -> set[int]:
        """The numbers of the operations that the output needs.

        Others are for nothing, such as the mean over heads of attention weights that nobody looks at. What
        they do with units does not matter.
        """
        needed = 0  # operations, as bits
        for operation in (*self.outputs, *self._effects):
            needed |= 0 if operation is None else self.operations[operation].ancestors | 1 << operation
        return {
            n for n, operation in enumerate(self._numbers) if operation is None or needed >> operation & 1
        }

    def _add(
        self, kind: Any, is_move: bool, inputs: list[int], named: list[str | None], results: list[Tensor]
    ) -> None:
        own = tuple(name for name in named if name is not None)
        number, ancestors = len(self.operations), 0
        for name in own:
            self.uses.setdefault(name, []).append(number)
        for i in inputs:
            ancestors |= self.operations[i].ancestors | (1 << i)
            self.operations[i].users.append(number)
        first = self.operations[inputs[0]].last_weights if inputs else ()
        if kind in WEIGHTED or (kind in PRODUCTS and own):
            last_weights = own
        elif kind in SUMS:
            last_weights = (*first, *own) if len(inputs) == 1 and own and first else ()
        elif is_move or kind in ZERO_STAYS or kind in PRODUCTS:
            last_weights = first
        else:
            last_weights = ()
        self.operations.append(Operation(ancestors, inputs, kind, is_move, last_weights))
        for result in results:
            self._at[result] = number

    def _enter(self, module: nn.Module, inputs: Any) -> None:
        self.open.append(module)
        outer = self._open_calls[-1] if self._open_calls else None
        self._open_calls.append(len(self.calls))
        self.calls.append(ModuleCall(self.names.get(id(module), ""), len(self.operations), outer=outer))

    def _leave(self, module: nn.Module, inputs: Any, output: Any) -> None:
        self.open.pop()
        call = self.calls[self._open_calls.pop()]
        call.last = len(self.operations)
        first = output[0] if isinstance(output, tuple) and output else output
        if not isinstance(output, Tensor):
            call.tuple_size = len(output) if isinstance(output, tuple) else 1
        call.output = self._at.get(first) if isinstance(first, Tensor) else None
