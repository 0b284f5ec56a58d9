"""Properties that default and automatic schedules use: boxes of the whole program; extents, cost, strides."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from math import prod

from tdsl.lang.affine import as_sum, variables
from tdsl.lang.bounds import NO_FACTS, upper
from tdsl.lang.definition import Definition
from tdsl.lang.definition import has_effects as has_effects
from tdsl.lang.expr import (
    ONE,
    ZERO,
    Binary,
    Call,
    Const,
    Expr,
    Read,
    Var,
    const,
    dtype_of,
)  # fmt: skip
from tdsl.lang.operations import arithmetic_of
from tdsl.lang.program import FuncDef, Program
from tdsl.lang.regions import Box, interval_of, reads_in
from tdsl.lang.simplify import add, subtract
from tdsl.schedule.bounds_inference import bounds_of, required_boxes
from tdsl.schedule.state import Root, State
from tdsl.schedule.tree import ROOT, build_tree

MAX_STRIDE = 4  # the largest stride, in elements, of accesses that still use vector loads
ASSUMED_LANES = 16  # vector lanes assumed in estimates


def root_boxes(state: State) -> dict[str, Box]:
    """The box of every func and input that the outputs need, over the whole program."""
    start: dict[str, Box] = {}
    for name in state.program.outputs:
        f = state.program.func(name)
        f.output_box(None)
        start[name] = f.natural
    return required_boxes(build_tree(state), state, (ROOT,), start, [], NO_FACTS)


def needed_box(state: State, f: FuncDef) -> Box:
    """The box of a func that the whole program needs, wherever it is computed; unbounded if unknown."""
    plans = tuple((n, replace(p, place=Root(), store=None)) for n, p in state.plans)
    boxes = root_boxes(replace(state, plans=plans))
    return boxes.get(f.name, ((None, None),) * len(f.variables))


def unplaced_at_root(state: State) -> State:
    """The state with the place `Root` for every func that has no place yet."""
    for name, plan in state.plans:
        if plan.place is None:
            state = state.with_plan(name, replace(plan, place=Root()))
    return state


def extent(box: Box, axis: int) -> int | None:
    """The extent of a dimension of a box, or an upper bound of it; None if there is no constant bound."""
    lo, hi = box[axis]
    if isinstance(lo, Const) and isinstance(hi, Const):
        return int(hi.value) - int(lo.value) + 1
    return None if lo is None or hi is None else upper(add(subtract(hi, lo), ONE))


def shape_of(box: Box) -> tuple[int, ...]:
    """The extent of each dimension of a box; 0 if it is unknown or empty."""
    return tuple(max(extent(box, axis) or 0, 0) for axis in range(len(box)))


def volume(box: Box) -> int | None:
    """The number of points of a box; None if an extent is unknown."""
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


def operations(state: State, free: Collection[str] = ()) -> int | None:
    """The estimated operations of first definitions, each func computed once; None if sizes are unknown.

    Funcs in `free` cost nothing.
    """
    boxes, total = root_boxes(unplaced_at_root(state)), 0
    for f in state.program.funcs:
        if f.name in boxes and f.name not in free:
            d = f.definitions[0]
            sizes = extents(f, d, boxes[f.name])
            counts = [volume(boxes[f.name]), *(sizes[v] for v, _, _ in d.ranges)]
            if None in counts:
                return None
            total += prod(n or 0 for n in counts) * arithmetic_of(d)
    return total


def work_per_point(f: FuncDef) -> float:
    """Operations and reads per point, summed over all definitions and the terms of their reductions."""
    total = 0.0
    for d in f.definitions:
        terms = prod(max(upper(subtract(hi, lo)) or 1, 1) for _, lo, hi in d.ranges if lo and hi)
        total += (arithmetic_of(d) + len(list(reads_in(d.values)))) * terms
    return total


def element_bytes(program: Program, name: str) -> int:
    """The bytes of an element of an input or func, of which all components count."""
    if program.has_func(name):
        return sum(t.bytes for t in program.func(name).dtypes)
    return program.input(name).dtype.bytes


def max_bytes(d: Definition) -> int:
    """The size in bytes of the largest element type that a definition reads or computes."""
    sizes = [dtype_of(v).bytes for v in d.values]
    sizes += [r.dtype.bytes for r in reads_in(d.values)]
    return max(sizes, default=4)


def lanes_for(d: Definition, extent: int | None, vector_bytes: int) -> int:
    """How many lanes fit a vector and an extent; 1 where vectors do not pay."""
    lanes = max(vector_bytes // max_bytes(d), 1)
    while extent is not None and lanes > 1 and lanes > extent:
        lanes //= 2
    return lanes if lanes >= 4 or lanes * max_bytes(d) == vector_bytes else 1


Sizes = Mapping[str, int | None]


def stride_of(r: Read, variable: str, sizes: Sizes | None = None) -> int | None:
    """The stride of an access along a variable, in elements of the last dimension.

    0 if the access does not depend on the variable; None if it moves in another dimension or unevenly. With
    `sizes` of the variables, a stride in another dimension counts if the dimensions after it are narrow.
    """
    moved = [axis for axis, e in enumerate(r.index) if variable in variables(e)]
    if not moved:
        return 0
    after = [sizes.get(e.name) if sizes and isinstance(e, Var) else None for e in r.index]
    width = prod(n or MAX_STRIDE + 1 for n in after[moved[0] + 1 :])
    if len(moved) > 1 or width > MAX_STRIDE:
        return None
    stride = coefficient(r.index[moved[0]], variable)
    return None if stride is None else stride * width


def is_dense(r: Read, variable: str, sizes: Sizes | None = None) -> bool:
    """True if the reads for adjacent values of a variable fall into a few vectors.

    Their stride is small, or their range is within two vectors, as the range of x // 2 is.
    """
    stride = stride_of(r, variable, sizes)
    if stride is not None:
        return abs(stride) <= MAX_STRIDE
    if any(variable in variables(e) for e in r.index[:-1]):
        return False
    lo, hi = interval_of(r.index[-1], {variable: (ZERO, const(ASSUMED_LANES - 1))})
    reach = None if lo is None or hi is None else upper(subtract(hi, lo))
    return reach is not None and reach < 2 * ASSUMED_LANES


def coefficient(e: Expr, variable: str) -> int | None:
    """The coefficient of a variable in an index, through padding; None if the index is not linear in it."""
    match e:
        case Call("pad_edge" | "pad_reflect" | "pad_symmetric" | "pad_wrap", (x, _)):
            return coefficient(x, variable)
        case Binary("max" | "min", x, y) if variable not in variables(y):
            return coefficient(x, variable)
    s = as_sum(e)
    if any(variable in variables(a) for a in s.terms if a != Var(variable)):
        inner = [a for a in s.terms if variable in variables(a)]
        single = len(inner) == 1 and s.terms[inner[0]] == 1 and inner[0] != e
        return coefficient(inner[0], variable) if single else None
    return s.terms.get(Var(variable), 0)
