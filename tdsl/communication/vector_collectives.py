"""Which ranks take part in a collective, for all ranks at once: the rules of `collective.py` on arrays."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from tdsl.communication.collective import MAX_ALL_TO_ALL_RANKS, MIN_COLLECTIVE_RANKS
from tdsl.communication.flows import Flow, flow_to_owners
from tdsl.communication.rank_boxes import BoxVector, Mask, Numbers, RankBoxes, distinct
from tdsl.placement.grid import Grid
from tdsl.placement.notation import Copies, Fixed, Partial


def line_sums(grid: Grid, values: Numbers | Mask, axes: Sequence[int]) -> Numbers:
    """For each rank the sum of `values` over all ranks that differ from it along `axes` only."""
    sums = values.astype(np.int64).reshape(grid.shape).sum(tuple(axes), keepdims=True)
    return np.broadcast_to(sums, grid.shape).reshape(-1)


def gathered_sources(ranks: RankBoxes, source: str, boxes: BoxVector, inner_active: Mask) -> Mask:
    """True for ranks that receive their box of a source by a broadcast or an all-gather."""
    layout, pieces = ranks.layout, ranks.pieces(source)
    grid, placement, at = layout.grid, layout.placements[source], ranks.coordinates
    axes = [
        n for n in ranks.stage.uniform_axes(source) if not isinstance(placement.entries[n], Copies | Partial)
    ]  # fmt: skip
    if not axes:
        return np.zeros(grid.size, bool)
    fits = boxes.present.copy()  # all owners are on the line of the rank
    for n, entry in enumerate(placement.entries):
        if isinstance(entry, Fixed) and n not in axes:
            fits &= at[n] == entry.coordinate
    for dim, spans in enumerate(boxes.dims):
        for n in placement.axes_of(dim):
            if n not in axes:
                first, last = pieces.position_ranges(dim, spans, n)
                fits &= (first == at[n]) & (last == at[n])
    owners, active = pieces.counts(boxes), line_sums(grid, inner_active, axes)
    computing = owners.copy()  # the owners that have points to compute
    some_idle = fits & (active < math.prod(grid.shape[n] for n in axes))
    if some_idle.any():
        line = _line_numbers(grid, axes)
        _, first = np.unique(np.where(some_idle, line, -1), return_index=True)
        readers = np.zeros(grid.size, bool)
        readers[first] = True
        flow = flow_to_owners(pieces, boxes, readers & some_idle, at, line, all_copies=False)
        counted = np.zeros(grid.size, np.int64)
        np.add.at(counted, flow.partners, inner_active[flow.owners])
        computing = np.where(some_idle, counted[line], computing)
    members = active + (computing < owners)
    gathers: Mask = fits & ((computing == owners) | (owners == 1)) & (members >= MIN_COLLECTIVE_RANKS)
    return gathers


def gathered_results(ranks: RankBoxes, boxes: BoxVector, axes: Sequence[int]) -> tuple[Mask, Numbers]:
    """The ranks that exchange results by a broadcast or an all-gather, and from how many others of a line.

    `axes` are those along which all ranks own the results.
    """
    grid, name = ranks.layout.grid, ranks.stage.name
    nothing = np.zeros(grid.size, np.int64)
    if ranks.stage.combine is not None or not axes:
        return nothing > 0, nothing
    size = math.prod(grid.shape[n] for n in axes)
    blocks = ranks.owned(name)
    active = line_sums(grid, boxes.present, axes)
    within = line_sums(grid, boxes.is_within(blocks), axes)
    line = _line_numbers(grid, axes)
    computing = np.flatnonzero(boxes.present)
    firsts, _ = distinct(line[computing], boxes.key()[computing], ranks=len(computing))
    different = nothing.copy()
    np.add.at(different, line[computing[firsts]], 1)
    gathers = blocks.present & (active > 0) & (within == active) & (different[line] == active)
    return gathers & (size >= MIN_COLLECTIVE_RANKS), active - boxes.present


def all_to_all_members(ranks: RankBoxes, tensor: str, boxes: BoxVector, flow: Flow) -> Mask:
    """The ranks of an all-to-all of parts of a source, or of results where `tensor` is the func of the stage.

    `flow` has the owners of each rank's box.
    """
    grid = ranks.layout.grid
    if grid.size > MAX_ALL_TO_ALL_RANKS:
        return np.zeros(grid.size, bool)
    blocks = ranks.owned(tensor)
    exchanges = boxes.present & (2 * boxes.counts_within(blocks) <= boxes.counts())
    if tensor != ranks.stage.name:
        exchanges &= ~(boxes.is_within(blocks) & blocks.is_contiguous())
    groups = np.eye(grid.size, dtype=bool)  # of each rank with its partners
    exchanged = exchanges[flow.partners]
    groups[flow.partners[exchanged], flow.owners[exchanged]] = True
    return _complete_groups(grid, groups, ranks.coordinates)


def _complete_groups(grid: Grid, groups: Mask, coordinates: Sequence[Numbers]) -> Mask:
    """True for ranks whose partners are a line, plane, ... of ranks, all of them and no others partners.

    `groups` is a matrix with a row of its partners, itself included, for each rank.
    """
    counts, size = groups.sum(axis=1), np.ones(grid.size, np.int64)
    for parts, position in zip(grid.shape, coordinates, strict=True):
        varies = (groups & (position[None, :] != position[:, None])).any(axis=1)
        size = np.where(varies, size * parts, size)
    shared = groups.astype(np.int64) @ groups.T.astype(np.int64)
    equal = (shared == counts[:, None]) & (shared == counts[None, :])
    complete: Mask = np.where(groups, equal, shared == 0).all(axis=1)
    complete &= (counts >= MIN_COLLECTIVE_RANKS) & (counts == size)
    return complete


def _line_numbers(grid: Grid, axes: Sequence[int]) -> Numbers:
    """For each rank the number of the first rank that differs from it along `axes` only."""
    numbers = np.arange(grid.size).reshape(grid.shape)
    first = numbers[tuple(slice(0, 1) if n in axes else slice(None) for n in range(numbers.ndim))]
    return np.broadcast_to(first, grid.shape).reshape(-1)
