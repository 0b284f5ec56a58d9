"""Loops of one definition for the default schedule: order, vectors along memory, threads outside."""

from __future__ import annotations

from tdsl.lang.definition import Definition
from tdsl.lang.expr import Var
from tdsl.lang.program import FuncDef
from tdsl.lang.regions import Box, reads_in
from tdsl.schedule import loops
from tdsl.schedule.facts import cost, extents, stride_of, widest
from tdsl.schedule.nest import PARALLEL, SERIAL, State, is_ordered, roots_of

PARALLEL_WORK = 30_000  # operations below which threads cost more than they bring
EXACT = ("min", "max", "any", "all", "argmin", "argmax")  # kinds whose result has no order
ROW_BLOCK = 4  # rows of a float sum along memory at a time, so that additions overlap


def needs_row_block(f: FuncDef) -> bool:
    """True for a float sum along memory: in order, each addition waits for the last."""
    d = f.definitions[0]
    return (
        d.init is not None
        and d.combine is not None
        and not _has_no_order(f, d)
        and bool(d.free)
        and vector_variable(d) is None
    )


def _has_no_order(f: FuncDef, d: Definition) -> bool:
    assert d.combine is not None
    if f.fast_math and d.combine.kind in ("sum", "prod"):
        return True
    return d.combine.kind in EXACT or (
        d.combine.kind in ("sum", "prod") and not f.dtypes[0].is_float
    )


def vector_variable(d: Definition) -> str | None:
    """The free variable along which memory is adjacent: the last on the left, if reads follow it."""
    if not d.index or not isinstance(d.index[-1], Var) or d.index[-1].name not in d.free:
        return None
    name = d.index[-1].name
    steps = [stride_of(r, name) for r in reads_in(d.values)]
    even = sum(s is not None and abs(s) <= 4 for s in steps)
    moving = any(s for s in steps) or not d.ranges
    return name if moving and 2 * even >= len(steps) else None


def lanes_for(d: Definition, extent: int | None, vector_bytes: int) -> int:
    """How many lanes fit a vector and an extent; 1 where vectors do not pay."""
    lanes = max(vector_bytes // widest(d), 1)
    while extent is not None and lanes > 1 and lanes > extent:
        lanes //= 2
    return lanes if lanes >= 4 or lanes * widest(d) == vector_bytes else 1


def shape_nest(
    state: State, func: str, definition: int, box: Box, vector_bytes: int, *, outer: bool
) -> State:
    """Vectorize a definition, with its reductions outside of the vector; threads if it stands `outer`most."""
    f = state.program.func(func)
    d = f.definitions[definition]
    sizes = extents(f, d, box)
    threads = outer and _is_much(d, sizes)
    vector = vector_variable(d)
    if threads and vector is not None and len(d.free) == 1:
        state = _thread_blocks(state, f, definition, vector, sizes[vector])
    state = _vectors(state, f, definition, sizes, vector_bytes)
    return _threads(state, f, definition, sizes) if threads else state


def _vectors(
    state: State, f: FuncDef, definition: int, sizes: dict[str, int | None], vector_bytes: int
) -> State:
    d = f.definitions[definition]
    names = state.plan(f.name).nests[definition].names()
    vector = vector_variable(d)
    lanes = 1 if vector is None else lanes_for(d, sizes[vector], vector_bytes)
    if vector is not None and lanes > 1:
        loop = vector if vector in names else _block_of(vector)
        if loop not in names or state.plan(f.name).nests[definition].kind(loop) != SERIAL:
            return state
        if d.ranges and not is_ordered(f, definition):
            others = [x for x in names if x != loop]
            state = loops.reorder(state, f.name, definition, loops=(*others, loop))
        return loops.vectorize(state, f.name, definition, loop=loop, factor=lanes)
    if d.free and needs_row_block(f):
        return _row_block(state, f, definition)
    if d.ranges and d.init is not None and not is_ordered(f, definition) and _has_no_order(f, d):
        return _vector_reduction(state, f, definition, sizes, vector_bytes)
    return state


def _row_block(state: State, f: FuncDef, definition: int) -> State:
    """for j: for i of a few rows, unrolled: sums in order, side by side."""
    names = state.plan(f.name).nests[definition].names()
    d = f.definitions[definition]
    row = d.free[-1]
    if row not in names:
        return state
    ranges = tuple(n for n, _, _ in d.ranges if n in names)
    split = (f"{row}_b", f"{row}_u")
    if any(x in names for x in split):
        return state
    state = loops.split(
        state, f.name, definition, loop=row, factor=ROW_BLOCK, tail="peel", names=split
    )
    state = loops.reorder(state, f.name, definition, loops=(split[0], *ranges, split[1]))
    return loops.unroll(state, f.name, definition, loop=split[1])


def _vector_reduction(
    state: State, f: FuncDef, definition: int, sizes: dict[str, int | None], vector_bytes: int
) -> State:
    """Lanes over the innermost range, where the order of combining does not matter."""
    d = f.definitions[definition]
    inner = d.ranges[-1][0]
    steps = [stride_of(r, inner) for r in reads_in(d.values)]
    lanes = lanes_for(d, sizes[inner], vector_bytes)
    if lanes <= 1 or any(s is None for s in steps) or len(f.dtypes) > 1:
        return state
    names = state.plan(f.name).nests[definition].names()
    return (
        loops.vectorize(state, f.name, definition, loop=inner, factor=lanes)
        if inner in names
        else state
    )


def _is_much(d: Definition, sizes: dict[str, int | None]) -> bool:
    work = cost(d) + len(list(reads_in(d.values)))
    for n in sizes.values():
        work *= 1000 if n is None else max(n, 0)
    return work >= PARALLEL_WORK


def _threads(state: State, f: FuncDef, definition: int, sizes: dict[str, int | None]) -> State:
    """Threads over the outermost loop that is free and has more than one iteration."""
    nest = state.plan(f.name).nests[definition]
    if any(x.kind == PARALLEL for x in nest.loops):
        return state
    for x in nest.loops:
        (root, *more) = roots_of(nest, x.name)
        if more or root not in f.definitions[definition].free:
            return state
        if x.kind == SERIAL and (sizes[root] or 2) > 1:
            return loops.parallel(state, f.name, definition, loop=x.name)
    return state


def _block_of(name: str) -> str:
    return f"{name}_b"


def _thread_blocks(
    state: State, f: FuncDef, definition: int, name: str, extent: int | None
) -> State:
    """A single dimension is both threads and vectors: blocks of it."""
    names = (f"{name}_t", _block_of(name))
    nest = state.plan(f.name).nests[definition]
    if (
        extent is None
        or extent < 4096
        or name not in nest.names()
        or set(names) & nest.used_names()
    ):
        return state
    state = loops.split(state, f.name, definition, loop=name, factor=2048, names=names)
    return loops.parallel(state, f.name, definition, loop=names[0])
