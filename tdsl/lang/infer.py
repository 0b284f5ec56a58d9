"""Infers the ranges of loop variables from the shapes of the tensors that they index.

1. A variable that is by itself the index of an axis (a bare access) has the range of that axis; all bare
   accesses agree (numbers must be equal; named extents are unified, or compared in each call).
   A func without a declared shape need not agree if the accesses start at different indices, or if an access
   of such a func shifts the variable: its access then only limits the variable, as in rule 2.
2. Any other affine access limits its variable to the values for which the access is in bounds.
3. Reads of padding limit nothing; a bare one suggests the range for an output.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field, replace

from tdsl.core.node import Node, post_order, transform
from tdsl.core.source import Loc
from tdsl.errors import ShapeError
from tdsl.lang.affine import as_expr, as_sum, constant_difference, has_data, variables
from tdsl.lang.agreement import Agreement
from tdsl.lang.bounds import at_most
from tdsl.lang.definition import Definition
from tdsl.lang.expr import ONE, ZERO, Binary, Call, Const, Expr, Read, Size, Var
from tdsl.lang.program import FuncDef, Program, map_expressions
from tdsl.lang.regions import UNBOUNDED, Interval, interval_of, reads_in, restrict_ranges
from tdsl.lang.show import show_expr
from tdsl.lang.simplify import add, conjunction, maximum, minimum, simplify, subtract
from tdsl.lang.solve import solve
from tdsl.lang.value_ranges import sources_of_indices, value_ranges, with_value_ranges


@dataclass(slots=True)
class _Candidate:
    """A bare access: an axis whose index is the variable itself, with the range of that axis."""

    lo: Expr
    hi: Expr
    read: Read
    axis: int
    inferred: bool = False  # the func read has no declared shape

    @property
    def extent(self) -> Expr:
        return add(subtract(self.hi, self.lo), ONE)


@dataclass(slots=True)
class _Variable:
    """The constraints collected for one variable of a func: a dimension, or a range of one definition."""

    name: str
    exact: list[_Candidate] = field(default_factory=list)
    shifted: bool = False  # in a non-bare index of a func without a declared shape
    loose: bool = False  # bare accesses of such funcs limit the variable, and need not agree
    suggested: list[_Candidate] = field(default_factory=list)
    limits: Interval = UNBOUNDED
    base: Interval = UNBOUNDED
    given: bool = False  # a td.range, with bounds of the user


class _SizeEqualities:
    """Unification of named extents: their equalities, and the accesses from which these follow."""

    def __init__(self) -> None:
        self.equal: dict[str, Expr] = {}
        self.agreements: list[Agreement] = []

    def resolve(self, e: Expr) -> Expr:
        if not self.equal:
            return e
        while True:
            new = transform(e, self._step)
            if new == e:
                return simplify(e)
            e = new

    def _step(self, n: Node) -> Node:
        return self.equal.get(n.name, n) if isinstance(n, Size) else n

    def unify(self, a: Expr, b: Expr) -> bool:
        """Make two extents equal by substituting a named extent if possible; False if they never are."""
        a, b = self.resolve(a), self.resolve(b)
        difference = as_sum(a).plus(as_sum(b), -1)
        if at_most(add(a, ONE), b) or at_most(add(b, ONE), a):
            return False
        # prefer a name that is itself one of the extents, else solve the difference for a linear name
        for name in (a, b, *difference.terms):
            if isinstance(name, Size) and abs(difference.terms.get(name, 0)) == 1:
                other = difference.without(name).times(-difference.terms[name])
                inside = any(name in post_order(atom) for atom in other.terms)
                if not inside and (other.terms or Const in (type(a), type(b))):
                    self.equal[name.name] = simplify(as_expr(other))
                    break
        return True


def infer(program: Program) -> Program:
    """The program with the ranges of all variables inferred; ShapeError if one does not follow."""
    sizes = _SizeEqualities()
    boxes: Boxes = {t.name: tuple(((ZERO, subtract(e, ONE)),) * 2 for e in t.shape) for t in program.inputs}
    inferred = {f.name for f in program.funcs if not f.declared}
    indices = sources_of_indices(program)
    funcs, known_ranges = [], dict[str, tuple[Interval, ...]]()
    for f in program.funcs:
        f = with_value_ranges(f, known_ranges, values=f.name in indices)
        f = _infer_func(f, boxes, sizes, inferred)
        if f.name in indices:
            known_ranges[f.name] = value_ranges(f)
        boxes[f.name] = tuple(zip(f.limits, f.natural, strict=True))
        funcs.append(f)
    program = replace(program, funcs=tuple(funcs))
    return _resolve(program, sizes) if sizes.agreements else program


def _resolve(program: Program, sizes: _SizeEqualities) -> Program:
    def interval(i: Interval) -> Interval:
        return tuple(None if e is None else sizes.resolve(e) for e in i)  # type: ignore[return-value]  # of 2

    return replace(
        program,
        equal=tuple((name, sizes.resolve(e)) for name, e in sizes.equal.items()),
        agreements=tuple(a.map_extents(sizes.resolve) for a in sizes.agreements),
        inputs=tuple(replace(t, shape=tuple(sizes.resolve(e) for e in t.shape)) for t in program.inputs),
        funcs=tuple(
            replace(
                f,
                definitions=tuple(map_expressions(d, sizes.resolve) for d in f.definitions),
                limits=tuple(map(interval, f.limits)),
                natural=tuple(map(interval, f.natural)),
            )
            for f in program.funcs
        ),
    )


Boxes = dict[str, tuple[tuple[Interval, Interval], ...]]


def _infer_func(f: FuncDef, boxes: Boxes, sizes: _SizeEqualities, inferred: Collection[str]) -> FuncDef:
    dims = [_Variable(name) for name in f.definitions[0].free]
    scopes = [_variables_of(d, dims) for d in f.definitions]
    for d, scope in zip(f.definitions, scopes, strict=True):
        _collect_candidates(f, d, scope, boxes, inferred)
    for scope in scopes:
        for v in scope.values():
            _unify_bare_accesses(v, f, sizes)
    for _ in range(len(dims) + 2):
        before = [v.limits for scope in scopes for v in scope.values()]
        for d, scope in zip(f.definitions, scopes, strict=True):
            _set_given_ranges(f, d, scope)
            _limit_by_accesses(f, d, scope, boxes, inferred)
        if before == [v.limits for scope in scopes for v in scope.values()]:
            break
    definitions = tuple(
        _with_inferred_ranges(f, d, scope) for d, scope in zip(f.definitions, scopes, strict=True)
    )
    if f.declared:
        return replace(f, definitions=definitions)
    limits = tuple(v.limits for v in dims)
    natural = tuple(v.limits if None not in v.limits else _suggested_range(v) for v in dims)
    return replace(f, definitions=definitions, limits=limits, natural=natural)


def _variables_of(d: Definition, dims: list[_Variable]) -> dict[str, _Variable]:
    """The variables of a definition by name; a free one is shared with the dimension that it indexes."""
    scope = {}
    for name in d.free:
        axis = next(n for n, e in enumerate(d.index) if e == Var(name))
        scope[name] = dims[axis]
    for name, lo, _ in d.ranges:
        scope[name] = _Variable(name, given=lo is not None)
    return scope


def _set_given_ranges(f: FuncDef, d: Definition, scope: dict[str, _Variable]) -> None:
    """Set the limits of given ranges, valid for all values of the variables that occur in their bounds."""
    known = {name: v.limits for name, v in scope.items()}
    if f.declared:
        known |= {e.name: i for e, i in zip(d.index, f.limits, strict=True) if isinstance(e, Var)}
    for name, lo, hi in d.ranges:
        if lo is not None and hi is not None:
            low, _ = interval_of(lo, known)
            _, high = interval_of(hi, known)
            v = scope[name]
            v.base = v.limits = known[name] = (low, None if high is None else subtract(high, ONE))


def _accesses(
    f: FuncDef, d: Definition, boxes: Boxes
) -> Iterator[tuple[Read, int, Expr, Interval, Interval]]:
    for r in reads_in((*d.index, *d.values, d.where)):
        if r.name != f.name:
            for axis, (e, (limits, natural)) in enumerate(zip(r.index, boxes[r.name], strict=True)):
                yield r, axis, e, limits, natural


def _collect_candidates(
    f: FuncDef, d: Definition, scope: dict[str, _Variable], boxes: Boxes, inferred: Collection[str]
) -> None:
    for r, axis, e, (lo, hi), (first, last) in _accesses(f, d, boxes):
        match e:
            case Var(name) if lo is not None and hi is not None:
                scope[name].exact.append(_Candidate(lo, hi, r, axis, r.name in inferred))
            case Var(name) if first is not None and last is not None:
                scope[name].suggested.append(_Candidate(first, last, r, axis))
        if r.name in inferred and not isinstance(e, Var):
            for name in variables(e) & scope.keys():
                scope[name].shifted = True
        padded = _padded_variable(e)
        if padded is not None:
            name, start, extent = padded
            last = subtract(add(start, extent), ONE)
            scope[name].suggested.append(_Candidate(start, last, r, axis))


def _padded_variable(e: Expr) -> tuple[str, Expr, Expr] | None:
    """(variable, first, extent) if an index is the padding of a bare variable; else None."""
    match e:
        case Call("pad_edge" | "pad_reflect" | "pad_symmetric" | "pad_wrap", (Var(name), n)):
            return name, ZERO, n
        case Binary("add", Call(_, (Binary("sub", Var(name), lo), n)), start) if lo == start:
            return name, lo, n
        case _:
            return None


def _unify_bare_accesses(v: _Variable, f: FuncDef, sizes: _SizeEqualities) -> None:
    """Rule 1: unify the ranges of all bare accesses of a variable; `exact` keeps those that must agree."""
    if v.given or not v.exact:
        return
    starts = [sizes.resolve(c.lo) for c in v.exact]
    known = [lo for c, lo in zip(v.exact, starts, strict=True) if not c.inferred] or starts
    v.loose = v.shifted or any(constant_difference(lo, known[0]) != 0 for lo in starts)
    if v.loose:
        v.exact = [c for c in v.exact if not c.inferred]
    for other in v.exact[1:]:
        first = v.exact[0]
        if not sizes.unify(first.extent, other.extent):
            raise _disagreement(v.name, first, other, f.definitions[0].loc)
        if first.extent != other.extent:
            first_side, second_side = ((c.extent, c.read.name, c.axis, c.read.loc) for c in (first, other))
            sizes.agreements.append(Agreement(v.name, (first_side, second_side)))
    if v.exact:
        c = next((c for c in v.exact if not c.inferred), v.exact[0])
        v.base = v.limits = (sizes.resolve(c.lo), sizes.resolve(c.hi))


def _disagreement(name: str, a: _Candidate, b: _Candidate, loc: Loc | None) -> ShapeError:
    def place(c: _Candidate) -> str:
        return f"{show_expr(c.extent)} as axis {c.axis} of {c.read.name!r}"

    return ShapeError(
        f"{name!r} has two extents: {place(a)}, and {place(b)}",
        loc=b.read.loc or loc,
        label=f"{name} runs to {show_expr(b.extent)} here",
        related=((a.read.loc, f"{name} runs to {show_expr(a.extent)} here"),),
        hint="a variable that indexes several axes must have one extent; check the shapes",
    )


def _limit_by_accesses(
    f: FuncDef, d: Definition, scope: dict[str, _Variable], boxes: Boxes, inferred: Collection[str]
) -> None:
    """Rule 2: each access with a single variable of unknown range limits that variable."""
    given = {name for name, lo, _ in d.ranges if lo is not None}
    for r, _, e, (lo, hi), _ in _accesses(f, d, boxes):
        if lo is None or hi is None:
            continue
        if isinstance(e, Var) and not (scope[e.name].loose and r.name in inferred):
            continue
        open_ = [n for n in variables(e) if n in scope and n not in given]
        # of several variables, the one whose range nothing else determines
        for known_part in ("base", "limits"):
            if len(open_) > 1:
                open_ = [n for n in open_ if getattr(scope[n], known_part) == UNBOUNDED]
        if len(open_) != 1:
            continue
        name = open_[0]
        # restricted with `name` present, then removed: its limit must not depend on itself
        known = restrict_ranges({n: v.limits for n, v in scope.items()}, d.where)
        known.pop(name)
        low, high = solve(e, name, lo, hi, known)
        v = scope[name]
        if low is not None and high is not None:
            a, b = v.limits
            v.limits = (
                low if a is None else maximum(a, low),
                high if b is None else minimum(b, high),
            )


def _suggested_range(v: _Variable) -> Interval:
    """Rule 3: the range of the bare reads of padding, if they all agree; else unbounded."""
    if not v.suggested:
        return UNBOUNDED
    first = v.suggested[0]
    for other in v.suggested[1:]:
        if constant_difference(first.lo, other.lo) != 0 or constant_difference(first.hi, other.hi) != 0:
            return UNBOUNDED
    return first.lo, first.hi


def _with_inferred_ranges(f: FuncDef, d: Definition, scope: dict[str, _Variable]) -> Definition:
    """The definition with all ranges known; bounds that depend on variables or data become conditions."""
    ranges, conditions = [], [d.where]
    for name, lo, hi in d.ranges:
        v = scope[name]
        low, high = v.limits if v.given or None not in v.limits else _suggested_range(v)
        if low is None or high is None:
            raise _unknown_range(f, d, v)
        if lo is not None and hi is not None and any(variables(e) or has_data(e) for e in (lo, hi)):
            conditions += [Binary("le", lo, Var(name)), Binary("lt", Var(name), hi)]
        ranges.append((name, low, add(high, ONE)))
    extents = {name: subtract(hi, lo) for name, lo, hi in ranges}
    for name, v in scope.items():
        lo_, hi_ = v.limits
        if name not in extents and lo_ is not None and hi_ is not None:
            extents[name] = add(subtract(hi_, lo_), ONE)
    definition = replace(d, ranges=tuple(ranges), where=conjunction(conditions))
    return map_expressions(definition, lambda e: _resolve_extents(e, extents))


def _unknown_range(f: FuncDef, d: Definition, v: _Variable) -> ShapeError:
    if v.given:
        message = f"the range of {v.name!r} in {f.name!r} depends on a variable whose own range is not known"
        hint = f"bound it by extents and say the rest with where=, or declare the shape of {f.name!r}"
    else:
        message = f"the range of {v.name!r} in {f.name!r} does not follow from the tensors that are read"
        hint = f'say it: {v.name} = td.range("{v.name}", lo, hi)'
    return ShapeError(message, loc=d.loc, label="this definition", hint=hint)


def _resolve_extents(e: Expr, extents: dict[str, Expr]) -> Expr:
    def visit(n: Node) -> Node:
        match n:
            case Call("extent", (Var(name),)):
                return extents[name]
            case _:
                return n

    return transform(e, visit)
