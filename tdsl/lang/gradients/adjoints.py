"""`Backward`: builds the adjoints of a program's funcs, consumers before producers, as funcs.

Every read of a tensor or func of which an adjoint is needed gives a `Contribution`. When all readers of a
func have been visited its adjoint is defined: the sum of the contributions in gather form, then an update for
each of the others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from tdsl.core.node import Node, post_order, transform
from tdsl.core.source import Loc, here
from tdsl.errors import DefinitionError, ShapeError
from tdsl.lang.affine import constant_difference, variables
from tdsl.lang.definition import Definition
from tdsl.lang.expr import ONE, TRUE, ZERO, Access, Const, Expr, Param, Read, Reduce, Var, dtype_of
from tdsl.lang.gradients.contribution import (
    Boxes,
    Contribution,
    safe_reads,
    scatter,
    unused_name,
)  # fmt: skip
from tdsl.lang.gradients.expression import adjoints_of_reads, common_condition, total, widened
from tdsl.lang.gradients.folds import fold_of, is_fold, terms_of_fold
from tdsl.lang.gradients.gather import gather
from tdsl.lang.gradients.partials import Term, Terms
from tdsl.lang.gradients.recurrence import recurrence, reversed_addition
from tdsl.lang.gradients.reductions import Auxiliary, terms_of, with_combiner
from tdsl.lang.gradients.versions import A_FUNC_FOR_EACH_STEP, addition_of, is_not_written, store_of
from tdsl.lang.program import FuncDef, Program, map_expressions
from tdsl.lang.regions import Box, Interval, free_range
from tdsl.lang.show import show_tuple
from tdsl.lang.simplify import add, subtract
from tdsl.lang.tensor import Func
from tdsl.lang.types import DType
from tdsl.lang.value import Value, Variable, convert

Elements = dict[str, Interval]  # the variables of an adjoint's axes, with the range of each
Key = tuple[str, int]  # the name of a tensor or func, and a component


class Backward:
    """The adjoints of a program, and the handles and boxes of everything that their definitions read."""

    def __init__(
        self, program: Program, handles: dict[str, Any], boxes: Boxes, active: set[str],
        results: set[str],
    ) -> None:  # fmt: skip
        self.program, self.handles, self.boxes, self.active = program, handles, boxes, active
        self.results = results  # sources whose adjoint is a result, and so a func of its own
        self.contributions: dict[Key, list[Contribution]] = {}
        self.adjoints: dict[Key, str | Const] = {}  # the name of the adjoint, or its constant value
        self.dtypes: dict[str, tuple[DType, ...]] = {f.name: f.dtypes for f in program.funcs}

    def add(self, c: Contribution) -> None:
        """Add a contribution to the adjoint of its target."""
        key = (c.target.name, c.target.component if isinstance(c.target, Read) else 0)
        self.contributions.setdefault(key, []).append(c)

    def run(self) -> None:
        """Define the adjoint of every active func, and collect the contributions to the inputs."""
        for f in reversed(self.program.funcs):
            if f.name not in self.active:
                continue
            for n in range(len(f.dtypes)):
                self.define(f.name, n, [Var(v) for v in f.variables], f.dtypes[n], f.loc)
            for d in f.definitions:
                self._differentiate(f, d)

    # The adjoint of one func

    def define(self, name: str, component: int, axes: Sequence[Var], t: DType, loc: Loc | None) -> None:
        """Define the adjoint of a tensor or func by its contributions; none, if there are none."""
        contributions = self.contributions.get((name, component), [])
        if not contributions and name not in self.results:
            return
        box = self.boxes[name]
        elements = {v.name: i for v, i in zip(axes, box, strict=True)}
        parts: list[Expr] = []
        updates: list[Definition] = []
        suffix = f"_{component}" if component else ""
        store_sum = partial(self._stored, f"d_{name}{suffix}_sum", loc=loc)
        for c in contributions:
            gathered = gather(c, elements, self.boxes, store_sum)
            if gathered is None:
                updates.append(scatter(c, box, self.boxes, loc))
            else:
                parts += gathered
        parts = _merged_sums(parts, elements)
        of_func = self.program.func(name) if self.program.has_func(name) else None
        store = None if of_func is None else store_of(of_func) or addition_of(of_func)
        alone = not updates and len(parts) == 1 and store is None and name not in self.results
        if alone and self._is_adjoint_at(parts[0], axes, t):
            only: Any = parts[0]
            self.adjoints[name, component] = only if isinstance(only, Const) else only.name
            return
        f = self.new_func(f"d_{name}{suffix}", box, loc)
        if t.is_narrow and (updates or store):  # added in f32, then rounded
            wide = self.new_func(f"{f.name}_{t.summed}", box, loc)
            self.fill(wide, elements, parts, t.summed, updates)
            self._add_recurrence(self.name_of(wide, box), name, store)
            parts, updates, store = [Read(wide.name, tuple(axes), 0, t.summed)], [], None
        self.fill(f, elements, parts, t, updates)
        self.adjoints[name, component] = self.name_of(f, box)
        self._add_recurrence(f.name, name, store)

    def _add_recurrence(self, adjoint: str, name: str, store: Definition | None) -> None:
        """Add the update of an adjoint by the reads of its own func in an update, in reverse order."""
        if store is None:
            return
        f, handle = self.program.func(name), self.handles[adjoint]
        if len(f.dtypes) > 1 and name in store.sources:
            raise DefinitionError(
                f"this update of {name!r} stores several values and reads them",
                loc=store.loc,
                label="no derivative of it is known",
                hint=A_FUNC_FOR_EACH_STEP,
            )
        ranges = ranges_at(store, self.boxes[name])
        if store.combine is not None:
            d: Definition | None = reversed_addition(f, store, adjoint, handle.dtype, ranges)
        else:
            d = recurrence(f, store, adjoint, handle.dtype, ranges, self.boxes)
        handle.definitions += [] if d is None else [self._by_handle(d)]

    def _is_adjoint_at(self, e: Expr, axes: Sequence[Var], t: DType) -> bool:
        """True for a constant, or another adjoint at the same element."""
        match e:
            case Const(_, dtype):
                return dtype is t and not axes
            case Read(name, index, _, dtype):
                return name not in self.dtypes and index == tuple(axes) and dtype is t
            case _:
                return False

    def new_func(self, name: str, box: Box, loc: Loc | None) -> Func:
        """A func that is declared on a box."""
        f = Func(name)
        f.loc = loc
        ends = [(lo, hi) for lo, hi in box if lo is not None and hi is not None]
        if len(ends) == len(box):
            f._first = tuple(lo for lo, _ in ends)
            f.declared = tuple(add(subtract(hi, lo), ONE) for lo, hi in ends)
        return f

    def name_of(self, f: Func, box: Box) -> str:
        """A unique name for a new func, by which definitions read it."""
        name = unused_name(f.name, self.handles)
        f.name = name
        self.handles[name], self.boxes[name] = f, box
        return name

    def fill(
        self, f: Func, elements: Elements, parts: Sequence[Expr], t: DType, updates: Iterable[Definition]
    ) -> None:
        """Define a func as the sum of the parts, then by the updates, in type `t`."""
        value: Value | None = None
        for part in parts:
            if isinstance(part, Reduce) and (len(parts) > 1 or dtype_of(part) is not t):
                part = self._stored(f"{f.name}_sum", elements, part, f.loc)
            value = Value(part) if value is None else value + Value(part)
        whole = Const(0.0, t) if value is None else convert(value, t, None)
        f[_variables(elements)] = Value(self.by_handle(whole))
        for d in updates:
            values = tuple(convert(Value(v), t, None) for v in d.values)
            f.definitions.append(self._by_handle(replace(d, values=values)))

    def _stored(self, name: str, elements: Elements, e: Expr, loc: Loc | None) -> Read:
        """The read of a new func that holds an expression of elements."""
        used = {n: i for n, i in elements.items() if n in variables(e)}
        box = tuple(used.values())
        f = self.new_func(name, box, loc)
        f[_variables(used)] = Value(self.by_handle(e))
        return Read(self.name_of(f, box), tuple(map(Var, used)), 0, dtype_of(e))

    def _by_handle(self, d: Definition) -> Definition:
        return map_expressions(d, self.by_handle)

    def by_handle(self, e: Expr) -> Expr:
        """The expression with reads by handle."""

        def visit(n: Node) -> Node:
            if not isinstance(n, Read):
                return n
            return Access(self.handles[n.name], n.index, n.component, n.dtype, loc=n.loc)

        return transform(e, visit)

    def result(self, name: str, axes: Sequence[Var], t: DType) -> Func:
        """The func of the adjoint of an input or func."""
        if (name, 0) not in self.adjoints:
            self.define(name, 0, axes, t, here())
        adjoint = self.adjoints[name, 0]
        assert isinstance(adjoint, str), "the adjoint of a result is a func"
        f: Func = self.handles[adjoint]
        return f

    def axes_of(self, name: str, rank: int) -> list[Var]:
        """Variables for the axes of an input, by the names with which the program reads it."""
        indices = [c.index for c in self.contributions.get((name, 0), ())]
        names: list[str] = []
        for axis in range(rank):
            bare = (e.name for index in indices if isinstance(e := index[axis], Var))
            names.append(unused_name(next(bare, f"{name}_{axis}"), names))
        return [Var(n) for n in names]

    def name_of_seed(self, seed: Any, f: FuncDef) -> str:
        """The name by which adjoints read a seed, a tensor or func; ShapeError for another shape."""
        extents = tuple(e for _, e in f.output_box(None))
        box = seed._domain() if isinstance(seed, Func) else tuple((ZERO, e) for e in seed.extents)
        given = tuple(e for _, e in box)
        if len(given) != len(extents) or any(map(_differ, given, extents)):
            raise ShapeError(
                f"the seed of {f.name!r} has shape {show_tuple(given)}, not {show_tuple(extents)}",
                loc=here(),
                label="this call",
                related=((f.definitions[0].loc, "defined here"),),
                hint="the adjoint of an output has its shape",
            )
        known = next((n for n, handle in self.handles.items() if handle is seed), None)
        name = known or unused_name(seed.name, self.handles)
        self.handles[name] = seed
        self.boxes[name] = tuple((lo, subtract(add(lo, e), ONE)) for lo, e in box)
        return name

    # The contributions of one definition

    def adjoint_at(self, name: str, component: int, index: tuple[Expr, ...]) -> Value | None:
        """The adjoint of an element, in the type in which adjoints are computed; None if it is 0."""
        adjoint = self.adjoints.get((name, component))
        if adjoint is None:
            return None
        if isinstance(adjoint, Const):
            return widened(adjoint)
        return widened(Read(adjoint, index, 0, self._dtype_of_adjoint(adjoint)))

    def _dtype_of_adjoint(self, name: str) -> DType:
        t: DType = self.handles[name].dtype
        return t

    def _differentiate(self, f: FuncDef, d: Definition) -> None:
        if is_fold(f, d):
            self._differentiate_fold(f, d)
            return
        store = store_of(f)
        for n, value in enumerate(d.values):
            adjoint = self.adjoint_at(f.name, n, d.index)
            if adjoint is None:
                continue
            terms = terms_of(f, d, n, adjoint, self.auxiliary)
            if store is not None and d is not store:  # what an update replaces
                terms = tuple(Term(x.value, is_not_written(f, store, f.variables)) for x in terms)
            self.contribute(f, d, value, terms)

    def _differentiate_fold(self, f: FuncDef, d: Definition) -> None:
        """Add the contributions of a reduction by a combiner of the user."""
        adjoints = [self.adjoint_at(f.name, n, d.index) for n in range(len(d.values))]
        is_read = any(isinstance(n, Read | Param) and self.is_active(n) for n in post_order(*d.values))
        if not is_read or all(a is None for a in adjoints):
            return
        ranges = ranges_at(d, self.boxes[f.name])

        def store(
            name: str, elements: Mapping[str, Interval], definitions: Callable[[str], list[Definition]]
        ) -> str:
            new = self.new_func(f"{f.name}_{name}", tuple(elements.values()), f.loc)
            full = self.name_of(new, tuple(elements.values()))
            new.definitions = [self._by_handle(replace(x, loc=d.loc)) for x in definitions(full)]
            new.dtypes = tuple(map(dtype_of, new.definitions[0].values))
            return full

        fold = fold_of(f, d, ranges)
        values = tuple(safe_reads(v, {}, ranges, TRUE, self.boxes) for v in fold.values)
        for value, terms in zip(
            d.values, terms_of_fold(replace(fold, values=values), adjoints, store), strict=True
        ):
            if terms:
                self.contribute(f, d, value, terms)

    def contribute(self, f: FuncDef, d: Definition, value: Expr, seed: Terms) -> None:
        """Add the contributions of all reads in a value whose adjoint is `seed`."""
        results: dict[Expr, Expr] = {}
        if len(f.definitions) == 1 and d.combine is None and not isinstance(value, Read | Const):
            results[value] = Read(f.name, d.index, d.values.index(value), dtype_of(value))
        ranges = ranges_at(d, self.boxes[f.name])
        for read, terms in adjoints_of_reads(value, seed, self.is_active, results).items():
            assert isinstance(read, Read | Param)
            if read.name == f.name:  # a recurrence, see `_add_recurrence`
                continue
            cond, terms = common_condition(terms)
            adjoint = total(terms, dtype_of(read).summed).node
            self.add(Contribution(read, ranges, d.where, cond, adjoint))

    def is_active(self, e: Expr) -> bool:
        """True for a read of an element, or a scalar, of which an adjoint is needed."""
        return isinstance(e, Read | Param) and e.name in self.active and e.dtype.is_float

    def auxiliary(self, f: FuncDef, name: str, terms: Auxiliary) -> str:
        """The name of a func with the definitions of `f`, in which `terms` gives the combined values."""
        full = f"{f.name} {name}"
        if full not in self.handles:
            box, t = self.boxes[f.name], f.dtypes[0].summed
            new = Func(f"{f.name}_{name}")
            source = self.handles[f.name]
            new.loc, new.dtypes, new.declared, new._first = f.loc, (t,), source.declared, source._first
            new.definitions = []
            for d in f.definitions:
                kind, value = terms(f, d, t)
                value = safe_reads(value, {}, ranges_at(d, box), d.where, self.boxes)
                new.definitions.append(self._by_handle(with_combiner(d, kind, value)))
            self.handles[full], self.boxes[full], self.boxes.limits[full] = new, box, f.limits
        return full


def ranges_at(d: Definition, box: Box) -> dict[str, Interval]:
    """Inclusive ranges of the variables of a definition; a free one runs over its dimension of `box`."""
    ranges: dict[str, Interval] = {n: free_range(n, d.index, box) for n in d.free}
    for name, lo, hi in d.ranges:
        assert hi is not None
        ranges[name] = (lo, subtract(hi, ONE))
    return ranges


def _merged_sums(parts: Sequence[Expr], elements: Elements) -> list[Expr]:
    """The parts of an adjoint, with sums along one row in one pass; products of matrices stay separate."""
    merged: dict[object, Expr] = {}
    for part in parts:
        key: object = len(merged)
        if isinstance(part, Reduce):
            rows = sum(n in variables(part) for n in elements)
            key = part.axes if rows <= 1 else key
            first = merged.get(key)
            if isinstance(first, Reduce):
                term = (Value(first.terms[0]) + Value(part.terms[0])).node
                part = replace(first, terms=(term,))
        merged[key] = part
    return [*merged.values()]


def _variables(elements: Elements) -> tuple[Variable, ...]:
    return tuple(Variable(Var(n), weak=True) for n in elements)


def _differ(a: Expr, b: Expr) -> bool:
    """True if two extents can never be equal."""
    return constant_difference(a, b) not in (None, 0)
