"""What a default or automatic schedule asks of a definition: extents, cost, and how accesses move."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from math import prod

from tdsl.core.node import Node, children, pre_order
from tdsl.lang.affine import as_sum, variables
from tdsl.lang.bounds import NOTHING, upper
from tdsl.lang.definition import Definition
from tdsl.lang.definition import has_effects as has_effects
from tdsl.lang.expr import (
    ONE,
    ZERO,
    Access,
    Binary,
    Call,
    Const,
    Expr,
    Read,
    Select,
    Unary,
    Var,
    const,
    dtype_of,
)  # fmt: skip
from tdsl.lang.program import FuncDef
from tdsl.lang.regions import Box, interval_of, reads_in
from tdsl.lang.simplify import add, subtract
from tdsl.schedule.nest import Root, State
from tdsl.schedule.required import bounds_of, required
from tdsl.schedule.tree import ROOT, build_tree

FEW_APART = 4  # elements between those of a vector that are still loaded as vectors
LANES = 16  # of a vector, as far as an estimate needs them
_COSTLY = {"div": 4, "floordiv": 4, "mod": 4, "pow": 30}


def root_boxes(state: State) -> dict[str, Box]:
    """The box of every func and input that the outputs need in all."""
    start: dict[str, Box] = {}
    for name in state.program.outputs:
        f = state.program.func(name)
        f.output_box(None)
        start[name] = f.natural
    return required(build_tree(state), state, (ROOT,), start, [], NOTHING)


def needed_box(state: State, f: FuncDef) -> Box:
    """The box of a func that is needed in all, wherever it is computed; unbounded where that is not known."""
    plans = tuple((n, replace(p, place=Root(), store=None)) for n, p in state.plans)
    boxes = root_boxes(replace(state, plans=plans))
    return boxes.get(f.name, ((None, None),) * len(f.variables))


def rest_at_root(state: State) -> State:
    """The state with every func that has no place at the root."""
    for name, plan in state.plans:
        if plan.place is None:
            state = state.with_plan(name, replace(plan, place=Root()))
    return state


def extent(box: Box, axis: int) -> int | None:
    """The extent of a dimension of a box, where it is a constant."""
    lo, hi = box[axis]
    if isinstance(lo, Const) and isinstance(hi, Const):
        return int(hi.value) - int(lo.value) + 1
    return None if lo is None or hi is None else upper(add(subtract(hi, lo), ONE))


def shape_of(box: Box) -> tuple[int, ...]:
    """The extent of each dimension of a box; 0 where it is not known, or there is nothing."""
    return tuple(max(extent(box, axis) or 0, 0) for axis in range(len(box)))


def volume(box: Box) -> int | None:
    """The number of points of a box, where it is a constant."""
    total = 1
    for axis in range(len(box)):
        e = extent(box, axis)
        if e is None:
            return None
        total *= max(e, 0)
    return total


def extents(f: FuncDef, d: Definition, box: Box) -> dict[str, int | None]:
    """The extent of each variable of a definition on a box."""
    if any(lo is None or hi is None for lo, hi in box):
        return dict.fromkeys(d.variables)
    return {name: upper(e) for name, (_, e) in bounds_of(f, d, box).items()}


def cost(d: Definition, along: str | None = None) -> int:
    """About how many simple operations a point costs; index arithmetic is free.

    Only those that give something else for each value of the variable `along`, where one is given.
    """
    total = 0
    for n in pre_order(*d.values, inside=_but_indices):
        if not isinstance(n, Binary | Call | Unary | Select):
            continue
        if along is None or along in variables(n):
            total += weight(n)
    return total


def weight(n: Node) -> int:
    """About how many simple operations a node of an expression stands for.

    >>> from tdsl.lang.expr import Var, const
    >>> weight(Binary("add", Var("i"), const(1))), weight(Var("i"))
    (1, 0)
    """
    match n:
        case Binary(op):
            return _COSTLY.get(op, 1)
        case Call(fn):
            return 1 if fn in ("fma", "isnan", "isinf", "isfinite") else 12
        case Unary() | Select():
            return 1
        case _:
            return 0


def _but_indices(n: Node) -> tuple[Node, ...]:
    """The children of a node that are no indices."""
    return () if isinstance(n, Read | Access) else children(n)


def operations(state: State, free: Collection[str] = ()) -> int | None:
    """About how many operations a program takes where each func is computed once; None for unknown sizes.

    Some of the funcs are `free`.
    """
    boxes, total = root_boxes(rest_at_root(state)), 0
    for f in state.program.funcs:
        if f.name in boxes and f.name not in free:
            d = f.definitions[0]
            sizes = extents(f, d, boxes[f.name])
            every = [volume(boxes[f.name]), *(sizes[v] for v, _, _ in d.ranges)]
            if None in every:
                return None
            total += prod(n or 0 for n in every) * cost(d)
    return total


def widest(d: Definition) -> int:
    """The largest element, in bytes, that a definition computes with."""
    sizes = [dtype_of(v).bytes for v in d.values]
    sizes += [r.dtype.bytes for r in reads_in(d.values)]
    return max(sizes, default=4)


Sizes = Mapping[str, int | None]


def stride_of(r: Read, variable: str, sizes: Sizes | None = None) -> int | None:
    """How far an access moves in its last dimension when a variable advances by one.

    0 where it does not move; None where it moves in another dimension, or not evenly. With `sizes` of the
    variables, dimensions after that one may be narrow: a column of x[i, j] is few elements wide, or one.
    """
    moved = [axis for axis, e in enumerate(r.index) if variable in variables(e)]
    if not moved:
        return 0
    after = [sizes.get(e.name) if sizes and isinstance(e, Var) else None for e in r.index]
    width = prod(n or FEW_APART + 1 for n in after[moved[0] + 1 :])
    if len(moved) > 1 or width > FEW_APART:
        return None
    stride = step(r.index[moved[0]], variable)
    return None if stride is None else stride * width


def is_near(r: Read, variable: str, sizes: Sizes | None = None) -> bool:
    """True where adjacent values of a variable read elements that a few vectors hold.

    They are a few elements apart, or chosen within two vectors, as x // 2 is.
    """
    stride = stride_of(r, variable, sizes)
    if stride is not None:
        return abs(stride) <= FEW_APART
    if any(variable in variables(e) for e in r.index[:-1]):
        return False
    lo, hi = interval_of(r.index[-1], {variable: (ZERO, const(LANES - 1))})
    reach = None if lo is None or hi is None else upper(subtract(hi, lo))
    return reach is not None and reach < 2 * LANES


def step(e: Expr, variable: str) -> int | None:
    """The coefficient of a variable in an index, through padding; None where it is not linear."""
    match e:
        case Call("pad_edge" | "pad_reflect" | "pad_symmetric" | "pad_wrap", (x, _)):
            return step(x, variable)
        case Binary("max" | "min", x, y) if variable not in variables(y):
            return step(x, variable)
    s = as_sum(e)
    if any(variable in variables(a) for a in s.terms if a != Var(variable)):
        inner = [a for a in s.terms if variable in variables(a)]
        single = len(inner) == 1 and s.terms[inner[0]] == 1 and inner[0] != e
        return step(inner[0], variable) if single else None
    return s.terms.get(Var(variable), 0)
