"""Directives that add a stage: cache_read, cache_write, rfactor, and vector reductions by rfactor.

Each rewrites the program: the new stage is an ordinary func that can be scheduled as any other.
"""

from __future__ import annotations

import keyword
from collections.abc import Callable
from dataclasses import replace

from tdsl.errors import did_you_mean
from tdsl.lang.definition import Definition
from tdsl.lang.expr import ONE, TRUE, ZERO, Binary, Expr, Read, Select, Var, const, dtype_of
from tdsl.lang.program import FuncDef, Interval, Program, map_expressions
from tdsl.lang.regions import reads_in
from tdsl.lang.simplify import add, conjunction, substitute, subtract
from tdsl.lang.types import DType
from tdsl.node import Node, transform
from tdsl.schedule.arguments import check_scope
from tdsl.schedule.loops import find_loop, positive, split
from tdsl.schedule.nest import (
    VECTORIZED,
    After,
    At,
    FuncPlan,
    Fuse,
    Illegal,
    Level,
    Loop,
    Nest,
    Rename,
    Root,
    Split,
    State,
    fresh_plan,
    is_ordered,
    is_reduction,
    roots_of,
)  # fmt: skip
from tdsl.schedule.padding import PaddedRead, padded_reads
from tdsl.schedule.relate import relate


def fresh_func(program: Program, wanted: str) -> str:
    """A name that no func or input has."""
    used = {f.name for f in program.funcs} | {t.name for t in program.inputs}
    name, count = wanted, 0
    while name in used:
        count += 1
        name = f"{wanted}_{count}"
    return name


def _new_func(program: Program, wanted: str | None, default: str) -> str:
    """The name of a new func: the wanted one, which must be free, or one made of `default`."""
    if wanted is None:
        return fresh_func(program, default)
    if not wanted.isidentifier() or keyword.iskeyword(wanted):
        raise Illegal(f"{wanted!r} is not a name", "use letters, digits and _, as in Python")
    if wanted != fresh_func(program, wanted):
        raise Illegal(f"there is already a func or input {wanted!r}", "choose another name")
    return wanted


def _insert(state: State, before: str, f: FuncDef, plan: FuncPlan) -> State:
    """A state with a func more, before a consumer of it."""
    at = next(n for n, g in enumerate(state.program.funcs) if g.name == before)
    funcs = (*state.program.funcs[:at], f, *state.program.funcs[at:])
    return State(replace(state.program, funcs=funcs), (*state.plans, (f.name, plan)))


def _replace_func(state: State, f: FuncDef) -> State:
    funcs = tuple(f if g.name == f.name else g for g in state.program.funcs)
    return replace(state, program=replace(state.program, funcs=funcs))


def _map_reads(d: Definition, name: str, new: Callable[[Read], Expr]) -> Definition:
    def rewritten(e: Expr) -> Expr:
        return transform(e, lambda n: new(n) if isinstance(n, Read) and n.name == name else n)

    return map_expressions(d, rewritten)


def _source(program: Program, name: str) -> tuple[tuple[DType, ...], tuple[Interval, ...]]:
    for t in program.inputs:
        if t.name == name:
            return (t.dtype,), tuple((ZERO, subtract(e, ONE)) for e in t.shape)
    f = program.func(name)
    return f.dtypes, f.limits


def cache_read(
    state: State, func: str, definition: int | None, *, source: str, loop: str | None,
    scope: str = "auto", pack: tuple[tuple[int, int], ...] = (), padded: bool = False,
    name: str | None = None,
) -> State:  # fmt: skip
    """Copy what the body of a loop reads of a tensor or func into memory of its own first.

    `pack` splits axes: (axis, n) makes two of it, index // n in its place and index % n at the end.
    With `padded` the copy has what is read beyond the edges, too. Without a loop it is made at the root.
    """
    check_scope(scope)
    program = state.program
    consumer = program.func(func)
    scheduled = 0 if definition is None else definition
    read = sorted(
        {r.name for d in consumer.definitions for r in reads_in(d.expressions())} - {func}
    )
    if source not in read:
        raise Illegal(f"{func!r} does not read {source!r}", did_you_mean(source, read))
    made = _new_func(program, name, f"{source}_cache")
    chosen = [d for n, d in enumerate(consumer.definitions) if definition in (None, n)]
    reads: dict[Expr, tuple[Expr, ...]]
    if padded:
        reads, values, limits = _padding(chosen, func, source)
    else:
        dtypes, limits = _source(program, source)
        whole = tuple(Var(f"d{n}") for n in range(len(limits)))
        values = tuple(Read(source, whole, c, t) for c, t in enumerate(dtypes))
        reads = {r: r.index for d in chosen for r in reads_in(d.expressions()) if r.name == source}
    factors = _factors(pack, len(limits))
    f = _copy(made, values, limits, factors)

    def moved(n: Node) -> Node:
        if not isinstance(n, Read | Select) or n not in reads:
            return n
        index = reads[n]
        outer = tuple(
            Binary("floordiv", e, const(factors[k])) if k in factors else e
            for k, e in enumerate(index)
        )
        rest = tuple(Binary("mod", index[k], const(size)) for k, size in factors.items())
        component = n.component if isinstance(n, Read) and not padded else 0
        return Read(made, (*outer, *rest), component, dtype_of(n), loc=n.loc)

    definitions = tuple(
        map_expressions(d, lambda e: transform(e, moved)) if definition in (None, n) else d
        for n, d in enumerate(consumer.definitions)
    )
    place = (
        Root()
        if loop is None
        else At(Level(func, scheduled, find_loop(state, func, scheduled, loop)))
    )
    state = _replace_func(state, replace(consumer, definitions=definitions))
    return _insert(state, func, f, replace(fresh_plan(f), place=place, scope=scope, touched=True))


def _padding(
    definitions: list[Definition], func: str, source: str
) -> tuple[dict[Expr, tuple[Expr, ...]], tuple[Expr, ...], tuple[Interval, ...]]:
    """(the index in the copy for each read of the padding, the value of the copy, its limits)."""
    found: dict[Expr, PaddedRead] = {}
    for d in definitions:
        found |= padded_reads(d, source)
    if len({read.value for read in found.values()}) != 1:
        raise Illegal(
            f"{func!r} does not read one padding of {source!r}",
            "leave out padded=True, or read the tensor as td.pad(tensor) continues it",
        )
    first = next(iter(found.values()))
    return (
        {part: read.index for part, read in found.items()},
        (first.value,),
        ((None, None),) * len(first.index),
    )


def _factors(pack: tuple[tuple[int, int], ...], rank: int) -> dict[int, int]:
    factors: dict[int, int] = {}
    for axis, n in pack:
        if not 0 <= axis < rank or axis in factors:
            raise Illegal(
                f"pack names axis {axis} of {rank}, or names it twice",
                f"name axes 0 to {rank - 1}, each once",
            )
        factors[axis] = positive(n, "a packing factor")
    return factors


def _copy(
    made: str, values: tuple[Expr, ...], limits: tuple[Interval, ...], factors: dict[int, int]
) -> FuncDef:
    """The func with these values over d0, d1, ..., its axes split by the factors."""
    rank = len(limits)
    variables = tuple(f"d{n}" for n in range(rank + len(factors)))
    index = [Var(v) for v in variables]
    inner = {axis: index[rank + n] for n, axis in enumerate(factors)}
    at: dict[str, Expr] = {}
    for axis, (lo, hi) in enumerate(limits):
        if axis not in factors:
            continue
        whole = Binary("add", Binary("mul", index[axis], const(factors[axis])), inner[axis])
        # the first and the last panel may reach beyond the tensor; what they hold there is never read
        inside: Expr = whole if hi is None else Binary("min", whole, hi)
        at[variables[axis]] = inside if lo is None else Binary("max", inside, lo)
    d = Definition(
        tuple(index), variables, (), TRUE, tuple(substitute(v, at) for v in values), None, None
    )
    dtypes = tuple(dtype_of(v) for v in values)
    return FuncDef(made, dtypes, (d,), ((None, None),) * len(index), ((None, None),) * len(index))


def cache_write(
    state: State,
    func: str,
    definition: int,
    *,
    loop: str,
    scope: str = "auto",
    name: str | None = None,
) -> State:
    """Make the values of a loop's body in memory of their own, and copy them out when it is done.

    The stage keeps its name and its loops; what consumers read, or the output, becomes a copy.
    """
    check_scope(scope)
    f, plan = state.program.func(func), state.plan(func)
    if len(f.definitions) > 1:
        raise Illegal(
            f"{func!r} has updates", "only a func with one definition can be written by a cache"
        )
    at = find_loop(state, func, 0, loop)
    nest = plan.nests[0]
    for x in nest.names()[: nest.position(at) + 1]:
        if is_reduction(f, 0, nest, x):
            raise Illegal(
                f"inside {x!r} the values of {func!r} are not complete",
                f"place it outside of {x!r}",
            )
    made = _new_func(state.program, name, f"{func}_out")
    index = tuple(Var(v) for v in f.variables)
    values = tuple(Read(func, index, c, t) for c, t in enumerate(f.dtypes))
    d = Definition(index, f.variables, (), TRUE, values, None, None, f.definitions[0].loc)
    copy = replace(f, name=made, definitions=(d,))

    def moved(r: Read) -> Read:
        return Read(made, r.index, r.component, r.dtype, loc=r.loc)

    funcs: list[FuncDef] = []
    for g in state.program.funcs:
        if g.name == func:
            funcs += [replace(f, declared=False), copy]
        else:
            funcs.append(
                replace(g, definitions=tuple(_map_reads(x, func, moved) for x in g.definitions))
            )
    outputs = tuple(made if o == func else o for o in state.program.outputs)
    program = replace(state.program, funcs=tuple(funcs), outputs=outputs)
    level = Level(func, 0, at)
    copied = replace(
        fresh_plan(copy), place=After(level), touched=True, stream=plan.stream, order=plan.order,
        align=plan.align,
    )  # fmt: skip
    if plan.fold or plan.store is not None:
        raise Illegal(
            f"{func!r} is stored in another way already", "cache_write before store_at and fold"
        )
    state = State(program, (*state.plans, (made, copied)))
    own = replace(plan, store=level, scope=scope, stream=False, order=None, align=(), touched=True)
    return state.with_plan(func, own)


def rfactor(
    state: State, func: str, definition: int, *, loop: str, name: str | None = None
) -> State:
    """Reduce each iteration of a reduction loop apart, in a stage of its own, then merge these.

    The new stage has one dimension more, the loop, over which it is free.
    """
    f, plan = state.program.func(func), state.plan(func)
    d, nest = f.definitions[definition], plan.nests[definition]
    u = find_loop(state, func, definition, loop)
    _check_reducible(f, definition, nest, u)
    if any(special.definition == definition for special in plan.specializations):
        raise Illegal(f"{func!r} has loops for special cases already", "specialize after it")
    ranges = {
        n: (lo, subtract(hi, lo)) for n, lo, hi in d.ranges if lo is not None and hi is not None
    }
    reduced = Nest(
        tuple(x for x in nest.loops if roots_of(nest, x.name) & set(ranges)),
        tuple(r for r in nest.relations if _of(nest, r) & set(ranges)),
    )
    made = _new_func(state.program, name, f"{func}_partial")
    partial, (low, high) = _partial(d, reduced, ranges, u)
    definitions, merge = _in_two_steps(f, d, partial, made, (u, low, high))
    natural = (*f.natural, (low, subtract(high, ONE)))
    limits: tuple[Interval, ...] = ((None, None),) * len(natural)
    p = FuncDef(made, f.dtypes, definitions, limits, natural, False, f.fast_math, f.loc)
    changed = (*f.definitions[:definition], merge, *f.definitions[definition + 1 :])
    state = _replace_func(state, replace(f, definitions=changed))
    own = (
        _merge_nest(nest, set(ranges), merge)
        if d.init is not None
        else Nest(tuple(map(Loop, merge.variables)))
    )
    atomics = plan.atomic - {definition}
    state = state.with_plan(
        func, replace(plan.with_nest(definition, own), atomic=atomics, touched=True)
    )
    return _insert(state, func, p, _partial_plan(p, reduced))


def _check_reducible(f: FuncDef, definition: int, nest: Nest, loop: str) -> None:
    """Illegal unless a loop is reduced over, by a combiner that allows it to be reduced in parts."""
    if not is_reduction(f, definition, nest, loop):
        raise Illegal(f"{loop!r} is not reduced over; it is free already", "name a reduction loop")
    if is_ordered(f, definition):
        combine = f.definitions[definition].combine
        associative = combine is not None and combine.associative
        why = "reads itself" if associative else "has no associative combiner"
        raise Illegal(
            f"this definition of {f.name!r} {why}", "the order of its points cannot be changed"
        )


def _partial(
    d: Definition, reduced: Nest, ranges: dict[str, tuple[Expr, Expr]], loop: str
) -> tuple[Definition, tuple[Expr, Expr]]:
    """The reduction that is free over a loop, and (first, end) of this; `ranges` are (first, extent)."""
    related = relate(reduced, ranges)
    leaves = []
    for x in reduced.names():
        lo = ranges[x][0] if x in ranges else ZERO
        leaves.append((x, lo, add(lo, related.extents[x])))
    where = conjunction([*related.guards, d.where])
    # not simplified: a quotient of a variable must stay one for the guards to bound it
    moved = map_expressions(replace(d, where=where), lambda e: substitute(e, related.roots))
    others = tuple(x for x in leaves if x[0] != loop)
    low, high = next((lo, hi) for n, lo, hi in leaves if n == loop)
    made = replace(
        moved, index=(*moved.index, Var(loop)), free=(*d.free, loop), ranges=others, init=d.init
    )
    return made, (low, high)


def _in_two_steps(
    f: FuncDef, d: Definition, partial: Definition, made: str, over: tuple[str, Expr, Expr]
) -> tuple[tuple[Definition, ...], Definition]:
    """The definitions of the new stage `made`, and what merges it: an update has a start of its own."""
    assert d.combine is not None
    loop, low, high = over
    if d.init is not None:
        values = _partials(made, (*d.index, Var(loop)), f.dtypes)
        return (partial,), replace(d, values=values, where=TRUE, ranges=(over,))
    axis = f"{made}_{loop}" if loop in f.variables else loop
    dims = tuple(Var(v) for v in f.variables)
    start = Definition(
        (*dims, Var(axis)), (*f.variables, axis), (), TRUE, d.combine.init, None, None, d.loc
    )
    merge = Definition(
        dims, f.variables, ((axis, low, high),), TRUE,
        _partials(made, (*dims, Var(axis)), f.dtypes), d.combine, None, d.loc,
    )  # fmt: skip
    return (start, partial), merge


def _partial_plan(p: FuncDef, reduced: Nest) -> FuncPlan:
    """At the root, with loops that run as they did in the nest that was reduced over."""
    plan = replace(fresh_plan(p), touched=True, place=Root())
    before, last = {x.name: x for x in reduced.loops}, plan.nests[-1]
    loops = tuple(before.get(x.name, x) for x in last.loops)
    return plan.with_nest(len(p.definitions) - 1, replace(last, loops=loops))


def _of(nest: Nest, r: Split | Fuse | Rename) -> frozenset[str]:
    before = replace(nest, relations=nest.relations[: nest.relations.index(r)])
    match r:
        case Split(parent):
            return roots_of(before, parent)
        case Fuse(_, outer, inner):
            return roots_of(before, outer) | roots_of(before, inner)
        case Rename(old):
            return roots_of(before, old)


def _partials(name: str, index: tuple[Expr, ...], dtypes: tuple[DType, ...]) -> tuple[Expr, ...]:
    return tuple(Read(name, index, c, t) for c, t in enumerate(dtypes))


def _merge_nest(nest: Nest, ranges: set[str], merge: Definition) -> Nest:
    """The free loops as they were, and the merge inside them."""
    free = tuple(x for x in nest.loops if not roots_of(nest, x.name) & ranges)
    relations = tuple(r for r in nest.relations if not _of(nest, r) & ranges)
    return Nest((*free, *(Loop(n) for n, _, _ in merge.ranges)), relations, nest.aliases)


def vectorize_reduction(
    state: State, func: str, definition: int, name: str, factor: int | None
) -> State:
    """Reduce in `factor` lanes, each a partial result, merged after the loop."""
    nest = state.plan(func).nests[definition]
    lane = name
    if factor is not None:
        lane = nest.fresh(f"{name}_v")
        state = split(state, func, definition, loop=name, factor=factor, names=(None, lane))
        nest = state.plan(func).nests[definition]
    made = fresh_func(state.program, f"{func}_lanes")
    f = state.program.func(func)
    first = next(n for n, x in enumerate(nest.names()) if is_reduction(f, definition, nest, x))
    outside = nest.names()[:first]
    state = rfactor(state, func, definition, loop=lane, name=made)
    plan = state.plan(made)
    for n, made_nest in enumerate(plan.nests):
        own = made_nest.names()
        axis = lane if lane in own else own[-1]
        order = [x for x in made_nest.loops if x.name != axis] + [Loop(axis, VECTORIZED)]
        plan = plan.with_nest(n, replace(made_nest, loops=tuple(order)))
    if outside:
        plan = replace(plan, place=At(Level(func, definition, outside[-1])))
    return state.with_plan(made, replace(plan, scope="auto"))
