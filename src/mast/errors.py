"""What can go wrong, by name. Every exception MAST raises on purpose is a `MastError`.

The classes also derive from the built-in exception a Python user would expect
(`ValueError`, `ArithmeticError`, ...), so `except ValueError` keeps working.
"""

from __future__ import annotations

import importlib
from typing import Any


class MastError(Exception):
    """Base of all errors that MAST raises on purpose."""


class ArgumentError(MastError, ValueError):
    """An argument has a wrong value, shape or type."""


class InUseError(ArgumentError):
    """Another process, or another run of this one, is at work on the same file or folder."""


class BiasedSketchError(MastError, ValueError):
    """A statement needs E[S] = I, and this sketch does not have it."""


class NotDiagonalError(MastError, TypeError, AttributeError):
    """Something that only diagonal sketches have was asked of one that is not."""


class SupportTooLargeError(MastError, ValueError):
    """The support is finite but too large to list; the message names its size."""


class NotExactError(MastError, ValueError):
    """No exact form of f_D is known for this pair of objective and sketch."""


class UnboundedError(MastError, ArithmeticError):
    """The function has no minimiser: it decreases for ever, or its infimum is not reached."""


class ConvergenceError(MastError, ArithmeticError):
    """A numerical method stopped before it reached the accuracy it promises."""


class NoGuaranteeError(MastError, ValueError):
    """No theorem covers this case; the message says what would."""


class DataError(MastError, ValueError):
    """A data file or array is damaged, or holds NaN or infinity."""


class MissingExtraError(MastError, ImportError):
    """A part of MAST needs an optional package; the message says how to install it."""


def optional_module(name: str, user: str, extra: str) -> Any:
    """A module of an optional package; an error that says how to install it if it is not there."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise MissingExtraError(f'{user}: pip install "mast-train[{extra}]"') from error


class CheckpointError(MastError, ValueError):
    """A checkpoint cannot be used: it belongs to another run, or to another version."""


class StepSizeWarning(UserWarning):
    """The step size is above what theory allows; the run goes on without a guarantee."""
