"""Changes of layout: a copy of a tensor, transposed or not, that lives elsewhere than the tensor."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

from tdsl.autoschedule.recipes.choices import recipe
from tdsl.core.source import here
from tdsl.errors import ScheduleError
from tdsl.lang.expr import Const, Var
from tdsl.lang.program import bind_expr
from tdsl.placement.grid import Coordinates, Grid
from tdsl.placement.notation import Blocks, Placement
from tdsl.placement.ownership import SpanBox, element_count, owned
from tdsl.placement.spans import clip, contiguous_parts, length
from tdsl.schedule.fluent import Stage
from tdsl.schedule.naming import Loop, check_grid

MOST_ROUNDS = 64  # messages to everyone in each of them


@recipe
def redistribute(
    stage: Stage,
    source: str | Sequence[str],
    target: str | Sequence[str],
    grid: Grid | Sequence[Grid],
) -> tuple[Loop, ...]:
    """Bring f[i, j] = a[i, j], or any transposition, from one placement to another, moving little.

    Places the tensor as `source` and the func as `target`, and shares out the loops so that the fewest
    elements are fetched before and sent behind. A target that is dealt out in blocks is computed block by
    block, in rounds, where that moves less and takes at most `MOST_ROUNDS`. Returns the distributed loops.
    ScheduleError for what is no copy of one tensor, and where the sizes are not known.
    """
    schedule, grid = stage.schedule, check_grid(grid)
    tensor, order = _copied(stage)
    whole = _extents(stage)
    schedule.place(tensor, source, list(_levels(grid)))
    schedule.place(stage.func, target, list(_levels(grid)))
    placed = dict(schedule.state.placed)
    variables = schedule.state.program.func(stage.func).variables
    options = itertools.product(range(len(whole)), repeat=len(grid.shape))
    moved = Moved(grid, whole, order, placed[tensor], placed[stage.func])
    best = min(options, key=lambda dims: (moved.by(dims), dims))
    if moved.rounds() <= MOST_ROUNDS and moved.at_once() < moved.by(best):
        return _deal(stage, tensor, moved)
    return stage.distribute([variables[dim] for dim in best], list(_levels(grid)))


def _deal(stage: Stage, tensor: str, moved: Moved) -> tuple[Loop, ...]:
    """Share the blocks of the target out in turn, and go through the rounds."""
    loops, rounds = [], []
    variables = stage.schedule.state.program.func(stage.func).variables
    for axis, entry in enumerate(moved.target.entries):
        assert isinstance(entry, Blocks), "what has rounds"
        loop: Loop | str = variables[entry.dim]
        if entry.size is not None:
            blocks, _ = stage.split(loop, entry.size)
            turn, loop = stage.split(blocks, moved.grid.shape[axis])
            rounds.append(turn)
        loops.append(loop)
    shared = stage.distribute(loops, list(_levels(moved.grid)))
    turns = {x.name for x in rounds}
    inside = (x for x in stage.loops[len(shared) :] if x.name not in turns)
    stage.reorder(*rounds, *inside)
    stage.communicate((tensor, stage.func), at=rounds[-1])
    return shared


def _levels(grid: Grid) -> list[Grid]:
    return [Grid(**dict(axes)) for axes in grid.levels]


class Moved:
    """What a change of layout moves: `order` says which dimension of the func each of the tensor's is."""

    def __init__(
        self, grid: Grid, whole: SpanBox, order: tuple[int, ...], source: Placement, target: Placement
    ) -> None:
        self.grid, self.whole, self.order = grid, whole, order
        self.source, self.target = source, target

    def by(self, dims: tuple[int, ...]) -> int:
        """Elements that all ranks receive when each axis of the grid shares the loop of a dimension out."""
        placement = Placement(self.target.dims, tuple(Blocks(dim) for dim in dims))
        return sum(self._rank(placement, self.grid.coordinates(r)) for r in range(self.grid.size))

    def rounds(self) -> float:
        """How many steps it takes to make the target block by block; infinitely many if it cannot be."""
        dims = [e.dim for e in self.target.entries if isinstance(e, Blocks)]
        if len(set(dims)) < len(self.target.entries):
            return math.inf
        steps = 1
        for entry, parts in zip(self.target.entries, self.grid.shape, strict=True):
            if isinstance(entry, Blocks) and entry.size is not None:
                steps *= -(-length(self.whole[entry.dim]) // (entry.size * parts))
        return steps

    def at_once(self) -> int:
        """Elements that all ranks receive when each makes its block of the target."""
        total = 0
        for at in map(self.grid.coordinates, range(self.grid.size)):
            block = owned(self.target, self.grid, self.whole, at)
            needed = None if block is None else tuple(block[dim] for dim in self.order)
            total += _lacking(needed, self._there(at))
        return total

    def _there(self, at: Coordinates) -> SpanBox | None:
        """What a rank has before."""
        return owned(self.source, self.grid, tuple(self.whole[dim] for dim in self.order), at)

    def _rank(self, placement: Placement, at: Coordinates) -> int:
        tile = owned(placement, self.grid, self.whole, at)
        block = owned(self.target, self.grid, self.whole, at)
        needed = None if tile is None else tuple(tile[dim] for dim in self.order)
        return _lacking(needed, self._there(at)) + _lacking(block, tile)


def _lacking(needed: SpanBox | None, there: SpanBox | None) -> int:
    """Elements of a box that another one has not."""
    if needed is None:
        return 0
    if there is None:
        return element_count(needed)
    spans = zip(needed, there, strict=True)
    both = (sum(length(clip(b, *run)) for run in contiguous_parts(a)) for a, b in spans)
    return element_count(needed) - math.prod(both)


def _copied(stage: Stage) -> tuple[str, tuple[int, ...]]:
    """The tensor that a stage copies, and which of the stage's dimensions each of the tensor's is."""
    f = stage.schedule.state.program.func(stage.func)
    d = f.definitions[0]
    reads = {(r.name, r.index) for r in d.reads}
    if len(reads) == 1 and len(f.definitions) == 1 and not d.ranges:
        ((name, index),) = reads
        names = [e.name for e in index if isinstance(e, Var)]
        if len(names) == len(index) and sorted(names) == sorted(f.variables) and names:
            return name, tuple(f.variables.index(x) for x in names)
    raise ScheduleError(
        f"{stage.func!r} is no copy of one tensor",
        loc=here(),
        label="this recipe",
        hint="it takes f[i, j] = a[i, j], or transposed: f[i, j] = a[j, i]",
    )


def _extents(stage: Stage) -> SpanBox:
    """The box of a func in numbers."""
    schedule = stage.schedule
    box = schedule.state.program.func(stage.func).output_box(here())
    values = [[bind_expr(e, schedule.sizes) for e in pair] for pair in box]
    numbers = [[int(v.value) for v in pair if isinstance(v, Const)] for pair in values]
    if any(len(pair) < 2 for pair in numbers):
        raise ScheduleError(
            "what moves depends on sizes that are not known",
            loc=here(),
            label="this recipe",
            hint="give them to the schedule: op.schedule(M=100, ...), or sizes={...}",
        )
    return tuple((lo, lo + extent) for lo, extent in numbers)
