"""Hierarchical reductions, by the levels of a grid: first within each node, then across nodes.

    reduce            to one rank of each node, then to one of these ranks
    reduce-scatter    within a node, each rank getting the parts of its peers in all nodes; then among peers
    all-reduce        reduce-scatter within a node, all-reduce of each part across nodes, all-gather within it

Peers are the ranks with the same position in their nodes. A rank receives as many bytes as in a flat
reduction, up to the remainders of uneven parts, but fewer of them cross nodes.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from tdsl.communication.collective import Gather
from tdsl.communication.steps import Reduce
from tdsl.placement.grid import Coordinates, Grid
from tdsl.placement.ownership import SpanBox, block
from tdsl.placement.spans import length, union

Phases = list[Reduce | Gather]


def hierarchical_phases(grid: Grid, reduction: Reduce, at: Coordinates) -> Phases:
    """A reduction by levels, as steps of the rank at `at`; `[reduction]` for one level or no full subgrid."""
    free, inner = _free_axes(grid, reduction.ranks)
    if len(inner) == len(free) or math.prod(grid.shape[n] for n in free) > len(reduction.ranks):
        return [reduction]
    node = _line(grid, at, inner)
    across = _line(grid, at, [n for n in free if n not in inner])
    within, over = replace(reduction, ranks=node), replace(reduction, ranks=across)
    match reduction.collective:
        case "reduce":
            return _reduce_phases(grid, reduction, within, over, at, inner)
        case "all-reduce":
            return _all_reduce_phases(grid, within, over, at)
        case _:
            return _reduce_scatter_phases(grid, reduction, within, over, at, inner)


@functools.lru_cache(maxsize=64)
def _free_axes(grid: Grid, ranks: tuple[int, ...]) -> tuple[list[int], list[int]]:
    """The axes along which some ranks differ, and those of them that belong to the innermost such level."""
    free = [n for n, c in enumerate(np.unravel_index(ranks, grid.shape)) if c.min() < c.max()]
    return free, _innermost(grid, free)


def _line(grid: Grid, at: Coordinates, axes: Sequence[int]) -> tuple[int, ...]:
    """The ranks that differ from the one at `at` along `axes` only, in their order."""
    spans = (range(size) if n in axes else (at[n],) for n, size in enumerate(grid.shape))
    return tuple(map(grid.rank, itertools.product(*spans)))


def _innermost(grid: Grid, free: Sequence[int]) -> list[int]:
    """The axes among `free` of the innermost level that has any of them."""
    last = len(grid.shape)
    for depth in reversed(grid.depths):
        axes = [n for n in free if last - depth <= n < last]
        last -= depth
        if axes:
            return axes
    return []


def _reduce_phases(
    grid: Grid, reduction: Reduce, within: Reduce, over: Reduce, at: Coordinates, inner: list[int]
) -> Phases:
    """A reduce within each node, to the rank with the position of the root, then across nodes to the root."""
    root = next(grid.coordinates(r) for r, part in _parts(reduction) if part is not None)
    first = grid.rank(root[n] if n in inner else p for n, p in enumerate(at))
    phases: Phases = [
        replace(within, parts=tuple(reduction.box if r == first else None for r in within.ranks))
    ]
    if first == grid.rank(at):
        whole = dict(_parts(reduction))
        phases += hierarchical_phases(grid, replace(over, parts=tuple(whole[r] for r in over.ranks)), at)
    return phases


def _all_reduce_phases(grid: Grid, within: Reduce, over: Reduce, at: Coordinates) -> Phases:
    """A reduce-scatter within the node, an all-reduce across nodes, an all-gather within the node."""
    box, members = within.box, len(within.ranks)
    longest = max(range(len(box)), key=lambda n: length(box[n]), default=None)
    if longest is None:  # a scalar: reduce in the node, all-reduce across, broadcast in it
        parts: list[SpanBox | None] = [box, *[None] * (members - 1)]
    else:
        spans = [block(box[longest], members, n) for n in range(members)]
        parts = [(*box[:longest], s, *box[longest + 1 :]) if s[0] < s[1] else None for s in spans]
    mine = parts[within.ranks.index(grid.rank(at))]
    phases: Phases = [replace(within, parts=tuple(parts))]
    if mine is not None:
        phases += hierarchical_phases(grid, replace(over, box=mine, parts=(mine,) * len(over.ranks)), at)
    gathered = tuple((r, p) for r, p in zip(within.ranks, parts, strict=True) if p is not None)
    kind = "all-gather" if len(gathered) > 1 else "broadcast"
    return [*phases, Gather(kind, within.ranks, gathered)]


def _reduce_scatter_phases(
    grid: Grid, reduction: Reduce, within: Reduce, over: Reduce, at: Coordinates, inner: list[int]
) -> Phases:
    """A reduce-scatter within the node, of the parts of each rank's peers, then one among peers.

    `[reduction]` where the parts of peers are not together a box.
    """
    node_boxes = _node_boxes(grid, reduction.ranks, reduction.parts, tuple(inner))
    if node_boxes is None:
        return [reduction]
    mine = node_boxes[within.ranks.index(grid.rank(at))]
    whole = dict(_parts(reduction))
    rest = replace(over, box=mine, parts=tuple(whole[r] for r in over.ranks))
    return [replace(within, parts=node_boxes), *hierarchical_phases(grid, rest, at)]


@functools.lru_cache(maxsize=64)
def _node_boxes(
    grid: Grid, ranks: tuple[int, ...], parts: tuple[SpanBox | None, ...], inner: tuple[int, ...]
) -> tuple[SpanBox, ...] | None:
    """For each position in a node the union of the parts of its peers; None where one of them is no box."""
    boxes_by_place: dict[tuple[int, ...], list[SpanBox | None]] = {}
    for place, part in zip(np.transpose(np.unravel_index(ranks, grid.shape)).tolist(), parts, strict=True):
        boxes_by_place.setdefault(tuple(place[n] for n in inner), []).append(part)
    node_boxes: list[SpanBox] = []
    for peers in boxes_by_place.values():
        boxes = [box for box in peers if box is not None]
        spans = (
            [union(box_spans) for box_spans in zip(*boxes, strict=True)] if len(boxes) == len(peers) else []
        )
        box = tuple(span for span in spans if span is not None)
        sizes = sum(math.prod(map(length, box_spans)) for box_spans in boxes)
        if not boxes or len(box) < len(boxes[0]) or math.prod(map(length, box)) != sizes:
            return None
        node_boxes.append(box)
    return tuple(node_boxes)


def _parts(reduction: Reduce) -> list[tuple[int, SpanBox | None]]:
    return list(zip(reduction.ranks, reduction.parts, strict=True))
