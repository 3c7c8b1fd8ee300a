"""What the server does with the gradient estimate h of a round: SGD, momentum, Adam.

SGD is the method that theory speaks of. The others remember vectors as long as x; all of their state
is in `arrays`, so that a checkpoint continues bit for bit.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from mast.distributed.messages import Values
from mast.errors import ArgumentError
from mast.support.checks import Indices, check_number, check_positive

EXAMPLES = "sgd, momentum, momentum:0.9, adam, adam:0.9:0.999"


@dataclass
class Optimizer:
    """x <- x - step_size * direction(h): `sgd`, `momentum` and `adam` make one.

    Attributes
    ----------
    name, numbers : how it is spelled.
    update : ``update(x, h, step_size, t, **arrays)`` changes x and the arrays; it may overwrite h.
    memory : the names of the vectors that it remembers, which are 0 at first.
    plain : x <- x - step_size h and nothing else, so that each answer can be subtracted as it comes.
    arrays : these vectors.
    """

    name: str
    update: Callable[..., None]
    numbers: tuple[float, ...] = ()
    memory: tuple[str, ...] = ()
    plain: bool = False
    arrays: dict[str, Values] = field(default_factory=dict)

    @property
    def label(self) -> str:
        """How it is spelled, with its numbers."""
        return ":".join([self.name, *map(repr, self.numbers)])

    def start(self, x: Values) -> None:
        """Make the memory for a vector like x."""
        self.arrays = {name: np.zeros_like(x) for name in self.memory}

    def step(self, x: Values, h: Values, step_size: float, t: int) -> None:
        """Change x; t counts from 0. `h` may be overwritten."""
        self.update(x, h, step_size, t, **self.arrays)

    def step_at(self, places: Indices, x: Values, h: Values, step_size: float, t: int) -> None:
        """The same at some coordinates, of which h is made: the others, and what is remembered of them, stay.

        >>> x, optimizer = np.zeros(3), sgd()
        >>> optimizer.step_at(np.array([0, 2]), x, np.array([1.0, 2.0]), 0.5, 0)
        >>> x
        array([-0.5,  0. , -1. ])
        """
        whole = {"x": x, **self.arrays}
        some = {name: array[places] for name, array in whole.items()}
        self.update(h=h, step_size=step_size, t=t, **some)
        for name, array in whole.items():
            array[places] = some[name]


def sgd() -> Optimizer:
    """x <- x - g h."""

    def update(x: Values, h: Values, step_size: float, t: int) -> None:
        h *= x.dtype.type(step_size)
        x -= h

    return Optimizer("sgd", update, plain=True)


def momentum(beta: float = 0.9) -> Optimizer:
    """m <- beta m + h, x <- x - g m (Polyak's heavy ball, as torch.optim.SGD has it).

    >>> x, optimizer = np.zeros(1), momentum(0.5)
    >>> optimizer.start(x)
    >>> for t in range(2):
    ...     optimizer.step(x, np.array([1.0]), 0.1, t)
    >>> x
    array([-0.25])
    """
    beta = check_number("momentum's beta", beta, least=0, below=1)

    def update(x: Values, h: Values, step_size: float, t: int, m: Values) -> None:
        m *= x.dtype.type(beta)
        m += h
        np.multiply(m, x.dtype.type(step_size), out=h)
        x -= h

    return Optimizer("momentum", update, (beta,), ("m",))


def adam(beta1: float = 0.9, beta2: float = 0.999, epsilon: float = 1e-8) -> Optimizer:
    """Adam (Kingma and Ba, 2015) with its bias correction, as torch.optim.Adam has it.

    >>> x, optimizer = np.zeros(2), adam()
    >>> optimizer.start(x)
    >>> optimizer.step(x, np.array([3.0, -5.0]), 0.1, 0)
    >>> x.round(6)
    array([-0.1,  0.1])
    """
    beta1, beta2 = (check_number("adam's beta", beta, least=0, below=1) for beta in (beta1, beta2))
    epsilon = check_positive("adam's epsilon", epsilon)

    def update(x: Values, h: Values, step_size: float, t: int, m: Values, s: Values) -> None:
        number = x.dtype.type  # plain floats would widen float32
        m *= number(beta1)
        m += number(1 - beta1) * h
        s *= number(beta2)
        h *= h
        h *= number(1 - beta2)
        s += h
        np.sqrt(s, out=h)
        h /= number(math.sqrt(1 - beta2 ** (t + 1)))
        h += number(epsilon)
        np.divide(m, h, out=h)
        h *= number(step_size / (1 - beta1 ** (t + 1)))
        x -= h

    return Optimizer("adam", update, (beta1, beta2, epsilon), ("m", "s"))


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
    known: dict[str, Callable[..., Optimizer]] = {"sgd": sgd, "momentum": momentum, "adam": adam}
    try:
        return known[name](*numbers)
    except (KeyError, TypeError):  # no such name, or too many numbers
        raise ArgumentError(f"unknown server optimizer {text!r}; examples are {EXAMPLES}") from None
