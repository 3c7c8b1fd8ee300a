"""Perm-K: the coordinates are cut into K blocks and one block survives. Across nodes the blocks are disjoint.

K nodes at one step get the K blocks of one partition, each node a different one: this
is independent subnetwork training. Each node by itself sees an unbiased sketch.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mast import randomness
from mast.errors import ArgumentError
from mast.randomness import Key, Purpose
from mast.sketches.base import Sketch, percent
from mast.sketches.constants import Constants
from mast.sketches.draws import DiagonalDraw, Draw, equal_scales
from mast.sketches.laws import Law, SubsetLaw
from mast.support.checks import Indices, check_int, check_list, frozen, refuse_too_large

_NOTHING: Indices = frozen(np.empty(0, dtype=np.int64))  # an empty block


class PermK(Sketch):
    """Keep one of K blocks, uniformly, times K.

    The K nodes of a group share a partition. Over the units of a network every layer has a bijection of its
    own: the K members are disjoint in every layer, and training meets other combinations of blocks too.
    ``Sampled(PermK(K), K)`` is the list of K networks, and no others.

    Parameters
    ----------
    k
        The number of blocks. Their sizes are those of `numpy.array_split`; with k > d some are empty.
    seed
        Decides the partition, unless it is redrawn.
    blocks
        The partition itself, as lists of coordinates that cover 0 .. d-1 exactly once.
    redraw
        A new partition in each draw (its seed is then the draw's).

    >>> import mast
    >>> mast.PermK(5).constants(10)
    Constants(L_D=5.0, mu_D=5.0, L_max=25.0)
    >>> half = mast.PermK(blocks=[[0, 1], [2, 3]])
    >>> half.draw(4, step=0, node=0).diagonal(), half.draw(4, step=0, node=1).diagonal()
    (array([0., 0., 2., 2.]), array([2., 2., 0., 0.]))
    """

    def __init__(
        self,
        k: int | None = None,
        seed: int = 0,
        *,
        blocks: Sequence[ArrayLike] | None = None,
        redraw: bool = False,
    ) -> None:
        if (k is None) == (blocks is None):
            raise ArgumentError("PermK takes either the number of blocks k or the blocks themselves")
        if blocks is not None and (redraw or seed != 0):
            raise ArgumentError("PermK with given blocks has one fixed partition: no seed, no redraw")
        self.redraw = bool(redraw)
        self.seed = Key(seed).seed
        self.blocks = None if blocks is None else checked_blocks(blocks)
        self.k = check_int("PermK's k", k) if k is not None else len(self.blocks or [])
        if self.k < 1:
            raise ArgumentError(f"PermK has at least one block, got k = {self.k}")
        self.fixed_dim = None if self.blocks is None else sum(map(len, self.blocks))
        self.members, self.stride = None if self.redraw else self.k, self.k
        self._made: tuple[int, dict[int, NDArray[Any]]] = (0, {})  # of the last d used: number -> block

    def sample(self, d: int, key: Key) -> DiagonalDraw:
        """Node n gets block ``bijection(seed, step, n // K)[n % K]`` of the partition."""
        self.check(d)
        shared, number = self._block_of(key)
        block = self._part(d, number, shared) if self.redraw else self._block(d, number)
        scales = equal_scales(block.size, float(self.k))
        return DiagonalDraw(d, block, scales, name=self._name(d, number))

    def partition(self, d: int) -> list[Indices]:
        """The K blocks of the fixed partition."""
        self.check(d)
        if self.redraw:
            raise ArgumentError("this PermK draws a new partition each time: it has no fixed one")
        refuse_too_large(f"a list of {self.k:,} blocks", 2.0 * self.k)
        if self.blocks is None and self.k > d:
            parts = [_NOTHING] * self.k
            parts[:d] = [self._block(d, number) for number in range(d)]
            return parts
        if self.blocks is None and self.k > 1:
            order = randomness.permutation(Key(self.seed), Purpose.PARTITION, d)  # once, not block by block
            blocks = enumerate(np.array_split(order, self.k))
            self._made = (d, {i: frozen(np.sort(block).astype(_stored(d))) for i, block in blocks})
        return [self._block(d, number) for number in range(self.k)]

    def _block(self, d: int, number: int) -> Indices:
        if self.blocks is not None:
            return self.blocks[number]
        if self._made[0] != d:
            self._made = (d, {})
        made = self._made[1]
        if number not in made:
            made[number] = frozen(self._part(d, number, Key(self.seed)).astype(_stored(d), copy=False))
        return made[number].astype(np.int64, copy=False)

    def _name(self, d: int, number: int) -> tuple[PermK, int, int] | None:
        """The name of a block of a fixed partition, which all its draws share; None where there is none."""
        fixed = self.blocks is not None or (not self.redraw and _stored(d) is np.int64)
        return (self, d, number) if fixed else None

    def _part(self, d: int, number: int, key: Key) -> Indices:
        """Block `number` of the partition that `key` names, made without the other blocks."""
        small, larger = divmod(d, self.k)
        start = number * small + min(number, larger)
        stop = start + small + (number < larger)
        block = randomness.permutation(key, Purpose.PARTITION, d, start, stop)
        block.sort()
        return block

    def outcomes(self, d: int) -> Iterable[tuple[float, Draw]] | None:
        """The K blocks, the same arrays that draws have; or all subsets of a block's size."""
        return super().outcomes(d) if self.redraw else self._each_block(d)

    def _each_block(self, d: int) -> Iterator[tuple[float, Draw]]:
        for number, block in enumerate(self.partition(d)):
            scales = np.full(block.size, float(self.k))
            yield 1 / self.k, DiagonalDraw(d, block, scales, name=self._name(d, number))

    def member_of(self, key: Key) -> int:
        """The number of the block that `key` gets."""
        return self._block_of(key)[1]

    def _block_of(self, key: Key) -> tuple[Key, int]:
        """The key that the nodes of a group share, and the number of this one's block."""
        group, position = divmod(key.node, self.k)
        shared = Key(key.seed, key.step, group, key.index)
        return shared, randomness.permuted(shared, Purpose.BLOCK, self.k, position)

    def same_partition(self, other: Sketch) -> bool:
        """Whether nodes with this sketch and nodes with the other get blocks of the same partition."""
        if not isinstance(other, PermK) or (self.k, self.redraw) != (other.k, other.redraw):
            return False
        if self.blocks is None or other.blocks is None:
            return self.blocks is other.blocks and (self.redraw or self.seed == other.seed)
        return all(np.array_equal(a, b) for a, b in zip(self.blocks, other.blocks, strict=True))

    def law(self, d: int) -> Law:
        """One of K blocks; or, redrawn, a subset of a block's size."""
        if self.redraw:
            return SubsetLaw.of(d, d, self._sizes(d))
        self.check(d)
        return SubsetLaw.of(d, self.k, {1: 1}, labels=lambda: self._labels(d))

    def constants(self, d: int) -> Constants:
        """K, K and K²."""
        self.check(d)
        return Constants(float(self.k), float(self.k), float(self.k) ** 2)

    def separable(self, d: int) -> tuple[Indices, int] | None:
        """The block of each coordinate, and K."""
        return super().separable(d) if self.redraw else (self._labels(self.check(d)), self.k)

    def _labels(self, d: int) -> Indices:
        """The number of the block that each coordinate is in; that costs d, however many blocks are empty."""
        if self.blocks is not None or self.k <= d:
            return labels_of(self.partition(d))
        labels = np.empty(d, dtype=np.int64)
        labels[randomness.permutation(Key(self.seed), Purpose.PARTITION, d)] = np.arange(d)
        return labels

    def _at(self, density: float) -> Sketch:
        k = round(1 / density)
        if self.blocks is not None or abs(1 / density - k) > 1e-9:
            return super()._at(density)
        return PermK(k, 0 if self.redraw else self.seed, redraw=self.redraw)

    def arguments(self) -> dict[str, Any]:
        """The blocks, or what they are made from."""
        if self.blocks is not None:
            return {"blocks": self.blocks}
        return {"k": self.k, "seed": self.seed, "redraw": self.redraw}

    def _sizes(self, d: int) -> Counter[int]:
        """How many blocks there are of each size."""
        small, larger = divmod(d, self.k)
        return Counter({small: self.k - larger, small + 1: larger} if larger else {small: self.k})

    def label(self) -> str:
        """How many blocks, and where they come from."""
        how = "given blocks" if self.blocks is not None else "redrawn" if self.redraw else f"seed={self.seed}"
        return f"PermK({self.k}, {how}): keeps {percent(1 / self.k)}, one of {self.k} blocks"


def _stored(d: int) -> type[np.signedinteger[Any]]:
    """The type in which blocks are remembered: those of a large network would else dwarf its weights."""
    return np.int32 if 1 << 20 <= d < 1 << 31 else np.int64


def labels_of(blocks: Sequence[Indices]) -> Indices:
    """The number of the block that each coordinate is in."""
    labels = np.empty(sum(map(len, blocks)), dtype=np.int64)
    for number, block in enumerate(blocks):
        labels[block] = number
    return labels


def checked_blocks(blocks: Sequence[ArrayLike]) -> list[Indices]:
    """The blocks as sorted index arrays, if they cover 0 .. d-1 exactly once."""
    checked = []
    for number, block in enumerate(check_list("blocks", blocks)):
        array = np.asarray(block)
        if array.ndim != 1 or (array.size and not np.issubdtype(array.dtype, np.integer)):
            raise ArgumentError(f"block {number} must be a list of coordinates (whole numbers)")
        checked.append(frozen(np.sort(array.astype(np.int64))))
    covered = np.sort(np.concatenate(checked)) if checked else np.empty(0, dtype=np.int64)
    if covered.size == 0:
        raise ArgumentError("the blocks hold no coordinates")
    twice = covered[:-1][np.diff(covered) == 0]
    if twice.size:
        raise ArgumentError(f"the blocks overlap: coordinate {twice[0]} is in more than one place")
    if covered[0] < 0:
        raise ArgumentError(f"the blocks hold a negative coordinate, {covered[0]}")
    if covered[-1] != covered.size - 1:
        absent = int(np.flatnonzero(covered != np.arange(covered.size))[0])
        raise ArgumentError(f"the blocks must cover 0 .. {covered[-1]} exactly once, but {absent} is in none")
    return checked
