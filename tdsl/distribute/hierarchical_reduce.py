"""Hierarchical reductions, by the levels of a grid: first within each node, then across nodes.

    reduce            to one rank of each node, then to one of these ranks
    reduce-scatter    within a node, each rank getting the parts of its peers in all nodes; then among peers
    all-reduce        reduce-scatter within a node, all-reduce of each part across nodes, all-gather within it

Peers are the ranks with the same position in their nodes. A rank receives as many bytes as in a flat
reduction, up to the remainders of uneven parts, but fewer of them cross nodes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from tdsl.distribute.collective import Gather
from tdsl.distribute.steps import Reduce
from tdsl.placement.grid import Coordinates, Grid
from tdsl.placement.ownership import Box, block
from tdsl.placement.spans import length, union

InitBarriers = list[Reduce | Gather]


def phases(grid: Grid, group: Reduce, at: Coordinates) -> InitBarriers:
    """A reduction by levels, as steps of the rank at `at`; `[group]` for one level or no full subgrid."""
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
    """The axes among `free` of the innermost level that has any of them."""
    last = len(grid.shape)
    for depth in reversed(grid.depths):
        found = [n for n in free if last - depth <= n < last]
        last -= depth
        if found:
            return found
    return []


def _reduced(
    grid: Grid, group: Reduce, within: Reduce, over: Reduce, at: Coordinates, inner: list[int]
) -> InitBarriers:
    """A reduce within each node, to the rank with the position of the root, then across nodes to the root."""
    root = next(grid.coordinates(r) for r, part in _parts(group) if part is not None)
    first = grid.rank(root[n] if n in inner else p for n, p in enumerate(at))
    found: InitBarriers = [
        replace(within, parts=tuple(group.box if r == first else None for r in within.ranks))
    ]
    if first == grid.rank(at):
        whole = dict(_parts(group))
        found += phases(grid, replace(over, parts=tuple(whole[r] for r in over.ranks)), at)
    return found


def _all_reduced(grid: Grid, within: Reduce, over: Reduce, at: Coordinates) -> InitBarriers:
    """A reduce-scatter within the node, an all-reduce across nodes, an all-gather within the node."""
    box, members = within.box, len(within.ranks)
    longest = max(range(len(box)), key=lambda n: length(box[n]), default=None)
    if longest is None:  # a scalar: reduce in the node, all-reduce across, broadcast in it
        cut: list[Box | None] = [box, *[None] * (members - 1)]
    else:
        spans = [block(box[longest], members, n) for n in range(members)]
        cut = [(*box[:longest], s, *box[longest + 1 :]) if s[0] < s[1] else None for s in spans]
    mine = cut[within.ranks.index(grid.rank(at))]
    found: InitBarriers = [replace(within, parts=tuple(cut))]
    if mine is not None:
        found += phases(grid, replace(over, box=mine, parts=(mine,) * len(over.ranks)), at)
    parts = tuple((r, p) for r, p in zip(within.ranks, cut, strict=True) if p is not None)
    kind = "all-gather" if len(parts) > 1 else "broadcast"
    return [*found, Gather(kind, within.ranks, parts)]


def _scattered(
    grid: Grid, group: Reduce, within: Reduce, over: Reduce, at: Coordinates, inner: list[int]
) -> InitBarriers:
    """A reduce-scatter within the node, of the parts of each rank's peers, then one among peers.

    `[group]` where the parts of peers are not together a box.
    """
    whole = dict(_parts(group))
    made: list[Box] = []
    for rank in within.ranks:
        place = [grid.coordinates(rank)[n] for n in inner]
        alike = [r for r in group.ranks if [grid.coordinates(r)[n] for n in inner] == place]
        boxes = [box for r in alike if (box := whole[r]) is not None]
        spans = [union(own) for own in zip(*boxes, strict=True)] if len(boxes) == len(alike) else []
        box = tuple(span for span in spans if span is not None)
        sizes = sum(math.prod(map(length, own)) for own in boxes)
        if not boxes or len(box) < len(boxes[0]) or math.prod(map(length, box)) != sizes:
            return [group]
        made.append(box)
    mine = made[within.ranks.index(grid.rank(at))]
    rest = replace(over, box=mine, parts=tuple(whole[r] for r in over.ranks))
    return [replace(within, parts=tuple(made)), *phases(grid, rest, at)]


def _parts(group: Reduce) -> list[tuple[int, Box | None]]:
    return list(zip(group.ranks, group.parts, strict=True))
