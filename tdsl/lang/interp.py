"""The interpreter: reference semantics of a program on NumPy arrays; slow, the oracle of every test.

    1. substitute numbers for sizes and scalars, so that every range is numeric
    2. from outputs to inputs, compute the box of each func that its consumers read (`interpreted_boxes.py`)
    3. from inputs to outputs, fill each box, definition by definition: a loop over the points of the ranges,
       outermost first; at each point all values of the free variables at once, as NumPy arrays

Floats are added in the order of the unscheduled loops. A read outside the computed box of a func is a bug in
bounds inference: an AssertionError.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tdsl.core.node import Node, children, post_order, transform
from tdsl.core.source import here
from tdsl.errors import IndexBoundError, RequireError, ShapeError, TypeMismatch, counted
from tdsl.lang import arithmetic
from tdsl.lang.arithmetic import Array
from tdsl.lang.definition import Definition
from tdsl.lang.expr import (
    Binary,
    Broadcast,
    Call,
    Cast,
    Const,
    Expr,
    Param,
    Read,
    Require,
    Select,
    Show,
    Size,
    Unary,
    Var,
    const,
)  # fmt: skip
from tdsl.lang.interpreted_boxes import (
    Bounds,
    number_of,
    ranges_at,
    realised_boxes,
    split_conditions,
)
from tdsl.lang.program import FuncDef, Input, Program, map_expressions
from tdsl.lang.regions import Box, Interval
from tdsl.lang.show import show_expr
from tdsl.lang.simplify import simplify
from tdsl.lang.types import from_numpy

Arguments = Mapping[str, Any]
Limits = tuple[tuple[float, float], ...]  # inclusive ends of each dimension
Orders = dict[int, tuple[Node, ...]]  # nodes in the order of evaluation, by `id` of the root


def interpret(
    program: Program,
    arguments: Arguments,
    sizes: Mapping[str, int] | None = None,
    out: Callable[[str], None] = print,
) -> tuple[Array, ...]:
    """The outputs of a program for given arrays and numbers, one array for each component of each output.

    `sizes` has the named extents that are no extent of an input array; `out` gets each line of `debug_print`.

    >>> from tdsl.lang.tensor import Func, Tensor
    >>> from tdsl.lang.value import vars
    >>> from tdsl.lang.build_program import build_program
    >>> i, a, f = vars("i"), Tensor("a", ("N",), "i32"), Func("f")
    >>> f[i] = a[i] + a[i + 1]
    >>> interpret(build_program((f,)), {"a": np.array([1, 2, 4], np.int32)})
    (array([3, 6], dtype=int32),)

    Raises ShapeError or TypeMismatch for arguments that do not fit, RequireError where a check fails,
    IndexBoundError where an index has no bounds.
    """
    program, arrays = bind_arguments(program, arguments, sizes or {})
    return tuple(part for parts in Interpretation(program, arrays, out).outputs() for part in parts)


def bind_arguments(
    program: Program, arguments: Arguments, sizes: Mapping[str, int]
) -> tuple[Program, dict[str, Array]]:
    """The program with numbers for sizes and scalars, and its input arrays by name.

    Range bounds are simplified to numbers; values are not, so that they do not depend on the simplifier.
    """
    arrays = {t.name: np.asarray(arguments[t.name]) for t in program.inputs}
    known: dict[Node, Const] = {
        Size(n): const(v) for n, v in {**_sizes_of_arrays(program, arrays), **sizes}.items()
    }
    for s in program.scalars:
        value = np.asarray(arguments[s.name], s.dtype.numpy).item()
        known[Param(s.name, s.dtype)] = Const(value, s.dtype)
    program = _bind_program(program, known)
    _check_arrays(program, arrays)
    for a in program.agreements:
        (first, *_), (second, *_) = a.map_extents(lambda e: transform(e, lambda n: known.get(n, n))).sides
        if number_of(first) != number_of(second):
            raise ShapeError(
                f"{a.variable!r} has two extents: {number_of(first)} and {number_of(second)}",
                loc=here(),
                label="this call",
                related=a.related,
                hint="pass arrays that agree",
            )
    return program, {t.name: _merge_axes(t, arrays[t.name]) for t in program.inputs}


def _merge_axes(t: Input, array: Array) -> Array:
    """An array with the dimensions that its input has in the program."""
    return array.reshape([number_of(e) for e in t.shape]) if t.array else array


def _sizes_of_arrays(program: Program, arrays: Mapping[str, Array]) -> dict[str, int]:
    sizes: dict[str, int] = {}
    for t in program.inputs:
        array = arrays[t.name]
        if array.ndim != len(t.axes()):
            raise _wrong_shape(t, array)
        for e, extent in zip(t.array_shape(), array.shape, strict=True):
            if isinstance(e, Size):
                sizes.setdefault(e.name, extent)
    return sizes


def _check_arrays(program: Program, arrays: Mapping[str, Array]) -> None:
    for t in program.inputs:
        array, shape = arrays[t.name], tuple(number_of(e) for e in t.array_shape())
        if array.shape != shape:
            raise _wrong_shape(t, array)
        if from_numpy(array.dtype) != t.dtype:
            raise TypeMismatch(
                f"{t.name!r} holds {t.dtype}, the array {array.dtype}",
                loc=t.loc,
                label="declared here",
                hint=f"pass an array of {t.dtype.numpy}",
            )


def _wrong_shape(t: Input, array: Array) -> ShapeError:
    extents = ", ".join(map(show_expr, t.array_shape()))
    return ShapeError(
        f"{t.name!r} has shape ({extents}), the array {array.shape}",
        loc=t.loc,
        label="declared here",
        hint=f"pass an array of the declared shape, of {counted(len(t.axes()), 'dimension')}",
    )


def _bind_program(program: Program, known: Mapping[Node, Const]) -> Program:
    def value(e: Expr) -> Expr:
        return transform(e, lambda n: known.get(n, n) if isinstance(n, Size | Param) else n)

    def number(e: Expr) -> Expr:
        simple = simplify(value(e))
        open_ = any(isinstance(n, Var | Read | Size) for n in post_order(simple))
        return simple if open_ else const(int(Evaluator({}, {}, [])(simple)))

    def ends(interval: Interval) -> Interval:
        lo, hi = interval
        return None if lo is None else number(lo), None if hi is None else number(hi)

    def definition(d: Definition) -> Definition:
        ranges = tuple((n, *ends((lo, hi))) for n, lo, hi in d.ranges)
        d = replace(map_expressions(d, value), ranges=ranges)
        if d.combine is None:
            return d
        outer = set(d.combine.scalars())  # the other Params are operands of the combiner
        exprs = tuple(
            transform(e, lambda n: known[n] if n in outer or isinstance(n, Size) else n)
            for e in d.combine.exprs
        )
        return replace(d, combine=replace(d.combine, exprs=exprs))

    return replace(
        program,
        inputs=tuple(replace(t, shape=tuple(map(number, t.shape))) for t in program.inputs),
        funcs=tuple(
            replace(
                f,
                definitions=tuple(map(definition, f.definitions)),
                limits=tuple(map(ends, f.limits)),
                natural=tuple(map(ends, f.natural)),
            )
            for f in program.funcs
        ),
    )


def evaluate(e: Expr, variables: Mapping[str, Array], arrays: Mapping[str, Array] | None = None) -> Array:
    """The values of an expression at arrays of values of its variables; `arrays` are the tensors it reads.

    >>> evaluate(Binary("mod", Var("i"), const(3)), {"i": np.arange(5)})
    array([0, 1, 2, 0, 1])
    """
    stored = {n: _input(a) for n, a in (arrays or {}).items()}
    return Evaluator(variables, stored, [])(e)


@dataclass(slots=True)
class StoredArrays:
    """The values of a func or an input: the arrays start at index `first`; reads are legal in `limits`."""

    parts: tuple[Array, ...]
    first: tuple[int, ...]
    limits: Limits


def _input(array: Array) -> StoredArrays:
    return StoredArrays((array,), (0,) * array.ndim, tuple((0, e - 1) for e in array.shape))


class Interpretation:
    """One execution of a program whose sizes are numbers, func by func."""

    def __init__(self, program: Program, arrays: Mapping[str, Array], out: Callable[[str], None]) -> None:
        self.program, self.out = program, out
        self.stored = {name: _input(array) for name, array in arrays.items()}
        self.orders: Orders = {}

    def outputs(self) -> list[tuple[Array, ...]]:
        """For each output, the values of its components on its own range."""
        boxes = realised_boxes(self.program)
        for f in self.program.funcs:
            self.realise(f, boxes.get(f.name))
        return [
            self.in_natural_range(self.program.func(n), self.stored[n].parts) for n in self.program.outputs
        ]

    def in_natural_range(self, f: FuncDef, parts: tuple[Array, ...]) -> tuple[Array, ...]:
        """The parts of an output's arrays that lie in its natural range."""
        ends = [(number_of(lo), number_of(hi)) for lo, hi in f.natural]
        shape = tuple(max(hi - lo + 1, 0) for lo, hi in ends)
        if 0 in shape:
            return tuple(np.empty(shape, part.dtype) for part in parts)
        firsts = self.stored[f.name].first
        starts = [lo - first for (lo, _), first in zip(ends, firsts, strict=True)]
        inside = tuple(slice(a, a + n) for a, n in zip(starts, shape, strict=True))
        return tuple(part[inside].copy() for part in parts)

    def realise(self, f: FuncDef, box: Bounds | None) -> None:
        """Allocate and compute a func on a box; a `box` of None is empty."""
        ends = ((0, -1),) * len(f.limits) if box is None else box
        shape = tuple(hi - lo + 1 for lo, hi in ends)
        # the pure definition writes every element; the value 99 would reveal one that is not
        parts = tuple(np.full(shape, 99).astype(t.numpy) for t in f.dtypes)
        self.stored[f.name] = StoredArrays(parts, tuple(lo for lo, _ in ends), _numeric_limits(f.limits))
        if box is not None:
            whole = tuple((const(lo), const(hi)) for lo, hi in box)
            for d in f.definitions:
                self.define(f, d, whole)

    def define(self, f: FuncDef, d: Definition, box: Box) -> None:
        """Run one definition of a func over a box."""
        ranges = {n: (number_of(lo), number_of(hi)) for n, (lo, hi) in ranges_at(d, box).items()}
        free = [np.arange(ranges[n][0], ranges[n][1] + 1) for n in d.free]
        mesh = dict(zip(d.free, np.ix_(*free), strict=True))
        if d.init is not None:
            initial = [arithmetic.constant(c) for c in map(_constant, d.init)]
            self.write(f, self.positions(f, d, mesh), initial)
        ordered = [n for n, _, _ in d.ranges]
        spans = (range(ranges[n][0], ranges[n][1] + 1) for n in ordered)
        for point in itertools.product(*spans):
            at = {n: np.asarray(value) for n, value in zip(ordered, point, strict=True)}
            kept = self.filter_points(d, {**mesh, **at})
            if kept is not None:
                self.run_at_point(f, d, kept)

    def filter_points(self, d: Definition, variables: dict[str, Array]) -> dict[str, Array] | None:
        """The values of the variables at the points where all conditions hold; None if there are none."""
        pure, mixed = split_conditions(d)
        for c in (*pure, *mixed):
            shape = np.broadcast_shapes(*(v.shape for v in variables.values()))
            holds = np.broadcast_to(self.evaluate(c, variables), shape)
            if not holds.any():
                return None
            if not holds.all():
                variables = {
                    n: np.broadcast_to(v, shape)[holds] if v.ndim else v for n, v in variables.items()
                }
        return variables

    def run_at_point(self, f: FuncDef, d: Definition, variables: dict[str, Array]) -> None:
        """Run a definition at one point of its ranges, for all given values of the free variables."""
        values = [self.evaluate(v, variables) for v in d.values]
        place = self.positions(f, d, variables)
        if d.combine is not None:
            so_far = [part[place] for part in self.stored[f.name].parts]
            params = {f"a{n}": v for n, v in enumerate(so_far)}
            params |= {f"b{n}": v for n, v in enumerate(values)}
            both = Evaluator(variables, self.stored, [], params, self.orders)
            values = [both(e) for e in d.combine.exprs]
        self.write(f, place, values)

    def write(self, f: FuncDef, place: tuple[Array, ...], values: list[Array]) -> None:
        """Assign `values` to the components of a func at array positions `place`."""
        for part, value in zip(self.stored[f.name].parts, values, strict=True):
            assert part.dtype == value.dtype, f"{f.name} holds {part.dtype}, gets {value.dtype}"
            part[place] = value

    def positions(self, f: FuncDef, d: Definition, variables: dict[str, Array]) -> tuple[Array, ...]:
        """The positions in the arrays of the func of the left-side index of a definition."""
        index = tuple(self.evaluate(e, variables) for e in d.index)
        return _positions(f.name, self.stored[f.name], index)

    def evaluate(self, e: Expr, variables: dict[str, Array]) -> Array:
        """The values of an expression at points; lines of `debug_print` go to `out`."""
        shown: list[str] = []
        result = Evaluator(variables, self.stored, shown, None, self.orders)(e)
        for line in shown:
            self.out(line)
        return result


def _constant(e: Expr) -> Const:
    simple = simplify(e)
    assert isinstance(simple, Const), f"the identity {simple} is not a number"
    return simple


def _numeric_limits(limits: Box) -> Limits:
    return tuple(
        (-np.inf if lo is None else number_of(lo), np.inf if hi is None else number_of(hi))
        for lo, hi in limits
    )


def _positions(name: str, stored: StoredArrays, index: tuple[Array, ...]) -> tuple[Array, ...]:
    """The positions of an index in an array.

    Raises IndexBoundError outside the limits of the func, AssertionError outside the computed box.
    """
    places = tuple(i - first for i, first in zip(index, stored.first, strict=True))
    shape = stored.parts[0].shape
    if all(((p >= 0) & (p < extent)).all() for p, extent in zip(places, shape, strict=True)):
        return places
    touched = [(np.min(i), np.max(i)) for i in index]
    for axis, ((lo, hi), (first, last)) in enumerate(zip(touched, stored.limits, strict=True)):
        if lo < first or hi > last:
            raise IndexBoundError(
                f"{name!r} is read or written at {lo if lo < first else hi} of axis {axis}",
                loc=here(),
                label=f"outside of {first} to {last}",
                hint="limit the index with td.clip, or pad what is read",
            )
    computed = [(first, first + n - 1) for first, n in zip(stored.first, shape, strict=True)]
    raise AssertionError(f"region bug: {name!r} is computed on {computed}, touched at {touched}")


class Evaluator:
    """Evaluates expressions at arrays of points, each distinct node once."""

    def __init__(
        self,
        variables: Mapping[str, Array],
        stored: Mapping[str, StoredArrays],
        shown: list[str],
        params: Mapping[str, Array] | None = None,
        orders: Orders | None = None,
    ) -> None:
        self.variables, self.stored, self.shown = variables, stored, shown
        self.params, self.orders = params or {}, {} if orders is None else orders

    def __call__(self, root: Expr) -> Array:
        """The values of an expression."""
        done: dict[int, Array] = {}
        order = self.orders.get(id(root))
        if order is None:
            order = self.orders[id(root)] = tuple(post_order(root))
        for n in order:
            done[id(n)] = np.asarray(self.node(n, lambda e: done[id(e)], root))  # type: ignore[arg-type]  # an Expr
        return done[id(root)]

    def node(self, e: Expr, value: Callable[[Node], Array], root: Expr) -> Array:
        """The values of a node of `root`, computed from those of its children."""
        match e:
            case Const():
                return arithmetic.constant(e)
            case Var(name):
                return self.variables[name]
            case Param(name):
                return self.params[name]
            case Unary(op, x):
                return arithmetic.unary(op, value(x))
            case Binary(op, x, y):
                return arithmetic.binary(op, value(x), value(y))
            case Select(cond, yes, no):
                return arithmetic.select(value(cond), value(yes), value(no))
            case Cast(x, dtype, saturate):
                return arithmetic.cast(value(x), dtype, saturate)
            case Call(fn, args, dtype):
                return arithmetic.call(fn, tuple(map(value, args)), dtype)
            case Broadcast(x):
                return value(x)
            case Read(name, index, component):
                return self._read(e, name, tuple(map(value, index)), component, root)
            case Require(cond, x, text, shown):
                self._require(e, value(cond), text, [value(s) for s in shown])
                return value(x)
            case Show(cond, x, text, shown):
                self._show(value(cond), text, [value(s) for s in shown])
                return value(x)
            case _:
                raise AssertionError(f"{type(e).__name__} has no value in a program: {e}")

    def _read(self, e: Read, name: str, index: tuple[Array, ...], component: int, root: Expr) -> Array:
        stored = self.stored[name]
        part = stored.parts[component]
        if part.size == 0 and e not in _unconditional_nodes(root):
            # the branch of a Select that is never taken: padding of an empty tensor
            return np.zeros(np.broadcast_shapes(*(i.shape for i in index)), part.dtype)
        return np.asarray(part[_positions(name, stored, index)])

    def _require(self, e: Require, cond: Array, text: str, shown: list[Array]) -> None:
        for holds, values in self._points(cond, shown):
            if not holds:
                raise RequireError(
                    _message(text, values),
                    loc=e.loc,
                    label="required here",
                    hint="pass arguments for which the condition holds",
                )

    def _show(self, cond: Array, text: str, shown: list[Array]) -> None:
        self.shown += [_message(text, values) for holds, values in self._points(cond, shown) if holds]

    def _points(self, cond: Array, shown: list[Array]) -> Iterator[tuple[bool, tuple[Any, ...]]]:
        shape = np.broadcast_shapes(
            cond.shape, *(x.shape for x in shown), *(v.shape for v in self.variables.values())
        )
        for holds, *values in zip(
            *(np.broadcast_to(x, shape).ravel().tolist() for x in (cond, *shown)), strict=True
        ):
            yield holds, tuple(values)


def _message(text: str, values: tuple[Any, ...]) -> str:
    """The text with a value for each `{}`; floats have up to 8 digits."""
    shown = [f"{v:.8g}" if isinstance(v, float) else str(v) for v in values]
    parts = zip(text.split("{}"), [*shown, ""], strict=True)
    return "".join(part + value for part, value in parts)


def _unconditional_nodes(root: Expr) -> set[Node]:
    """The nodes that are evaluated for any conditions: those in no branch of a Select."""
    seen: set[Node] = set()
    stack: list[Node] = [root]
    while stack:
        n = stack.pop()
        if n not in seen:
            seen.add(n)
            stack += [n.cond] if isinstance(n, Select) else list(children(n))
    return seen
