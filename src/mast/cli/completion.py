"""What a shell offers behind an argument: names of experiments, data sets and sketches."""

from __future__ import annotations

from collections.abc import Iterable


def experiments(incomplete: str) -> list[str]:
    """Experiments, and groups of them.

    >>> experiments("ac"), experiments("conv")
    (['accuracy'], ['convex'])
    """
    from mast.experiments.catalogue import EXPERIMENTS, GROUPS

    return _beginning((*EXPERIMENTS, *GROUPS), incomplete)


def data_sets(incomplete: str) -> list[str]:
    """Data sets that are known by name.

    >>> data_sets("a1")
    ['a1a', 'a1a.t']
    """
    from mast.data import SETS

    return _beginning(SETS, incomplete)


def sketches(incomplete: str) -> list[str]:
    """Names of sketches, with the colon that numbers follow.

    >>> sketches("b"), sketches("p")
    (['bernoulli:'], ['permk:'])
    """
    from mast.sketches.parsing import FORMS

    return _beginning(dict.fromkeys(f"{name}:" if values else name for name, values in FORMS), incomplete)


def _beginning(names: Iterable[str], incomplete: str) -> list[str]:
    return [name for name in names if name.startswith(incomplete)]
