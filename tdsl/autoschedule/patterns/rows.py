"""Loops of one definition for the default schedule: order, vectors along memory, threads outside."""

from __future__ import annotations

from tdsl.autoschedule.patterns.updates import PARALLEL_WORK, operations_of, shape_update
from tdsl.lang.definition import Definition
from tdsl.lang.expr import Var
from tdsl.lang.program import FuncDef
from tdsl.lang.regions import Box, reads_in
from tdsl.schedule.fluent import Stage
from tdsl.schedule.properties import (
    Sizes,
    extents,
    is_dense,
    lanes_for,
    stride_of,
)
from tdsl.schedule.state import PARALLEL, PEEL, SERIAL, Nest, is_ordered, roots_of

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


def shape_nest(stage: Stage, box: Box, vector_bytes: int, *, outer: bool) -> None:
    """Vectorize a definition, with its reductions outside of the vector; threads if it stands `outer`most."""
    f, definition = stage.schedule.state.program.func(stage.func), stage.definition
    d = f.definitions[definition]
    sizes = extents(f, d, box)
    threads = outer and is_worth_threads(d, sizes)
    vector = vector_variable(d)
    if threads and vector is not None and len(d.free) == 1:
        _thread_blocks(stage, f, vector, sizes[vector])
    row = scanned_row(f, definition)
    if threads and row is not None and (sizes[row] or 0) >= 2 * SCANS:
        _scans(stage, row)
    _vectors(stage, f, sizes, vector_bytes, whole=outer)
    if threads:
        _threads(stage, f, sizes)
    if d.init is None and d.ranges:
        shape_update(stage, sizes, vector_bytes, threads=threads)


def _nest(stage: Stage) -> Nest:
    return stage.schedule.state.plan(stage.func).nests[stage.definition]


def scanned_row(f: FuncDef, definition: int) -> str | None:
    """The variable of the rows of a scan along memory: f[i, r] follows from f[i, r - 1]."""
    d = f.definitions[definition]
    if len(d.ranges) != 1 or not d.free or not is_ordered(f, definition):
        return None
    row, r = d.free[-1], d.ranges[0][0]
    reads = [x.index for x in reads_in(d.values) if x.name == f.name and x.index[:-1] == d.index[:-1]]
    along = d.index[-1] == Var(r) and any(at != d.index for at in reads)
    return row if along and Var(row) in d.index else None


def _scans(stage: Stage, row: str) -> None:
    """Some rows of a scan side by side, an element of each in turn."""
    if row not in _nest(stage).names():
        return
    _, side = stage.split(row, SCANS, tail=PEEL, names=(f"{row}_s", f"{row}_n"))
    stage.reorder(*(x for x in stage.loops if x.name != side.name), side)
    stage.unroll(side)


def vectors_of(
    f: FuncDef, definition: int, sizes: Sizes, vector_bytes: int, *, whole: bool = False
) -> tuple[str, int] | None:
    """The variable of a definition that becomes vectors, and how many lanes; None where none pays.

    Lanes of a free variable fill a vector; those of a range fill several, so that additions overlap. Sizes of
    a `whole` func, and those that a part of one has in full, tell how narrow dimensions in memory are.
    """
    d = f.definitions[definition]
    widths = sizes if whole else _whole_extents(f, d, sizes)
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


def _whole_extents(f: FuncDef, d: Definition, sizes: Sizes) -> Sizes:
    """The extents of ranges, and of the dimensions of which a part of a func has all."""
    whole = extents(f, d, f.natural)
    return {v: n for v, n in sizes.items() if v not in d.free or n == whole[v]}


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


def _vectors(stage: Stage, f: FuncDef, sizes: Sizes, vector_bytes: int, *, whole: bool) -> None:
    vectors = vectors_of(f, stage.definition, sizes, vector_bytes, whole=whole)
    if vectors is None:
        return
    variable, lanes = vectors
    d, nest = f.definitions[stage.definition], _nest(stage)
    names = nest.names()
    loop = variable if variable in names else _block_of(variable)
    if loop not in names or nest.kind(loop) != SERIAL:
        return
    others = [x for x in names if x != loop]
    if d.ranges and (variable in d.free or variable != d.ranges[-1][0]) and names != (*others, loop):
        stage.reorder(*others, loop)
    stage.vectorize(loop, lanes)


def is_worth_threads(d: Definition, sizes: Sizes) -> bool:
    """True for a definition whose work exceeds the cost of starting threads."""
    return operations_of(d, sizes) >= PARALLEL_WORK


def _threads(stage: Stage, f: FuncDef, sizes: dict[str, int | None]) -> None:
    nest = _nest(stage)
    loop = outermost_free_loop(nest, f.definitions[stage.definition], sizes)
    if loop is not None and all(x.kind != PARALLEL for x in nest.loops):
        stage.parallel(loop)


def outermost_free_loop(nest: Nest, d: Definition, sizes: Sizes) -> str | None:
    """The outermost serial loop of more than one iteration if the loops around it are free, too."""
    for x in nest.loops:
        (root, *more) = roots_of(nest, x.name)
        if more or root not in d.free:
            return None
        if x.kind == SERIAL and (sizes[root] or 2) > 1:
            return x.name
    return None


def _block_of(name: str) -> str:
    return f"{name}_b"


def _thread_blocks(stage: Stage, f: FuncDef, name: str, extent: int | None) -> None:
    """A single dimension is both threads and vectors: blocks of it, narrow where ranges run over them."""
    names = (f"{name}_t", _block_of(name))
    block = SCANNED if is_ordered(f, stage.definition) else BLOCK
    nest = _nest(stage)
    if extent is None or extent < 2 * block or name not in nest.names() or set(names) & nest.used_names():
        return
    outer, _ = stage.split(name, block, names=names)
    stage.parallel(outer)
