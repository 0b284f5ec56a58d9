"""fuse_reductions: two reductions over the same ranges as one reduction of several values, in one pass.

    top[()] = max of x[k] over k        top_total[()] = (max of x[k], sum of x[k]) over k
    total[()] = sum of x[k] over k      top[()], total[()] = top_total[()]

What both read is loaded once (horizontal fusion). Each value is combined as before.
"""

from __future__ import annotations

from dataclasses import replace

from tdsl.core.node import Node, transform
from tdsl.errors import did_you_mean
from tdsl.lang.affine import constant_difference
from tdsl.lang.definition import Definition, has_effects
from tdsl.lang.expr import TRUE, Expr, Param, Read, Var
from tdsl.lang.program import FuncDef
from tdsl.lang.reduction import Combine
from tdsl.lang.simplify import substitute
from tdsl.schedule.legality import depends_on
from tdsl.schedule.new_stage import insert_func, new_name, replace_func
from tdsl.schedule.state import Illegal, State, fresh_plan, is_ordered


def fuse_reductions(
    state: State, func: str, definition: int, *, source: str, name: str | None = None
) -> State:
    """Compute this reduction and `source` by a new func that reduces the values of both."""
    if not state.program.has_func(source) or source == func:
        others = [f.name for f in state.program.funcs if f.name != func]
        raise Illegal(f"there is no other func {source!r}", did_you_mean(source, others))
    f, g = state.program.func(func), state.program.func(source)
    for h in (f, g):
        _check_reduction(state, h)
    _check_same_points(f, g)
    if depends_on(state, func, source) or depends_on(state, source, func):
        raise Illegal(f"one of {func!r} and {source!r} reads the other", "fuse what can run at the same time")
    first = min(f.name, g.name, key=lambda n: [h.name for h in state.program.funcs].index(n))
    order = {h.name: n for n, h in enumerate(state.program.funcs)}
    d, e = f.definitions[0], g.definitions[0]
    if any(order.get(x, -1) > order[first] for x in e.sources | d.sources):
        raise Illegal(
            f"{func!r} or {source!r} reads what is defined after the other", "define what they read first"
        )
    names: dict[str, Expr] = {b: Var(a) for a, b in zip(d.variables, e.variables, strict=True)}
    values = (*d.values, *(substitute(v, names) for v in e.values))
    assert d.combine is not None and e.combine is not None and d.init is not None and e.init is not None
    both = _combined(d.combine, e.combine)
    fused_name = new_name(state.program, name, f"{func}_{source}")
    h = replace(
        f, name=fused_name, dtypes=(*f.dtypes, *g.dtypes), declared=False, array=(),
        definitions=(replace(d, values=values, combine=both, init=(*d.init, *e.init)),),
    )  # fmt: skip
    state = insert_func(state, first, h, fresh_plan(h))
    for reader, start in ((f, 0), (g, len(f.dtypes))):
        reader = replace(reader, definitions=(_component_reads(reader, h, start),))
        plan = replace(state.plan(reader.name), nests=fresh_plan(reader).nests)
        state = replace_func(state, reader).with_plan(reader.name, plan)
    return state


def _component_reads(f: FuncDef, h: FuncDef, start: int) -> Definition:
    """The definition of a func as some of the values of another one."""
    d = f.definitions[0]
    index = tuple(map(Var, d.free))
    values = tuple(Read(h.name, index, start + c, t, loc=d.loc) for c, t in enumerate(f.dtypes))
    return replace(d, index=index, ranges=(), values=values, combine=None, init=None)


def _combined(first: Combine, second: Combine) -> Combine:
    """The combiner of the values of both, each by its own."""
    start = len(first.exprs)
    shifted = {f"{side}{n}": f"{side}{start + n}" for side in "ab" for n in range(len(second.exprs))}

    def moved(n: Node) -> Node:
        return replace(n, name=shifted[n.name]) if isinstance(n, Param) and n.name in shifted else n

    exprs = (*first.exprs, *(transform(e, moved) for e in second.exprs))
    return Combine("reduce", exprs, (*first.init, *second.init))


def _check_reduction(state: State, f: FuncDef) -> None:
    d = f.definitions[0]
    if len(f.definitions) > 1 or d.init is None or is_ordered(f, 0) or has_effects(d):
        raise Illegal(f"{f.name!r} is no reduction whose terms may come in any order", "fuse sums and such")
    if d.where != TRUE or d.mask != TRUE:
        raise Illegal(f"{f.name!r} reduces under a condition", "give terms that do not count the value 0")
    if state.plan(f.name).nests != fresh_plan(f).nests:
        raise Illegal(f"the loops of {f.name!r} were changed already", "give this directive first")


def _check_same_points(f: FuncDef, g: FuncDef) -> None:
    """Raise Illegal unless two reductions have the same elements and ranges."""
    d, e = f.definitions[0], g.definitions[0]
    boxes = [*zip(f.natural, g.natural, strict=False)]
    ranges = [
        ((lo, hi), (low, high)) for (_, lo, hi), (_, low, high) in zip(d.ranges, e.ranges, strict=False)
    ]
    same = len(d.ranges) == len(e.ranges) and len(d.free) == len(e.free) and f.limits == g.limits
    for one, other in (*boxes, *ranges):
        for a, b in zip(one, other, strict=True):
            same = same and a is not None and b is not None and constant_difference(a, b) == 0
    if not same:
        raise Illegal(
            f"{f.name!r} and {g.name!r} have other elements or ranges", "fuse reductions of the same size"
        )
