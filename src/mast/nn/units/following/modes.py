"""Running a model on an example in a mode that sees each of its operations."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

from mast.errors import ArgumentError
from mast.nn.tensors.torch_private import OperationMode, plain_kernels, same_numbers_after, tree_leaves
from mast.nn.units.following.examples import Example, first_line, tensors_in

Arguments = tuple[Any, ...]
Options = Mapping[str, Any]


class ForwardPass(OperationMode):
    """A mode that is shown the operations of one forward pass, and knows which module calls them."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self.names = {id(m): name for name, m in model.named_modules()}
        self.open: list[nn.Module] = []  # the modules whose code is running, the innermost last
        self._owners = {p.untyped_storage().data_ptr(): name for name, p in model.named_parameters()}

    def run(self, example: Example) -> list[Tensor]:
        """Call the model: the tensors of its output."""
        hooks = [
            register_module_forward_pre_hook(self.enter),
            register_module_forward_hook(self.leave, always_call=True),
        ]
        try:
            with same_numbers_after(), torch.no_grad(), plain_kernels(), self:
                return list(tensors_in(example.call(self.model)))
        except ArgumentError:
            raise
        except Exception as error:  # whatever the model does with an input that does not suit it
            raise ArgumentError(f"the model cannot be run on the example: {first_line(error)}") from error
        finally:
            for hook in hooks:
                hook.remove()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Arguments = (), kwargs: Options | None = None
    ) -> Any:
        """Run the operation, and look at it."""
        options = dict(kwargs or {})
        if func._schema.is_mutable and args and isinstance(args[0], Tensor):
            self._refuse_changed_parameters(args[0])
        out = func(*args, **options)
        self.see(func, args, options, out)
        return out

    def see(self, func: Any, args: Arguments, options: Options, out: Any) -> None:
        """An operation and its result."""
        raise NotImplementedError

    def enter(self, module: nn.Module, inputs: Any) -> None:
        """A module is called."""
        self.open.append(module)

    def leave(self, module: nn.Module, inputs: Any, output: Any) -> None:
        """It has returned."""
        self.open.pop()

    def _refuse_changed_parameters(self, target: Tensor) -> None:
        address = target.untyped_storage().data_ptr()
        if address and address in self._owners:
            raise ArgumentError(
                f"the model's forward() changes its parameter {self._owners[address]!r} in place: it cannot "
                "be run on an example without a change of its weights"
            )


def tensors(*of: Any) -> list[Tensor]:
    """The tensors among arguments or results, also in lists."""
    return [leaf for leaf in tree_leaves(of) if isinstance(leaf, Tensor)]
