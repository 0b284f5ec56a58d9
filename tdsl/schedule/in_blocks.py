"""in_blocks: argmax and argmin in three steps: block maxima, the first best block, the position in it.

    f = argmax of x[i, j] over i, j     f_best[i] = max of x[i, j] over j
                                        f_block   = argmax of f_best[i] over i
                                        f         = argmax of x[f_block, j] over j

A reduction of values alone runs at memory bandwidth; a reduction of (value, index) pairs is several times
slower: vectors of values and of indices differ in width, and each step waits for the previous comparison. The
first block that contains the best value contains its first index, so ties and NaN give the same index.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import prod

from tdsl.lang.affine import as_sum
from tdsl.lang.definition import Definition, has_effects
from tdsl.lang.expr import TRUE, ZERO, Binary, Expr, Read, Var, const
from tdsl.lang.program import FuncDef
from tdsl.lang.reduction import builtin_combiner
from tdsl.lang.regions import Interval, reads_in
from tdsl.lang.simplify import add, multiply, substitute
from tdsl.lang.types import bool_, i64
from tdsl.schedule.loops import check_positive, find_loop, iterations_of
from tdsl.schedule.new_stage import fresh_name, insert_func, replace_func
from tdsl.schedule.scans import scan_in_blocks
from tdsl.schedule.state import Illegal, State, fresh_plan

KINDS = {"argmax": "max", "argmin": "min"}


def in_blocks(state: State, func: str, definition: int, *, loop: str, factor: int | None = None) -> State:
    """Find the best value of each block, then the first best block, then the position in that block.

    A block are the terms of the ranges from `loop` inwards; with a factor, that many terms of the last range.
    """
    if definition and factor is not None:
        return scan_in_blocks(state, func, definition, loop=loop, factor=factor)
    f = state.program.func(func)
    d = f.definitions[0]
    variable = find_loop(state, func, definition, loop)
    if not is_plain_arg_reduction(state, f):
        raise Illegal(
            f"{func!r} is not the argmax or argmin of inputs alone, without predicates",
            "store what it reads in an array of its own, and compile that program first",
        )
    if state.plan(func).nests != fresh_plan(f).nests:
        raise Illegal(f"the loops of {func!r} were changed already", "give in_blocks first")
    names = [name for name, _, _ in d.ranges]
    sizes = {name: iterations_of(state, func, definition, name) for name in names}
    if variable not in names:
        raise Illegal(f"{variable!r} is not reduced over", f"name one of {', '.join(names)}")
    terms = [(name, n or 0) for name, n in sizes.items()]
    if None in sizes.values() or not is_in_order(d.values[1], dict(terms)):
        raise Illegal(
            f"the terms of {func!r} are not numbered in their order, or their count is not constant",
            "give the shapes as numbers",
        )
    inner = names.index(variable)
    outer, ranges, moved = terms[:inner], terms[inner:], dict[str, Expr]()
    if factor is not None:
        size, (last, extent) = check_positive(factor, "the factor"), terms[-1]
        if variable != last or extent % size:
            raise Illegal(
                f"blocks of {size} do not divide the last range, {last!r} of {extent}",
                "name the last range and one of its divisors",
            )
        block = _fresh(f"{last}_block", d)
        outer, ranges = [*outer, (block, extent // size)], [(last, size)]
        moved = {last: add(multiply(Var(block), const(size)), Var(last))}
    if not outer:
        raise Illegal("all terms are in one block", "give a factor")
    values = tuple(substitute(v, moved) for v in d.values)
    best = _best(fresh_name(state.program, f"{f.name}_best"), f, values[0], outer, ranges)
    state = insert_func(state, f.name, best, fresh_plan(best))
    chosen = _block(fresh_name(state.program, f"{f.name}_block"), f, best, outer)
    state = insert_func(state, f.name, chosen, fresh_plan(chosen))
    number: Expr = Read(chosen.name, tuple(map(Var, d.free)), 1, i64, loc=d.loc)
    count = prod(n for _, n in outer)
    number = Binary("max", Binary("min", number, const(count - 1)), ZERO)
    at = dict(zip((name for name, _ in outer), _digits(number, [n for _, n in outer]), strict=True))
    within = replace(d, ranges=_ranges(ranges), values=tuple(substitute(v, at) for v in values))
    f = replace(f, definitions=(within,))
    plan = replace(state.plan(f.name), nests=fresh_plan(f).nests)
    return replace_func(state, f).with_plan(f.name, plan)


def is_plain_arg_reduction(state: State, f: FuncDef) -> bool:
    """True for an argmax or argmin over all elements of ranges of inputs, without predicate or mask."""
    d = f.definitions[0]
    return (
        len(f.definitions) == 1
        and d.combine is not None
        and d.combine.kind in KINDS
        and d.init is not None
        and d.where == d.mask == TRUE
        and f.dtypes[0] != bool_
        and all(lo == ZERO for _, lo, _ in d.ranges)
        and not has_effects(d)
        and not any(state.program.has_func(r.name) for r in reads_in(d.values))
    )


def is_in_order(index: Expr, sizes: Mapping[str, int]) -> bool:
    """True if the index that an argmax returns increases with the order of the terms."""
    s = as_sum(index)
    if set(s.terms) != {Var(name) for name in sizes}:
        return False
    steps = [s.terms[Var(name)] for name in sizes]
    reach = [step * (n - 1) for step, n in zip(steps, sizes.values(), strict=True)]
    later = [sum(reach[k + 1 :]) for k in range(len(reach))]
    return all(step > further for step, further in zip(steps, later, strict=True)) and min(steps) > 0


def _fresh(name: str, d: Definition) -> str:
    while name in d.variables:
        name += "_"
    return name


def _ranges(terms: list[tuple[str, int]]) -> tuple[tuple[str, Expr, Expr], ...]:
    return tuple((name, ZERO, const(n)) for name, n in terms)


def _digits(number: Expr, sizes: list[int]) -> list[Expr]:
    """The coordinates of a block along the outer variables, from its linear number."""
    digits: list[Expr] = []
    for n in reversed(sizes[1:]):
        digits.append(Binary("mod", number, const(n)))
        number = Binary("floordiv", number, const(n))
    return [number, *reversed(digits)]


def _best(
    name: str, f: FuncDef, value: Expr, outer: list[tuple[str, int]], ranges: list[tuple[str, int]]
) -> FuncDef:
    """The func of the best value of each block."""
    d = f.definitions[0]
    assert d.combine is not None
    combine = builtin_combiner(KINDS[d.combine.kind], f.dtypes[:1])
    free = (*d.free, *(n for n, _ in outer))
    definition = replace(
        d, index=tuple(map(Var, free)), free=free, ranges=_ranges(ranges), values=(value,),
        combine=combine, init=combine.init,
    )  # fmt: skip
    boxes: tuple[Interval, ...] = tuple((ZERO, const(n - 1)) for _, n in outer)
    return replace(
        f, name=name, dtypes=f.dtypes[:1], definitions=(definition,), limits=(*f.limits, *boxes),
        natural=(*f.natural, *boxes), declared=False, array=(),
    )  # fmt: skip


def _block(name: str, f: FuncDef, best: FuncDef, outer: list[tuple[str, int]]) -> FuncDef:
    """The func of the best value and the number of the first block that contains it."""
    d = f.definitions[0]
    number: Expr = ZERO
    for variable, n in outer:
        number = add(multiply(number, const(n)), Var(variable))
    value = Read(best.name, best.definitions[0].index, 0, best.dtypes[0], loc=d.loc)
    definition = replace(d, ranges=_ranges(outer), values=(value, number))
    return replace(f, name=name, definitions=(definition,), declared=False, array=())
