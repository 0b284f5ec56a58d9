"""The order in which a schedule adds the terms of sums of floats, on which their last bits depend."""

from __future__ import annotations

from dataclasses import replace

from tdsl.core.node import frozen
from tdsl.lang.definition import Definition
from tdsl.lang.expr import dtype_of
from tdsl.lang.program import Program
from tdsl.schedule.state import VECTORIZED, Fuse, Nest, Split, State

EXACT = ("min", "max", "any", "all")  # combiners whose results have the same bits in any order

Order = tuple[tuple[str, int | None], ...]


def has_sums_of_floats(program: Program) -> bool:
    """True if a definition of a program combines floats in a way that rounds."""
    return any(_rounds(d) for f in program.funcs for d in f.definitions)


def sum_orders(state: State) -> dict[tuple[str, int], tuple[object, Order]]:
    """For each definition that sums floats the loops over its terms, with the terms from one to the next.

    Loops over the same variable that are next to each other are one loop: blocks of terms, one after another.

    >>> import tdsl as td
    >>> i, k, a, f = *td.vars("i k"), td.Tensor("a", (64, 64), td.f32), td.Func("f")
    >>> f[i] = td.sum(a[i, k], axis=k)
    >>> blocks, lanes = td.Schedule(f), td.Schedule(f)
    >>> _ = blocks[f].split(k, 16)
    >>> sum_orders(blocks.state) == sum_orders(td.Schedule(f).state)
    True
    >>> _ = lanes[f].vectorize(k, 8)
    >>> sum_orders(lanes.state) == sum_orders(blocks.state)
    False
    """
    return {
        (f.name, n): (d.ranges, _order(state.plan(f.name).nests[n], d))
        for f in state.program.funcs
        for n, d in enumerate(f.definitions)
        if _rounds(d)
    }


def _rounds(d: Definition) -> bool:
    return (
        d.combine is not None and d.combine.kind not in EXACT and any(dtype_of(v).is_float for v in d.values)
    )


@frozen
class _Piece:
    """What a loop adds to a variable: `step` for each iteration, `count` times; None where unknown."""

    variable: str
    step: int | None
    count: int | None = None


def _order(nest: Nest, d: Definition) -> Order:
    """The loops of a nest over the terms of a definition, and the terms from one iteration to the next."""
    pieces: dict[str, list[_Piece]] = {v: [_Piece(v, 1)] for v in d.variables}
    for r in nest.relations:
        match r:
            case Split(parent, outer, inner, factor):
                of_parent = pieces.get(parent, [])
                known = factor if len(of_parent) == 1 else None
                pieces[inner] = [replace(p, count=known) for p in of_parent]
                pieces[outer] = [
                    _Piece(p.variable, p.step * known if p.step and known else None) for p in of_parent
                ]
            case Fuse(fused, outer, inner):
                pieces[fused] = [*pieces.get(outer, []), *pieces.get(inner, [])]
            case _:
                pieces[r.new] = pieces.get(r.old, [])
    ranges = {v for v, _, _ in d.ranges}
    order: list[tuple[_Piece, bool]] = []
    for loop in nest.loops:
        for p in pieces.get(loop.name, []):
            if p.variable not in ranges:
                continue
            in_lanes = loop.kind == VECTORIZED
            if order and not in_lanes and not order[-1][1] and (both := _as_one(order[-1][0], p)):
                order[-1] = (both, False)
            else:
                order.append((p, in_lanes))
    return tuple((f"{p.variable} in lanes" if in_lanes else p.variable, p.step) for p, in_lanes in order)


def _as_one(outer: _Piece, inner: _Piece) -> _Piece | None:
    """The loop over all terms of two loops, one inside the other; None if these are not adjacent blocks.

    >>> _as_one(_Piece("k", 16), _Piece("k", 1, 16))
    _Piece(variable='k', step=1, count=None)
    >>> _as_one(_Piece("k", 256), _Piece("k", 1, 16))
    """
    if outer.variable != inner.variable or None in (outer.step, inner.step, inner.count):
        return None
    assert outer.step is not None and inner.step is not None and inner.count is not None
    if outer.step != inner.step * inner.count:
        return None
    return _Piece(inner.variable, inner.step, outer.count and outer.count * inner.count)
