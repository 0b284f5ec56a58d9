"""merge_products: sums of products that share an operand as one sum, whose other operand is a stack.

    y[i, j] = sum over k of x[i, k] * W[k, j]    W_stack[k, n, j] = W[k, j] if n == 0 else V[k, j]
    z[i, j] = sum over k of x[i, k] * V[k, j]    y_z[i, n, j]     = sum over k of x[i, k] * W_stack[k, n, j]
                                                 y[i, j], z[i, j] = y_z[i, 0, j], y_z[i, 1, j]

The shared operand is read once (Jia et al., TASO, SOSP 2019: merged products of one input). Each element is
the sum of the same terms in the same order.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import replace

from tdsl.core.node import frozen, post_order
from tdsl.errors import did_you_mean
from tdsl.lang.affine import variables
from tdsl.lang.definition import Definition, has_effects
from tdsl.lang.expr import ONE, TRUE, ZERO, Binary, Expr, Read, Select, Var, const, dtype_of
from tdsl.lang.program import FuncDef
from tdsl.lang.simplify import substitute, subtract
from tdsl.schedule.gathering import read_variables
from tdsl.schedule.legality import depends_on
from tdsl.schedule.new_stage import fresh_name, new_name
from tdsl.schedule.outline import as_type, main_read, product_factors, stored_type
from tdsl.schedule.state import Illegal, State, fresh_plan


def merge_products(
    state: State, func: str, definition: int, *, sources: Sequence[str], name: str | None = None
) -> State:
    """Compute this sum and `sources` as one, of products of the shared operand and a stack of the others."""
    order = {f.name: n for n, f in enumerate(state.program.funcs)}
    for other in sources:
        if other not in order or other == func:
            raise Illegal(f"there is no other func {other!r}", did_you_mean(other, {*order} - {func}))
    if not sources or len({*sources}) < len(sources):
        raise Illegal("each func is merged once", "name one or more other sums")
    sums = [state.program.func(n) for n in (func, *sources)]
    for f in sums:
        _check_sum(state, f)
    for f, g in itertools.permutations(sums, 2):
        if depends_on(state, f.name, g.name):
            raise Illegal(f"{f.name!r} depends on {g.name!r}", "merge what can run at the same time")
    shared, operands = _shared_operand(sums)
    merged, stack = _merged(
        state, sums[0], shared, operands, new_name(state.program, name, "_".join((func, *sources)))
    )
    numbered = enumerate(zip(sums, operands, strict=True))
    return _inserted(state, stack, merged, [_part(f, merged, n, x) for n, (f, x) in numbered])


def _check_sum(state: State, f: FuncDef) -> None:
    d = f.definitions[0]
    plain = (
        len(f.definitions) == 1 and d.combine is not None and d.combine.kind == "sum" and d.init is not None
    )
    if not plain or has_effects(d) or product_factors(d) is None:
        raise Illegal(f"{f.name!r} is no sum of products", "sums of products of two operands are merged")
    if d.where != TRUE or d.mask != TRUE:
        raise Illegal(f"{f.name!r} sums under a condition", "give terms that do not count the value 0")
    if state.plan(f.name).nests != fresh_plan(f).nests:
        raise Illegal(f"the loops of {f.name!r} were changed already", "give this directive first")


@frozen
class _Operand:
    """The operand of a sum beside the shared one, in variables of the first sum, which `names` maps to."""

    value: Expr
    names: Mapping[str, str]  # the variable of the first sum for each variable of the sum


def _shared_operand(sums: Sequence[FuncDef]) -> tuple[Expr, list[_Operand]]:
    """The operand that all sums have, and the other operand of each."""
    first, refused = sums[0], ""
    factors = product_factors(first.definitions[0])
    assert factors is not None
    for shared, other in (factors, factors[::-1]):
        operands = [_Operand(other, {v: v for v in first.definitions[0].variables})]
        for g in sums[1:]:
            operand = _other_operand(first, shared, g)
            if operand is None:
                refused = g.name
                break
            operands.append(operand)
        else:
            return shared, operands
    raise Illegal(
        f"{first.name!r} and {refused!r} share no operand, or differ in extents, ranges or types",
        "merge products of one operand with others of equal shapes",
    )


def _other_operand(f: FuncDef, shared: Expr, g: FuncDef) -> _Operand | None:
    """The operand of `g` beside `shared`; None if `g` has no such operand, or other extents."""
    factors = product_factors(g.definitions[0])
    assert factors is not None
    for one, other in (factors, factors[::-1]):
        names = _renaming(f, shared, g, one)
        if names is None:
            continue
        variables_: dict[str, Expr] = {v: Var(name) for v, name in names.items()}
        if substitute(one, variables_) == shared and _limits(g, names) == _limits(
            f, {v: v for v in names.values()}
        ):
            return _Operand(substitute(other, variables_), names)
    return None


def _renaming(f: FuncDef, shared: Expr, g: FuncDef, operand: Expr) -> dict[str, str] | None:
    """A variable of `f` for each of `g`: by their places in the operands, of the others by their order."""
    d, e = f.definitions[0], g.definitions[0]
    if (len(d.free), len(d.ranges), f.dtypes) != (len(e.free), len(e.ranges), g.dtypes):
        return None
    ours, theirs = (
        list(dict.fromkeys(n.name for n in post_order(x) if isinstance(n, Var))) for x in (shared, operand)
    )
    names = dict(zip(theirs, ours, strict=False))
    for mine, other in ((d.free, e.free), (_ranges(d), _ranges(e))):
        left, right = [v for v in mine if v not in ours], [v for v in other if v not in theirs]
        if len(left) != len(right):
            return None
        names |= dict(zip(right, left, strict=True))
    one_to_one = len(names) == len({*names.values()}) == len(d.variables)
    return names if one_to_one and {names[v] for v in _ranges(e)} == {*_ranges(d)} else None


def _ranges(d: Definition) -> tuple[str, ...]:
    return tuple(v for v, _, _ in d.ranges)


def _limits(f: FuncDef, names: Mapping[str, str]) -> dict[str, tuple[Expr | None, Expr | None]]:
    """The first and the last value of each variable of a sum, by its name in `names`."""
    d = f.definitions[0]
    last = {v: (lo, None if hi is None else subtract(hi, ONE)) for v, lo, hi in d.ranges}
    return {names[v]: box for v, box in (dict(zip(d.free, f.limits, strict=True)) | last).items()}


def _merged(
    state: State, f: FuncDef, shared: Expr, operands: Sequence[_Operand], name: str
) -> tuple[FuncDef, FuncDef]:  # fmt: skip
    """The sum of all products, and the func that is the stack of their other operands."""
    d, limits = f.definitions[0], _limits(f, {v: v for v in f.definitions[0].variables})
    if any(e is None or variables(e) for ends in limits.values() for e in ends):
        raise Illegal(f"the ranges of {f.name!r} are not known", "declare a shape: with_shape(...)")
    types = {stored_type(x.value, None) for x in operands}
    stored = types.pop() if len(types) == 1 else dtype_of(operands[0].value)
    if any(dtype_of(x.value) != dtype_of(operands[0].value) for x in operands):
        raise Illegal("the operands have different types", "cast them to one type")
    number = next(
        n for n in itertools.chain(("n",), map("n_{}".format, itertools.count(1))) if n not in d.variables
    )
    limits[number] = (ZERO, const(len(operands) - 1))
    unshared = [v for v in d.free if v not in variables(shared)]

    def numbered(dims: Sequence[str]) -> tuple[str, ...]:
        """Dimensions with that of the number before the first that the shared operand has not."""
        at = next((k for k, v in enumerate(dims) if v in unshared), len(dims))
        return (*dims[:at], number, *dims[at:])

    def with_limits(name: str, definition: Definition) -> FuncDef:
        box = tuple(limits[v] for v in definition.free)
        t = (stored,) if definition.combine is None else f.dtypes
        return FuncDef(name, t, (definition,), box, box, False, f.fast_math, f.loc)

    used = frozenset[str]().union(*(variables(x.value) for x in operands))
    main = main_read(operands[0].value)
    last = [] if main is None else [v for v in read_variables(d, main) if v in used]
    dims = numbered([*(v for v in d.variables if v in used and v not in last), *last])
    value = as_type(operands[-1].value, stored)
    for k, x in reversed([*enumerate(operands[:-1])]):
        value = Select(Binary("eq", Var(number), const(k)), as_type(x.value, stored), value)
    index = tuple(map(Var, dims))
    stack_name = fresh_name(state.program, f"{name if main is None else main.name}_stack")
    stack = with_limits(stack_name, Definition(index, dims, (), TRUE, (value,), None, None, d.loc))
    read = as_type(Read(stack_name, index, 0, stored), dtype_of(operands[0].value))
    factors = product_factors(d)
    assert factors is not None
    left, right = (shared, read) if factors[0] is shared else (read, shared)
    free = numbered(d.free)
    merged = replace(d, index=tuple(map(Var, free)), free=free, values=(Binary("mul", left, right),))
    return with_limits(name, merged), stack


def _part(f: FuncDef, merged: FuncDef, number: int, operand: _Operand) -> FuncDef:
    """A sum as the elements of the merged one of a number."""
    names: dict[str, Expr] = {ours: Var(v) for v, ours in operand.names.items()}
    index = tuple(names.get(v, const(number)) for v in merged.variables)
    d = f.definitions[0]
    value = Read(merged.name, index, 0, f.dtypes[0], loc=d.loc)
    return replace(f, definitions=(Definition(d.index, d.free, (), TRUE, (value,), None, None, d.loc),))


def _inserted(state: State, stack: FuncDef, merged: FuncDef, parts: Sequence[FuncDef]) -> State:
    """The state with the stack, the merged sum and its parts before the first func that reads a part."""
    names = {f.name for f in parts}
    funcs = [f for f in state.program.funcs if f.name not in names]
    at = next((n for n, f in enumerate(funcs) if names & _sources(f)), len(funcs))
    later = {f.name for f in funcs[at:]}
    if later & (_sources(stack) | _sources(merged)):
        raise Illegal("an operand is computed after a reader of one of the sums", "define it before")
    funcs[at:at] = [stack, merged, *parts]
    state = replace(state, program=replace(state.program, funcs=tuple(funcs)))
    for f in parts:
        state = state.with_plan(f.name, replace(state.plan(f.name), nests=fresh_plan(f).nests))
    new = ((f.name, fresh_plan(f)) for f in (stack, merged))
    return replace(state, plans=(*state.plans, *new))


def _sources(f: FuncDef) -> set[str]:
    return {r.name for d in f.definitions for r in d.reads}
