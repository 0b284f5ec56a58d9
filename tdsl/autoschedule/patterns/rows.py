"""Loops of one definition for the default schedule: order, vectors along memory, threads outside."""

from __future__ import annotations

from tdsl.lang.definition import Definition
from tdsl.lang.expr import TRUE, Var
from tdsl.lang.program import FuncDef
from tdsl.lang.regions import Box, reads_in
from tdsl.schedule import loops
from tdsl.schedule.dependence import is_independent
from tdsl.schedule.properties import (
    Sizes,
    coefficient,
    cost,
    extents,
    is_dense,
    max_bytes,
    stride_of,
)
from tdsl.schedule.state import PARALLEL, PEEL, SERIAL, State, is_ordered, roots_of
from tdsl.schedule.vectorize import vectorize

PARALLEL_WORK = 30_000  # operations below which threads cost more than they bring
SUMS = 4  # vectors of partial results in a reduction along memory: additions take 4 cycles
# Rows of a scan side by side: each addition waits for the one before, about as many cycles.
SCANS = 4
MOST_SUMS = 12  # vectors of partial results of all its components together, which stay in registers
FULL = 16  # terms along memory, beyond which the innermost range gives the vectors
LEAST_LANES = 4  # that are merged by halves
BLOCK = 2048  # elements of a single dimension, of which threads take one block after the other
SCANNED = 256  # the same of columns that are scanned, each of which is a lane for all rows


def vector_variable(d: Definition, sizes: Sizes | None = None) -> str | None:
    """The free variable along which memory is adjacent: the last on the left, if reads follow it.

    With `sizes` those of extent 1 are passed over.
    """
    index = [e for e in d.index if not isinstance(e, Var) or (sizes or {}).get(e.name) != 1]
    last = (index or d.index)[-1:]
    if not last or not isinstance(last[0], Var) or last[0].name not in d.free:
        return None
    name = last[0].name
    reads = list(reads_in(d.values))
    moving = not d.ranges or any(stride_of(r, name, sizes) for r in reads)
    return name if moving and 2 * sum(is_dense(r, name, sizes) for r in reads) >= len(reads) else None


def lanes_for(d: Definition, extent: int | None, vector_bytes: int) -> int:
    """How many lanes fit a vector and an extent; 1 where vectors do not pay."""
    lanes = max(vector_bytes // max_bytes(d), 1)
    while extent is not None and lanes > 1 and lanes > extent:
        lanes //= 2
    return lanes if lanes >= 4 or lanes * max_bytes(d) == vector_bytes else 1


def shape_nest(
    state: State, func: str, definition: int, box: Box, vector_bytes: int, *, outer: bool
) -> State:
    """Vectorize a definition, with its reductions outside of the vector; threads if it stands `outer`most."""
    f = state.program.func(func)
    d = f.definitions[definition]
    sizes = extents(f, d, box)
    threads = outer and _is_worth_threads(d, sizes)
    vector = vector_variable(d)
    if threads and vector is not None and len(d.free) == 1:
        state = _thread_blocks(state, f, definition, vector, sizes[vector])
    row = scanned_row(f, definition)
    if threads and row is not None and (sizes[row] or 0) >= 2 * SCANS:
        state = _scans(state, f, definition, row)
    state = _vectors(state, f, definition, sizes, vector_bytes, whole=outer)
    state = _threads(state, f, definition, sizes) if threads else state
    if d.init is None and d.ranges:
        state = _map_independent_ranges(state, f, definition, sizes, vector_bytes, threads=threads)
    return state


def _map_independent_ranges(
    state: State, f: FuncDef, definition: int, sizes: dict[str, int | None], vector_bytes: int,
    *, threads: bool,
) -> State:  # fmt: skip
    """Vectors and threads over ranges of an update whose iterations do not depend on each other."""
    d = f.definitions[definition]
    kinds = {x.kind for x in state.plan(f.name).nests[definition].loops}
    work = _work(d, sizes) if threads and PARALLEL not in kinds else 0
    for x in state.plan(f.name).nests[definition].names():
        if work < PARALLEL_WORK or x not in sizes:
            break
        if sizes[x] != 1 and is_independent(state, f.name, definition, x):
            state = loops.parallel(state, f.name, definition, loop=x)
            break
        work //= _many(sizes[x])
    nest, reads = state.plan(f.name).nests[definition], list(reads_in(d.values))
    inner, last = nest.loops[-1], d.ranges[-1][0]
    if not kinds <= {SERIAL, PARALLEL} or (inner.name, inner.kind) != (last, SERIAL):
        return state
    lanes = lanes_for(d, sizes[last], vector_bytes)
    even = d.where == TRUE and [coefficient(e, last) for e in d.index[-1:]] == [1]
    even = even and 2 * sum(is_dense(r, last) for r in reads) >= len(reads)
    if lanes == 1 or not even or not is_independent(state, f.name, definition, last):
        return state
    return vectorize(state, f.name, definition, loop=last, factor=lanes)


def scanned_row(f: FuncDef, definition: int) -> str | None:
    """The variable of the rows of a scan along memory: f[i, r] follows from f[i, r - 1]."""
    d = f.definitions[definition]
    if len(d.ranges) != 1 or not d.free or not is_ordered(f, definition):
        return None
    row, r = d.free[-1], d.ranges[0][0]
    reads = [x.index for x in reads_in(d.values) if x.name == f.name and x.index[:-1] == d.index[:-1]]
    along = d.index[-1] == Var(r) and any(at != d.index for at in reads)
    return row if along and Var(row) in d.index else None


def _scans(state: State, f: FuncDef, definition: int, row: str) -> State:
    """Some rows of a scan side by side, an element of each in turn."""
    names = (f"{row}_s", f"{row}_n")
    if row not in state.plan(f.name).nests[definition].names():
        return state
    state = loops.split(state, f.name, definition, loop=row, factor=SCANS, tail=PEEL, names=names)
    others = [x for x in state.plan(f.name).nests[definition].names() if x != names[1]]
    state = loops.reorder(state, f.name, definition, loops=(*others, names[1]))
    return loops.unroll(state, f.name, definition, loop=names[1])


def vectors_of(
    f: FuncDef, definition: int, sizes: Sizes, vector_bytes: int, *, whole: bool = False
) -> tuple[str, int] | None:
    """The variable of a definition that becomes vectors, and how many lanes; None where none pays.

    Lanes of a free variable fill a vector; those of a range fill several, so that additions overlap. Where
    the sizes are those of a `whole` func, and not of a part, they tell how narrow dimensions in memory are.
    """
    d = f.definitions[definition]
    widths = sizes if whole else {}
    vector, over = free_vector(f, definition, widths), _vector_range(f, definition, widths)
    lanes = 1 if vector is None else lanes_for(d, sizes[vector], vector_bytes)
    if vector is not None and lanes > 1:
        return vector, lanes
    if over is None:
        return None
    lanes = lanes_for(d, sizes[over], SUMS * vector_bytes)
    while lanes > LEAST_LANES and lanes * sum(t.bytes for t in f.dtypes) > MOST_SUMS * vector_bytes:
        lanes //= 2
    return (over, lanes) if lanes > 1 else None


def free_vector(f: FuncDef, definition: int, widths: Sizes) -> str | None:
    """The free variable of the vectors; None where a vector of a range has to gather less."""
    d = f.definitions[definition]
    vector, over = vector_variable(d, widths), _vector_range(f, definition, widths)
    if vector is None or over is None:
        return vector
    return vector if _uneven(d, vector, widths) <= _uneven(d, over, widths) else None


def _vector_range(f: FuncDef, definition: int, widths: Sizes) -> str | None:
    """The range of a reduction whose reads are along memory: one that fills vectors, or the innermost."""
    d = f.definitions[definition]
    if not d.ranges or d.init is None or is_ordered(f, definition):
        return None
    names = [name for name, _, _ in reversed(d.ranges)]
    reads = list(reads_in(d.values))
    even = [v for v in names if all(stride_of(r, v, widths) is not None for r in reads)]
    known = {v: widths.get(v) for v in even}
    return max(even, key=lambda v: min(known[v] or FULL, FULL), default=None)


def _uneven(d: Definition, variable: str, sizes: Sizes) -> int:
    """How many reads a vector of a variable has to gather."""
    return sum(not is_dense(r, variable, sizes) for r in reads_in(d.values))


def _vectors(
    state: State, f: FuncDef, definition: int, sizes: Sizes, vector_bytes: int, *, whole: bool
) -> State:
    vectors = vectors_of(f, definition, sizes, vector_bytes, whole=whole)
    if vectors is None:
        return state
    variable, lanes = vectors
    d, nest = f.definitions[definition], state.plan(f.name).nests[definition]
    names = nest.names()
    loop = variable if variable in names else _block_of(variable)
    if loop not in names or nest.kind(loop) != SERIAL:
        return state
    if d.ranges and (variable in d.free or variable != d.ranges[-1][0]):
        others = [x for x in names if x != loop]
        state = loops.reorder(state, f.name, definition, loops=(*others, loop))
    return vectorize(state, f.name, definition, loop=loop, factor=lanes)


def _is_worth_threads(d: Definition, sizes: dict[str, int | None]) -> bool:
    return _work(d, sizes) >= PARALLEL_WORK


def _work(d: Definition, sizes: dict[str, int | None]) -> int:
    """About how many operations a definition takes."""
    work = cost(d) + len(list(reads_in(d.values)))
    for n in sizes.values():
        work *= _many(n) if n != 0 else 0
    return work


def _many(extent: int | None) -> int:
    return 1000 if extent is None else max(extent, 1)


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


def _thread_blocks(state: State, f: FuncDef, definition: int, name: str, extent: int | None) -> State:
    """A single dimension is both threads and vectors: blocks of it, narrow where ranges run over them."""
    names = (f"{name}_t", _block_of(name))
    block = SCANNED if is_ordered(f, definition) else BLOCK
    nest = state.plan(f.name).nests[definition]
    if extent is None or extent < 2 * block or name not in nest.names() or set(names) & nest.used_names():
        return state
    state = loops.split(state, f.name, definition, loop=name, factor=block, names=names)
    return loops.parallel(state, f.name, definition, loop=names[0])
