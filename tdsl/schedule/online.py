"""online: fuses reductions of which one reads the result of another into one pass over their terms.

Softmax needs the maximum of a row before it sums the row. In tiles, the sum of a tile is computed with the
maximum of the tile alone; when tiles are merged, each sum is rescaled to the maximum of both. The factor
follows from the terms: see `result_factors`. All results become one associative reduction over tiles, of
several values: it can be split, reduced in parts, and computed wherever a reduction can.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import accumulate
from math import comb

from tdsl.core.node import Node, transform
from tdsl.lang.affine import constant_difference
from tdsl.lang.definition import Definition
from tdsl.lang.expr import (
    ONE,
    TRUE,
    ZERO,
    Binary,
    Call,
    Cast,
    Const,
    Expr,
    Param,
    Read,
    Select,
    Unary,
    Var,
    const,
    dtype_of,
)  # fmt: skip
from tdsl.lang.program import FuncDef, Program, map_expressions
from tdsl.lang.reduction import Combine
from tdsl.lang.regions import reads_in
from tdsl.lang.simplify import (
    add,
    ceildiv,
    conjunction,
    floordiv,
    minimum,
    multiply,
    simplify,
    substitute,
    subtract,
)
from tdsl.lang.types import DType, bool_
from tdsl.schedule.inlining import value_at
from tdsl.schedule.loops import find_loop
from tdsl.schedule.masked import needs_tile
from tdsl.schedule.new_stage import fresh_name, insert_func, new_name, replace_func, without_unread
from tdsl.schedule.reduction_fusion import ORDERED, Fusion, Member, Power, find_fusion
from tdsl.schedule.state import Illegal, State, fresh_plan
from tdsl.schedule.tree import producers_first


def online(
    state: State, func: str, definition: int, *, loop: str, factor: int, name: str | None = None
) -> State:
    """Reduce a loop in tiles of `factor` terms, each with its own results instead of those of all terms.

        m[i] = max of x[i, j]              m_tile[i, o] = max of x[i, o * 64 + u]
        s[i] = sum of exp(x[i, j] - m[i])  s_tile[i, o] = sum of exp(x[i, o * 64 + u] - m_tile[i, o])
                                           s_online[i]  = (m, s) over o, where s of a and s of b give
                                             exp(m(a) - m) * s(a) + exp(m(b) - m) * s(b)

    The reductions that the terms read, those of the same terms, and others that read the same tensors and
    can be rescaled, join the pass: argmax, for instance. The order of float sums changes. Tiles without
    unmasked terms are skipped.
    """
    f = state.program.func(func)
    over = find_loop(state, func, definition, loop)
    if factor < 1:
        raise Illegal(f"the number of terms must be at least 1, not {factor}", "64 is usual")
    fusion = find_fusion(state, f, over)
    running = online_name(state.program, func, name)
    tiles, state = _add_tile_reductions(fusion, factor)
    state = _add_merge(fusion, state, running, tiles, factor)
    return _redirect_readers(fusion, state, running)


def online_name(program: Program, func: str, name: str | None) -> str:
    """The name of the reduction over tiles that `online` adds."""
    return new_name(program, name, f"{func}_online")


def _add_tile_reductions(fusion: Fusion, factor: int) -> tuple[dict[str, str], State]:
    """The names of the reductions over a tile; the state with these, and with funcs between them per tile."""
    state = fusion.state
    lo, _ = fusion.range
    tiles = {name: fresh_name(state.program, f"{name}_tile") for name in fusion.members}
    for name, along in fusion.elementwise.items():
        g = state.program.func(name)
        tile = floordiv(subtract(Var(along), lo), const(factor))
        d = g.definitions[0]
        values = tuple(_of_tile(fusion, v, tiles, tile, factor) for v in d.values)
        state = replace_func(state, replace(g, definitions=(replace(d, values=values),)))
    for name, member in fusion.members.items():
        g = _tile_func(fusion, member, tiles, factor)
        before = name if state.program.has_func(name) else fusion.lead.name
        state = insert_func(state, before, g, fresh_plan(g))
    return tiles, state


def _tile_func(fusion: Fusion, member: Member, tiles: Mapping[str, str], factor: int) -> FuncDef:
    f, d = member.func, member.func.definitions[0]
    lo, hi = fusion.range
    outer, inner = _tile_loop_names(fusion)
    ((variable, _, _),) = d.ranges
    count = _tile_count(fusion, factor)
    at = add(lo, add(multiply(Var(outer), const(factor)), Var(inner)))
    whole = constant_difference(multiply(count, const(factor)), subtract(hi, lo)) == 0
    values = tuple(
        substitute(_of_tile(fusion, v, tiles, Var(outer), factor), {variable: at}) for v in d.values
    )
    new = Definition(
        (*d.index, Var(outer)), (*d.free, outer), ((inner, ZERO, const(factor)),),
        TRUE if whole else Binary("lt", at, hi), values, d.combine, d.init, d.loc,
    )  # fmt: skip
    along = (ZERO, subtract(count, ONE))
    limits, natural = (*f.limits, along), (*f.natural, along)
    return FuncDef(tiles[f.name], f.dtypes, (new,), limits, natural, False, f.fast_math, f.loc)


def _tile_count(fusion: Fusion, factor: int) -> Expr:
    lo, hi = fusion.range
    return ceildiv(subtract(hi, lo), const(factor))


def _of_tile(fusion: Fusion, e: Expr, tiles: Mapping[str, str], tile: Expr, factor: int) -> Expr:
    """An expression with the results of a tile instead of the final ones, and without the final factors.

    Infinite results are replaced by 0 in exponents, where inf - inf would be NaN; the results keep them.
    A sum in a power is scaled from the terms of the tile to the number of all terms.
    """
    members = fusion.members.values()
    shifting = {r.name for m in members for _, b in m.factors.shifts for r in reads_in((b,))}
    powers = {r.name for m in members if m.power for r in reads_in((m.power.part,))}
    if shifting & powers:
        raise Illegal(
            f"{', '.join(sorted(shifting & powers))} occurs in exponents and in powers",
            "a tile cannot rescale both",
        )
    lo, hi = fusion.range
    terms = minimum(const(factor), subtract(subtract(hi, lo), multiply(tile, const(factor))))

    def visit(n: Node) -> Node:
        if not isinstance(n, Read) or n.name not in fusion.members:
            return n
        partial = Read(tiles[n.name], (*n.index, tile), 0, n.dtype)
        if n.name in powers:
            whole = Binary("div", Cast(subtract(hi, lo), n.dtype), Cast(terms, n.dtype))
            return Binary("mul", partial, whole) if _is_sum(fusion, n.name) else partial
        if n.name not in shifting:
            return Const(1.0, n.dtype)
        return Select(Call("isfinite", (partial,), bool_), partial, Const(0.0, n.dtype))

    return transform(_inline_results(fusion, e), visit)


def _is_sum(fusion: Fusion, name: str) -> bool:
    return fusion.members[name].combine.kind == "sum"


def _inline_results(fusion: Fusion, e: Expr) -> Expr:
    """An expression in which funcs of results are inlined, so that the results can be replaced."""
    program = fusion.state.program

    def visit(n: Node) -> Node:
        if not isinstance(n, Read) or not program.has_func(n.name):
            return n
        d = program.func(n.name).definitions[0]
        if {n.name} & {*fusion.members, *fusion.elementwise} or d.init is not None:
            return n
        inner = _inline_results(fusion, value_at(d, n))
        return inner if any(r.name in fusion.members for r in reads_in((inner,))) else n

    return transform(e, visit)


def _tile_loop_names(fusion: Fusion) -> tuple[str, str]:
    """Names of the loop over tiles and of the loop inside a tile that no variable of a member has."""
    used = {v for m in fusion.members.values() for d in m.func.definitions for v in d.variables}
    names = []
    for base in (f"{fusion.variable}_o", f"{fusion.variable}_i"):
        name, n = base, 0
        while name in used:
            n += 1
            name = f"{base}_{n}"
        names.append(name)
    return names[0], names[1]


def _add_merge(fusion: Fusion, state: State, running: str, tiles: Mapping[str, str], factor: int) -> State:
    """The state with one reduction over tiles for all results together."""
    f, d = fusion.lead, fusion.lead.definitions[0]
    outer, _ = _tile_loop_names(fusion)
    order, slots = list(fusion.members.values()), _offsets(fusion)
    sides = {
        side: {m.func.name: Param(f"{side}{slots[m.func.name]}", m.dtype) for m in order} for side in "ab"
    }
    both: dict[str, Expr] = {}
    merged: list[Expr] = []
    for member in order:
        name = member.func.name
        if member.power is not None:
            values = [_merge_powers(fusion, member, member.power, sides, both)]
        else:
            rescaled = {side: _rescaled(member, sides[side], both) for side in "ab"}
            values = _combine_values(member, rescaled, slots[name])
        both[name] = values[0]
        merged += values
    init = tuple(e for m in order for e in m.combine.init)
    combine = Combine("custom", tuple(merged), init)
    terms = tuple(
        Read(tiles[m.func.name], (*map(Var, m.free), Var(outer)), n, t)
        for m in order
        for n, t in enumerate(m.func.dtypes)
    )
    first = add(fusion.range[0], multiply(Var(outer), const(factor)))
    where = needs_tile(fusion, first, factor)
    new = Definition(
        d.index,
        d.free,
        ((outer, ZERO, _tile_count(fusion, factor)),),
        where,
        terms,
        combine,
        init,
        d.loc,
    )
    types = tuple(t for m in order for t in m.func.dtypes)
    g = FuncDef(running, types, (new,), f.limits, f.natural, False, f.fast_math, f.loc)
    return insert_func(state, f.name, g, fresh_plan(g))


def _offsets(fusion: Fusion) -> dict[str, int]:
    """The index of the first value of each member among the values of the pass."""
    sizes = [len(m.func.dtypes) for m in fusion.members.values()]
    return dict(zip(fusion.members, accumulate(sizes, initial=0), strict=False))


def _rescaled(member: Member, old: Mapping[str, Expr], new: Mapping[str, Expr]) -> Expr:
    """The first value of one side, rescaled to the results of both sides; an initial value is unchanged."""
    value = old[member.func.name]
    factor = _rescale_factor(member, old, new, guarded=True)
    rescaled = _times(value, factor)
    if factor is None or member.combine.kind not in ORDERED:
        return rescaled
    start = member.combine.init[0]
    return Select(Binary("eq", value, start), start, rescaled)


def _merge_powers(
    fusion: Fusion, member: Member, power: Power, sides: Mapping[str, Mapping[str, Expr]],
    both: Mapping[str, Expr],
) -> Expr:  # fmt: skip
    """The sum of (u + d) ** k over both sides, where u is a term of a side, and d the shift of its part."""
    t, count = member.dtype, power.lower[0]
    total = Cast(subtract(fusion.range[1], fusion.range[0]), t)

    def reference(values: Mapping[str, Expr]) -> dict[str, Expr]:
        """The results, sums scaled from the number of terms summed so far to that of all terms."""
        results = dict(values)
        for name in {r.name for r in reads_in((power.part,))}:
            if _is_sum(fusion, name):
                grown = Binary("div", total, values[count])
                results[name] = Binary("mul", values[name], grown)
        return results

    merged: Expr | None = None
    for side in sides.values():
        before, after = (_as_type(_substitute(power.part, reference(x)), t) for x in (side, both))
        nothing = Binary("eq", side[count], Const(0.0, t))
        shift = Select(nothing, Const(0.0, t), Binary("sub", after, before))
        sums = [side[n] for n in (*power.lower, member.func.name)]
        value = sums[-1]
        for k, lower in enumerate(reversed(sums[:-1]), 1):
            times: Expr = lower
            for _ in range(k):
                times = Binary("mul", times, shift)
            binomial = Const(float(comb(len(sums) - 1, k)), t)
            value = Binary("add", value, Binary("mul", binomial, times))
        merged = value if merged is None else Binary("add", merged, value)
    assert merged is not None
    return merged


def _combine_values(member: Member, firsts: Mapping[str, Expr], slot: int) -> list[Expr]:
    """The combined values of both sides; the first value of each is given, the others are in their slots."""
    operands = {
        f"{side}{n}": Param(f"{side}{slot + n}", t) if n else firsts[side]
        for side in "ab"
        for n, t in enumerate(member.func.dtypes)
    }

    def visit(n: Node) -> Node:
        return operands.get(n.name, n) if isinstance(n, Param) else n

    return [transform(e, visit) for e in member.combine.exprs]


def _times(value: Expr, factor: Expr | None) -> Expr:
    return value if factor is None else Binary("mul", value, factor)


def _as_type(e: Expr, t: DType) -> Expr:
    return e if dtype_of(e) == t else Cast(e, t)


def _rescale_factor(
    member: Member, old: Mapping[str, Expr], new: Mapping[str, Expr], *, guarded: bool
) -> Expr | None:
    """The factor that rescales a sum from the results `old` to the results `new`; None if it is 1.

    Its type is that of the sum, which may be wider than its terms. If `guarded`, it is 1 for equal results,
    also for infinite ones.
    """
    product, t = None, member.dtype
    for fn, part in member.factors.shifts:
        before, after = (_as_type(_substitute(part, values), t) for values in (old, new))
        factor: Expr = Call(fn, (Binary("sub", after, before),), t)
        if guarded:
            names = dict.fromkeys(r.name for r in reads_in((part,)))
            same = conjunction(Binary("eq", new[n], old[n]) for n in names)
            factor = Select(same, Const(1.0, t), factor)
        product = factor if product is None else Binary("mul", product, factor)
    return product


def _substitute(e: Expr, values: Mapping[str, Expr]) -> Expr:
    return transform(e, lambda n: values[n.name] if isinstance(n, Read) and n.name in values else n)


def _redirect_readers(fusion: Fusion, state: State, running: str) -> State:
    """The state in which readers of the members read the results of the pass; unread funcs are removed."""
    f = fusion.lead
    firsts = dict(zip(f.variables, (lo for lo, _ in f.natural), strict=True))
    for g in [g for g in state.program.funcs if g.name not in fusion.members]:
        definitions = tuple(_redirect_reads(fusion, d, running) for d in g.definitions)
        if definitions != g.definitions:
            state = replace_func(state, replace(g, definitions=definitions))
    for name, member in fusion.members.items():
        if not state.program.has_func(name):
            continue  # a lower power, which nothing reads
        g = state.program.func(name)
        at = {v: firsts[v] for v in f.variables}
        at |= dict(zip(member.free, map(Var, g.variables), strict=True))
        index = tuple(e for e in at.values() if e is not None)
        if len(index) < len(at):
            raise Illegal(f"the first index of {f.name!r} is not known", "declare its shape")
        values = tuple(_result_at(fusion, member, running, index, n) for n in range(len(g.dtypes)))
        d = Definition(g.definitions[0].index, g.variables, (), TRUE, values, None, None, g.loc)
        state = replace_func(state, replace(g, definitions=(d,)))
        state = state.with_plan(name, fresh_plan(state.program.func(name)))
    read = {name for g in fusion.state.program.funcs for d in g.definitions for name in d.sources}
    return _with_sorted_funcs(without_unread(state, {*fusion.members, *read} - {f.name}))


def _result_at(fusion: Fusion, member: Member, running: str, index: tuple[Expr, ...], component: int) -> Expr:
    """The final value of a member, from the values of the pass at an index of the lead."""
    slots = _offsets(fusion)
    values: dict[str, Expr] = {
        name: Read(running, index, slots[name], m.dtype) for name, m in fusion.members.items()
    }
    name, combine = member.func.name, member.combine
    if component:
        e: Expr = Read(running, index, slots[name] + component, member.func.dtypes[component])
        if combine.kind in ("argmax", "argmin"):
            e = Select(_terms_differ(member, values), e, fusion.range[0])
    else:
        # The factor is 1, or NaN for infinite results, as without `online`, where all terms use them.
        e = _times(values[name], _rescale_factor(member, values, values, guarded=False))
        for scale, divides in member.factors.scales:
            e = Binary("div" if divides else "mul", e, _as_type(_substitute(scale, values), member.dtype))
    return simplify(
        Select(Binary("lt", *fusion.range), e, combine.init[component])
    )  # without terms: the initial value


def _terms_differ(member: Member, values: Mapping[str, Expr]) -> Expr:
    """The condition under which the terms may differ; else an argmax is the index of the first term.

    It is false if the best value is the initial value, as in a row whose masked tiles were skipped, and if
    results that all terms read are NaN, or infinite where they scale terms.
    """
    tests: list[Expr] = [Binary("ne", values[member.func.name], member.combine.init[0])]
    for _, part in member.factors.shifts:
        tests.append(Unary("not", Call("isnan", (_substitute(part, values),), bool_)))
    for scale, _ in member.factors.scales:
        tests.append(Call("isfinite", (_substitute(scale, values),), bool_))
    return conjunction(tests)


def _redirect_reads(fusion: Fusion, d: Definition, running: str) -> Definition:
    """A definition that reads members from the values of the pass if it reads the lead at the same point."""
    leads = [r for r in d.reads if r.name == fusion.lead.name]

    def visit(n: Node) -> Node:
        if not isinstance(n, Read) or n.name not in fusion.members or n in leads:
            return n
        member = fusion.members[n.name]
        at = dict(zip(member.free, n.index, strict=True))
        for lead in leads:
            index = dict(zip(fusion.lead.variables, lead.index, strict=True))
            if all(index[v] == e for v, e in at.items()):
                return _result_at(fusion, member, running, lead.index, n.component)
        return n

    return map_expressions(d, lambda e: transform(e, visit)) if leads else d


def _with_sorted_funcs(state: State) -> State:
    """The state with its funcs ordered so that producers come before consumers."""
    position = {name: n for n, name in enumerate(producers_first(state))}
    funcs = tuple(sorted(state.program.funcs, key=lambda f: position[f.name]))
    return replace(state, program=replace(state.program, funcs=funcs))
