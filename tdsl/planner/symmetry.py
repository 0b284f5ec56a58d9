"""`Symmetry`: strategies that differ in the order of equal axes of a grid have the same prices."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field

from tdsl.placement.grid import Grid
from tdsl.placement.notation import Blocks, Entry, Placement
from tdsl.planner.strategies import Strategy, blocks_by_order


@dataclass(slots=True)
class Symmetry:
    """The axes of a grid that may be exchanged: those of one level that have equal sizes.

    An exchange renames ranks, so that the busiest rank receives as much as before.
    """

    grid: Grid
    _equal: list[tuple[int, ...]] = field(init=False)
    _kept: list[tuple[Placement, ...]] = field(default_factory=list)  # whose identity is part of a key
    _numbers: dict[object, tuple[int, ...] | None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        groups: dict[object, list[int]] = {}
        first = 0
        for level, depth in enumerate(self.grid.depths):
            for n in range(first, first + depth):
                groups.setdefault((level, self.grid.shape[n]), []).append(n)
            first += depth
        self._equal = [tuple(group) for group in groups.values()]

    def ordered(self, strategy: Strategy) -> Strategy:
        """The strategy whose equal axes are sorted by what they distribute."""
        return Strategy(strategy.definition, tuple(strategy.axes[n] for n in self._sorted(strategy)))

    def order(self, first: Strategy, second: Strategy) -> tuple[int, ...] | None:
        """For each axis of a strategy that of another one, which differs in the order of equal axes only.

        None if the axes of one variable have another order: blocks are nested in the order of axes.
        """
        order = list(range(len(first.axes)))
        for a, b in zip(self._sorted(first), self._sorted(second), strict=True):
            order[a] = b
        pairs = itertools.combinations(zip(first.axes, order, strict=True), 2)
        kept = all(x != y or x == "*" or n < m for (x, n), (y, m) in pairs)
        return tuple(order) if kept else None

    def _sorted(self, strategy: Strategy) -> list[int]:
        order = list(range(len(strategy.axes)))
        for group in self._equal:
            ordered = sorted(group, key=lambda n: _rank(strategy.axes[n]))
            for n, axis in zip(group, ordered, strict=True):
                order[n] = axis
        return order

    def numbers(self, placements: tuple[Placement, ...], order: tuple[int, ...]) -> tuple[int, ...] | None:
        """The number of each placement after its axes are put in an order; None if one is not in the list."""
        key = id(placements), order
        if key not in self._numbers:
            self._kept.append(placements)
            known = {p.entries: n for n, p in enumerate(placements)}
            moved = [known.get(_reordered(p, order)) for p in placements]
            present = tuple(n for n in moved if n is not None)
            self._numbers[key] = present if len(present) == len(moved) else None
        return self._numbers[key]


def _rank(x: object) -> tuple[str, ...]:
    return tuple(sorted(x)) if isinstance(x, frozenset) else ("", str(x))


def _reordered(p: Placement, order: Sequence[int]) -> tuple[Entry, ...]:
    """The entries of a placement whose axes are put in an order; dimensions are cut as before."""
    new = {axis: n for n, axis in enumerate(order)}
    entries: list[Entry] = [p.entries[axis] for axis in order]
    for dim in range(len(p.dims)):
        for n, block in blocks_by_order(dim, tuple(new[axis] for axis in p.axes_of(dim))):
            old = p.entries[order[n]]
            assert isinstance(old, Blocks), "an axis that cuts a dimension has blocks"
            entries[n] = Blocks(block.dim, block.level, old.size)
    return tuple(entries)
