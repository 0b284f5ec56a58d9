"""flatten: replaces several variables of a definition by one, so that a tile is any run of their points."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from tdsl.core.node import Node, frozen, transform
from tdsl.lang.affine import variables
from tdsl.lang.expr import ONE, ZERO, Binary, Const, Expr, Read, Var
from tdsl.lang.program import Axis, FuncDef
from tdsl.lang.regions import Interval
from tdsl.lang.simplify import add, maximum, multiply, substitute, subtract
from tdsl.schedule.loops import find_loop, new_loop_name, replace_nest
from tdsl.schedule.properties import needed_box
from tdsl.schedule.state import (
    SERIAL,
    FuncPlan,
    Illegal,
    Loop,
    State,
    is_ordered,
)  # fmt: skip


@frozen
class _Flat:
    """Variables with (first, extent) of each, and the variable that replaces all of them."""

    name: str
    parts: tuple[tuple[str, Expr, Expr], ...]

    @property
    def extent(self) -> Expr:
        return multiply(self.parts[0][2], self.steps()[0])

    def steps(self) -> list[Expr]:
        """The stride of the flat variable for each of the variables."""
        strides: list[Expr] = [ONE]
        for _, _, extent in reversed(self.parts[1:]):
            strides.append(multiply(strides[-1], extent))
        return strides[::-1]

    def values(self) -> dict[str, Expr]:
        """Each variable as an expression of the flat variable."""
        values: dict[str, Expr] = {}
        for n, ((v, lo, extent), step) in enumerate(zip(self.parts, self.steps(), strict=True)):
            flat: Expr = Var(self.name)
            if step != ONE:
                flat = Binary("floordiv", flat, step)
            values[v] = add(Binary("mod", flat, extent) if n else flat, lo)
        return values

    def index(self, at: Sequence[Expr]) -> Expr:
        """The flat index for values of the variables."""
        total: Expr = ZERO
        for (_, lo, extent), e in zip(self.parts, at, strict=True):
            total = add(multiply(total, extent), subtract(e, lo))
        return total


def flatten(
    state: State, func: str, definition: int, *, variables: tuple[str, ...], inputs: bool = False,
    name: str | None = None,
) -> State:  # fmt: skip
    """f[a, b] with a, b = divmod(ab, extent of b)  -->  f[ab]; the same for two ranges of a reduction.

    Readers of the func read it at the flat index; the layout of an output's array is unchanged. With `inputs`
    those that the func reads at all points of adjacent dimensions, as in x[a, b], are flattened with it.
    """
    f, plan = state.program.func(func), state.plan(func)
    check_flattenable(state, f, plan, definition)
    d, nest = f.definitions[definition], plan.nests[definition]
    loops = tuple(find_loop(state, func, definition, v) for v in variables)
    if len(set(loops)) < max(len(loops), 2):
        raise Illegal("flatten takes two variables or more, each once", "name others")
    for x in loops:
        if x not in d.variables or nest.kind(x) != SERIAL:
            raise Illegal(
                f"loop {x!r} is no variable of {func!r} as it was defined",
                "flatten before other directives",
            )
    ranges = {v: (lo, hi) for v, lo, hi in d.ranges}
    if {x in ranges for x in loops} == {True, False}:
        raise Illegal(
            f"some of {', '.join(loops)} are reduced over, others are not",
            "flatten variables of a kind",
        )
    flat_name = new_loop_name(nest, name, "_".join(loops))
    if loops[0] in ranges:
        if is_ordered(f, definition):
            raise Illegal(f"the terms of {func!r} are reduced in order", "flatten free variables only")
        box = {x: _inclusive(*ranges[x]) for x in loops}
    else:
        box = dict(zip(f.variables, _needed_box(state, f), strict=True))
    ends = ((x, *_first_and_extent(x, *box[x])) for x in loops)
    flat = _Flat(flat_name, tuple((x, lo, maximum(extent, ZERO)) for x, lo, extent in ends))
    if inputs:
        state = _flatten_inputs(state, f, flat)
    state = _replace_variables(state, func, flat)
    merged = [x for x in nest.loops if x.name not in loops[:-1]]
    merged[[x.name for x in merged].index(loops[-1])] = Loop(flat_name)
    return replace_nest(state, func, definition, replace(nest, loops=tuple(merged)))


def check_flattenable(state: State, f: FuncDef, plan: FuncPlan, definition: int) -> None:
    """Raise Illegal unless a func has one definition, and nothing depends on its dimensions yet."""
    if len(f.definitions) > 1:
        raise Illegal(f"{f.name!r} has updates", "only a func with one definition can be flattened")
    if plan.order is not None or plan.align or plan.fold or plan.extents:
        raise Illegal(f"the memory of {f.name!r} has been laid out", "flatten before that")
    if plan.specializations:
        raise Illegal(f"{f.name!r} has loops for special cases already", "specialize after it")
    if state.grid is not None:
        raise Illegal("the blocks of ranks are given by its dimensions", "flatten in programs of one rank")


def _needed_box(state: State, f: FuncDef) -> tuple[Interval, ...]:
    """The box of a func that the whole program needs."""
    box = needed_box(state, f)
    if f.name in state.program.outputs and box != f.natural:
        raise Illegal(f"{f.name!r} is an output of which more is needed", "copy it first: cache_write")
    return box


def _inclusive(lo: Expr | None, end: Expr | None) -> Interval:
    return lo, None if end is None else subtract(end, ONE)


def _first_and_extent(v: str, lo: Expr | None, hi: Expr | None) -> tuple[Expr, Expr]:
    if lo is None or hi is None:
        raise Illegal(
            f"the range of {v!r} is not known",
            "flatten it before what reads it, or declare a shape: with_shape(...)",
        )
    return lo, add(subtract(hi, lo), ONE)


def _flatten_inputs(state: State, f: FuncDef, flat: _Flat) -> State:
    """The state with one dimension in inputs instead of several that a func reads at all their points."""
    program, names = state.program, [v for v, _, _ in flat.parts]
    whole = all(lo == ZERO and isinstance(extent, Const) for _, lo, extent in flat.parts)
    for t in program.inputs:
        indices = {r.index for g in program.funcs for d in g.definitions for r in d.reads if r.name == t.name}
        positions = {_position(r.index, names) for r in f.definitions[0].reads if r.name == t.name}
        first = next(iter(positions), None)
        if not whole or first is None or len(positions) > 1:
            continue
        dims = slice(first, first + len(names))
        as_read = t.shape[dims] == tuple(extent for _, _, extent in flat.parts)
        if not as_read or not all(isinstance(e, Var) for index in indices for e in index[dims]):
            continue
        shape = (*t.shape[: dims.start], flat.extent, *t.shape[dims.stop :])
        array = tuple(_flat_axis(axis, t.shape, dims, flat) for axis in t.axes())
        read = partial(_read_flat, t.name, dims, flat)
        funcs = tuple(g.map_expressions(partial(transform, f=read)) for g in program.funcs)
        inputs = tuple(replace(x, shape=shape, array=array) if x is t else x for x in program.inputs)
        program = replace(program, inputs=inputs, funcs=funcs)
    return replace(state, program=program)


def _read_flat(name: str, dims: slice, flat: _Flat, n: Node) -> Node:
    """A node; a read of an input at the flat index of some of its dimensions."""
    if not (isinstance(n, Read) and n.name == name):
        return n
    return replace(n, index=(*n.index[: dims.start], flat.index(n.index[dims]), *n.index[dims.stop :]))


def _position(index: Sequence[Expr], names: Sequence[str]) -> int | None:
    """The first of the adjacent dimensions whose indices are these variables, used in no other."""
    at = [n for n, e in enumerate(index) if not variables(e).isdisjoint(names)]
    if [index[n] for n in at] != [Var(v) for v in names] or at[-1] - at[0] >= len(names):
        return None
    return at[0]


def _flat_axis(axis: Axis, shape: Sequence[Expr], dims: slice, flat: _Flat) -> Axis:
    """An axis of an input's array over its dimensions after flattening."""
    if axis.dim < dims.start:
        return axis
    if axis.dim >= dims.stop:
        return replace(axis, dim=axis.dim - len(flat.parts) + 1)
    step = flat.steps()[axis.dim - dims.start]
    return Axis(dims.start, multiply(step, axis.step), axis.extent or shape[axis.dim])


def _replace_variables(state: State, func: str, flat: _Flat) -> State:
    """The state with one variable instead of several in a func and its readers, in place of the last."""
    f = state.program.func(func)
    names = tuple(v for v, _, _ in flat.parts)
    flat_index = flat.index(tuple(map(Var, names)))
    values, d = flat.values(), f.definitions[0]

    def inside(e: Expr) -> Expr:
        flattened = transform(e, lambda n: Var(flat.name) if n == flat_index else n)
        return substitute(flattened, values)

    ranges = [r for r in d.ranges if r[0] not in names[:-1]]
    ranges = [(flat.name, ZERO, flat.extent) if r[0] == names[-1] else r for r in ranges]
    d = replace(
        d, where=inside(d.where), values=tuple(map(inside, d.values)), ranges=tuple(ranges),
        mask=inside(d.mask),
    )  # fmt: skip
    if names[0] not in d.free:
        funcs = tuple(replace(f, definitions=(d,)) if g is f else g for g in state.program.funcs)
        return replace(state, program=replace(state.program, funcs=funcs))
    kept = [v for v in f.variables if v not in names[:-1]]
    at = {v: flat.name if v == names[-1] else v for v in kept}
    d = replace(d, index=tuple(Var(at[v]) for v in kept), free=tuple(at[v] for v in kept))

    def ends(of: tuple[Interval, ...]) -> tuple[Interval, ...]:
        known = dict(zip(f.variables, of, strict=True))
        bounded = all(None not in known[v] for v in names)
        known[names[-1]] = (ZERO, subtract(flat.extent, ONE)) if bounded else (None, None)
        return tuple(known[v] for v in kept)

    array = _array_axes(f, flat, kept) if f.name in state.program.outputs else ()
    g = replace(
        f, definitions=(d,), limits=ends(f.limits), natural=ends(f.natural), array=array
    )  # fmt: skip

    def flat_read(n: Node) -> Node:
        if not (isinstance(n, Read) and n.name == f.name):
            return n
        index = dict(zip(f.variables, n.index, strict=True))
        index[names[-1]] = flat.index(tuple(index[v] for v in names))
        return replace(n, index=tuple(index[v] for v in kept))

    funcs = tuple(
        g if h is f else h.map_expressions(lambda e: transform(e, flat_read)) for h in state.program.funcs
    )
    return replace(state, program=replace(state.program, funcs=funcs))


def _array_axes(f: FuncDef, flat: _Flat, kept: list[str]) -> tuple[Axis, ...]:
    """The axes of the array of an output, over its dimensions after flattening."""
    steps = dict(zip((v for v, _, _ in flat.parts), flat.steps(), strict=True))
    axes = []
    for axis in f.axes():
        v = f.variables[axis.dim]
        if v in steps:
            extent = axis.extent
            if extent is None:  # a negative extent is refused as a shape
                _, extent = _first_and_extent(v, *f.natural[axis.dim])
            flat_axis = Axis(kept.index(flat.parts[-1][0]), multiply(steps[v], axis.step), extent)
        else:
            flat_axis = replace(axis, dim=kept.index(v))
        axes.append(flat_axis)
    return tuple(axes)
