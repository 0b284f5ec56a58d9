"""Dependence analysis of updates: which loops carry a dependence and must run in order.

Two iterations conflict where one writes an element that the other one reads or writes. They run in the order
of the definition, its ranges from the first to the last, unless they are terms of one reduction: terms
may run in any order, but not concurrently. A nest is legal if the outermost loop in which two conflicting
iterations differ runs in order, with the earlier iteration first.

Indices, bounds, predicates and the relations of loops become linear constraints on two iterations; their
integer points are the conflicting pairs (`lang/integers.py`). A term that is not affine is unconstrained.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import islice, product

from tdsl.core.node import frozen, post_order
from tdsl.core.source import Loc
from tdsl.lang.affine import AffineSum, as_sum, variables
from tdsl.lang.definition import Definition
from tdsl.lang.expr import ZERO, Binary, Const, Expr, Read, Size, Var
from tdsl.lang.integers import LinearForm, Name, Point, Unknown, find_point
from tdsl.lang.program import FuncDef
from tdsl.lang.regions import nonpositive_sums
from tdsl.lang.simplify import subtract
from tdsl.lang.types import bool_
from tdsl.schedule.inlining import with_inlined_indices
from tdsl.schedule.loop_relations import relate
from tdsl.schedule.state import (
    ALIGN,
    CONCURRENT,
    PARALLEL,
    THREADS,
    VECTORIZED,
    Fuse,
    Illegal,
    Nest,
    Rename,
    Rotate,
    Split,
    State,
    is_ordered,
    is_reduction,
    roots_of,
)  # fmt: skip
from tdsl.schedule.update_pieces import Piece, pieces_of

_A, _B = 0, 1  # sides of a pair: the earlier and the later iteration


def check_dependences(state: State, func: str, definition: int, nest: Nest | None = None) -> None:
    """Raise Illegal if a nest, by default that of the state, breaks a dependence of a definition."""
    f, plan = with_inlined_indices(state, func), state.plan(func)
    d, nest = f.definitions[definition], nest or plan.nests[definition]
    range_loops = [x for x in nest.loops if is_reduction(f, definition, nest, x.name)]
    parallel = [x for x in range_loops if x.kind in (VECTORIZED, *CONCURRENT)]
    in_index = {v for e in d.index for v in variables(e)}
    if not is_ordered(f, definition):
        if d.init is not None or definition in plan.atomic:
            return  # `check_concurrent` checks the loops of terms
        parallel = [
            x for x in parallel if x.kind not in (VECTORIZED, *THREADS) or roots_of(nest, x.name) & in_index
        ]  # other loops merge the partial results of their iterations
    elif not parallel and _is_in_order(d, nest):
        return
    if parallel or is_ordered(f, definition):
        pair = _Pair(f, definition, nest)
        lanes = {x.name for x in parallel if x.kind == VECTORIZED}
        pair.check({x.name for x in parallel}, lanes)


def is_independent(state: State, func: str, definition: int, loop: str) -> bool:
    """True if the iterations of a loop may run in parallel: it carries no dependence of the definition."""
    nest = state.plan(func).nests[definition].with_kind(loop, PARALLEL)
    try:
        check_dependences(state, func, definition, nest)
    except Illegal:
        return False
    return True


def accumulated_read(f: FuncDef, definition: int) -> Read | None:
    """The read of f[index] in an update f[index] = f[index] op e, op one of +, -, *, min and max; else None.

    Vector lanes may each accumulate some of the terms of one element. An update whose combiner reads the
    element, as in f[index] += e, gives a read that is not in its values.
    """
    return accumulates(f, f.definitions[definition])


def accumulates(f: FuncDef, d: Definition) -> Read | None:
    """As `accumulated_read`, for an update of a func that is perhaps a piece of one of its own."""
    if d.init is not None or len(d.values) != 1 or f.dtypes[0] == bool_:
        return None
    if d.combine is not None:
        read = Read(f.name, d.index, 0, f.dtypes[0])
        return read if d.combine.kind in ("sum", "prod", "min", "max") else None
    match d.values[0]:
        case Binary("add" | "sub" | "mul" | "min" | "max", Read() as old, e):
            pass
        case Binary("add" | "mul" | "min" | "max", e, Read() as old):
            pass
        case _:
            return None
    same = old.name == f.name and old.index == d.index
    return old if same and old not in post_order(e, d.where, *d.index) else None


def _is_in_order(d: Definition, nest: Nest) -> bool:
    """True if the loops of ranges are nested in the order of the ranges."""
    order = [name for name, _, _ in d.ranges]
    for r in nest.relations:
        match r:
            case Split(parent, outer, inner) if parent in order:
                at = order.index(parent)
                order[at : at + 1] = [outer, inner]
            case Fuse(fused, outer, inner) if outer in order or inner in order:
                if inner not in order or outer not in order:
                    return False
                at = order.index(outer)
                if order[at + 1 : at + 2] != [inner]:
                    return False
                order[at : at + 2] = [fused]
            case Rename(old, new) if old in order:
                order[order.index(old)] = new
            case Rotate(old) if old in order:
                return False
    return order == [x for x in nest.names() if x in order]


@dataclass(slots=True)
class _LinearSystem:
    """LinearForm constraints on two iterations: sums in `zero` equal 0, sums in `least` are at least 0."""

    zero: list[LinearForm] = field(default_factory=list)
    least: list[LinearForm] = field(default_factory=list)


@frozen
class _Step:
    """Two iterations that differ first in a loop, out of order, perhaps as they run at a time."""

    loop: str
    same: list[LinearForm]
    distance: LinearForm
    lanes: bool
    at_a_time: bool


class _Pair:
    """The pairs of iterations of a definition, earlier and later, as the integer points of linear systems."""

    def __init__(self, f: FuncDef, definition: int, nest: Nest) -> None:
        self.f, self.d, self.nest = f, f.definitions[definition], nest
        self.definition = definition
        self.ordered = is_ordered(f, definition)
        self.ranges = [name for name, _, _ in self.d.ranges]
        self.least: list[LinearForm] = []
        self.unknowns: set[Name] = set()  # variables for terms that are not affine
        self.known: set[Name] = set()
        for side in (_A, _B):
            self._bounds(side)
        self.cases = self._relations()

    def check(self, parallel: set[str], lanes: set[str]) -> None:
        """Raise Illegal if two conflicting iterations would not run in order.

        Iterations of `lanes` that write one element may accumulate into it.
        """
        conflict = self._conflict_of(parallel, lanes)
        if conflict is not None:
            first, second, point, loop = conflict
            raise self._error(first, second, point, loop, loop in parallel)

    def _conflict_of(
        self, parallel: set[str], lanes: set[str]
    ) -> tuple[_Access, _Access, Point | Unknown, str] | None:
        """Two conflicting accesses, a pair of iterations that run out of order, and the loop; or None."""
        loops = [x for x in self.nest.names() if roots_of(self.nest, x) & set(self.ranges)]
        steps = [x for n, loop in enumerate(loops) for x in self._steps(loop, loops[:n], parallel)]
        conflict = self._conflict_in(self.d, [x for x in steps if x.loop not in lanes], [])
        for loop in loops:
            for piece in self._pieces(loop) if loop in lanes and conflict is None else ():
                within = [x for side in (_A, _B) for x in self._ends(piece, loop, side)]
                ways = [x for x in steps if x.loop == loop]
                conflict = conflict or self._conflict_in(piece.definition, ways, within)
        return conflict

    def _conflict_in(
        self, d: Definition, steps: list[_Step], within: list[LinearForm]
    ) -> tuple[_Access, _Access, Point | Unknown, str] | None:
        """As `_conflict_of`, for one of the steps between two iterations of a piece."""
        accumulated, in_index = accumulates(self.f, d), {v for e in d.index for v in variables(e)}
        for first, second, same in self._conflicts(d) if steps else ():
            merged = accumulated is not None and {first.read, second.read} <= {None, accumulated}
            for earlier in self._earlier():
                zero, least = [*same, *earlier.zero], [*self.least, *earlier.least, *within]
                if find_point(zero, least) is None:
                    continue
                for case, step in product(self.cases, steps):
                    sums = step.lanes and roots_of(self.nest, step.loop).isdisjoint(in_index)
                    if merged and sums and step.at_a_time:
                        continue
                    known = [*least, *case.least, step.distance]
                    point = find_point([*zero, *case.zero, *step.same], known)
                    if point is not None:
                        return first, second, point, step.loop
        return None

    def _pieces(self, loop: str) -> list[Piece]:
        """The pieces between which lanes of a loop are cut (`codegen/passes/cut_at_conflicts.py`)."""
        (v, *more) = roots_of(self.nest, loop)
        if more or v not in self.ranges:
            return [Piece(self.d)]
        order = self.nest.names()
        outside = {x for n in order[: order.index(loop)] for x in roots_of(self.nest, n)} - {v}
        return pieces_of(self.f, self.d, v, outside)

    def _ends(self, piece: Piece, loop: str, side: int) -> Iterator[LinearForm]:
        """The constraints that an iteration is in a piece."""
        if piece.first is not None and piece.after is not None:
            (v,) = roots_of(self.nest, loop)
            here = LinearForm({(v, side): 1})
            yield here.plus(self._linear(as_sum(piece.first), side), -1)
            yield self._linear(as_sum(piece.after), side).plus(here, -1).less(1)

    def _steps(self, loop: str, outside: list[str], parallel: set[str]) -> Iterator[_Step]:
        """A loop as the outermost in which a pair differs, with the constraint of an illegal order."""
        same, step = [self._distance(x) for x in outside], self._distance(loop)
        lanes = self.nest.kind(loop) == VECTORIZED
        if loop in parallel:
            yield _Step(loop, same, step.less(1), lanes, True)
        if loop in parallel or self.ordered:
            yield _Step(loop, same, LinearForm().plus(step, -1).less(1), lanes, not self.ordered)

    def _error(
        self, first: _Access, second: _Access, point: Point | Unknown, loop: str, parallel: bool
    ) -> Illegal:
        f = self.f.name
        if isinstance(point, Unknown) or self._has_unknowns(point):
            do = "write the same element" if first.writes and second.writes else "need each other's elements"
            text = f"iterations of {loop!r} may {do} of {f!r}, by indices that are not affine"
        else:
            a, b = (self._iteration(side, point) for side in (_A, _B))
            element = f"{f}[{', '.join(str(self._value(e, _B, point)) for e in second.index)}]"
            if first.writes and second.writes:
                text = f"iterations {a} and {b} write {element}"
            else:
                earlier, later = ("writes", "reads") if first.writes else ("reads", "writes")
                text = f"iteration {b} {later} {element}, which iteration {a} {earlier}"
        if not self.ordered:
            hint = f"partial = rfactor({loop!r}) and run that side by side, or allow it with atomic()"
            return Illegal(text, hint, ((self.d.loc, "this definition"),))
        what = "would run at a time" if parallel else "would run in another order"
        hint = "put loops into an order in which the one that has to be first comes first"
        if parallel:
            hint = f"leave {loop!r} serial"
        if parallel and not isinstance(point, Unknown):
            inside = self.nest.names()[self.nest.position(loop) + 1 :]
            carried = [x for x in inside if point.get((x, _B), 0) > point.get((x, _A), 0)]
            legal = (x for x in carried if self._may_be_outside(x, loop))
            hint += "".join(f", or put {x!r} outside of it" for x in islice(legal, 1))
        return Illegal(f"{text}, and they {what}", hint, ((second.loc or self.d.loc, "this access"),))

    def _may_be_outside(self, inner: str, loop: str) -> bool:
        """True if a loop may run in parallel once an inner one is moved outside of it."""
        loops, at = list(self.nest.loops), self.nest.position(loop)
        loops.insert(at, loops.pop(self.nest.position(inner)))
        moved = replace(self.nest, loops=tuple(loops))
        return _Pair(self.f, self.definition, moved)._conflict_of({loop}, set()) is None

    def _has_unknowns(self, point: Point) -> bool:
        return any(name in self.unknowns for name in point)

    def _iteration(self, side: int, point: Point) -> str:
        return ", ".join(f"{v}={point.get((v, side), 0)}" for v in self.ranges)

    def _value(self, e: Expr, side: int, point: Point) -> int:
        value = self._linear(as_sum(e), side)
        return value.constant + sum(c * point.get(n, 0) for n, c in value.terms.items())

    def _conflicts(self, d: Definition) -> Iterator[tuple[_Access, _Access, list[LinearForm]]]:
        """The pairs of accesses of which one writes, with the constraints that their elements are equal."""
        write = _Access(d.index, True)
        reads = [_Access(r.index, False, r) for r in d.reads if r.name == self.f.name]
        pairs = [(write, write)]
        if self.ordered:
            pairs += [(write, r) for r in reads] + [(r, write) for r in reads]
        for first, second in pairs:
            ends = zip(first.index, second.index, strict=True)
            yield (
                first,
                second,
                [self._linear(as_sum(a), _A).plus(self._linear(as_sum(b), _B), -1) for a, b in ends],
            )

    def _earlier(self) -> Iterator[_LinearSystem]:
        """The constraints that iteration _A is earlier, for each range as the first that differs."""
        for n, name in enumerate(self.ranges):
            same = [self._distance(x) for x in self.ranges[:n]]
            yield _LinearSystem(same, [self._distance(name).less(1)])

    def _distance(self, name: str) -> LinearForm:
        return LinearForm({(name, _B): 1, (name, _A): -1})

    def _bounds(self, side: int) -> None:
        """Add the constraints that an iteration is in the ranges and predicates of the definition."""
        least = self.least
        for name, lo, hi in self.d.ranges:
            here = LinearForm({(name, side): 1})
            if lo is not None:
                least.append(here.plus(self._linear(as_sum(lo), side), -1))
            if hi is not None:
                least.append(self._linear(as_sum(hi), side).plus(here, -1).less(1))
        if side == _A:
            for e, (lo, hi) in zip(self.d.index, self.f.limits, strict=True):
                if isinstance(e, Var) and e.name in self.d.free:
                    here = LinearForm({(e.name,): 1})
                    if lo is not None:
                        least.append(here.plus(self._linear(as_sum(lo), side), -1))
                    if hi is not None:
                        least.append(self._linear(as_sum(hi), side).plus(here, -1))
        least += [LinearForm().plus(self._linear(s, side), -1) for s in nonpositive_sums(self.d.where)]

    def _linear(self, s: AffineSum, side: int) -> LinearForm:
        """A sum over the variables of one iteration; both iterations share atoms that have no range."""
        total = LinearForm({}, s.constant)
        for atom, c in s.terms.items():
            total = total.plus(self._atom(atom, side), c)
        return total

    def _atom(self, atom: Expr, side: int) -> LinearForm:
        match atom:
            case Var(name):
                return LinearForm({(name, side) if name in self.ranges else (name,): 1})
            case Size(name):
                self._add_once(("size", name), [LinearForm({("size", name): 1})])
                return LinearForm({("size", name): 1})
            case Binary("floordiv" | "mod" as op, x, Const(k)) if k > 0:
                inner = self._linear(as_sum(x), side)
                quotient: Name = ("quotient", x, k, *self._sides(x, side))
                rest = inner.plus(LinearForm({quotient: int(k)}), -1)
                self._add_once(quotient, [rest, LinearForm({}, int(k) - 1).plus(rest, -1)])
                return LinearForm({quotient: 1}) if op == "floordiv" else rest
            case _:
                reads_func = any(isinstance(n, Read) and n.name == self.f.name for n in post_order(atom))
                sides = (side,) if reads_func else self._sides(atom, side)
                value: Name = ("value", atom, *sides)
                if sides:
                    self.unknowns.add(value)
                return LinearForm({value: 1})

    def _sides(self, e: Expr, side: int) -> tuple[int, ...]:
        return () if variables(e).isdisjoint(self.ranges) else (side,)

    def _add_once(self, name: Name, least: list[LinearForm]) -> None:
        if name not in self.known:
            self.known.add(name)
            self.least += least

    def _relations(self) -> list[_LinearSystem]:
        """The relations between loops and ranges; several systems if one of them is not linear."""
        unknown = {v: (ZERO, Size(f"extent of {v}")) for v in self.d.free}
        ends = {n: (lo, subtract(hi, lo)) for n, lo, hi in self.d.ranges if lo and hi}
        extents = relate(self.nest, {**unknown, **ends}).extents
        cases = [_LinearSystem()]
        first = dict(ends)
        for n, r in enumerate(self.nest.relations):
            before = replace(self.nest, relations=self.nest.relations[:n])
            parents = (
                (r.outer, r.inner) if isinstance(r, Fuse) else (r.parent if isinstance(r, Split) else r.old,)
            )
            if not any(roots_of(before, p) & set(self.ranges) for p in parents):
                continue
            systems: list[_LinearSystem] = []
            match r:
                case Split(parent, outer, inner, factor, _, tail):
                    size = None if tail == ALIGN else factor or _constant(extents[inner])
                    systems = (
                        [self._split_system(parent, outer, inner, size, first)]
                        if size
                        else self._order_systems(outer, inner, parent)
                    )
                case Fuse(fused, outer, inner):
                    size = _constant(extents[inner])
                    systems = (
                        [self._split_system(fused, outer, inner, size, first)]
                        if size
                        else self._order_systems(outer, inner, fused)
                    )
                case Rename(old, new):
                    here = (
                        self._from_zero(old, s, first).plus(LinearForm({(new, s): 1}), -1) for s in (_A, _B)
                    )
                    systems = [_LinearSystem(list(here))]
                case Rotate():
                    systems = [_LinearSystem()]
            cases = [
                _LinearSystem([*a.zero, *b.zero], [*a.least, *b.least]) for a, b in product(cases, systems)
            ]
        return cases

    def _from_zero(self, name: str, side: int, first: dict[str, tuple[Expr, Expr]]) -> LinearForm:
        """The value of a loop or range, counted from 0."""
        if name in self.d.free:
            return LinearForm({(name,): 1})
        here = LinearForm({(name, side): 1})
        return here.plus(self._linear(as_sum(first[name][0]), side), -1) if name in first else here

    def _split_system(
        self, parent: str, outer: str, inner: str, size: int, first: dict[str, tuple[Expr, Expr]]
    ) -> _LinearSystem:
        """parent == outer * size + inner, in both iterations."""
        system = _LinearSystem()
        for side in (_A, _B):
            o, i = (self._from_zero(x, side, first) for x in (outer, inner))
            system.zero.append(self._from_zero(parent, side, first).plus(o, -size).plus(i, -1))
            system.least += [i, LinearForm({}, size - 1).plus(i, -1)]
        return system

    def _order_systems(self, outer: str, inner: str, whole: str) -> list[_LinearSystem]:
        """The possible orders of two iterations in loops and in their split or fused loop, for any extent."""
        o, i, w = (LinearForm() if x in self.d.free else self._distance(x) for x in (outer, inner, whole))
        back_o, back_w = LinearForm().plus(o, -1), LinearForm().plus(w, -1)
        return [
            _LinearSystem([o, w.plus(i, -1)]),
            _LinearSystem([], [o.less(1), w.less(1)]),
            _LinearSystem([], [back_o.less(1), back_w.less(1)]),
        ]


@frozen
class _Access:
    """An access of the func that is updated: its index, and the read, None for the write."""

    index: tuple[Expr, ...]
    writes: bool
    read: Read | None = None

    @property
    def loc(self) -> Loc | None:
        return None if self.read is None else self.read.loc


def _constant(e: Expr) -> int | None:
    return int(e.value) if isinstance(e, Const) and e.value > 0 else None
