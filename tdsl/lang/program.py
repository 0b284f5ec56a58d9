"""`Program`: all funcs and inputs reachable from the outputs, with unique names and inferred ranges.

A program has no handles: tensors, funcs and loop variables are referred to by name, so that programs can be
compared, hashed and printed, with the same text in every run.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field, replace

from tdsl.core.node import Node, frozen, post_order, transform
from tdsl.core.source import Loc
from tdsl.errors import ShapeError
from tdsl.lang.agreement import Agreement
from tdsl.lang.definition import Definition, show_definition
from tdsl.lang.expr import ONE, Binary, Expr, Size, const
from tdsl.lang.regions import Interval
from tdsl.lang.show import show_expr
from tdsl.lang.simplify import add, simplify, subtract
from tdsl.lang.types import DType

Numbers = tuple[tuple[str, int], ...]  # (name of a size, value), sorted


@frozen
class Axis:
    """An axis of an array, at position index[dim] // step % extent; no modulo if `extent` is None."""

    dim: int
    step: Expr = ONE
    extent: Expr | None = None

    def place(self, index: Sequence[Expr]) -> Expr:
        """The position along the axis of a point of the func; `index` is relative to the first point."""
        e = index[self.dim]
        whole = e if self.step == ONE else Binary("floordiv", e, self.step)
        return whole if self.extent is None else Binary("mod", whole, self.extent)


@frozen
class Input:
    """An input array; if `constant`, it is the same array in every call.

    `array` are the axes of the array if they differ from the dimensions of `shape`.
    """

    name: str
    shape: tuple[Expr, ...]
    dtype: DType
    loc: Loc | None = field(default=None, compare=False)
    constant: bool = False
    array: tuple[Axis, ...] = ()

    def axes(self) -> tuple[Axis, ...]:
        """The axes of the array that is passed to a call."""
        return self.array or tuple(map(Axis, range(len(self.shape))))

    def array_shape(self) -> tuple[Expr, ...]:
        """The shape of the array that is passed to a call."""
        return tuple(self.shape[a.dim] if a.extent is None else a.extent for a in self.axes())


@frozen
class ScalarInput:
    """A scalar input."""

    name: str
    dtype: DType
    loc: Loc | None = field(default=None, compare=False)


@frozen(slots=False)
class FuncDef:
    """A func of a program: its definitions, and two ranges for each dimension.

    `limits` is the range in which the func may be read (None: unbounded); `natural` the range that is
    computed if the func is an output. `array` are the axes of the output array if they differ from the
    dimensions of the func.
    """

    name: str
    dtypes: tuple[DType, ...]
    definitions: tuple[Definition, ...]
    limits: tuple[Interval, ...]
    natural: tuple[Interval, ...]
    declared: bool = False
    fast_math: bool = False
    loc: Loc | None = field(default=None, compare=False)
    array: tuple[Axis, ...] = ()

    @property
    def variables(self) -> tuple[str, ...]:
        """The variables of the pure definition, one for each dimension."""
        return self.definitions[0].free

    def map_expressions(self, f: Callable[[Expr], Expr]) -> FuncDef:
        """The func with `f` applied to every expression of its definitions; self if none changes."""
        definitions = tuple(map_expressions(d, f) for d in self.definitions)
        unchanged = all(map(operator.is_, definitions, self.definitions))
        return self if unchanged else replace(self, definitions=definitions)

    @functools.cached_property
    def bound(self) -> dict[Numbers, FuncDef]:
        """A cache of the func with numbers for sizes, for the sizes bound last."""
        return {}

    def output_box(self, loc: Loc | None) -> tuple[tuple[Expr, Expr], ...]:
        """(first index, extent) of each dimension of `natural`; ShapeError if one is not known."""
        box = []
        for name, (lo, hi) in zip(self.variables, self.natural, strict=True):
            if lo is None or hi is None:
                raise ShapeError(
                    f"the range of {name!r} of {self.name!r} does not follow from the tensors it reads",
                    loc=self.definitions[0].loc or loc or self.loc,
                    label="defined here",
                    related=() if loc is None else ((loc, "its extents are needed here"),),
                    hint=f"declare it: {self.name}.with_shape(...), or td.Func({self.name!r}, shape=...)",
                )
            box.append((lo, add(subtract(hi, lo), ONE)))
        return tuple(box)

    def axes(self) -> tuple[Axis, ...]:
        """The axes of the array that a call returns, if the func is an output."""
        return self.array or tuple(map(Axis, range(len(self.variables))))

    def array_shape(self, loc: Loc | None) -> tuple[Expr, ...]:
        """The shape of the array that a call returns; ShapeError if an extent is not known."""
        box = self.output_box(loc)
        return tuple(box[a.dim][1] if a.extent is None else a.extent for a in self.axes())


@frozen(slots=False)
class Program:
    """Inputs, scalars, and funcs with producers before consumers; `outputs` are names of funcs.

    `parameters` are the names of a call's arguments, in order; `output_names` the names that the user gave
    the outputs, also if a schedule replaces an output by a copy. `equal` are named extents that indices
    require to equal other expressions, `agreements` the accesses that require it. `with_stops` is the program
    as it was defined, if that calls `td.stop_gradient`. The text of a program shows the range and the
    definitions of each func.
    """

    name: str
    inputs: tuple[Input, ...]
    scalars: tuple[ScalarInput, ...]
    funcs: tuple[FuncDef, ...]
    outputs: tuple[str, ...]
    parameters: tuple[str, ...]
    output_names: tuple[str, ...] = ()
    equal: tuple[tuple[str, Expr], ...] = field(default=(), compare=False)
    agreements: tuple[Agreement, ...] = field(default=(), compare=False)
    with_stops: Program | None = field(default=None, compare=False, repr=False)

    def __str__(self) -> str:
        return show_program(self)

    def func(self, name: str) -> FuncDef:
        """The func named `name`; KeyError if the program has none."""
        return self._by_name[name]

    def has_func(self, name: str) -> bool:
        """True if the program has a func named `name`."""
        return name in self._by_name

    @functools.cached_property
    def _by_name(self) -> dict[str, FuncDef]:
        return {f.name: f for f in self.funcs}

    def input(self, name: str) -> Input:
        """The input array named `name`; KeyError if the program has none."""
        return self._inputs_by_name[name]

    def has_input(self, name: str) -> bool:
        """True if the program has an input array named `name`."""
        return name in self._inputs_by_name

    @functools.cached_property
    def _inputs_by_name(self) -> dict[str, Input]:
        return {t.name: t for t in self.inputs}

    @functools.cached_property
    def bound(self) -> dict[Numbers, Program]:
        """A cache of the program with numbers for sizes, for the sizes bound last."""
        return {}

    @functools.cached_property
    def sizes(self) -> tuple[str, ...]:
        """The named extents of inputs, then of declared shapes and definitions, in order of appearance."""
        shapes = [e for t in self.inputs for e in t.shape]
        shapes += [e for f in self.funcs if f.declared for _, e in f.limits if e is not None]
        for d in (d for f in self.funcs for d in f.definitions):
            shapes += [e for _, *ends in d.ranges for e in ends if e is not None]
            shapes += d.expressions()
        return tuple(dict.fromkeys(n.name for n in post_order(*shapes) if isinstance(n, Size)))


def map_expressions(d: Definition, f: Callable[[Expr], Expr]) -> Definition:
    """The definition with `f` applied to every expression in it; `d` itself if none changes."""
    index, values = tuple(map(f, d.index)), tuple(map(f, d.values))
    where, mask = f(d.where), f(d.mask)
    ranges = tuple(
        (n, None if lo is None else f(lo), None if hi is None else f(hi)) for n, lo, hi in d.ranges
    )
    old = (*d.index, *d.values, d.where, d.mask, *(e for _, *ends in d.ranges for e in ends))
    new = (*index, *values, where, mask, *(e for _, *ends in ranges for e in ends))
    if all(map(operator.is_, old, new)):
        return d
    return replace(d, index=index, ranges=ranges, where=where, values=values, mask=mask)


def bind_expr(e: Expr, sizes: Mapping[str, int]) -> Expr:
    """An expression with named extents replaced by numbers, and simplified."""

    def visit(n: Node) -> Node:
        return const(sizes[n.name]) if isinstance(n, Size) and n.name in sizes else n

    return simplify(transform(e, visit))


def bind_sizes(program: Program, sizes: Mapping[str, int]) -> Program:
    """The program with named extents replaced by numbers, and simplified."""
    key = tuple(sorted(sizes.items()))
    known = program.bound.get(key)
    if known is None:
        program.bound.clear()
        known = program.bound[key] = replace(
            program,
            inputs=tuple(
                replace(t, shape=tuple(bind_expr(e, sizes) for e in t.shape)) for t in program.inputs
            ),
            funcs=tuple(_bind_func_cached(f, key) for f in program.funcs),
            agreements=tuple(a.map_extents(lambda e: bind_expr(e, sizes)) for a in program.agreements),
            with_stops=program.with_stops and bind_sizes(program.with_stops, sizes),
        )
    return known


def _bind_func_cached(f: FuncDef, key: Numbers) -> FuncDef:
    """The func with numbers for sizes, cached: a directive leaves most funcs of a program unchanged."""
    known = f.bound.get(key)
    if known is None:
        f.bound.clear()
        known = f.bound[key] = _bind_func(f, dict(key))
        known.bound[key] = known
    return known


def _bind_func(f: FuncDef, sizes: Mapping[str, int]) -> FuncDef:
    def bind(e: Expr) -> Expr:
        return bind_expr(e, sizes)

    def interval(i: Interval) -> Interval:
        return (None if i[0] is None else bind(i[0]), None if i[1] is None else bind(i[1]))

    def axis(a: Axis) -> Axis:
        return replace(a, step=bind(a.step), extent=None if a.extent is None else bind(a.extent))

    def definition(d: Definition) -> Definition:
        c = d.combine
        if c is not None and any(isinstance(n, Size) for n in post_order(*c.exprs)):
            d = replace(d, combine=replace(c, exprs=tuple(map(bind, c.exprs))))
        return map_expressions(d, bind)

    return replace(
        f,
        definitions=tuple(map(definition, f.definitions)),
        limits=tuple(interval(i) for i in f.limits),
        natural=tuple(interval(i) for i in f.natural),
        array=tuple(axis(a) for a in f.array),
    )


def show_program(p: Program) -> str:
    """The text of a program: its inputs and outputs, then every func with its range, producers first.

    >>> from tdsl.lang.build_program import build_program
    >>> from tdsl.lang.tensor import Func, Tensor
    >>> from tdsl.lang.value import vars
    >>> i, a, f = vars("i"), Tensor("a", ("N",), "f32"), Func("f")
    >>> f[i] = a[i] + a[i + 1]
    >>> print(build_program((f,)))
    f(a: f32[N]) -> f
    f: f32 on 0 <= i < N - 1
      f[i] = a[i] + a[i + 1]
    """
    types = {t.name: f"{t.dtype}[{', '.join(map(show_expr, t.shape))}]" for t in p.inputs}
    types |= {s.name: f"{s.dtype}" for s in p.scalars}
    parameters = ", ".join(f"{name}: {types[name]}" for name in p.parameters)
    lines = [f"{p.name}({parameters}) -> {', '.join(p.outputs)}"]
    for f in p.funcs:
        lines.append(f"{f.name}: {', '.join(map(str, f.dtypes))}{_domain(f)}")
        lines += [f"  {show_definition(f.name, d)}" for d in f.definitions]
    return "\n".join(lines)


def _domain(f: FuncDef) -> str:
    known = [
        f"{show_expr(lo)} <= {name} < {show_expr(add(hi, ONE))}"
        for name, (lo, hi) in zip(f.variables, f.natural, strict=True)
        if lo is not None and hi is not None
    ]
    return f" on {', '.join(known)}" if known else ""
