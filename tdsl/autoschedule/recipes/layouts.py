"""Changes of layout: a copy of a tensor, transposed or not, that lives elsewhere than the tensor."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from copy import copy
from functools import partial

from tdsl.autoschedule.recipes.choices import recipe
from tdsl.communication.collective import Layout
from tdsl.communication.stages import const_value, stage_of
from tdsl.communication.volume import volume
from tdsl.core.source import here
from tdsl.errors import ScheduleError
from tdsl.lang.expr import Const, Var
from tdsl.lang.interpreted_boxes import realised_boxes
from tdsl.lang.program import bind_expr
from tdsl.lang.simplify import simplify
from tdsl.placement.grid import Grid
from tdsl.placement.notation import Blocks, Placement
from tdsl.placement.ownership import SpanBox
from tdsl.placement.spans import length
from tdsl.schedule.bind import bind_state
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
    tensor, whole = _copied(stage), _extents(stage)
    schedule.place(tensor, source, list(_levels(grid)))
    schedule.place(stage.func, target, list(_levels(grid)))
    variables = schedule.state.program.func(stage.func).variables
    levels, repeat = list(_levels(grid)), len(grid.shape)
    ways: list[Callable[[Stage], tuple[Loop, ...]]] = [
        partial(Stage.distribute, loops=loops, grid=levels)
        for loops in itertools.product(variables, repeat=repeat)
    ]
    placed = dict(schedule.state.placed)[stage.func]
    if _rounds(placed, grid, whole) <= MOST_ROUNDS:
        ways.append(partial(_deal, tensor=tensor, target=placed, grid=grid))
    boxes = _boxes(stage, tensor)
    if not boxes:  # nothing is computed
        return ways[0](stage)
    return min(ways, key=lambda way: _received(stage, boxes, way))(stage)


def _boxes(stage: Stage, tensor: str) -> dict[str, SpanBox]:
    """The boxes of a func and of the tensor that it copies; {} if nothing of the func is computed."""
    program = bind_state(stage.schedule.state, stage.schedule.sizes).program
    boxes = {n: tuple((lo, hi + 1) for lo, hi in box) for n, box in realised_boxes(program).items()}
    if stage.func not in boxes:
        return {}
    if not program.has_func(tensor):
        boxes[tensor] = tuple((0, const_value(simplify(e))) for e in program.input(tensor).shape)
    return {name: boxes[name] for name in (tensor, stage.func)}


def _received(stage: Stage, boxes: dict[str, SpanBox], distribute: Callable[[Stage], object]) -> int:
    """The elements that all ranks receive for a copy that `distribute` distributes."""
    trial = copy(stage.schedule)
    distribute(trial[stage])
    state = bind_state(trial.state, trial.sizes)
    assert state.grid is not None, "a placement names a grid"
    layout, (tensor, func) = Layout(state.grid, dict(state.placed), boxes), boxes
    stages = (stage_of(state, state.program.func(func), boxes[func]),)
    return int(volume(layout, stages, (tensor,), (func,), dict.fromkeys(boxes, 1)).received.sum())


def _deal(stage: Stage, tensor: str, target: Placement, grid: Grid) -> tuple[Loop, ...]:
    """Share the blocks of the target out in turn, and go through the rounds."""
    loops, rounds = [], []
    variables = stage.schedule.state.program.func(stage.func).variables
    for axis, entry in enumerate(target.entries):
        assert isinstance(entry, Blocks), "what has rounds"
        loop: Loop | str = variables[entry.dim]
        if entry.size is not None:
            blocks, _ = stage.split(loop, entry.size)
            turn, loop = stage.split(blocks, grid.shape[axis])
            rounds.append(turn)
        loops.append(loop)
    shared = stage.distribute(loops, list(_levels(grid)))
    turns = {x.name for x in rounds}
    inside = (x for x in stage.loops[len(shared) :] if x.name not in turns)
    stage.reorder(*rounds, *inside)
    stage.communicate((tensor, stage.func), at=rounds[-1])
    return shared


def _levels(grid: Grid) -> list[Grid]:
    return [Grid(**dict(axes)) for axes in grid.levels]


def _rounds(target: Placement, grid: Grid, whole: SpanBox) -> float:
    """The rounds in which ranks compute a target that is dealt out block by block; inf if it is not."""
    blocks = [e for e in target.entries if isinstance(e, Blocks)]
    if len({e.dim for e in blocks}) < len(target.entries) or all(e.size is None for e in blocks):
        return math.inf
    rounds = 1
    for entry, parts in zip(target.entries, grid.shape, strict=True):
        if isinstance(entry, Blocks) and entry.size is not None:
            rounds *= -(-length(whole[entry.dim]) // (entry.size * parts))
    return rounds


def _copied(stage: Stage) -> str:
    """The tensor that a stage copies."""
    f = stage.schedule.state.program.func(stage.func)
    d = f.definitions[0]
    reads = {(r.name, r.index) for r in d.reads}
    if len(reads) == 1 and len(f.definitions) == 1 and not d.ranges:
        ((name, index),) = reads
        names = [e.name for e in index if isinstance(e, Var)]
        if len(names) == len(index) and sorted(names) == sorted(f.variables) and names:
            return name
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
