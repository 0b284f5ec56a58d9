"""Reductions to few values in a fixed number of parts, so that threads share the work."""

from __future__ import annotations

from math import prod

from tdsl.autoschedule.patterns.rows import free_vector, vectors_of
from tdsl.lang.affine import variables
from tdsl.lang.definition import Definition
from tdsl.lang.program import FuncDef
from tdsl.lang.regions import Box, reads_in
from tdsl.schedule.fluent import Stage
from tdsl.schedule.properties import extents, lanes_for, volume
from tdsl.schedule.state import is_ordered

MOST = 64  # parts
EVEN = 8  # parts, a multiple of which any usual number of threads shares evenly
WORK = 1 << 17  # terms that are worth parts
PART = 1 << 14  # terms that are worth a part
MERGE = 8  # terms for each element that is merged
FEW = 16  # values that are reduced in the same parts, one after the other


def in_parts(stage: Stage, box: Box, vector_bytes: int) -> bool:
    """Reduce parts of the outermost range on threads, each in separate memory, and merge them in order.

    False, and nothing is changed, where a reduction has free loops for threads or too few terms. How many
    parts there are depends on the sizes alone.
    """
    f, definition = stage.schedule.state.program.func(stage.func), stage.definition
    sizes = _sizes(f, definition, box)
    count = count_parts(f, definition, box)
    if not count:
        return False
    first = outermost(f.definitions[definition])
    size = -(-(sizes[first] or 1) // count)
    vectors = vectors_of(f, definition, sizes, vector_bytes, whole=True)
    if vectors is not None and vectors[0] == first:
        size += -size % vectors[1]  # whole vectors
    partial = reduce_in_parts(stage, size, box, vector_bytes)
    partial.parallel(partial.loops[0])
    return True


def reduce_in_parts(stage: Stage, size: int, box: Box, vector_bytes: int) -> Stage:
    """Reduce `size` terms of the outermost range at a time in a new stage, whose first loop is the parts."""
    f, definition = stage.schedule.state.program.func(stage.func), stage.definition
    d, sizes = f.definitions[definition], _sizes(f, definition, box)
    vectors = vectors_of(f, definition, sizes, vector_bytes, whole=True)
    first = outermost(d)
    part, inner = stage.split(first, size)
    partial = stage.rfactor(part)
    partial.reorder_storage(len(f.variables), *range(len(f.variables)))
    partial.reorder(part, *(x for x in partial.loops if x.name != part.name))
    if vectors is not None:
        variable = inner.name if vectors[0] == first else vectors[0]
        _vectors(partial, d, variable, vectors[1])
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
    if not d.ranges or is_ordered(f, definition):
        return 0
    vector = free_vector(f, definition, sizes)
    several = any((sizes[v] or 2) > 1 for v in d.free if v != vector)
    if several and prod(sizes[v] or FEW + 1 for v in d.free) > FEW:
        return 0
    known = [n for n in sizes.values() if n is not None]
    extent = sizes[outermost(d)]
    if values is None or len(known) < len(sizes) or extent is None or any(n <= 0 for n in known):
        return 0
    terms = prod(known)
    merge = MERGE if d.init is not None else 4 * MERGE  # zeros are stored, too, before an update
    count = min(MOST, terms // PART, terms // (merge * max(values, 1)), extent // 2)
    count -= count % EVEN if count > EVEN else 0
    return count if count > 1 and terms >= WORK else 0


def is_of_few(f: FuncDef, box: Box, vector_bytes: int) -> bool:
    """True for several, but few, long reductions over vectors of terms, computed in the same parts."""
    sizes = _sizes(f, 0, box)
    vectors = vectors_of(f, 0, sizes, vector_bytes, whole=True)
    d = f.definitions[0]
    several = prod(sizes[v] or 1 for v in d.free) > 1
    over = vectors is not None and vectors[0] not in d.free
    return several and over and count_parts(f, 0, box) > 0


def outermost(d: Definition) -> str:
    """The first of the ranges in the order of memory, or as written where reads are of several orders."""
    names = [name for name, _, _ in d.ranges]
    orders = {
        tuple(dict.fromkeys(v for e in r.index for v in names if v in variables(e)))
        for r in reads_in(d.values)
    }
    whole = [order for order in orders if len(order) == len(names)]
    return whole[0][0] if len(orders) == len(whole) == 1 else names[0]


def _vectors(stage: Stage, d: Definition, variable: str, lanes: int) -> None:
    if variable != stage.loops[-1].name:
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
