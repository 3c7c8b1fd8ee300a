"""What the server does with the gradient estimate h of a round: SGD, momentum, Adam.

SGD is the method that theory speaks of. The others remember vectors as long as x; all of their state
is in `arrays`, so that a checkpoint continues bit for bit.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import ClassVar

import numpy as np

from mast.distributed.messages import Values
from mast.errors import ArgumentError
from mast.support.checks import Indices, check_number, check_positive

EXAMPLES = "sgd, momentum, momentum:0.9, adam, adam:0.9:0.999"


class Optimizer(ABC):
    """x <- x - step_size * direction(h)."""

    name: ClassVar[str]
    #: x <- x - step_size h and nothing else, so that each answer can be subtracted as it comes
    plain: ClassVar[bool] = False
    #: the names of the vectors that it remembers, which are 0 at first
    memory: ClassVar[tuple[str, ...]] = ()

    def __init__(self) -> None:
        self.numbers: tuple[float, ...] = ()
        self.arrays: dict[str, Values] = {}

    def start(self, x: Values) -> None:
        """Make the memory for a vector like x."""
        self.arrays = {name: np.zeros_like(x) for name in self.memory}

    @abstractmethod
    def step(self, x: Values, h: Values, step_size: float, t: int) -> None:
        """Change x; t counts from 0. `h` may be overwritten."""

    def step_at(self, places: Indices, x: Values, h: Values, step_size: float, t: int) -> None:
        """The same at some coordinates, of which h is made: the others, and what is remembered of them, stay.

        >>> x, optimizer = np.zeros(3), SGD()
        >>> optimizer.step_at(np.array([0, 2]), x, np.array([1.0, 2.0]), 0.5, 0)
        >>> x
        array([-0.5,  0. , -1. ])
        """
        if places.size == x.size:
            self.step(x, h, step_size, t)
            return
        some, arrays = x[places], self.arrays
        self.arrays = {name: array[places] for name, array in arrays.items()}
        self.step(some, h, step_size, t)
        x[places] = some
        for name, array in arrays.items():
            array[places] = self.arrays[name]
        self.arrays = arrays

    @property
    def label(self) -> str:
        """How it is spelled, with its numbers."""
        return ":".join([self.name, *map(repr, self.numbers)])


class SGD(Optimizer):
    """x <- x - g h."""

    name = "sgd"
    plain = True

    def step(self, x: Values, h: Values, step_size: float, t: int) -> None:
        """One step."""
        h *= x.dtype.type(step_size)
        x -= h


class Momentum(Optimizer):
    """m <- beta m + h, x <- x - g m (Polyak's heavy ball, as torch.optim.SGD has it).

    >>> x, optimizer = np.zeros(1), Momentum(0.5)
    >>> optimizer.start(x)
    >>> for t in range(2):
    ...     optimizer.step(x, np.array([1.0]), 0.1, t)
    >>> x
    array([-0.25])
    """

    name = "momentum"
    memory = ("m",)

    def __init__(self, beta: float = 0.9) -> None:
        super().__init__()
        self.numbers = (check_number("momentum's beta", beta, least=0, below=1),)

    def step(self, x: Values, h: Values, step_size: float, t: int) -> None:
        """One step."""
        from mast.distributed import kernels

        kind = x.dtype.type
        kernels.momentum(x, h, self.arrays["m"], kind(self.numbers[0]), kind(step_size))


class Adam(Optimizer):
    """Adam (Kingma and Ba, 2015) with its bias correction, as torch.optim.Adam has it.

    >>> x, optimizer = np.zeros(2), Adam()
    >>> optimizer.start(x)
    >>> optimizer.step(x, np.array([3.0, -5.0]), 0.1, 0)
    >>> x.round(6)
    array([-0.1,  0.1])
    """

    name = "adam"
    memory = ("m", "s")

    def __init__(self, beta1: float = 0.9, beta2: float = 0.999, epsilon: float = 1e-8) -> None:
        super().__init__()
        betas = [check_number("adam's beta", beta, least=0, below=1) for beta in (beta1, beta2)]
        self.numbers = (*betas, check_positive("adam's epsilon", epsilon))

    def step(self, x: Values, h: Values, step_size: float, t: int) -> None:
        """One step."""
        from mast.distributed import kernels

        beta1, beta2, epsilon = self.numbers
        root, rate = math.sqrt(1 - beta2 ** (t + 1)), step_size / (1 - beta1 ** (t + 1))
        numbers = map(x.dtype.type, (beta1, 1 - beta1, beta2, 1 - beta2, root, epsilon, rate))
        kernels.adam(x, h, self.arrays["m"], self.arrays["s"], tuple(numbers))


_KINDS: dict[str, Callable[..., Optimizer]] = {kind.name: kind for kind in (SGD, Momentum, Adam)}


def parse_optimizer(text: str | Optimizer) -> Optimizer:
    """The optimizer that a text such as ``momentum:0.9`` names.

    >>> parse_optimizer("adam:0.8").label
    'adam:0.8:0.999:1e-08'
    """
    if isinstance(text, Optimizer):
        return text
    name, *words = str(text).strip().lower().split(":")
    try:
        numbers = [float(word) for word in words]
    except ValueError:
        raise ArgumentError(f"the optimizer {text!r} has a bad number; examples are {EXAMPLES}") from None
    try:
        return _KINDS[name](*numbers)
    except (KeyError, TypeError):  # no such name, or too many numbers
        raise ArgumentError(f"unknown server optimizer {text!r}; examples are {EXAMPLES}") from None
