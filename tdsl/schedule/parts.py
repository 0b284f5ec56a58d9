"""Reductions to few values in a fixed number of parts, so that threads share the work."""

from __future__ import annotations

from math import prod

from tdsl.lang.definition import Definition
from tdsl.lang.program import FuncDef
from tdsl.lang.regions import Box
from tdsl.schedule.facts import extents, volume
from tdsl.schedule.fluent import Schedule
from tdsl.schedule.nest import State, is_ordered
from tdsl.schedule.rows import free_vector, lanes_for, vectors_of
from tdsl.schedule.stage import Stage

MOST = 64  # parts
WORK = 1 << 16  # terms that are worth a part
MERGE = 8  # terms for each element that is merged


def in_parts(state: State, func: str, definition: int, box: Box, vector_bytes: int) -> State | None:
    """Reduce parts of the outermost range on threads, each in memory of its own, and merge them in order.

    None where a reduction has free loops for threads or too few terms, and for a float update, which keeps
    its order. How many parts there are depends on the sizes alone.
    """
    f = state.program.func(func)
    sizes = _sizes(f, definition, box)
    count = count_parts(f, definition, box)
    if not count:
        return None
    stage = Stage(Schedule.of_state(state), func, definition)
    extent = sizes[f.definitions[definition].ranges[0][0]] or 1
    partial = reduce_in_parts(stage, -(-extent // count), box, vector_bytes)
    partial.parallel(partial.loops[0])
    return stage.schedule.state


def reduce_in_parts(stage: Stage, size: int, box: Box, vector_bytes: int) -> Stage:
    """Reduce `size` terms of the outermost range at a time in a new stage, whose first loop is the parts."""
    f, definition = stage.schedule.state.program.func(stage.func), stage.definition
    d, sizes = f.definitions[definition], _sizes(f, definition, box)
    found = vectors_of(f, definition, sizes, vector_bytes)
    first = d.ranges[0][0]
    part, inner = stage.split(first, size)
    partial = stage.rfactor(part)
    partial.reorder_storage(len(f.variables), *range(len(f.variables)))
    partial.reorder(part, *(x for x in partial.loops if x.name != part.name))
    if found is not None:
        _vectors(partial, d, inner.name if found[0] == first else found[0], found[1])
    if partial.definition:
        _side_by_side(Stage(stage.schedule, partial.func, 0), part.name, sizes, vector_bytes)
    _side_by_side(stage, part.name, sizes, vector_bytes)
    return partial


def _sizes(f: FuncDef, definition: int, box: Box) -> dict[str, int | None]:
    return {**extents(f, f.definitions[0], box), **extents(f, f.definitions[definition], box)}


def count_parts(f: FuncDef, definition: int, box: Box) -> int:
    """How many parts pay; 0 where the reduction is better left whole."""
    d, values = f.definitions[definition], volume(box)
    sizes = {v: n for v, n in _sizes(f, definition, box).items() if v in d.variables}
    if not d.ranges or is_ordered(f, definition) or (d.init is None and f.dtypes[0].is_float):
        return 0
    vector = free_vector(f, definition)
    if any((sizes[v] or 2) > 1 for v in d.free if v != vector):
        return 0
    known = [n for n in sizes.values() if n is not None]
    extent = sizes[d.ranges[0][0]]
    if values is None or len(known) < len(sizes) or extent is None or any(n <= 0 for n in known):
        return 0
    terms = prod(known)
    count = min(MOST, terms // WORK, terms // (MERGE * max(values, 1)), extent // 2)
    return count if count > 1 else 0


def _vectors(stage: Stage, d: Definition, variable: str, lanes: int) -> None:
    if variable in d.free:
        stage.reorder(*(x for x in stage.loops if x.name != variable), variable)
    stage.vectorize(variable, lanes)


def _side_by_side(stage: Stage, part: str, sizes: dict[str, int | None], vector_bytes: int) -> None:
    """Run over parts, and inside of them along the last dimension in vectors."""
    f = stage.schedule.state.program.func(stage.func)
    last = [x for x in stage.loops if x.name != part][-1:]
    if not last:
        return
    others = [x for x in stage.loops if x.name != last[0].name]
    stage.reorder(*others, last[0])
    lanes = lanes_for(f.definitions[stage.definition], sizes[last[0].name], vector_bytes)
    if lanes > 1:
        stage.vectorize(last[0], lanes)
