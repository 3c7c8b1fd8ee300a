"""Activation checkpointing: which modules might go wrong with it.

A checkpointed function is run again during backward(). Modules that it calls find the same y as before,
because every call of a module is watched. A parameter that the function reads by itself (``self.weight``)
is x by then: the gradient would be wrong without a sign of it, so modules that might do this are named
in a warning.
"""

from __future__ import annotations

import inspect
import warnings

from torch import nn


def uses_checkpoints(module: nn.Module) -> bool:
    """Whether the module's own code, or a flag it carries, speaks of checkpoints."""
    return bool(getattr(module, "gradient_checkpointing", False)) or _in_source(type(module))


def reads_itself(module: nn.Module, sketched: set[int]) -> bool:
    """Whether the module owns a sketched parameter, which its code may read inside a checkpoint."""
    return any(id(p) in sketched for p in module._parameters.values() if p is not None)


def warn_of_checkpoints(model: nn.Module, sketched: set[int]) -> None:
    """One warning for each module whose checkpoints may read sketched parameters themselves."""
    for name, module in model.named_modules():
        if reads_itself(module, sketched) and _in_source(type(module)):
            warnings.warn(
                f"{name or 'the model'} ({type(module).__name__}) uses activation checkpointing and owns "
                "sketched parameters. If the checkpointed function reads them itself (self.weight), its "
                "recomputation sees x instead of y: let it call a module, leave them out with keep= or "
                "where=, or train with sk.sample(step)",
                stacklevel=4,
            )


def _in_source(kind: type[nn.Module]) -> bool:
    if kind.__module__.startswith(("torch.", "transformers.")):
        return False
    try:
        return "checkpoint(" in inspect.getsource(kind)
    except (OSError, TypeError):
        return False
