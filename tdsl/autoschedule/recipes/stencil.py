"""Stencils and image pipelines, in strips of lines.

    blur[y, x] = rows[y - 1, x] + rows[y, x] + rows[y + 1, x], where rows[y, x] is a sum along x

    for strips of lines (threads):
      for y:
        the lines of `rows` that this line is the first to need, in a ring of four
        for x, by vectors:  the sum

All funcs read only by the stage and by each other are computed in the loops of the stage, whatever they do:
sums over windows, updates that scatter, changes of the resolution.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tdsl.autoschedule.patterns.groups import open_group
from tdsl.autoschedule.patterns.rows import vector_variable
from tdsl.autoschedule.patterns.strips import Strips, plan_strips
from tdsl.autoschedule.recipes.choices import Unsuited, choose, recipe
from tdsl.autoschedule.recipes.conv import known
from tdsl.core.node import post_order
from tdsl.lang.affine import variables
from tdsl.lang.definition import Definition
from tdsl.lang.expr import Read, Var
from tdsl.lang.regions import Box, reads_in
from tdsl.machine.model import Machine
from tdsl.schedule.fluent import BaseSchedule, Stage
from tdsl.schedule.naming import Loop
from tdsl.schedule.properties import extent, extents, lanes_for, max_bytes
from tdsl.schedule.state import is_ordered
from tdsl.target import as_target

SETS = 2048  # bytes; a multiple of this between lines causes cache conflicts
LINE = 64  # bytes of a cache line
FEW = 4  # values of a variable; such loops are unrolled around an update that scatters


@recipe
def strips(stage: Stage, *, machine: Machine | None = None, **choices: Any) -> Strips:
    """Compute the producers of a stage line by line inside its loops, in strips of lines for threads.

    `choices` replace what is chosen by shape; they are the fields of `Strips`. Funcs that a directive has
    mentioned are left alone. Returns the choices.

    >>> import tdsl as td
    >>> y, x = td.vars("y x")
    >>> a = td.Tensor("a", (1002, 1000), td.f32)
    >>> rows, blur = td.Func("rows"), td.Func("blur")
    >>> rows[y, x] = a[y, x] + a[y, x + 1] + a[y, x + 2]
    >>> blur[y, x] = rows[y, x] + rows[y + 1, x] + rows[y + 2, x]
    >>> s = td.Schedule(blur)
    >>> plan = td.recipes.strips(s[blur], height=50)
    >>> plan.line, plan.inside
    ('y', ('rows',))
    >>> print(s.to_json().splitlines()[0])
    [{"do": "split", "func": "blur", "definition": 0, "loop": "y", "factor": 50},
    """
    schedule = stage.schedule
    state, boxes = known(schedule)
    machine = machine or as_target(schedule.target).machine()
    plan = plan_strips(state, stage.func, open_group(state, stage.func), boxes, machine)
    plan = None if plan is None else choose(plan, choices)
    if plan is None or not plan.height:
        raise Unsuited("nothing that it alone reads slides along with its lines")
    write_strips(schedule, stage.func, plan, boxes, machine)
    return plan


def write_strips(
    schedule: BaseSchedule, owner: str, plan: Strips, boxes: dict[str, Box], machine: Machine
) -> None:
    """Write strips as directives."""
    looped = schedule[owner]
    names = [loop.name for loop in looped.loops]
    strip, line = looped.split(plan.line, plan.height)
    inner = [v for v in names if v != plan.line and v not in plan.outer]
    looped.reorder(*plan.outer, strip, line, *inner)
    looped.parallel(strip if plan.parallel == plan.line else plan.parallel)
    if plan.stream:
        looped.stream_stores()
    if plan.lines > 1:
        _write_blocks(schedule, looped, line, plan, machine)
        return
    lookup_axes = dict(plan.lookup_axes)
    _vectors(looped, boxes[owner], machine, lookup_axes)
    for name in plan.inside:
        stage = schedule[name]
        stage.store_at(looped, strip)
        stage.compute_at(looped, line)
        if name in lookup_axes:
            axis, dims = lookup_axes[name], schedule.state.program.func(name).variables
            stage.reorder_storage(*(v for v in dims if v != axis), axis)
        else:
            _pad_lines(stage, boxes[name])
        for n in range(len(schedule.state.program.func(name).definitions)):
            definition = stage.update(n - 1) if n else stage
            _vectors(definition, boxes[name], machine, lookup_axes)


def _write_blocks(schedule: BaseSchedule, owner: Stage, line: Loop, plan: Strips, machine: Machine) -> None:
    """Register tiles of lines x vectors; producers are computed per tile."""
    f = schedule.state.program.func(owner.func)
    lanes = machine.vector_bytes // max(t.bytes for t in f.dtypes)
    _, line = owner.split(line, plan.lines)
    block, inner = owner.split(f.variables[-1], lanes * plan.vectors)
    owner.reorder(block, line, inner)
    for stage in (owner, *(schedule[name] for name in plan.inside)):
        if stage is not owner:
            stage.compute_at(owner, block)
            line, inner = stage.loops[-2:]
        stage.unroll(line)
        stage.vectorize(inner, lanes)
        stage.unroll(inner)


def _pad_lines(stage: Stage, box: Box) -> None:
    """Pads line strides to avoid cache conflicts."""
    f = stage.schedule.state.program.func(stage.func)
    size = max(t.bytes for t in f.dtypes)
    elements = extent(box, len(box) - 1)
    if elements and elements * size % SETS == 0:
        stage.align_storage(f.variables[-1], elements + LINE // size)


def _vectors(stage: Stage, box: Box, machine: Machine, lookup_axes: Mapping[str, str]) -> None:
    """Vectorise along contiguous memory, inside reduction loops; without a vector axis share indices."""
    f = stage.schedule.state.program.func(stage.func)
    d = f.definitions[stage.definition]
    sizes = extents(f, d, box)
    names = [loop.name for loop in stage.loops]
    looked_up = stage.func in lookup_axes
    along = lookup_axes[stage.func] if looked_up and _is_plain(d, lookup_axes[stage.func]) else None
    if not looked_up:
        along = vector_variable(d) or _looking_up(d, lookup_axes)
    if along is None:
        _share_index(stage, d, sizes)
        return
    size, full = sizes[along], max(machine.vector_bytes // max_bytes(d), 1)
    whole = looked_up and size is not None and full < 2 * size
    lanes = full if whole else lanes_for(d, size, machine.vector_bytes)
    if lanes <= 1 or along not in names:
        return
    if (d.ranges or looked_up) and not is_ordered(f, stage.definition):
        stage.reorder(*(v for v in names if v != along), along)
    stage.vectorize(along, lanes)


def _looking_up(d: Definition, lookup_axes: Mapping[str, str]) -> str | None:
    """The last variable of a reader of looked-up funcs, to look vectors up in registers; None for others."""
    lane = d.index[-1] if d.index else None
    looks = any(r.name in lookup_axes for r in reads_in(d.values))
    return lane.name if looks and isinstance(lane, Var) and lane.name in d.free else None


def _is_plain(d: Definition, variable: str) -> bool:
    """True if a variable alone indexes one axis of the written elements, and occurs in no other axis."""
    return variable in d.free and [e for e in d.index if variable in variables(e)] == [Var(variable)]


def _share_index(stage: Stage, d: Definition, sizes: dict[str, int | None]) -> None:
    """Unrolls innermost the few variables that a scatter's index does not depend on."""
    placed = [e for e in d.index if any(isinstance(n, Read) for n in post_order(e))]
    if not placed or is_ordered(stage.schedule.state.program.func(stage.func), stage.definition):
        return
    chosen = {v for e in placed for v in variables(e)}
    few = [v for v in d.free if (sizes[v] or FEW + 1) <= FEW and v not in chosen]
    ranges = [name for name, _, _ in d.ranges]
    stage.reorder(*(v for v in d.free if v not in few), *ranges, *few)
    for v in few:
        stage.unroll(v)
