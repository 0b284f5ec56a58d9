"""Fuses column reductions into the row loop of a func that reads the same arrays (bias gradients).

    for parts of the rows (threads):
      for rows of a part:
        the row of the func
        its terms, added to the sums of the part
    the sums of the parts, merged in order

`find_sibling_reductions` finds them by the arrays they read by row; `write_sibling_reductions` writes them as
directives, after the row loop is split into parts.
"""

from __future__ import annotations

from tdsl.autoschedule.patterns.parts import count_parts, is_of_few, outermost, reduce_in_parts
from tdsl.autoschedule.patterns.rows import free_vector, vectors_of
from tdsl.core.node import frozen
from tdsl.lang.definition import Definition
from tdsl.lang.expr import Read, Var
from tdsl.lang.program import FuncDef
from tdsl.lang.regions import Box, reads_in
from tdsl.machine.model import Machine
from tdsl.schedule.fluent import Stage
from tdsl.schedule.legality import depends_on
from tdsl.schedule.naming import Loop
from tdsl.schedule.properties import element_bytes, extents, volume
from tdsl.schedule.state import State, is_ordered


@frozen
class SiblingReductions:
    """`names` reduce over the rows of the owner, in parts of `part` rows.

    `shared` are the arrays that they and the owner read by row. With `columns` all are vectorised along the
    same columns, and share the column loop, too.
    """

    names: tuple[str, ...]
    part: int
    shared: tuple[str, ...]
    columns: bool


def find_sibling_reductions(
    state: State, owner: str, row: str, boxes: dict[str, Box], machine: Machine
) -> SiblingReductions | None:
    """Unscheduled outputs that reduce over the rows of `owner` and share an input; None without any.

    The shared input exceeds the L2 caches of the threads: separate loops would read it from memory again.
    Each keeps its own part count, so that fusion does not change rounding.
    """
    f = state.program.func(owner)
    d = f.definitions[0]
    count = extents(f, d, boxes[owner])[row]
    rows_read = {r for r in _rows_read(d, row) if _exceeds_l2(state, r[0], boxes, machine)}
    parts, names = count_parts(f, 0, boxes[owner]), list[str]()
    for name, plan in state.plans:
        g = state.program.func(name)
        is_open = not plan.scheduled and name in boxes and name in state.program.outputs
        if not is_open or not _sums_rows(g, rows_read, count, boxes[name], machine):
            continue
        alone = count_parts(g, 0, boxes[name])
        others = (owner, *names)
        if parts in (0, alone) and not any(
            depends_on(state, name, x) or depends_on(state, x, name) for x in others
        ):
            names.append(name)
            parts = alone
    if not names or count is None:
        return None
    sums = [state.program.func(name) for name in names]
    part = -(-count // parts)
    shared = {x for x, _ in rows_read if any(x == r.name for g in sums for r in _reads(g))}
    columns = {_columns(g, boxes[g.name], machine) for g in (f, *sums)}
    return SiblingReductions(
        tuple(names), part, tuple(sorted(shared)), len(columns) == 1 and None not in columns
    )


def _sums_rows(
    g: FuncDef, rows_read: set[tuple[str, int]], count: int | None, box: Box, machine: Machine
) -> bool:
    """True for a vectorisable reduction over `count` rows of an array in `rows_read` that runs in parts."""
    d = g.definitions[0]
    if len(g.definitions) > 1 or len(d.ranges) != 1 or d.init is None or is_ordered(g, 0):
        return False
    if is_of_few(g, box, machine.vector_bytes):
        return False  # vectorised along rows
    row = d.ranges[0][0]
    along = bool(rows_read & _rows_read(d, row)) and extents(g, d, box)[row] == count
    return along and free_vector(g, 0, extents(g, d, box)) is not None and count_parts(g, 0, box) > 0


def _columns(f: FuncDef, box: Box, machine: Machine) -> tuple[int | None, int] | None:
    """(extent, lanes) of the only variable besides the rows; None with several other variables."""
    d = f.definitions[0]
    sizes = extents(f, d, box)
    vectors = vectors_of(f, 0, sizes, machine.vector_bytes)
    return (sizes[vectors[0]], vectors[1]) if vectors and len(d.variables) == 2 else None


def _reads(f: FuncDef) -> list[Read]:
    return list(reads_in(f.definitions[0].values))


def _rows_read(d: Definition, row: str) -> set[tuple[str, int]]:
    """(array, axis) of the reads that a definition indexes by the row variable alone in an axis."""
    return {(r.name, axis) for r in reads_in(d.values) for axis, e in enumerate(r.index) if e == Var(row)}


def _exceeds_l2(state: State, name: str, boxes: dict[str, Box], machine: Machine) -> bool:
    size = (volume(boxes[name]) or 0) * element_bytes(state.program, name) if name in boxes else 0
    return size > machine.l2_share * machine.threads


def write_sibling_reductions(
    stage: Stage, row: Loop | str, plan: SiblingReductions, boxes: dict[str, Box], vector_bytes: int,
    *, far: bool,
) -> None:  # fmt: skip
    """Reduce in parts in the loops of `stage`, whose loop `row` visits the rows of a part.

    With `far` the shared arrays come from memory, and are prefetched a row ahead.
    """
    at = stage.loops[-2] if plan.columns else row
    for name in plan.names:
        partial = reduce_in_parts(stage.schedule[name], plan.part, boxes[name], vector_bytes)
        partial.compute_with(stage, at)
    for name in plan.shared if far and plan.columns else ():
        stage.prefetch(name, stage.loops[-2], of=row)


def reduce_siblings(stage: Stage, boxes: dict[str, Box], machine: Machine) -> tuple[str, ...]:
    """Reduce a func in parts on threads, with its siblings in the same loops; the names of these.

    Nothing is changed without any sibling.
    """
    state = stage.schedule.state
    f, box = state.program.func(stage.func), boxes[stage.func]
    if len(f.definitions) > 1 or not f.definitions[0].ranges or not count_parts(f, 0, box):
        return ()
    if is_of_few(f, box, machine.vector_bytes):
        return ()
    plan = find_sibling_reductions(state, f.name, outermost(f.definitions[0]), boxes, machine)
    if plan is None:
        return ()
    partial = reduce_in_parts(stage, plan.part, box, machine.vector_bytes)
    part, row = partial.loops[:2]
    partial.parallel(part)
    write_sibling_reductions(partial, row, plan, boxes, machine.vector_bytes, far=False)
    return plan.names
