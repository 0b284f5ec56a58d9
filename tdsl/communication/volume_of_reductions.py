"""What ranks communicate in reductions, for all members of a phase at once."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np

from tdsl.communication.collective import Gather
from tdsl.communication.hierarchical_reduce import hierarchical_phases
from tdsl.communication.rank_boxes import Mask, Numbers
from tdsl.communication.steps import Reduce, reduction_volume
from tdsl.placement.grid import Grid
from tdsl.placement.ownership import element_count


@dataclass(frozen=True, slots=True)
class Reductions:
    """The members of the reductions of an iteration, and the elements and messages that these communicate."""

    members: Mask
    received: Numbers
    sent: Numbers
    messages: Numbers
    crossing: tuple[Numbers, ...]

    @staticmethod
    def none(grid: Grid) -> Reductions:
        """No reductions."""
        received, sent, messages = (np.zeros(grid.size, np.int64) for _ in range(3))
        crossing = tuple(np.zeros(grid.size, np.int64) for _ in grid.depths)
        return Reductions(np.zeros(grid.size, bool), received, sent, messages, crossing)

    def add_phases(self, grid: Grid, reduction: Reduce) -> Numbers:
        """Add the phases of a reduction; returns the elements of the buffers between them, for each rank.

        Each group of ranks that reduce together has a member with the coordinates of the first rank in some
        level of the grid.
        """
        buffers, added = np.zeros(grid.size, np.int64), set[tuple[type, tuple[int, ...]]]()
        ranks, outermost = np.array(reduction.ranks), grid.crossed_level(reduction.ranks)
        coordinates = np.array(np.unravel_index(ranks, grid.shape))
        first = np.zeros(len(ranks), bool)
        for behind, depth in zip(itertools.accumulate(grid.depths), grid.depths, strict=True):
            at = coordinates[behind - depth : behind]
            same = np.all(at == at[:, :1], axis=0)
            first |= same & (not same.all())
        for member in ranks[first] if first.any() else ranks[:1]:
            steps = hierarchical_phases(grid, reduction, grid.coordinates(int(member)))
            for step in steps:
                if (type(step), step.ranks) not in added:
                    added.add((type(step), step.ranks))
                    self.add(grid, step)
                    if isinstance(step, Reduce) and grid.crossed_level(step.ranks) > outermost:
                        buffers[list(step.ranks)] += part_sizes(step)
            if steps == [reduction]:
                break  # one phase of all members
        return buffers

    def add(self, grid: Grid, step: Reduce | Gather) -> None:
        """Add what all ranks of a phase communicate."""
        ranks, count = list(step.ranks), len(step.ranks)
        if isinstance(step, Reduce):
            whole, parts = element_count(step.box), part_sizes(step)
            if step.collective == "all-reduce":
                ends = np.minimum(np.arange(count + 1) * -(-whole // count), whole)
                parts = np.diff(ends)
            out, into = reduction_volume(step.collective, count, whole, parts)
        else:
            sizes = {rank: element_count(part) for rank, part in step.parts}
            local_elements = np.array([sizes.get(rank, 0) for rank in ranks], np.int64)
            out, into = local_elements * (count - 1), local_elements.sum() - local_elements
        self.sent[ranks] += out
        self.received[ranks] += into
        self.messages[ranks] += np.minimum(into, 1)
        self.crossing[grid.crossed_level(step.ranks)][ranks] += into


def part_sizes(step: Reduce) -> Numbers:
    """The elements of the result that each rank of a reduction receives."""
    return np.array([0 if part is None else element_count(part) for part in step.parts], np.int64)
