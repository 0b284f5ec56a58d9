"""The order in which a schedule adds the terms of sums of floats, on which their last bits depend."""

from __future__ import annotations

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


def _order(nest: Nest, d: Definition) -> Order:
    """The loops of a nest over the terms of a definition, and the terms from one iteration to the next."""
    steps: dict[str, list[tuple[str, int | None]]] = {v: [(v, 1)] for v in d.variables}
    for r in nest.relations:
        match r:
            case Split(parent, outer, inner, factor):
                of_parent = steps.get(parent, [])
                steps[inner] = of_parent
                steps[outer] = [(v, n * factor if n and factor else None) for v, n in of_parent]
            case Fuse(fused, outer, inner):
                steps[fused] = [*steps.get(outer, []), *steps.get(inner, [])]
            case _:
                steps[r.new] = steps.get(r.old, [])
    ranges = {v for v, _, _ in d.ranges}
    order: list[tuple[str, int | None]] = []
    for loop in nest.loops:
        for v, n in steps.get(loop.name, []):
            if v in ranges:
                lanes = loop.kind == VECTORIZED
                if order and order[-1][0] == v and not lanes:
                    order.pop()
                order.append((f"{v} in lanes" if lanes else v, n))
    return tuple(order)
