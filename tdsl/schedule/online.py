"""online: fuses reductions of which one reads the result of another into one pass over their terms.

Softmax needs the maximum of a row before it sums the row. In tiles, the sum of a tile is computed with the
maximum of the tile alone; when tiles are merged, each sum is rescaled to the maximum of both. The factor
follows from the terms: see `separate`. All results become one associative reduction over tiles, of several
values: it can be split, reduced in parts, and computed wherever a reduction can.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import accumulate
from math import comb

from tdsl.core.node import Node, transform
from tdsl.lang.affine import difference
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
from tdsl.lang.types import bool_
from tdsl.schedule.inlining import value_at
from tdsl.schedule.loops import find_loop
from tdsl.schedule.masked import needs_tile
from tdsl.schedule.new_stage import fresh_func, insert, new_func, replace_func, without_unread
from tdsl.schedule.one_pass import ORDERED, Member, Pass, Power, find_pass
from tdsl.schedule.rescaling import Separated
from tdsl.schedule.state import Illegal, State, fresh_plan
from tdsl.schedule.tree import ordered


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
    made = find_pass(state, f, over)
    running = online_name(state.program, func, name)
    tiles, state = _in_tiles(made, factor)
    state = _merged(made, state, running, tiles, factor)
    return _with_readers(made, state, running)


def online_name(program: Program, func: str, name: str | None) -> str:
    """The name of the reduction over tiles that `online` adds."""
    return new_func(program, name, f"{func}_online")


def _in_tiles(made: Pass, factor: int) -> tuple[dict[str, str], State]:
    """The names of the reductions over a tile; the state with these, and with funcs between them per tile."""
    state = made.state
    lo, _ = made.range
    tiles = {name: fresh_func(state.program, f"{name}_tile") for name in made.members}
    for name, along in made.moved.items():
        g = state.program.func(name)
        tile = floordiv(subtract(Var(along), lo), const(factor))
        d = g.definitions[0]
        values = tuple(_of_tile(made, v, tiles, tile, factor) for v in d.values)
        state = replace_func(state, replace(g, definitions=(replace(d, values=values),)))
    for name, member in made.members.items():
        g = _tile_func(made, member, tiles, factor)
        before = name if state.program.has_func(name) else made.lead.name
        state = insert(state, before, g, fresh_plan(g))
    return tiles, state


def _tile_func(made: Pass, member: Member, tiles: Mapping[str, str], factor: int) -> FuncDef:
    f, d = member.func, member.func.definitions[0]
    lo, hi = made.range
    outer, inner = _names(made)
    ((own, _, _),) = d.ranges
    count = _count(made, factor)
    at = add(lo, add(multiply(Var(outer), const(factor)), Var(inner)))
    whole = difference(multiply(count, const(factor)), subtract(hi, lo)) == 0
    values = tuple(
        substitute(_of_tile(made, v, tiles, Var(outer), factor), {own: at}) for v in d.values
    )
    new = Definition(
        (*d.index, Var(outer)), (*d.free, outer), ((inner, ZERO, const(factor)),),
        TRUE if whole else Binary("lt", at, hi), values, d.combine, d.init, d.loc,
    )  # fmt: skip
    along = (ZERO, subtract(count, ONE))
    limits, natural = (*f.limits, along), (*f.natural, along)
    return FuncDef(tiles[f.name], f.dtypes, (new,), limits, natural, False, f.fast_math, f.loc)


def _count(made: Pass, factor: int) -> Expr:
    lo, hi = made.range
    return ceildiv(subtract(hi, lo), const(factor))


def _of_tile(made: Pass, e: Expr, tiles: Mapping[str, str], tile: Expr, factor: int) -> Expr:
    """An expression with the results of a tile instead of the final ones, and without the final factors.

    Infinite results are replaced by 0 in exponents, where inf - inf would be NaN; the results keep them.
    A sum in a power is scaled from the terms of the tile to the number of all terms.
    """
    members = made.members.values()
    shifting = {r.name for m in members for _, b in m.found.shifts for r in reads_in((b,))}
    powers = {r.name for m in members if m.power for r in reads_in((m.power.part,))}
    if shifting & powers:
        raise Illegal(
            f"{', '.join(sorted(shifting & powers))} stands in exponents and in powers",
            "no place of a tile suits both",
        )
    lo, hi = made.range
    there = minimum(const(factor), subtract(subtract(hi, lo), multiply(tile, const(factor))))

    def visit(n: Node) -> Node:
        if not isinstance(n, Read) or n.name not in made.members:
            return n
        own = Read(tiles[n.name], (*n.index, tile), 0, n.dtype)
        if n.name in powers:
            whole = Binary("div", Cast(subtract(hi, lo), n.dtype), Cast(there, n.dtype))
            return Binary("mul", own, whole) if _is_sum(made, n.name) else own
        if n.name not in shifting:
            return Const(1.0, n.dtype)
        return Select(Call("isfinite", (own,), bool_), own, Const(0.0, n.dtype))

    return transform(_folded(made, e), visit)


def _is_sum(made: Pass, name: str) -> bool:
    return made.members[name].combine.kind == "sum"


def _folded(made: Pass, e: Expr) -> Expr:
    """An expression in which funcs of results are inlined, so that the results can be replaced."""
    program = made.state.program

    def visit(n: Node) -> Node:
        if not isinstance(n, Read) or not program.has_func(n.name):
            return n
        d = program.func(n.name).definitions[0]
        if {n.name} & {*made.members, *made.moved} or d.init is not None:
            return n
        inner = _folded(made, value_at(d, n))
        return inner if any(r.name in made.members for r in reads_in((inner,))) else n

    return transform(e, visit)


def _names(made: Pass) -> tuple[str, str]:
    """Names of the loop over tiles and of the loop inside a tile that no variable of a member has."""
    used = {v for m in made.members.values() for d in m.func.definitions for v in d.variables}
    found = []
    for wanted in (f"{made.variable}_o", f"{made.variable}_i"):
        name, n = wanted, 0
        while name in used:
            n += 1
            name = f"{wanted}_{n}"
        found.append(name)
    return found[0], found[1]


def _merged(made: Pass, state: State, running: str, tiles: Mapping[str, str], factor: int) -> State:
    """The state with one reduction over tiles for all results together."""
    f, d = made.lead, made.lead.definitions[0]
    outer, _ = _names(made)
    order, slots = list(made.members.values()), _slots(made)
    sides = {
        side: {m.func.name: Param(f"{side}{slots[m.func.name]}", m.dtype) for m in order}
        for side in "ab"
    }
    both: dict[str, Expr] = {}
    merged: list[Expr] = []
    for member in order:
        name = member.func.name
        if member.power is not None:
            values = [_merged_powers(made, member, member.power, sides, both)]
        else:
            own = {side: _corrected(member, sides[side], both) for side in "ab"}
            values = _combined(member, own, slots[name])
        both[name] = values[0]
        merged += values
    init = tuple(e for m in order for e in m.combine.init)
    combine = Combine("custom", tuple(merged), init)
    terms = tuple(
        Read(tiles[m.func.name], (*map(Var, m.own), Var(outer)), n, t)
        for m in order
        for n, t in enumerate(m.func.dtypes)
    )
    first = add(made.range[0], multiply(Var(outer), const(factor)))
    where = needs_tile(made, first, factor)
    new = Definition(
        d.index, d.free, ((outer, ZERO, _count(made, factor)),), where, terms, combine, init, d.loc
    )
    types = tuple(t for m in order for t in m.func.dtypes)
    g = FuncDef(running, types, (new,), f.limits, f.natural, False, f.fast_math, f.loc)
    return insert(state, f.name, g, fresh_plan(g))


def _slots(made: Pass) -> dict[str, int]:
    """The index of the first value of each member among the values of the pass."""
    sizes = [len(m.func.dtypes) for m in made.members.values()]
    return dict(zip(made.members, accumulate(sizes, initial=0), strict=False))


def _corrected(member: Member, old: Mapping[str, Expr], new: Mapping[str, Expr]) -> Expr:
    """The first value of one side, rescaled to the results of both sides; an initial value is unchanged."""
    value = old[member.func.name]
    factor = _correction(member.found, old, new, guarded=True)
    made = _times(value, factor)
    if factor is None or member.combine.kind not in ORDERED:
        return made
    start = member.combine.init[0]
    return Select(Binary("eq", value, start), start, made)


def _merged_powers(
    made: Pass, member: Member, power: Power, sides: Mapping[str, Mapping[str, Expr]],
    both: Mapping[str, Expr],
) -> Expr:  # fmt: skip
    """The sum of (u + d) ** k over both sides, where u is a term of a side, and d the shift of its part."""
    t, count = member.dtype, power.lower[0]
    total = Cast(subtract(made.range[1], made.range[0]), t)

    def reference(values: Mapping[str, Expr]) -> dict[str, Expr]:
        """The results, sums scaled from the number of terms summed so far to that of all terms."""
        found = dict(values)
        for name in {r.name for r in reads_in((power.part,))}:
            if _is_sum(made, name):
                grown = Binary("div", total, values[count])
                found[name] = Binary("mul", values[name], grown)
        return found

    made_of: Expr | None = None
    for own in sides.values():
        before, after = (_with(power.part, reference(values)) for values in (own, both))
        nothing = Binary("eq", own[count], Const(0.0, t))
        lacks = Select(nothing, Const(0.0, t), Binary("sub", after, before))
        sums = [own[n] for n in (*power.lower, member.func.name)]
        value = sums[-1]
        for k, lower in enumerate(reversed(sums[:-1]), 1):
            times: Expr = lower
            for _ in range(k):
                times = Binary("mul", times, lacks)
            several = Const(float(comb(len(sums) - 1, k)), t)
            value = Binary("add", value, Binary("mul", several, times))
        made_of = value if made_of is None else Binary("add", made_of, value)
    assert made_of is not None
    return made_of


def _combined(member: Member, firsts: Mapping[str, Expr], slot: int) -> list[Expr]:
    """The combined values of both sides; the first value of each is given, the others are in their slots."""
    own = {
        f"{side}{n}": Param(f"{side}{slot + n}", t) if n else firsts[side]
        for side in "ab"
        for n, t in enumerate(member.func.dtypes)
    }

    def visit(n: Node) -> Node:
        return own.get(n.name, n) if isinstance(n, Param) else n

    return [transform(e, visit) for e in member.combine.exprs]


def _times(value: Expr, factor: Expr | None) -> Expr:
    return value if factor is None else Binary("mul", value, factor)


def _correction(
    found: Separated, old: Mapping[str, Expr], new: Mapping[str, Expr], *, guarded: bool
) -> Expr | None:
    """The factor that rescales a sum from the results `old` to the results `new`; None if it is 1.

    If `guarded`, it is 1 for equal results, also for infinite ones.
    """
    made: Expr | None = None
    for fn, part in found.shifts:
        before, after = (_with(part, values) for values in (old, new))
        factor: Expr = Call(fn, (Binary("sub", after, before),), dtype_of(part))
        if guarded:
            names = dict.fromkeys(r.name for r in reads_in((part,)))
            same = conjunction(Binary("eq", new[n], old[n]) for n in names)
            factor = Select(same, Const(1.0, dtype_of(part)), factor)
        made = factor if made is None else Binary("mul", made, factor)
    return made


def _with(e: Expr, values: Mapping[str, Expr]) -> Expr:
    return transform(e, lambda n: values[n.name] if isinstance(n, Read) and n.name in values else n)


def _with_readers(made: Pass, state: State, running: str) -> State:
    """The state in which readers of the members read the results of the pass; unread funcs are removed."""
    f = made.lead
    firsts = dict(zip(f.variables, (lo for lo, _ in f.natural), strict=True))
    for g in [g for g in state.program.funcs if g.name not in made.members]:
        definitions = tuple(_with_results(made, d, running) for d in g.definitions)
        if definitions != g.definitions:
            state = replace_func(state, replace(g, definitions=definitions))
    for name, member in made.members.items():
        if not state.program.has_func(name):
            continue  # a lower power, which nothing reads
        g = state.program.func(name)
        at = {v: firsts[v] for v in f.variables}
        at |= dict(zip(member.own, map(Var, g.variables), strict=True))
        index = tuple(e for e in at.values() if e is not None)
        if len(index) < len(at):
            raise Illegal(f"the first index of {f.name!r} is not known", "declare its shape")
        values = tuple(_result_at(made, member, running, index, n) for n in range(len(g.dtypes)))
        d = Definition(g.definitions[0].index, g.variables, (), TRUE, values, None, None, g.loc)
        state = replace_func(state, replace(g, definitions=(d,)))
        state = state.with_plan(name, fresh_plan(state.program.func(name)))
    return _in_order(without_unread(state, set(made.members) - {f.name}))


def _result_at(
    made: Pass, member: Member, running: str, index: tuple[Expr, ...], component: int
) -> Expr:
    """The final value of a member, from the values of the pass at an index of the lead."""
    slots = _slots(made)
    values: dict[str, Expr] = {
        name: Read(running, index, slots[name], m.dtype) for name, m in made.members.items()
    }
    name, combine = member.func.name, member.combine
    if component:
        e: Expr = Read(running, index, slots[name] + component, member.func.dtypes[component])
        if combine.kind in ("argmax", "argmin"):
            e = Select(_differ(member, values), e, made.range[0])
    else:
        # The factor is 1, or NaN for infinite results, as without `online`, where all terms use them.
        e = _times(values[name], _correction(member.found, values, values, guarded=False))
        for scale, divides in member.found.scales:
            e = Binary("div" if divides else "mul", e, _with(scale, values))
    return simplify(
        Select(Binary("lt", *made.range), e, combine.init[component])
    )  # without terms: the initial value


def _differ(member: Member, values: Mapping[str, Expr]) -> Expr:
    """The condition under which the terms may differ; else an argmax is the index of the first term.

    It is false if the best value is the initial value, as in a row whose masked tiles were skipped, and if
    results that all terms read are NaN, or infinite where they scale terms.
    """
    tests: list[Expr] = [Binary("ne", values[member.func.name], member.combine.init[0])]
    for _, part in member.found.shifts:
        tests.append(Unary("not", Call("isnan", (_with(part, values),), bool_)))
    for scale, _ in member.found.scales:
        tests.append(Call("isfinite", (_with(scale, values),), bool_))
    return conjunction(tests)


def _with_results(made: Pass, d: Definition, running: str) -> Definition:
    """A definition that reads members from the values of the pass if it reads the lead at the same point."""
    leads = [r for r in d.reads if r.name == made.lead.name]

    def visit(n: Node) -> Node:
        if not isinstance(n, Read) or n.name not in made.members or n in leads:
            return n
        member = made.members[n.name]
        at = dict(zip(member.own, n.index, strict=True))
        for lead in leads:
            index = dict(zip(made.lead.variables, lead.index, strict=True))
            if all(index[v] == e for v, e in at.items()):
                return _result_at(made, member, running, lead.index, n.component)
        return n

    return map_expressions(d, lambda e: transform(e, visit)) if leads else d


def _in_order(state: State) -> State:
    """The state with its funcs ordered so that producers come before consumers."""
    position = {name: n for n, name in enumerate(ordered(state))}
    funcs = tuple(sorted(state.program.funcs, key=lambda f: position[f.name]))
    return replace(state, program=replace(state.program, funcs=funcs))
