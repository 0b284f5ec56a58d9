"""How long the operations of a nest wait for each other: chains of sums, and of values that follow values."""

from __future__ import annotations

import functools
from math import prod

from tdsl.core.node import Node, post_order
from tdsl.cost.accesses import loops_of
from tdsl.cost.loopnests import NestSpot
from tdsl.lang.affine import has_data, variables
from tdsl.lang.definition import Definition
from tdsl.lang.expr import Binary, Const, Expr, Param, Read, dtype_of
from tdsl.lang.operations import (
    CONVERT,
    PLAIN,
    PRODUCT,
    is_product,
    issues,
    issues_of,
    operation_of,
    without_indices,
)
from tdsl.lang.simplify import subtract
from tdsl.schedule.properties import max_bytes
from tdsl.schedule.state import UNROLLED, VECTORIZED

FLOAT, INTEGER = 4.0, 1.0  # cycles until the result of a float operation, or an integer one, is there
THROUGH_MEMORY = 5.0  # cycles from a store to a load of the same number
SCATTERED = 4.0  # cycles from one update to the next, at points that data choose
LONGER = 1.5  # cycles for each issue of a division or function until its value is there
START = 1e-9  # cycles, of what a chain begins with
IN_FLIGHT = 200.0  # instructions that a processor has begun and not ended


def chain_cycles(spot: NestSpot, d: Definition, vector_bytes: int) -> float:
    """The cycles that the operations of a nest wait for each other in; 0 where none does.

    Sums of different points, and those of other points that begin meanwhile, do not wait for each other.
    """
    latency, carried = dependence(d, spot.func.name)
    if not latency:
        return 0.0
    counts = spot.counts()
    names = [x for x, n in counts.items() if n > 1]
    loops = loops_of(spot, carried)
    chained = [x for x in names if x in loops and spot.kind(x) != VECTORIZED]
    if not chained:
        return 0.0
    at = names.index(chained[-1])
    inner = names[at + 1 :]
    independent, in_memory = 1.0, False
    for x in inner:
        if spot.kind(x) == VECTORIZED:
            independent *= max(counts[x] * max_bytes(d) / max(vector_bytes, 1), 1.0)
        else:
            independent *= counts[x]
            in_memory |= spot.kind(x) != UNROLLED
    steps = spot.times * prod(counts[x] for x in names[: at + 1])
    length = prod(counts[x] for x in chained)
    instructions = (issues_of(d) + len(d.reads)) * independent + 2
    overlapping = 1 + IN_FLIGHT / (length * instructions)
    return steps * (latency + (THROUGH_MEMORY if in_memory else 0.0)) / overlapping


@functools.lru_cache(1 << 12)
def dependence(d: Definition, func: str) -> tuple[float, frozenset[str]]:
    """The cycles from a value of a func to the one that needs it, and the variables from which to which.

    >>> import tdsl as td
    >>> i, r, f = *td.vars("i r"), td.Func("f", shape=(9, 9))
    >>> f[i, r] = 1.0
    >>> r = td.range("r", 1, 9)
    >>> f[i, r] = f[i, r - 1] * 2
    >>> latency, along = dependence(td.Schedule(f).program.func("f").definitions[1], "f")
    >>> round(latency), sorted(along)
    (9, ['r'])
    """
    latency, carried = 0.0, frozenset[str]()
    if d.combine is not None and any(map(has_data, d.index)):
        return SCATTERED, frozenset(d.variables)
    if d.combine is not None:
        latency = _latency_of_combiner(d)
        carried = frozenset(d.variables) - frozenset().union(*map(variables, d.index))
    for r in {r for r in d.reads if r.name == func}:
        along = _shifted(d, r)
        if along is not None:
            through = max(_depth(v, r) for v in d.values) + THROUGH_MEMORY
            latency, carried = max(latency, through), carried | along
    return (latency, carried) if carried else (0.0, carried)


def _shifted(d: Definition, r: Read) -> frozenset[str] | None:
    """The variables along which a read goes back to an earlier iteration; None if the distance varies."""
    along = set[str]()
    for written, read in zip(d.index, r.index, strict=True):
        if written == read:
            continue
        distance = subtract(written, read)
        if not isinstance(distance, Const) or has_data(read):
            return None
        along |= variables(written)
    if along:
        return frozenset(along)
    return frozenset(d.variables) - frozenset().union(*map(variables, d.index))


def _latency_of_combiner(d: Definition) -> float:
    assert d.combine is not None
    deepest = 0.0
    for n, e in enumerate(d.combine.exprs):
        deepest = max(deepest, _depth(e, Param(f"a{n}", dtype_of(e))))
    return deepest or FLOAT


def _depth(e: Expr, start: Expr) -> float:
    """The cycles from an operand of an expression to its value; 0 if the operand is not in it."""
    depth: dict[Node, float] = {}
    for n in post_order(e):
        if n == start:
            depth[n] = START
            continue
        through = max(without_indices(n), key=lambda c: depth[c], default=None)
        below = depth[through] if through is not None else 0.0
        fused = isinstance(n, Binary) and n.op in ("add", "sub") and is_product(through)
        depth[n] = below + (0.0 if fused else _latency(n)) if below else 0.0
    return depth[e]


def _latency(n: Node) -> float:
    op, dtype, count = operation_of(n)
    if op not in (PLAIN, PRODUCT, CONVERT) or count > 1:
        return LONGER * issues(op, dtype) * count
    return count * (FLOAT if dtype.is_float else INTEGER)
