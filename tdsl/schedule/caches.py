"""cache_read and cache_write: a new stage that buffers a part of a tensor or func in memory of its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from tdsl.core.node import Node, frozen, transform
from tdsl.errors import did_you_mean
from tdsl.lang.definition import Definition
from tdsl.lang.expr import ONE, TRUE, ZERO, Binary, Const, Expr, Read, Select, Var, const, dtype_of
from tdsl.lang.program import FuncDef, Program, map_expressions
from tdsl.lang.regions import Interval, intersection_box, union
from tdsl.lang.simplify import conjunction, substitute, subtract
from tdsl.lang.types import DType
from tdsl.schedule.arguments import check_scope
from tdsl.schedule.full_tiles import is_total
from tdsl.schedule.gathering import gathered_reads, uses_variable
from tdsl.schedule.inlining import expand_reads, is_inlined
from tdsl.schedule.legality import loops_around
from tdsl.schedule.loops import check_positive, find_loop
from tdsl.schedule.mapping import mapped_reads
from tdsl.schedule.new_stage import insert_func, new_name, replace_func
from tdsl.schedule.padding import LiftedExpr, padded_reads
from tdsl.schedule.properties import needed_box
from tdsl.schedule.state import (
    AfterProducer,
    At,
    Illegal,
    Level,
    Root,
    State,
    fresh_plan,
    is_reduction,
)  # fmt: skip


def _replace_reads(name: str, new: Callable[[Read], Expr]) -> Callable[[Expr], Expr]:
    """A function that replaces each read of the tensor or func `name` in an expression by `new(read)`."""

    def visit(n: Node) -> Node:
        return new(n) if isinstance(n, Read) and n.name == name else n

    return lambda e: transform(e, visit)


def dtypes_and_limits(program: Program, name: str) -> tuple[tuple[DType, ...], tuple[Interval, ...]]:
    """The element types of a tensor or func, and the interval of valid indices of each dimension."""
    for t in program.inputs:
        if t.name == name:
            return (t.dtype,), tuple((ZERO, subtract(e, ONE)) for e in t.shape)
    f = program.func(name)
    return f.dtypes, f.limits


def cache_read(
    state: State, func: str, definition: int | None, *, source: str, loop: str | None,
    scope: str = "auto", pack: tuple[tuple[int, int], ...] = (), padded: bool = False,
    mapped: bool = False, inside: bool = False, filled: bool = False, gathered: bool = False,
    along: str | None = None, name: str | None = None,
) -> State:  # fmt: skip
    """Copy the region of a tensor or func that the body of a loop reads into a buffer of its own.

    Without a loop the copy is computed at the root. `pack` splits axes: for (axis, n), index // n takes the
    position of the axis and index % n becomes a last dimension. With `padded` the copy includes padding
    beyond the edges; with `mapped` it stores the expression computed of each element. With `inside`, stages
    computed inside of the loop read the copy, too. With `filled` it may extend beyond the edges, where it is
    0. With `gathered` it has a dimension for each variable that the indices of the read use (im2col). With
    `along` it serves only the reads that use a variable.
    """
    check_scope(scope)
    scheduled = 0 if definition is None else definition
    at = None if loop is None else Level(func, scheduled, find_loop(state, func, scheduled, loop))
    inner_readers = [g.name for g in _funcs_inside(state, at, func)] if inside else []
    for name_ in (func, *inner_readers):
        state = state if is_inlined(state, name_) else expand_reads(state, name_, source)
    program = state.program
    consumer, readers = program.func(func), [program.func(n) for n in inner_readers]
    others = [d for g in readers for d in g.definitions]
    _check_reads(consumer, scheduled, source, others, along)
    if along is not None and inside:
        raise Illegal("a copy along a variable serves one reader", "leave out inside")
    if gathered and (pack or inside or len(dtypes_and_limits(program, source)[0]) > 1):
        raise Illegal("a copy that is gathered serves one reader", "leave out pack and inside")
    chosen = [d for n, d in enumerate(consumer.definitions) if definition in (None, n)]
    content = _copy_content(
        state, consumer, scheduled, source, [*chosen, *others],
        padded=padded, mapped=mapped, filled=filled, gathered=gathered, along=along,
    )  # fmt: skip
    factors = _pack_factors(pack, len(content.limits))
    f = _copy_func(new_name(program, name, f"{source}_cache"), content.values, content.limits, factors)
    redirect = _redirect_reads(f.name, content, factors, filled)
    definitions = tuple(
        map_expressions(d, redirect) if definition in (None, n) else d
        for n, d in enumerate(consumer.definitions)
    )
    state = replace_func(state, replace(consumer, definitions=definitions))
    for g in readers:
        state = replace_func(state, g.map_expressions(redirect))
    first = next(g.name for g in program.funcs if g in (consumer, *readers))
    place = Root() if at is None else At(at)
    plan = replace(fresh_plan(f), place=place, scope=scope, filled=filled, scheduled=True)
    return insert_func(state, first, f, plan)


@frozen
class _Content:
    """A copy: its index for each expression that it replaces, its values, and the limits of its indices."""

    reads: Mapping[Node, tuple[Expr, ...]]
    values: tuple[Expr, ...]
    limits: tuple[Interval, ...]


def _copy_content(
    state: State, consumer: FuncDef, definition: int, source: str, read_by: Sequence[Definition],
    *, padded: bool, mapped: bool, filled: bool, gathered: bool, along: str | None,
) -> _Content:  # fmt: skip
    """The content of a copy of `source`, for the definitions that read it."""
    if padded + mapped + (filled or gathered) > 1:
        raise Illegal(
            "a copy is padded, mapped, filled or gathered",
            "leave out all but one; filled=True and gathered=True go together",
        )
    if gathered:
        return _gathered_content(state, consumer, definition, source, filled, along)
    if padded or mapped:
        return _lifted_content(state.program, read_by, consumer.name, source, padded, along)
    return _plain_content(state, read_by, source, filled, along)


def _plain_content(
    state: State, read_by: Sequence[Definition], source: str, filled: bool, along: str | None
) -> _Content:
    """A copy of the source as it is; `filled`, with zeros beyond its limits."""
    dtypes, limits = dtypes_and_limits(state.program, source)
    whole = tuple(Var(f"d{n}") for n in range(len(limits)))
    values: tuple[Expr, ...] = tuple(Read(source, whole, c, t) for c, t in enumerate(dtypes))
    if filled:
        clamped = not is_total(state, source)
        limits = _ends(state, source, limits)
        values = tuple(_filled_value(r, limits, clamped=clamped) for r in values)
        limits = ((None, None),) * len(limits)
    reads = (r for d in read_by for r in d.reads if r.name == source)
    return _Content({r: r.index for r in reads if uses_variable(r, along)}, values, limits)


def _ends(state: State, source: str, limits: tuple[Interval, ...]) -> tuple[Interval, ...]:
    """The limits of a source; of a func, the ends of what the program needs of it where these are known.

    Only that is computed, and the tiles of a filled copy are as large at the edges as elsewhere. What is
    needed in whole tiles may reach beyond the limits, which end it then.
    """
    if not state.program.has_func(source):
        return limits
    needed = needed_box(state, state.program.func(source))
    known = tuple(
        (
            first if lo is None or isinstance(first, Const) else None,
            last if hi is None or isinstance(last, Const) else None,
        )
        for (lo, hi), (first, last) in zip(limits, needed, strict=True)
    )
    return intersection_box(limits, known)


def _gathered_content(
    state: State, consumer: FuncDef, definition: int, source: str, filled: bool, along: str | None
) -> _Content:
    """A copy with a dimension for each variable that the indices of the read use."""
    copy = gathered_reads(state, consumer, definition, source, along)
    if not filled:
        return _Content(copy.reads, (copy.value,), copy.limits)
    value = _filled_value(copy.value, copy.limits, clamped=True)
    return _Content(copy.reads, (value,), ((None, None),) * len(copy.limits))


def _redirect_reads(
    copy_name: str, content: _Content, factors: Mapping[int, int], filled: bool
) -> Callable[[Expr], Expr]:
    """A function that replaces reads in an expression by reads of a copy with axes split by `factors`.

    What is known of the values stays known; a `filled` copy has zeros, too.
    """

    def redirected(n: Node) -> Node:
        if n not in content.reads:
            return n
        assert isinstance(n, Expr)
        index = content.reads[n]
        outer = tuple(
            Binary("floordiv", e, const(factors[k])) if k in factors else e for k, e in enumerate(index)
        )
        inner = tuple(Binary("mod", index[k], const(size)) for k, size in factors.items())
        component = n.component if isinstance(n, Read) and len(content.values) > 1 else 0
        values = n.value_range if isinstance(n, Read) else (None, None)
        values = union(values, (ZERO, ZERO)) if filled else values
        return Read(copy_name, (*outer, *inner), component, dtype_of(n), values, loc=n.loc)

    return lambda e: transform(e, redirected)


def _filled_value(value: Expr, limits: tuple[Interval, ...], *, clamped: bool) -> Expr:
    """The value of a filled copy: 0 beyond the limits; with `clamped`, reads are clamped to the limits."""
    at: dict[str, Expr] = {}
    tests: list[Expr] = []
    for n, (lo, hi) in enumerate(limits):
        e: Expr = Var(f"d{n}")
        if lo is not None:
            tests.append(Binary("ge", Var(f"d{n}"), lo))
            e = Binary("max", e, lo)
        if hi is not None:
            tests.append(Binary("le", Var(f"d{n}"), hi))
            e = Binary("min", e, hi)
        at[f"d{n}"] = e
    inside, zero = substitute(value, at) if clamped else value, Const(0, dtype_of(value))
    return Select(conjunction(tests), inside, zero) if tests else value


def _funcs_inside(state: State, level: Level | None, func: str) -> tuple[FuncDef, ...]:
    """The other funcs that are computed inside of a loop of `func`, in the order of the program."""
    if level is None:
        raise Illegal("a copy at the root is inside of no loop", "name a loop: at=i")
    return tuple(g for g in state.program.funcs if level in loops_around(state, g.name) and g.name != func)


def _check_reads(
    f: FuncDef, definition: int, source: str, others: Sequence[Definition], along: str | None
) -> None:
    """Raise Illegal unless a func, or `others` inside of a loop, read the source, and with `along`."""
    read = sorted({r.name for d in (*f.definitions, *others) for r in d.reads} - {f.name})
    if source not in read:
        raise Illegal(f"{f.name!r} does not read {source!r}", did_you_mean(source, read))
    if along is None:
        return
    d = f.definitions[definition]
    if along not in d.variables:
        raise Illegal(f"{f.name!r} has no variable {along!r}", did_you_mean(along, d.variables))
    if not any(r.name == source and uses_variable(r, along) for r in d.reads):
        raise Illegal(
            f"{f.name!r} does not read {source!r} along {along!r}",
            "name one that moves what is read",
        )


def _lifted_content(
    program: Program, definitions: Sequence[Definition], func: str, source: str, padded: bool,
    along: str | None,
) -> _Content:  # fmt: skip
    """A copy of a source with its padding, or of an expression computed of each of its elements."""
    find = padded_reads if padded else mapped_reads
    parts: dict[Expr, LiftedExpr] = {}
    for d in definitions:
        parts |= {part: e for part, e in find(d, source).items() if uses_variable(part, along)}
    values = {e.value for e in parts.values()}
    if len(values) != 1:
        what, other = ("padding", "padded") if padded else ("function of an element", "mapped")
        raise Illegal(
            f"{func!r} does not read one {what} of {source!r}",
            f"leave out {other}=True"
            + (", or read the tensor as td.pad(tensor) continues it" if padded else ""),
        )
    reads: dict[Node, tuple[Expr, ...]] = {part: e.index for part, e in parts.items()}
    _, limits = dtypes_and_limits(program, source)
    if padded:
        limits = ((None, None),) * len(next(iter(reads.values())))
    return _Content(reads, tuple(values), limits)


def _pack_factors(pack: tuple[tuple[int, int], ...], rank: int) -> dict[int, int]:
    factors: dict[int, int] = {}
    for axis, n in pack:
        if not 0 <= axis < rank or axis in factors:
            raise Illegal(
                f"pack names axis {axis} of {rank}, or names it twice",
                f"name axes 0 to {rank - 1}, each once",
            )
        factors[axis] = check_positive(n, "a packing factor")
    return factors


def _copy_func(
    name: str, values: tuple[Expr, ...], limits: tuple[Interval, ...], factors: dict[int, int]
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
        if lo == ZERO and isinstance(hi, Const) and (int(hi.value) + 1) % factors[axis] == 0:
            at[variables[axis]] = whole  # panels end where the tensor does
            continue
        # the first and the last panel may reach beyond the tensor; their elements there are never read
        inside: Expr = whole if hi is None else Binary("min", whole, hi)
        at[variables[axis]] = inside if lo is None else Binary("max", inside, lo)
    d = Definition(tuple(index), variables, (), TRUE, tuple(substitute(v, at) for v in values), None, None)
    dtypes = tuple(dtype_of(v) for v in values)
    split = ((None, None),) * len(factors)
    unsplit = tuple((None, None) if n in factors else ends for n, ends in enumerate(limits))
    return FuncDef(name, dtypes, (d,), (*unsplit, *split), ((None, None),) * len(index))


def cache_write(
    state: State,
    func: str,
    definition: int,
    *,
    loop: str | None,
    scope: str = "auto",
    name: str | None = None,
) -> State:
    """Compute the values of a loop's body in a buffer of its own, copied out at the end of the body.

    The stage keeps its name and its loops; consumers read the copy, which also takes its place as output.
    Without a loop the copy takes its place as output only.
    """
    check_scope(scope)
    f, plan = state.program.func(func), state.plan(func)
    if loop is None and func not in state.program.outputs:
        raise Illegal(f"{func!r} is no output", "name a loop: at=i")
    at = None if loop is None else _loop_of_complete_values(state, f, loop)
    copy_name = new_name(state.program, name, f"{func}_out")
    index = tuple(Var(v) for v in f.variables)
    values = tuple(Read(func, index, c, t) for c, t in enumerate(f.dtypes))
    d = Definition(index, f.variables, (), TRUE, values, None, None, f.definitions[0].loc)
    copy = replace(f, name=copy_name, definitions=(d,))

    def read_of_copy(r: Read) -> Read:
        return Read(copy_name, r.index, r.component, r.dtype, loc=r.loc)

    funcs: list[FuncDef] = []
    for g in state.program.funcs:
        if g.name == func:
            funcs += [replace(f, declared=False), copy]
        elif at is not None and any(func in d.mentions for d in g.definitions):
            funcs.append(g.map_expressions(_replace_reads(func, read_of_copy)))
        else:
            funcs.append(g)
    outputs = tuple(copy_name if o == func else o for o in state.program.outputs)
    program = replace(state.program, funcs=tuple(funcs), outputs=outputs)
    if at is None:
        state = replace(state, program=program, plans=(*state.plans, (copy_name, fresh_plan(copy))))
        return state.with_plan(func, replace(plan, scope=scope))
    level = Level(func, 0, at)
    copied = replace(
        fresh_plan(copy), place=AfterProducer(level), scheduled=True, stream=plan.stream, order=plan.order,
        align=plan.align,
    )  # fmt: skip
    state = replace(state, program=program, plans=(*state.plans, (copy_name, copied)))
    plan = replace(plan, store=level, scope=scope, stream=False, order=None, align=(), scheduled=True)
    return state.with_plan(func, plan)


def _loop_of_complete_values(state: State, f: FuncDef, loop: str) -> str:
    """The current name of a loop; raises Illegal unless its body completes values of `f`."""
    if len(f.definitions) > 1:
        raise Illegal(f"{f.name!r} has updates", "only a func with one definition can be written by a cache")
    plan = state.plan(f.name)
    at, nest = find_loop(state, f.name, 0, loop), plan.nests[0]
    for x in nest.names()[: nest.position(at) + 1]:
        if is_reduction(f, 0, nest, x):
            raise Illegal(
                f"inside {x!r} the values of {f.name!r} are not complete",
                f"place it outside of {x!r}",
            )
    if plan.fold or plan.store is not None:
        raise Illegal(f"{f.name!r} is stored in another way already", "cache_write before store_at and fold")
    return at
