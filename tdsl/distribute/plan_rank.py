"""Generates the steps of one rank: those of all stages, in the order of execution."""

from __future__ import annotations

import itertools

from tdsl.communication.distribution import Distribution
from tdsl.communication.execution_order import Block, Window, interleaving_of
from tdsl.communication.lifetimes import freed_after
from tdsl.communication.stages import Stage
from tdsl.communication.steps import Allocate, Free, RankPlan, Run, Step
from tdsl.distribute.block_parts import with_parts
from tdsl.distribute.fetched import StartSteps
from tdsl.distribute.rank import StageSteps
from tdsl.distribute.step_buffers import BoxesRead, with_buffers
from tdsl.placement.ownership import SpanBox


def plan_rank(distribution: Distribution, rank: int) -> RankPlan:
    """The plan of one rank. Blocks of funcs that are no outputs are freed after their last reader.

    So are the blocks of inputs that are overwritten or donated. Blocks of funcs that are computed in
    interleaved steps are allocated and freed in parts.
    """
    layout, stages, outputs = distribution.layout, distribution.stages, distribution.state.program.outputs
    at, order, boxes_read = layout.grid.coordinates(rank), distribution.order, _boxes_read(stages)
    boxes = ((name, layout.owned(name, at)) for name in distribution.inputs)
    owned_blocks = tuple((name, box) for name, box in boxes if box is not None)
    blocks: dict[Block, list[Step]] = {}
    windows: dict[Window, StartSteps] = {}
    arriving: dict[int, list[Step]] = {}  # the ends of what is in flight, by the number of the block after
    tag = handle = 0
    for stage in stages:
        overlapped = stage.state.plan(stage.name).overlapped
        run = StageSteps(layout, stage, at, tag, overlapped=overlapped, handles=handle)
        run.run()
        tag, handle = run.tag, run.handles
        overwritten = dict(stage.state.overwrites).get(stage.name)
        if overwritten is not None and layout.owned(overwritten, at) is not None:
            run.steps.append(Free(overwritten))
        if interleaving_of(stage) is not None or run.windows or run.arriving:
            _name_copies(run, boxes_read)
        windows |= {(stage.name, *window): steps for window, steps in run.windows.items()}
        ends = (end for (name, _), end in order.arrivals.items() if name == stage.name)
        for n, end in enumerate(ends):
            arriving.setdefault(end, []).extend(run.arriving.get(n, ()))
        blocks |= _blocks(run)
    freed = {-1 if n < 0 else order.last_block(stages[n]): names
             for n, names in freed_after(stages, outputs).items()}  # fmt: skip
    early: dict[int, StartSteps] = {}  # by the number of the block after
    for window, n in order.windows.items():
        if window not in windows:
            continue
        early.setdefault(n, StartSteps([])).sends.extend(windows[window].sends)
        while n > 0 and not any(isinstance(s, Run) for s in blocks[order.blocks[n - 1]]):
            n -= 1
        early.setdefault(max(n - 1, 0), StartSteps([])).receives.extend(windows[window].receives)
    steps: list[Step] = []
    for n, block in enumerate((None, *order.blocks), -1):
        if block is not None:
            started = early.get(n, StartSteps([]))
            steps += [*started.receives, *arriving.get(n, ()), *started.sends, *blocks[block]]
        steps += [Free(name) for name in freed.get(n, ()) if layout.owned(name, at) is not None]
    stepped = [s.name for s in stages if interleaving_of(s) is not None and s.name not in outputs]
    in_parts = [name for name in stepped if not layout.placements[name].partial]
    return RankPlan(rank, owned_blocks, tuple(with_parts(steps, in_parts, boxes_read)))


def _blocks(run: StageSteps) -> dict[Block, list[Step]]:
    """The steps of a stage by its steps in an order of their own, if it has such steps.

    What comes before the first and after the last of them is with these.
    """
    if interleaving_of(run.stage) is None:
        return {(run.stage.name, None): run.steps}
    bounds = itertools.pairwise([0, *run.starts[1:-1], len(run.steps)])
    return {(run.stage.name, n): run.steps[a:b] for n, (a, b) in enumerate(bounds)}


def _name_copies(run: StageSteps, boxes_read: BoxesRead) -> None:
    """Name the buffers of what a stage reads after it: those of other stages are there at the same time."""
    name, window_steps = run.stage.name, [x for w in run.windows.values() for x in (w.receives, w.sends)]
    copies = {s.buffer for steps in (run.steps, *window_steps) for s in steps
              if isinstance(s, Allocate) and s.tensor != name}  # fmt: skip

    def reader_buffer(buffer: str, box: SpanBox | None) -> str:
        return f"{buffer} for {name}" if buffer in copies else buffer

    for steps in (run.steps, *window_steps):
        steps[:] = [with_buffers(step, reader_buffer, boxes_read) for step in steps]


def _boxes_read(stages: tuple[Stage, ...]) -> BoxesRead:
    """The boxes that runs of some stages read, by source."""
    named = {s.name: s for stage in stages for s in (stage, *(r.key for r in stage.routes))}
    return lambda run: named[run.func].read_boxes(run.ranges)
