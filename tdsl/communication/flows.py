"""The elements that flow between ranks and the owners of a tensor, summed without a visit to each pair."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tdsl.communication.rank_boxes import BoxVector, Mask, Numbers, Pieces, distinct, strides
from tdsl.placement.notation import Blocks, Copies, Fixed


@dataclass(frozen=True, slots=True)
class Flow:
    """Boxes of `partners` within blocks of `owners`: how many of these boxes there are, their elements."""

    owners: Numbers
    partners: Numbers
    boxes: Numbers
    elements: Numbers


def flow_to_owners(
    pieces: Pieces, boxes: BoxVector, among: Mask, coordinates: tuple[Numbers, ...], partners: Numbers, *,
    all_copies: bool, combined_axes: tuple[int, ...] = (),
) -> Flow:  # fmt: skip
    """The parts of the boxes of the ranks `among` in the blocks of their owners, summed by owner and partner.

    `partners` has a number for each rank; boxes of ranks with equal numbers are summed. Of copies the owner
    is that with the coordinates of the rank, with `all_copies` each of them; of partial results it is each
    rank along `combined_axes`, else that with the coordinates of the rank.
    """
    grid, placement = pieces.layout.grid, pieces.layout.placements[pieces.tensor]
    step = strides(grid.shape)
    ranks = np.flatnonzero(among & boxes.present)
    offsets, spread = np.zeros(len(ranks), np.int64), [np.zeros(1, np.int64)]
    for axis, entry in enumerate(placement.entries):
        if isinstance(entry, Fixed):
            offsets += step[axis] * entry.coordinate
        elif axis in combined_axes or (all_copies and isinstance(entry, Copies)):
            spread.append(step[axis] * np.arange(grid.shape[axis]))
        elif not isinstance(entry, Blocks):
            offsets += step[axis] * coordinates[axis][ranks]
    columns = [offsets, partners[ranks], *(v.index[ranks] for v in boxes.dims)]
    weights = [np.ones(len(ranks), np.int64)] * 2
    columns, weights = _sum_equal(columns, weights)
    tables = []
    for dim, vector in enumerate(boxes.dims):
        cuts = [pieces.cut(dim, span) for span in vector.spans]
        moved = [[sum(step[n] * p for n, p in piece.positions.items()) for piece in cut] for cut in cuts]
        tables.append((moved, [[piece.elements for piece in cut] for cut in cuts]))
    order = sorted(range(len(tables)), key=lambda n: max(map(len, tables[n][0]), default=0))
    for dim in order:
        columns, weights = _expand(columns, weights, 2 + dim, *tables[dim])
    copies = [sum(x) for x in itertools.product(*(s.tolist() for s in spread))]
    columns[1:] = [columns[1], np.zeros(len(columns[0]), np.int64)]
    columns, weights = _expand(columns, weights, 2, [copies], [[1] * len(copies)])
    return Flow(columns[0], columns[1], *weights)


def _sum_equal(columns: list[Numbers], weights: list[Numbers]) -> tuple[list[Numbers], list[Numbers]]:
    """One row for all rows with equal columns, its weights their sums."""
    firsts, numbers = distinct(*columns, ranks=len(columns[0]))
    sums = []
    for weight in weights:
        total = np.zeros(len(firsts), np.int64)
        np.add.at(total, numbers, weight)
        sums.append(total)
    return [c[firsts] for c in columns], sums


def _expand(
    columns: list[Numbers], weights: list[Numbers], column: int, moved: Sequence[Sequence[int]],
    elements: Sequence[Sequence[int]],
) -> tuple[list[Numbers], list[Numbers]]:  # fmt: skip
    """A row for each part of each row's span, the number of which is in `column`; parts move the owner."""
    counts = np.array([len(parts) for parts in moved], np.int64)
    starts = np.cumsum(counts) - counts
    flat_moved = np.array(list(itertools.chain(*moved)), np.int64)
    flat_elements = np.array(list(itertools.chain(*elements)), np.int64)
    numbers = columns[column]
    repeats = counts[numbers]
    rows = np.repeat(np.arange(len(numbers)), repeats)
    within = np.arange(len(rows)) - np.repeat(np.cumsum(repeats) - repeats, repeats)
    parts = starts[numbers[rows]] + within
    new = [c[rows] for c in columns]
    new[0] = new[0] + flat_moved[parts]
    new[column] = np.zeros(len(rows), np.int64)
    count, total = (w[rows] for w in weights)
    return _sum_equal(new, [count, total * flat_elements[parts]])
