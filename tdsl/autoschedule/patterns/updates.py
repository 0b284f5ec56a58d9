"""Loops of an update over ranges: vectors and threads where no iteration accesses what another one writes.

The innermost loop is the range whose vectors take the fewest operations, if the dependences of the update
allow it to be innermost: one along memory, with separate elements in its lanes, or one whose lanes accumulate
terms of one element. Threads share the outermost loop that carries no dependence, if each launch has work
enough.
"""

from __future__ import annotations

from math import prod

from tdsl.errors import ScheduleError
from tdsl.lang.definition import Definition
from tdsl.lang.expr import TRUE, Read
from tdsl.lang.operations import arithmetic_of
from tdsl.lang.regions import reads_in
from tdsl.schedule.dependence import is_independent
from tdsl.schedule.fluent import Stage
from tdsl.schedule.properties import Sizes, coefficient, is_dense, lanes_for, stride_of
from tdsl.schedule.state import PARALLEL, SERIAL, roots_of
from tdsl.schedule.update_pieces import pieces_of

PARALLEL_WORK = 30_000  # operations below which threads cost more than they bring
SUMS = 2  # vectors of partial results of an element
LATENCY = 4  # operations during which an addition to one element waits for the one before


def shape_update(stage: Stage, sizes: Sizes, vector_bytes: int, *, threads: bool) -> None:
    """Vectorize a range of an update, and run one of its loops on threads, as far as that pays."""
    _vectorize(stage, sizes, vector_bytes)
    if threads:
        _parallelize(stage, sizes)


def _vectorize(stage: Stage, sizes: Sizes, vector_bytes: int) -> None:
    """Vectorize the range that takes the fewest operations a point, if it is legal and fewer than without."""
    d, nest = _definition(stage), stage.schedule.state.plan(stage.func).nests[stage.definition]
    names = nest.names()
    if not {x.kind for x in nest.loops} <= {SERIAL, PARALLEL} or any(x not in sizes for x in names):
        return
    ranges = [x.name for x in nest.loops if x.kind == SERIAL and x.name not in d.free]
    prices = {v: _price(stage, d, v, sizes, vector_bytes) for v in ranges}
    scalar = min(_price(stage, d, names[-1], sizes, 0), 1e9)
    for v in sorted(ranges, key=lambda v: (prices[v], v != names[-1])):
        lanes = _lanes(_pieces(stage, d, v), v, sizes, vector_bytes)
        if lanes == 1 or prices[v] >= scalar:
            continue
        try:
            with stage.schedule.all_or_nothing():
                if v != names[-1]:
                    stage.reorder(*(x for x in names if x != v), v)
                stage.vectorize(v, lanes)
            return
        except ScheduleError:
            continue


def _pieces(stage: Stage, d: Definition, v: str) -> list[Definition]:
    """The update in each piece of a range, if `v` is innermost."""
    f = stage.schedule.state.program.func(stage.func)
    return [p.definition for p in pieces_of(f, d, v, {*d.variables} - {v})] or [d]


def _price(stage: Stage, d: Definition, v: str, sizes: Sizes, vector_bytes: int) -> float:
    """About how many operations a point takes if `v` is innermost; scalars if vectors have no bytes."""
    pieces = _pieces(stage, d, v)
    lanes = _lanes(pieces, v, sizes, vector_bytes) if vector_bytes else 1
    return sum(_price_of(stage, p, v, lanes) for p in pieces) / len(pieces)


def _price_of(stage: Stage, d: Definition, v: str, lanes: int) -> float:
    accumulates = all(coefficient(e, v) == 0 for e in d.index)
    old = Read(stage.func, d.index, 0, stage.schedule.state.program.func(stage.func).dtypes[0])
    accesses = [*dict.fromkeys(r for r in reads_in(d.values) if r != old)]
    moved = [r for r in accesses if stride_of(r, v) != 0]
    uneven = sum(not _is_even(r, v) for r in moved)
    operations = arithmetic_of(d, v) + (LATENCY if accumulates else 2)
    return (operations + len(moved) - uneven) / lanes + 2 * uneven + (len(accesses) - len(moved)) / 8


def _is_even(r: Read, v: str) -> bool:
    return is_dense(r, v) and stride_of(r, v) is not None


def _lanes(pieces: list[Definition], v: str, sizes: Sizes, vector_bytes: int) -> int:
    """How many lanes of a range pay; 1 where vectors would scatter, or gather all that they read."""
    lanes = []
    for d in pieces:
        accumulates = all(coefficient(e, v) == 0 for e in d.index)
        along = [coefficient(e, v) for e in d.index] == [*[0] * (len(d.index) - 1), 1]
        if not (accumulates or along):
            return 1
        extent = sizes[v]
        if extent is not None and (d.where != TRUE or len(pieces) > 1):
            extent //= 2  # the mean of the lengths of a triangle
        lanes.append(lanes_for(d, extent, vector_bytes * (SUMS if accumulates else 1)))
    return min(lanes)


def _parallelize(stage: Stage, sizes: Sizes) -> None:
    """Run the outermost loop that carries no dependence on threads, if each launch has work enough."""
    d, state = _definition(stage), stage.schedule.state
    nest = state.plan(stage.func).nests[stage.definition]
    if any(x.kind == PARALLEL for x in nest.loops):
        return
    work = operations_of(d, sizes)
    for x in nest.loops:
        (root, *more) = roots_of(nest, x.name)
        if work < PARALLEL_WORK or more or x.kind != SERIAL:
            return
        if sizes[root] != 1 and is_independent(state, stage.func, stage.definition, x.name):
            stage.parallel(x.name)
            return
        work //= max(sizes[root] or 1000, 1) if x.name == root else 1


def operations_of(d: Definition, sizes: Sizes) -> int:
    """About how many operations and reads a definition takes; 1000 points for each unknown extent."""
    each = arithmetic_of(d) + len(list(reads_in(d.values)))
    return each * prod(1000 if n is None else max(n, 0) for n in sizes.values())


def _definition(stage: Stage) -> Definition:
    return stage.schedule.state.program.func(stage.func).definitions[stage.definition]
