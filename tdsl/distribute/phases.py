"""Reductions level by level of a grid: first inside of each node, then over nodes.

    reduce            to one rank of each node, then to one of these
    reduce-scatter    inside of a node to those with whatever the ranks in the same place of all nodes get
    all-reduce        shared out inside of a node, all-reduced over nodes part by part, gathered in the node

What a rank receives is the same, up to what is left over where parts are uneven; over nodes goes less of it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from tdsl.distribute.collective import Gather
from tdsl.distribute.steps import Reduce
from tdsl.placement.grid import Coordinates, Grid
from tdsl.placement.ownership import Box, block
from tdsl.placement.spans import count, united

Phases = list[Reduce | Gather]


def phases(grid: Grid, group: Reduce, at: Coordinates) -> Phases:
    """The collectives of a reduction that a rank takes part in; one where it is not more than that."""
    members = [grid.coordinates(rank) for rank in group.ranks]
    free = [n for n in range(len(at)) if len({c[n] for c in members}) > 1]
    inner = _innermost(grid, free)
    if len(inner) == len(free) or math.prod(grid.shape[n] for n in free) > len(members):
        return [group]
    outer = [n for n in free if n not in inner]
    node = [c for c in members if all(c[n] == at[n] for n in outer)]
    across = [c for c in members if all(c[n] == at[n] for n in inner)]
    within = replace(group, ranks=tuple(map(grid.rank, node)))
    over = replace(group, ranks=tuple(map(grid.rank, across)))
    match group.collective:
        case "reduce":
            return _reduced(grid, group, within, over, at, inner)
        case "all-reduce":
            return _all_reduced(grid, within, over, at)
        case _:
            return _scattered(grid, group, within, over, at, inner)


def _innermost(grid: Grid, free: Sequence[int]) -> list[int]:
    """Those of some axes that belong to the innermost level with any of them."""
    last = len(grid.shape)
    for depth in reversed(grid.depths):
        found = [n for n in free if last - depth <= n < last]
        last -= depth
        if found:
            return found
    return []


def _reduced(
    grid: Grid, group: Reduce, within: Reduce, over: Reduce, at: Coordinates, inner: list[int]
) -> Phases:
    """To the ranks of all nodes that stand in their nodes where the one does that gets all."""
    root = next(grid.coordinates(r) for r, part in _parts(group) if part is not None)
    first = grid.rank(root[n] if n in inner else p for n, p in enumerate(at))
    found: Phases = [
        replace(within, parts=tuple(group.box if r == first else None for r in within.ranks))
    ]
    if first == grid.rank(at):
        whole = dict(_parts(group))
        found += phases(grid, replace(over, parts=tuple(whole[r] for r in over.ranks)), at)
    return found


def _all_reduced(grid: Grid, within: Reduce, over: Reduce, at: Coordinates) -> Phases:
    """Each rank of a node gets a part of the box, that of all nodes, and then the others' parts."""
    box, members = within.box, len(within.ranks)
    longest = max(range(len(box)), key=lambda n: count(box[n]), default=None)
    if longest is None:  # a scalar: one for each node, then for all, then for all of the node
        cut: list[Box | None] = [box, *[None] * (members - 1)]
    else:
        spans = [block(box[longest], members, n) for n in range(members)]
        cut = [(*box[:longest], s, *box[longest + 1 :]) if s[0] < s[1] else None for s in spans]
    mine = cut[within.ranks.index(grid.rank(at))]
    found: Phases = [replace(within, parts=tuple(cut))]
    if mine is not None:
        found += phases(grid, replace(over, box=mine, parts=(mine,) * len(over.ranks)), at)
    parts = tuple((r, p) for r, p in zip(within.ranks, cut, strict=True) if p is not None)
    kind = "all-gather" if len(parts) > 1 else "broadcast"
    return [*found, Gather(kind, within.ranks, parts)]


def _scattered(
    grid: Grid, group: Reduce, within: Reduce, over: Reduce, at: Coordinates, inner: list[int]
) -> Phases:
    """Each rank of a node gets what all ranks get that stand in their nodes where it does."""
    whole = dict(_parts(group))
    made: list[Box] = []
    for rank in within.ranks:
        place = [grid.coordinates(rank)[n] for n in inner]
        alike = [r for r in group.ranks if [grid.coordinates(r)[n] for n in inner] == place]
        boxes = [box for r in alike if (box := whole[r]) is not None]
        spans = (
            [united(own) for own in zip(*boxes, strict=True)] if len(boxes) == len(alike) else []
        )
        box = tuple(span for span in spans if span is not None)
        sizes = sum(math.prod(map(count, own)) for own in boxes)
        if not boxes or len(box) < len(boxes[0]) or math.prod(map(count, box)) != sizes:
            return [group]
        made.append(box)
    mine = made[within.ranks.index(grid.rank(at))]
    rest = replace(over, box=mine, parts=tuple(whole[r] for r in over.ranks))
    return [replace(within, parts=tuple(made)), *phases(grid, rest, at)]


def _parts(group: Reduce) -> list[tuple[int, Box | None]]:
    return list(zip(group.ranks, group.parts, strict=True))
