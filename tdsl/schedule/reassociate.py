"""reassociate: (A B) C as A (B C), for sums of products whose terms have another such sum as a factor.

Products distribute over sums, so the two sums may be computed in either order:

    sum over j of (sum over k of a[i, k] * b[k, j]) * c[j, l]  =  sum over k of a[i, k] * d[k, l]
                                                  with d[k, l]  =  sum over j of b[k, j] * c[j, l]

The factors that depend on j are summed first, by a new func; all others stay. No other pattern is needed:
scaled or masked products, row sums of products (c is 1) and batches are cases of this rule.
"""

from __future__ import annotations

from dataclasses import replace

from tdsl.core.node import frozen
from tdsl.errors import did_you_mean
from tdsl.lang.affine import variables
from tdsl.lang.definition import Definition, has_effects
from tdsl.lang.expr import ONE, TRUE, Binary, Expr, Read, Var
from tdsl.lang.program import FuncDef, Program
from tdsl.lang.regions import reads_in
from tdsl.lang.simplify import conjunction, conjuncts, substitute, subtract
from tdsl.schedule.inlining import value_at
from tdsl.schedule.new_stage import fresh_name, insert_func, new_name, replace_func, without_unread
from tdsl.schedule.state import Illegal, State, fresh_nest, fresh_plan
from tdsl.schedule.sum_factors import Factor, factors_of, product_of
from tdsl.schedule.tree import nested_funcs


def reassociate(state: State, func: str, definition: int, *, source: str, name: str | None = None) -> State:
    """Exchange the sum of this func with the sum `source`, which is a factor of its terms.

        s[i, j] = sum over k of a[i, k] * b[k, j]   y_factor[k, l] = sum over j of b[k, j] * c[j, l]
        y[i, l] = sum over j of s[i, j] * c[j, l]   y[i, l]        = sum over k of a[i, k] * y_factor[k, l]

    Integer results are equal, as integers wrap; floats are rounded in another order. Scalar factors become
    an element-wise func of the new sum.
    """
    f, via = _check_sums(state, func, definition, source)
    nested = _nested_sum(state.program, f, state.program.func(source), via)
    factor_name = new_name(state.program, name, f"{func}_factor")
    inner_sum = _first_sum(f, nested, factor_name)
    scale = [x for x in nested.scale if variables(x[0]) <= set(inner_sum.variables)]
    terms = [x for x in (*nested.scale, *nested.last) if x not in scale]
    if scale and terms:
        inner_sum = replace(inner_sum, name=fresh_name(state.program, f"{factor_name}_sum"))
        state = insert_func(state, func, inner_sum, fresh_plan(inner_sum))
        inner_sum = _scaled_func(inner_sum, factor_name, scale)
    else:
        terms = [*nested.scale, *nested.last]
    state = insert_func(state, func, inner_sum, fresh_plan(inner_sum))
    read = Read(factor_name, tuple(map(Var, inner_sum.variables)), 0, inner_sum.dtypes[0])
    value = Binary("mul", product_of(terms, read.dtype), read) if terms else read
    d = f.definitions[0]
    outer = {n for n, _, _ in d.ranges}
    where = conjunction(c for c in conjuncts(d.where) if not variables(c) & outer)
    new = replace(d, ranges=nested.ranges, where=where, values=(value,), mask=TRUE)
    state = replace_func(state, replace(f, definitions=(new,)))
    state = state.with_plan(func, state.plan(func).with_nest(0, fresh_nest(new)))
    return _remove_unread(state, {source, *via})


def _check_sums(state: State, func: str, definition: int, source: str) -> tuple[FuncDef, set[str]]:
    """The func and the element-wise funcs through which it reads the source; Illegal unless both are sums."""
    program = state.program
    f, via = program.func(func), elementwise_between(program, func, source)
    if via is None:
        hint = did_you_mean(source, sums_in(program, func))
        raise Illegal(f"the terms of {func!r} read no func {source!r}", hint)
    inside = program.func(source)
    for g in (f, inside):
        if definition or not _is_sum(g):
            raise Illegal(f"{g.name!r} is no sum of numbers", "sums of products are reassociated")
    if inside.definitions[0].where != TRUE:
        raise Illegal(
            f"{source!r} does not sum over all points of its ranges",
            "give terms that do not count the value 0",
        )
    if state.plan(func).nests[0] != fresh_nest(f.definitions[0]):
        raise Illegal(f"the loops of {func!r} were changed before", "give this directive first")
    return f, via


def _is_sum(f: FuncDef) -> bool:
    d, t = f.definitions[0], f.dtypes[0]
    summed = d.init is not None and d.combine is not None and d.combine.kind == "sum"
    plain = len(f.definitions) == 1 and not has_effects(d)
    return summed and plain and (t.is_float or t.is_integer)


def elementwise_between(program: Program, func: str, source: str) -> set[str] | None:
    """The element-wise funcs through which `func` reads `source`; None if it does not read it."""
    reads_source: dict[str, bool] = {}

    def reads(name: str) -> bool:
        if name not in reads_source:
            names = {r.name for r in reads_in(program.func(name).definitions[0].values)}
            inner = [n for n in names if _is_elementwise(program, n) and reads(n)]
            reads_source[name] = bool(inner) or source in names
        return reads_source[name]

    is_read = program.has_func(source) and source != func and reads(func)
    return {n for n, yes in reads_source.items() if yes and n != func} if is_read else None


def sums_in(program: Program, func: str) -> list[str]:
    """The sums that a func reads, directly or through element-wise funcs."""
    seen, new = {func}, [func]
    while new:
        read = {r.name for r in reads_in(program.func(new.pop()).definitions[0].values)} - seen
        seen |= read
        new += [n for n in read if _is_elementwise(program, n)]
    return [f.name for f in program.funcs if f.name in seen - {func} and _is_sum(f)]


def _is_elementwise(program: Program, name: str) -> bool:
    if not program.has_func(name):
        return False
    f, d = program.func(name), program.func(name).definitions[0]
    single = len(f.definitions) == 1 == len(f.dtypes)
    return single and d.combine is None and not d.ranges and not has_effects(d)


@frozen
class _NestedSum:
    """Two nested sums as one: the ranges of the inner sum, and the factors of its terms.

    `first` depend on ranges of the outer sum, `last` on those of the inner sum alone, `scale` on neither.
    """

    ranges: tuple[tuple[str, Expr | None, Expr | None], ...]
    first: tuple[Factor, ...]
    last: tuple[Factor, ...]
    scale: tuple[Factor, ...]


def _nested_sum(program: Program, f: FuncDef, inside: FuncDef, via: set[str]) -> _NestedSum:
    """The terms of `f`, in which the read of the inner sum is replaced by the terms of that sum."""
    d, summed = f.definitions[0], inside.definitions[0]
    names = _fresh_names([n for n, _, _ in summed.ranges], {*d.variables, *summed.free})
    at: dict[str, Expr] = {a: Var(b) for a, b in names.items()}

    def expand(r: Read) -> Expr | None:
        if r.name in via:
            return value_at(program.func(r.name).definitions[0], r)
        if r.name != inside.name:
            return None
        at.update(zip(summed.free, r.index, strict=True))
        return substitute(summed.values[0], at)

    factors = factors_of(d.values[0], expand)
    if factors is None:
        raise Illegal(
            f"the terms of {f.name!r} are no products with {inside.name!r} as one factor",
            "it may be scaled, negated, masked with 0, divided, or cast to a type that rounds nothing",
        )
    ranges = []
    for n, lo, hi in summed.ranges:
        assert lo is not None and hi is not None and not variables(lo) | variables(hi)
        ranges.append((names[n], lo, hi))
    outer, inner = {n for n, _, _ in d.ranges}, {n for n, _, _ in ranges}
    first = tuple(x for x in factors if variables(x[0]) & outer)
    left = [x for x in factors if x not in first]
    last = tuple(x for x in left if variables(x[0]) & inner)
    return _NestedSum(tuple(ranges), first, last, tuple(x for x in left if x not in last))


def _fresh_names(variables_: list[str], used: set[str]) -> dict[str, str]:
    """For each variable its name, or the first of name_1, name_2, ... that is unused."""
    fresh: dict[str, str] = {}
    for v in variables_:
        name, count = v, 0
        while name in used or name in fresh.values():
            count += 1
            name = f"{v}_{count}"
        fresh[v] = name
    return fresh


def _first_sum(f: FuncDef, sums: _NestedSum, name: str) -> FuncDef:
    """The sum over the ranges of `f` of the factors that depend on them.

    Its dimensions are the other variables of these factors: the free ones of `f`, and before the last of
    these, the column of a matrix, the ranges of the inner sum.
    """
    d, t = f.definitions[0], f.dtypes[0]
    ends = [e for _, lo, hi in d.ranges for e in (lo, hi) if e is not None]
    used = {v for e in (*(x for x, _ in sums.first), d.where, *ends) for v in variables(e)}
    terms = {n: (lo, subtract(hi, ONE)) for n, lo, hi in sums.ranges if lo is not None and hi is not None}
    free = [v for v in d.free if v in used]
    last = len(free) - (d.free[-1:] == tuple(free[-1:]) and bool(free))
    dims = (*free[:last], *(v for v in terms if v in used), *free[last:])
    limits, natural = (
        tuple((dict(zip(d.free, box, strict=True)) | terms)[v] for v in dims) for box in (f.limits, f.natural)
    )
    definition = replace(
        d, index=tuple(map(Var, dims)), free=dims, values=(product_of(sums.first, t),), mask=TRUE
    )
    return FuncDef(name, (t,), (definition,), limits, natural, False, f.fast_math, f.loc)


def _scaled_func(f: FuncDef, name: str, scale: list[Factor]) -> FuncDef:
    """An element-wise func: the sum `f` times the factors `scale`."""
    d, t = f.definitions[0], f.dtypes[0]
    value = product_of([(Read(f.name, d.index, 0, t), False), *scale], t)
    definition = Definition(d.index, d.free, (), TRUE, (value,), None, None, d.loc)
    return replace(f, name=name, definitions=(definition,))


def _remove_unread(state: State, names: set[str]) -> State:
    """The state without those funcs of `names` that nothing reads; Illegal if one of them has directives."""
    left = without_unread(state, names)
    kept = {f.name for f in left.program.funcs}
    for name in [f.name for f in state.program.funcs if f.name not in kept]:
        placed = len(nested_funcs(state, name)) > 1 or name in dict(state.placed)
        if placed or state.plan(name).scheduled:
            raise Illegal(f"{name!r} has a schedule, and is not needed any more", "give this directive first")
    return left
