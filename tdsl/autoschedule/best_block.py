"""argmax and argmin in three steps: block maxima, the first best block, the position within that block.

    f = argmax of x[i, j] over i, j     f_best[i] = max of x[i, j] over j
                                        f_block   = argmax of f_best[i] over i
                                        f         = argmax of x[f_block, j] over j

A reduction of values alone runs at memory bandwidth; a reduction of (value, index) pairs is several times
slower: vectors of values and of indices differ in width, and each step waits for the previous comparison. The
first block that contains the best value contains its first index, so ties and NaN give the same index.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from math import isqrt, prod

from tdsl.autoschedule.patterns.rows import vectors_of
from tdsl.lang.affine import as_sum
from tdsl.lang.definition import Definition, has_effects
from tdsl.lang.expr import TRUE, ZERO, Binary, Expr, Read, Var, const
from tdsl.lang.program import FuncDef
from tdsl.lang.reduction import builtin_combiner
from tdsl.lang.regions import Interval, reads_in
from tdsl.lang.simplify import add, multiply, substitute
from tdsl.lang.types import bool_, i64
from tdsl.machine.model import Machine
from tdsl.schedule.new_stage import fresh_name, insert_func, replace_func
from tdsl.schedule.properties import extents, root_boxes, unplaced_at_root
from tdsl.schedule.state import State, fresh_plan

KINDS = {"argmax": "max", "argmin": "min"}
MIN_BLOCK_TERMS = 64  # terms of a block: a few vectors
MIN_BLOCKS = 4  # blocks of a split variable
MIN_TERMS = 512  # terms; shorter reductions are left as they are


def block_arg_reductions(state: State, machine: Machine, hosts: Collection[str] = ()) -> State:
    """The state with argmax and argmin of many contiguous terms computed by blocks.

    Funcs with directives, and `hosts`, at whose loops other funcs are placed, are unchanged.
    """
    plans = [(name, plan) for name, plan in state.plans if name not in hosts]
    open_ = [name for name, plan in plans if not plan.scheduled and plan.place is None]
    candidates = [name for name in open_ if _is_plain_arg_reduction(state, state.program.func(name))]
    if not candidates:
        return state
    boxes = root_boxes(unplaced_at_root(state))
    for name in candidates:
        f = state.program.func(name)
        if name in boxes:
            sizes = extents(f, f.definitions[0], boxes[name])
            vectors = vectors_of(f, 0, sizes, machine.vector_bytes, whole=True)
            if vectors is not None and vectors[0] == f.definitions[0].ranges[-1][0]:
                state = _in_blocks(state, f, sizes)
    return state


def _is_plain_arg_reduction(state: State, f: FuncDef) -> bool:
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


def _in_blocks(state: State, f: FuncDef, sizes: Mapping[str, int | None]) -> State:
    d = f.definitions[0]
    terms = [(name, sizes[name] or 0) for name, _, _ in d.ranges]
    if prod(n for _, n in terms) < MIN_TERMS or not _is_in_order(d.values[1], dict(terms)):
        return state
    inner = len(terms)
    while inner and prod(n for _, n in terms[inner:]) < MIN_BLOCK_TERMS:
        inner -= 1
    outer = terms[:inner]
    if prod(n for _, n in outer) < prod(n for _, n in terms[inner:]) // MIN_BLOCK_TERMS:
        inner, outer = len(terms) - 1, terms[:-1]
        (last, extent) = terms[-1]
        size = _block_size(extent)
        if not size:
            return state
        block = _fresh(f"{last}_block", d)
        outer, ranges = [*outer, (block, extent // size)], [(last, size)]
        moved: dict[str, Expr] = {last: add(multiply(Var(block), const(size)), Var(last))}
    else:
        ranges, moved = terms[inner:], {}
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
    return replace_func(state, f).with_plan(f.name, fresh_plan(f))


def _block_size(extent: int) -> int:
    """A divisor of `extent` near its square root, a multiple of vectors if possible; 0 without a divisor."""
    largest = min(max(isqrt(extent), 4 * MIN_BLOCK_TERMS), extent // MIN_BLOCKS)
    divisors = [n for n in range(MIN_BLOCK_TERMS, largest + 1) if extent % n == 0]
    return max(divisors, key=lambda n: (min(n & -n, MIN_BLOCK_TERMS), -abs(n - isqrt(extent))), default=0)


def _is_in_order(index: Expr, sizes: Mapping[str, int]) -> bool:
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
