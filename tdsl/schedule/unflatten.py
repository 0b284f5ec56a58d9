"""unflatten: replaces a variable of a func by two, its quotient and its remainder by a factor."""

from __future__ import annotations

from dataclasses import replace

from tdsl.core.node import Node, transform
from tdsl.lang.bounds import NO_FACTS, Facts
from tdsl.lang.definition import Definition
from tdsl.lang.expr import ZERO, Binary, Const, Expr, Read, Var, const
from tdsl.lang.program import FuncDef, map_expressions
from tdsl.lang.regions import Interval
from tdsl.lang.simplify import add, multiply, simplify, substitute
from tdsl.schedule.bounds_inference import variable_ranges
from tdsl.schedule.flatten import check_flattenable
from tdsl.schedule.loops import check_positive, find_loop, new_loop_name
from tdsl.schedule.properties import needed_box
from tdsl.schedule.state import Illegal, State, fresh_plan


def unflatten(state: State, func: str, definition: int, *, variable: str, factor: int) -> State:
    """f[d] with d in range(n)  -->  f[d // factor, d % factor]; readers of the func read it there.

    The factor must divide n. The other way round, `flatten` makes one variable of several.
    """
    f, plan = state.program.func(func), state.plan(func)
    check_flattenable(state, f, plan, definition)
    k, nest = check_positive(factor, "the factor"), plan.nests[definition]
    name = find_loop(state, func, definition, variable)
    if plan.nests != fresh_plan(f).nests:
        raise Illegal(f"the loops of {func!r} were changed already", "unflatten before other directives")
    if name not in f.variables or f.definitions[0].index.count(Var(name)) != 1:
        raise Illegal(f"loop {name!r} is no free variable of {func!r}", "name one of its variables")
    if func in state.program.outputs:
        raise Illegal(f"{func!r} is an output, of whose array this is a dimension", "cache_write it first")
    axis = f.variables.index(name)
    lo, hi = needed_box(state, f)[axis]
    if lo != ZERO or not isinstance(hi, Const) or (int(hi.value) + 1) % k:
        raise Illegal(
            f"the range of {name!r} is no multiple of {k} from 0 on",
            "name one of its divisors, with sizes as numbers",
        )
    outer, inner = (new_loop_name(nest, None, f"{name}_{part}") for part in ("o", "i"))
    count = (int(hi.value) + 1) // k
    facts = NO_FACTS.with_range(outer, ZERO, const(count - 1)).with_range(inner, ZERO, const(k - 1))
    state = _replace_variable(state, f, axis, (outer, inner), (count, k), facts)
    return state.with_plan(func, replace(plan, nests=fresh_plan(state.program.func(func)).nests))


def _replace_variable(
    state: State, f: FuncDef, axis: int, names: tuple[str, str], sizes: tuple[int, int], facts: Facts
) -> State:
    """The state with two variables of these extents for an axis of a func, at which its readers read it."""
    old, k, d = f.variables[axis], const(sizes[1]), f.definitions[0]
    whole = add(multiply(Var(names[0]), k), Var(names[1]))
    parts = tuple(map(Var, names))

    def inside(e: Expr) -> Expr:
        return simplify(substitute(e, {old: whole}), facts)

    def spread(items: tuple[Interval, ...]) -> tuple[Interval, ...]:
        ends = tuple((ZERO, const(n - 1)) for n in sizes)
        return (*items[:axis], *ends, *items[axis + 1 :])

    index = tuple(x for e in d.index for x in (parts if e == Var(old) else (e,)))
    d = replace(
        d, index=index, free=tuple(x for v in d.free for x in (names if v == old else (v,))),
        where=inside(d.where), mask=inside(d.mask), values=tuple(map(inside, d.values)),
    )  # fmt: skip
    g = replace(f, definitions=(d,), limits=spread(f.limits), natural=spread(f.natural))

    def reader(h: FuncDef, d: Definition) -> Definition:
        known = NO_FACTS
        for v, (lo, hi) in variable_ranges(d, h.natural, NO_FACTS).items():
            known = known if lo is None or hi is None else known.with_range(v, lo, hi)

        def visit(n: Node) -> Node:
            if not (isinstance(n, Read) and n.name == f.name):
                return n
            digits = (simplify(Binary(op, n.index[axis], k), known) for op in ("floordiv", "mod"))
            return replace(n, index=(*n.index[:axis], *digits, *n.index[axis + 1 :]))

        return map_expressions(d, lambda e: transform(e, visit)) if f.name in d.sources else d

    funcs = tuple(
        g if h is f else replace(h, definitions=tuple(reader(h, d) for d in h.definitions))
        for h in state.program.funcs
    )
    return replace(state, program=replace(state.program, funcs=funcs))
