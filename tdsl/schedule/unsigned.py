"""unsigned: offsets signed integers to unsigned ones, for instructions that multiply unsigned by signed."""

from __future__ import annotations

from dataclasses import replace

from tdsl.core.node import Node, transform
from tdsl.errors import did_you_mean
from tdsl.lang.affine import variables
from tdsl.lang.definition import Definition
from tdsl.lang.expr import TRUE, Binary, Cast, Const, Expr, Read, Var
from tdsl.lang.program import FuncDef
from tdsl.lang.regions import Interval, reads_in
from tdsl.lang.types import UNSIGNED
from tdsl.schedule.caches import dtypes_and_limits
from tdsl.schedule.new_stage import insert_func, new_name, replace_func
from tdsl.schedule.state import Illegal, State, fresh_plan


def unsigned(state: State, func: str, definition: int, *, source: str) -> State:
    """Replace the signed integers of a source by unsigned ones, offset by half of their range.

        c[i, j] = sum of a[i, k] * b[k, j]     b_unsigned[k, j] = b[k, j] + 128
                                               c[i, j]          = sum of a[i, k] * b_unsigned[k, j]
                                               c_excess[i]      = sum of a[i, k] * 128
                                               where c is read:   c[i, j] - c_excess[i]

    Integers wrap around, so readers of the sum get the same values as before.
    """
    program, f = state.program, state.program.func(func)
    if func in program.outputs:
        raise Illegal(
            f"{func!r} is an output, and its readers subtract the excess",
            "write the output through cache_write first",
        )
    d, t = f.definitions[definition], f.dtypes[0]
    read = _only_read(d, source)
    summed = d.init is not None and d.combine is not None and d.combine.kind == "sum"
    wider = t.is_integer and t.bits > read.dtype.bits
    if not (summed and wider and len(f.definitions) == 1 and _is_factor(d.values[0], Cast(read, t))):
        raise Illegal(
            f"{func!r} is no sum of products of integers with {source!r}, cast to a wider type, in each",
            "only such a sum has an excess that its readers can take away",
        )
    limits = dtypes_and_limits(program, source)[1]
    raised = _raised_func(new_name(program, None, f"{source}_unsigned"), read, limits)
    half = Const(-int(read.dtype.low), t)
    excess = _excess_func(new_name(program, None, f"{func}_excess"), f, _replaced(d, Cast(read, t), half))
    raised_factor = Cast(Read(raised.name, read.index, 0, raised.dtypes[0], loc=read.loc), t)

    def without_excess(n: Node) -> Node:
        if not (isinstance(n, Read) and n.name == func):
            return n
        at = dict(zip(f.variables, n.index, strict=True))
        over = Read(excess.name, tuple(at[v] for v in excess.variables), 0, t, loc=n.loc)
        return Binary("sub", n, over)

    for name in {g.name for g, _ in state.consumers(func)}:
        g = program.func(name)
        state = replace_func(state, g.map_expressions(lambda e: transform(e, without_excess)))
    state = replace_func(state, replace(f, definitions=(_replaced(d, Cast(read, t), raised_factor),)))
    for stage in (raised, excess):
        state = insert_func(state, func, stage, fresh_plan(stage))
    return state


def _only_read(d: Definition, source: str) -> Read:
    """The only read of a source of signed integers; raises Illegal if there are none or several."""
    reads = list(dict.fromkeys(d.reads))
    matches = [r for r in reads if r.name == source]
    if not matches:
        raise Illegal(f"it does not read {source!r}", did_you_mean(source, [r.name for r in reads]))
    if len(matches) > 1 or matches[0].dtype not in UNSIGNED:
        raise Illegal(
            f"{source!r} is not read in one place, as signed integers of at most 32 bits",
            f"it has elements of {matches[0].dtype}, read in {len(matches)} places",
        )
    return matches[0]


def _is_factor(e: Expr, factor: Cast) -> bool:
    """True for a product of which exactly one factor is `factor`; the others do not contain its read."""
    match e:
        case Binary("mul", x, y):
            return any(
                _is_factor(one, factor) and all(r != factor.x for r in reads_in((other,)))
                for one, other in ((x, y), (y, x))
            )
        case _:
            return e == factor


def _replaced(d: Definition, old: Expr, new: Expr) -> Definition:
    """A definition in whose values the expression `old` is replaced by `new`."""
    values = tuple(transform(v, lambda n: new if n == old else n) for v in d.values)
    return replace(d, values=values, mask=TRUE)


def _raised_func(name: str, read: Read, limits: tuple[Interval, ...]) -> FuncDef:
    """The func of a source's elements plus half of their range, which flips the sign bit."""
    index = tuple(Var(f"d{n}") for n in range(len(read.index)))
    whole = replace(read, index=index)
    t = UNSIGNED[read.dtype]
    value = Cast(Binary("xor", whole, Const(int(read.dtype.low), read.dtype)), t)
    d = Definition(index, tuple(v.name for v in index), (), TRUE, (value,), None, None, read.loc)
    return FuncDef(name, (t,), (d,), limits, limits)


def _excess_func(name: str, f: FuncDef, d: Definition) -> FuncDef:
    """The func of the sum of a definition, over the variables of `f` that the sum depends on."""
    ends = [e for _, lo, hi in d.ranges for e in (lo, hi) if e is not None]
    used = {v for e in (*d.values, d.where, *ends) for v in variables(e)}
    kept = [n for n, v in enumerate(f.variables) if v in used]
    free = tuple(f.variables[n] for n in kept)
    definition = replace(d, index=tuple(map(Var, free)), free=free, mask=TRUE)
    limits, natural = (tuple(box[n] for n in kept) for box in (f.limits, f.natural))
    return replace(f, name=name, definitions=(definition,), limits=limits, natural=natural, declared=False)
