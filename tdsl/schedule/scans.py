"""Scans, such as running sums: an update whose elements are combined with the element before each.

    f[i] = x[i]; f[r] += f[r - 1] for r in range(1, n)

`scan_in_blocks` makes three steps of one: what the terms of each block give, scans of these and of each
block, and both combined. `double` makes a short scan by element-wise funcs, each of which combines elements
twice as far from each other as the one before (Hillis and Steele 1986). Floats are combined in another order.
"""

from __future__ import annotations

from dataclasses import replace

from tdsl.core.node import frozen, transform
from tdsl.lang.affine import as_sum, variables
from tdsl.lang.definition import Definition, has_effects
from tdsl.lang.expr import ONE, TRUE, ZERO, Binary, Const, Expr, Param, Read, Select, Var, const
from tdsl.lang.program import FuncDef
from tdsl.lang.reduction import builtin_combiner
from tdsl.lang.regions import Interval, reads_in
from tdsl.lang.simplify import add, maximum, minimum, multiply, simplify, substitute, subtract
from tdsl.schedule.new_stage import fresh_name, insert_func, replace_func
from tdsl.schedule.state import Illegal, State, fresh_plan

KINDS = {"add": "sum", "mul": "prod", "min": "min", "max": "max", "or": "any", "and": "all"}


@frozen
class Scan:
    """A scan of `length` terms along the dimension `axis` by an operator; `backward` from the last one on.

    `first` is the value at the first place, `term` that of the others, over the variables of the func.
    """

    op: str
    axis: int
    length: int
    backward: bool
    first: Expr
    term: Expr


def scan_of(f: FuncDef) -> Scan | str:
    """The scan that a func is, or the reason why it is none."""
    if len(f.definitions) != 2 or len(f.dtypes) != 1:
        return "has not one update of one value"
    start, d = f.definitions
    if start.init is not None or start.ranges or has_effects(start) or has_effects(d):
        return "begins with a reduction, or with checks"
    if len(d.ranges) != 1 or d.where != TRUE or start.where != TRUE:
        return "has not one range without a condition"
    ((r, lo, hi),) = d.ranges
    moving = [n for n, e in enumerate(d.index) if r in variables(e)]
    others = [isinstance(e, Var) and e.name in d.free for n, e in enumerate(d.index) if n not in moving]
    if len(moving) != 1 or not all(others) or len({*d.index}) < len(d.index):
        return "does not go along one dimension"
    (axis,) = moving
    place = as_sum(d.index[axis])
    step, (first, last) = place.terms.get(Var(r), 0), f.natural[axis]
    ends = (lo, hi, first, last)
    if step not in (1, -1) or not all(isinstance(e, Const) for e in ends):
        return "does not go along one dimension of a known size, one element after the other"
    low, high, a, b = (int(e.value) for e in ends)  # type: ignore[union-attr]  # constants, as tested
    offset = place.without(Var(r))
    if offset.terms:
        return "does not go along one dimension, one element after the other"
    visited = [offset.constant + step * x for x in (low - 1, high - 1)]
    if visited != ([a, b] if step > 0 else [b, a]):
        return "does not go through all elements of its dimension"
    return _operator_of(f, d, r, axis, step, b - a + 1)


def _operator_of(f: FuncDef, d: Definition, r: str, axis: int, step: int, length: int) -> Scan | str:
    """The scan of an update with the operator of its value."""
    start = f.definitions[0]
    here = Read(f.name, d.index, 0, f.dtypes[0])
    index = list(d.index)
    index[axis] = simplify(substitute(index[axis], {r: subtract(Var(r), ONE)}))
    before = tuple(index)
    value = d.values[0]
    if d.combine is not None:
        operands: dict[str, Expr] = {"a0": here, "b0": value}
        value = transform(
            d.combine.exprs[0], lambda n: operands.get(n.name, n) if isinstance(n, Param) else n
        )
    if not isinstance(value, Binary) or value.op not in KINDS:
        return "combines by no operator that may be applied in blocks"
    for old, new in ((value.left, value.right), (value.right, value.left)):
        others = [x for x in reads_in((new,)) if x.name == f.name]
        if _is_read(old, f.name, before) and all(x.index == d.index for x in others):
            break
    else:
        return "reads other elements than the one before"

    element = Param("the element", f.dtypes[0])
    e = transform(new, lambda n: element if isinstance(n, Read) and n.name == f.name else n)
    place, offset = Var(f.variables[axis]), const(int(as_sum(d.index[axis]).constant))
    at: dict[str, Expr] = {
        e.name: Var(v) for e, v in zip(d.index, f.variables, strict=True) if isinstance(e, Var)
    }
    at[r] = subtract(place, offset) if step > 0 else subtract(offset, place)
    term = transform(substitute(e, at), lambda n: start.values[0] if n == element else n)
    return Scan(value.op, axis, length, step < 0, start.values[0], term)


def _is_read(e: Expr, name: str, index: tuple[Expr, ...]) -> bool:
    """True for a read of a func at an index, which may be written in another way."""
    same = isinstance(e, Read) and e.name == name
    return same and all(subtract(a, b) == ZERO for a, b in zip(e.index, index, strict=True))  # type: ignore[union-attr]  # a Read


def scan_in_blocks(state: State, func: str, definition: int, *, loop: str, factor: int) -> State:
    """Scan each block of `factor` elements, and what blocks give; each element is combined from both.

    f_local[b, t] = the scan of block b            f_total[b] = the terms of block b, reduced
    f[i] = f_upto[i // n - 1] + f_local[i // n, i % n]      f_upto = the scan of f_total
    """
    f, scan = _checked(state, func, loop)
    count = -(-scan.length // factor)
    if factor < 1 or count < 2:
        raise Illegal(
            f"blocks of {factor} elements of {scan.length} are one block", "give a factor below the length"
        )
    kind = KINDS[scan.op]
    block, within = _fresh(f, "block"), _fresh(f, "within")
    number = add(multiply(Var(block), const(factor)), Var(within))
    if scan.length % factor:
        number = minimum(number, const(scan.length - 1))
    total = _new(f, f"{func}_total", state, scan, ((block, count - 1),))
    combine = builtin_combiner(kind, f.dtypes)
    term = _term_at(f, scan, add(multiply(Var(block), const(factor)), Var(within)))
    d = f.definitions[0]
    total = _with(
        total,
        replace(
            d, index=tuple(map(Var, _dims(f, scan, (block,)))), free=_dims(f, scan, (block,)),
            ranges=((within, ZERO, const(factor)),), values=(term,), combine=combine, init=combine.init,
        ),
    )  # fmt: skip
    state = insert_func(state, func, total, fresh_plan(total))
    upto = _new(f, f"{func}_upto", state, scan, ((block, count - 1),))
    read = Read(total.name, tuple(map(Var, _dims(f, scan, (block,)))), 0, f.dtypes[0])
    upto = _with(upto, *_scan_of_values(upto, read, scan, f, (block,), kind, count - 1))
    state = insert_func(state, func, upto, fresh_plan(upto))
    local = _new(f, f"{func}_local", state, scan, ((block, count), (within, factor)))
    local = _with(
        local, *_scan_of_values(local, _term_at(f, scan, number), scan, f, (block, within), kind, factor)
    )
    state = insert_func(state, func, local, fresh_plan(local))
    at = _number(f, scan)
    of_block = Binary("floordiv", at, const(factor))
    before = maximum(subtract(of_block, ONE), ZERO)
    mine = Read(local.name, _index(f, scan, (of_block, Binary("mod", at, const(factor)))), 0, f.dtypes[0])
    left = Read(upto.name, _index(f, scan, (before,)), 0, f.dtypes[0])
    value = Select(Binary("le", ONE, of_block), Binary(scan.op, left, mine), mine)
    return _replaced(state, f, value)


def double(state: State, func: str, definition: int, *, loop: str) -> State:
    """Scan by element-wise funcs: each combines an element with one 1, 2, 4, ... elements before it."""
    f, scan = _checked(state, func, loop)
    place = _fresh(f, "place")
    value, distance = _term_at(f, scan, Var(place)), 1
    while True:
        step = _new(f, f"{func}_step", state, scan, ((place, scan.length),))
        d = f.definitions[0]
        free = _dims(f, scan, (place,))
        step = _with(step, replace(d, index=tuple(map(Var, free)), free=free, values=(value,)))
        state = insert_func(state, func, step, fresh_plan(step))
        last = distance >= scan.length
        number: Expr = _number(f, scan) if 2 * distance >= scan.length else Var(place)
        mine = Read(step.name, _index(f, scan, (number,)), 0, f.dtypes[0])
        if last:
            return _replaced(state, f, mine)
        back = maximum(subtract(number, const(distance)), ZERO)
        left = Read(step.name, _index(f, scan, (back,)), 0, f.dtypes[0])
        value = Select(Binary("le", const(distance), number), Binary(scan.op, left, mine), mine)
        distance *= 2
        if distance >= scan.length:
            return _replaced(state, f, value)


def _checked(state: State, func: str, loop: str) -> tuple[FuncDef, Scan]:
    f = state.program.func(func)
    scan = scan_of(f)
    if isinstance(scan, str):
        raise Illegal(f"{func!r} is no scan: it {scan}", "scans are such as f[r] += f[r - 1]")
    if state.plan(func).nests != fresh_plan(f).nests:
        raise Illegal(f"the loops of {func!r} were changed already", "give this directive first")
    if loop != f.definitions[1].ranges[0][0]:
        raise Illegal(f"{func!r} is not scanned over {loop!r}", f"name {f.definitions[1].ranges[0][0]!r}")
    return f, scan


def _replaced(state: State, f: FuncDef, value: Expr) -> State:
    """The state with a scan that is a func of one definition, by other funcs."""
    d = f.definitions[0]
    f = replace(f, definitions=(replace(d, index=tuple(map(Var, d.free)), values=(value,)),))
    plan = replace(state.plan(f.name), nests=fresh_plan(f).nests, atomic=frozenset())
    return replace_func(state, f).with_plan(f.name, plan)


def _dims(f: FuncDef, scan: Scan, new: tuple[str, ...]) -> tuple[str, ...]:
    """The dimensions of a func, those that are `new` in place of that of the scan."""
    return (*f.variables[: scan.axis], *new, *f.variables[scan.axis + 1 :])


def _index(f: FuncDef, scan: Scan, new: tuple[Expr, ...]) -> tuple[Expr, ...]:
    """An index with the variables of a func, and the expressions `new` in place of that of the scan."""
    variables_ = tuple(map(Var, f.variables))
    return (*variables_[: scan.axis], *new, *variables_[scan.axis + 1 :])


def _number(f: FuncDef, scan: Scan) -> Expr:
    """The number of an element in the order of the scan, from 0."""
    lo, hi = f.natural[scan.axis]
    place = Var(f.variables[scan.axis])
    assert lo is not None and hi is not None
    return subtract(hi, place) if scan.backward else subtract(place, lo)


def _term_at(f: FuncDef, scan: Scan, number: Expr) -> Expr:
    """The term of the scan with a number."""
    lo, hi = f.natural[scan.axis]
    assert lo is not None and hi is not None

    def at(n: Expr) -> Expr:
        return subtract(hi, n) if scan.backward else add(lo, n)

    name = f.variables[scan.axis]
    first = substitute(scan.first, {name: at(number)})
    if scan.term == scan.first:
        return first
    term = substitute(scan.term, {name: at(maximum(number, ONE))})
    return Select(Binary("le", ONE, number), term, first)


def _scan_of_values(
    g: FuncDef, value: Expr, scan: Scan, f: FuncDef, new: tuple[str, ...], kind: str, length: int
) -> tuple[Definition, ...]:
    """The definitions of a scan of values over the last of the dimensions `new`."""
    free = _dims(f, scan, new)
    d = replace(f.definitions[0], index=tuple(map(Var, free)), free=free, values=(value,))
    r = _fresh(f, "later")
    at = scan.axis + len(new) - 1
    rest = (*free[:at], *free[at + 1 :])
    index = tuple(Var(r) if n == at else Var(v) for n, v in enumerate(free))
    before = tuple(subtract(Var(r), ONE) if n == at else Var(v) for n, v in enumerate(free))
    read = Read(g.name, before, 0, g.dtypes[0])
    combine = builtin_combiner(kind, g.dtypes)
    update = Definition(index, rest, ((r, ONE, const(length)),), TRUE, (read,), combine, None, d.loc)
    return (d, update) if length > 1 else (d,)


def _new(f: FuncDef, name: str, state: State, scan: Scan, new: tuple[tuple[str, int], ...]) -> FuncDef:
    """A func without definitions with dimensions of known sizes in place of that of the scan."""
    boxes: tuple[Interval, ...] = tuple((ZERO, const(n - 1)) for _, n in new)

    def dims(of: tuple[Interval, ...]) -> tuple[Interval, ...]:
        return (*of[: scan.axis], *boxes, *of[scan.axis + 1 :])

    named = fresh_name(state.program, name)
    return replace(
        f,
        name=named,
        definitions=(),
        limits=dims(f.limits),
        natural=dims(f.natural),
        declared=False,
        array=(),
    )


def _with(f: FuncDef, *definitions: Definition) -> FuncDef:
    return replace(f, definitions=definitions)


def _fresh(f: FuncDef, name: str) -> str:
    used = {v for d in f.definitions for v in d.variables}
    while name in used:
        name += "_"
    return name
