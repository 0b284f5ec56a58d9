"""Checks that a schedule places all that it distributes, and that partial results mean what they say."""

from __future__ import annotations

from tdsl.communication.collective import Layout
from tdsl.communication.stages import Stage, task_funcs_and_sources
from tdsl.errors import ScheduleError
from tdsl.lang.program import FuncDef
from tdsl.placement.notation import Copies, Partial, Placement
from tdsl.schedule.linear import NotLinear, check_linear
from tdsl.schedule.state import SHIFT, Split, State


def check_placed(state: State) -> None:
    """ScheduleError if an output is not distributed, or an input or distributed func has no placement.

    Also if a func is placed as partial where ranks do not have parts of it, or is distributed as "partial"
    and not linear and homogeneous in its partial sources.
    """
    program, placed = state.program, dict(state.placed)
    for name in program.outputs:
        if not state.plan(name).distributed:
            raise ScheduleError(
                f"output {name!r} is not distributed, though other things are",
                loc=program.func(name).loc,
                label="this func",
                hint=f's["{name}"].distribute(loops, grid); * for every coordinate, a number for one',
            )
    distributed = [f for f in program.funcs if state.plan(f.name).distributed]
    need = [(t.name, t.loc) for t in program.inputs] + [(f.name, f.loc) for f in distributed]
    for name, loc in need:
        if name not in placed:
            raise ScheduleError(
                f"{name!r} has no place on the grid",
                loc=loc,
                label="made here",
                hint=f's.place("{name}", "...", grid); "* ..." for a copy on each rank',
            )
    for v, w in state.overwrites:
        if placed[v].entries != placed[w].entries:
            raise ScheduleError(
                f"{v!r} overwrites {w!r}, which has another placement: {placed[v]}, {placed[w]}",
                loc=state.plan(v).loc,
                label="scheduled here",
                hint="place both in the same way",
            )
    for f in distributed:
        _check_partial_result(state, f, placed[f.name])
        _check_partial_sources(state, f, placed)


def _check_partial_result(state: State, f: FuncDef, placement: Placement) -> None:
    """ScheduleError if a func is placed as partial along an axis where ranks do not have parts of it."""
    assert state.grid is not None
    plan = state.plan(f.name)
    from_parts = any(isinstance(e, Partial) for e in plan.distributed)
    for n in placement.partial:
        repeated = isinstance(plan.distributed[n], Copies)
        if not repeated and (from_parts or f.definitions[-1].combine is not None):
            continue
        why = "every coordinate computes the whole" if repeated else "it is no sum, and not distributed so"
        raise ScheduleError(
            f"{f.name!r} is placed as {placement}, partial along axis {state.grid.names[n]!r}: {why}",
            loc=f.definitions[-1].loc,
            label="this definition",
            related=((plan.loc, "scheduled here"),),
            hint="place it whole: a dimension, * or a coordinate",
        )


def _check_partial_sources(state: State, f: FuncDef, placed: dict[str, Placement]) -> None:
    """ScheduleError unless a func distributed as "partial" is linear in its partial sources."""
    assert state.grid is not None
    plan = state.plan(f.name)
    task_funcs, sources = task_funcs_and_sources(state, f)
    for n in (n for n, e in enumerate(plan.distributed) if isinstance(e, Partial)):
        partial = {name for name in sources if n in placed[name].partial}
        why = ""
        if not partial:
            why = f"it reads nothing that is placed as partial along axis {state.grid.names[n]!r}"
        elif any(placed[name].entries[n] != Partial("sum") for name in partial):
            why = "it reads what is partial by another operation than a sum"
        else:
            try:
                check_linear(f, {g.name: g for g in task_funcs}, partial)
            except NotLinear as error:
                why = str(error)
        if why:
            places = ((state.program.func(name).loc, f"{name!r} is partial") for name in sorted(partial))
            raise ScheduleError(
                f"{f.name!r} is no sum of what ranks compute from parts of its sources: {why}",
                loc=f.definitions[-1].loc,
                label="this definition",
                related=(*places, (plan.loc, "scheduled here")),
                hint='combine the parts first: name a loop, "*" or a coordinate in place of "partial"',
            )


def check_overlap(stage: Stage, layout: Layout) -> None:
    """ScheduleError unless what a stage receives during its computation has parts that can be computed."""
    name, plan = stage.name, stage.state.plan(stage.name)
    overwritten = dict(stage.state.overwrites).get(name)
    for part in (s for s in stage.sources if stage.tensor_of(s) in plan.overlapped):
        source = stage.tensor_of(part)
        cyclic = any(layout.placements[source].cyclic_size(n) for n in range(len(layout.wholes[source])))
        why = ""
        if stage.levels[part] < len(stage.outer):
            why = f"though the loop {stage.outer[-1]!r}, where other tensors are communicated, is inside"
        elif layout.placements[source].partial:
            why = "of which ranks have partial results, so that all of it is combined first"
        elif cyclic:
            why = "which is block-cyclic: a block of a rank has gaps"
        elif source == overwritten:
            why = "which it overwrites"
        if why:
            raise ScheduleError(
                f"{name!r} overlaps the communication of {source!r}, {why}",
                loc=plan.loc,
                label="scheduled here",
                hint="communicate it without overlap",
            )


def check_overwrite(stage: Stage, layout: Layout) -> None:
    """ScheduleError unless what a stage overwrites has its box, and each element is read before its write."""
    name, plan = stage.name, stage.state.plan(stage.name)
    shifted = any(isinstance(r, Split) and r.tail == SHIFT for nest in plan.nests for r in nest.relations)
    source = dict(stage.state.overwrites).get(name)
    if source is None:
        return
    why = ""
    inside = [(f, r) for f in stage.task_funcs for d in f.definitions for r in d.reads if r.name == source]
    if layout.wholes[name] != layout.wholes[source]:
        why = f"which has another shape: {layout.wholes[name]}, {layout.wholes[source]}"
    elif inside:
        why = f"which {inside[0][0].name!r}, a func that is computed in its tasks, reads"
    elif source in stage.sources and len(stage.outer) > stage.fixed:
        why = "and reads it in steps of a loop, between which it is written"
    elif source in stage.sources and shifted:
        why = "and with tail='shift' reads elements again that it has written"
    if why:
        raise ScheduleError(
            f"{name!r} overwrites {source!r}, {why}",
            loc=plan.loc,
            label="scheduled here",
            related=tuple((r.loc or f.loc, f"{f.name!r} reads {source!r} here") for f, r in inside[:1]),
            hint=f"keep {source!r}, or compute each element of {name!r} once, in one step, at its own index",
        )
