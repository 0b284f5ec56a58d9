"""The adjoint of each value that an associative combiner of a user reduces, also of tuples of values.

    f = v[0] + ... + v[n - 1], "+" any combiner      f = (prefix[k - 1] + v[k]) + suffix[k + 1], for each k

`prefix[k]` combines the values up to k, `suffix[k]` those from k on: recurrences that store every cell once.
The adjoint of prefix[k] = prefix[k - 1] + v[k] is that of f times the derivative of prefix[k] +
suffix[k + 1], and gives the adjoint of v[k]. Of several axes the same holds level by level: the total of the
inner axes is one value of the next outer one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from tdsl.core.node import Node, frozen, transform
from tdsl.core.source import Loc
from tdsl.errors import DefinitionError
from tdsl.lang.affine import variables
from tdsl.lang.definition import Definition
from tdsl.lang.expr import ONE, TRUE, Expr, Param, Read, Select, Var, dtype_of
from tdsl.lang.gradients.contribution import unused_name
from tdsl.lang.gradients.expression import adjoints_of_reads, total
from tdsl.lang.gradients.partials import Term, Terms
from tdsl.lang.gradients.reductions import kind_of
from tdsl.lang.program import FuncDef
from tdsl.lang.reduction import Combine
from tdsl.lang.regions import Interval
from tdsl.lang.simplify import add, simplify, subtract
from tdsl.lang.types import DType
from tdsl.lang.value import Value

Values = tuple[Expr, ...]  # one for each component
Elements = Mapping[str, Interval]
Stored = Callable[[str, Elements, Callable[[str], list[Definition]]], str]  # the name of a new func


@frozen
class Fold:
    """A reduction: its combiner, the values, the variables of a result, and those that are reduced over."""

    combine: Combine
    dtypes: tuple[DType, ...]
    values: Values
    free: dict[str, Interval]
    axes: dict[str, Interval]
    loc: Loc | None

    def reads(self, name: str, index: tuple[Expr, ...]) -> Values:
        """The reads of all components of a func of values."""
        return tuple(Read(name, index, n, t) for n, t in enumerate(self.dtypes))

    def combined(self, a: Values, b: Values) -> Values:
        """The result of combining two values."""
        sides = {f"a{n}": e for n, e in enumerate(a)} | {f"b{n}": e for n, e in enumerate(b)}
        return tuple(_with_sides(e, sides) for e in self.combine.exprs)


@frozen
class Level:
    """One axis of a fold, the last of `elements`: the funcs of its values, of their prefixes and suffixes."""

    elements: dict[str, Interval]
    values: str
    prefix: str
    suffix: str

    @property
    def index(self) -> tuple[Expr, ...]:
        """The variables of the elements."""
        return tuple(map(Var, self.elements))


def is_fold(f: FuncDef, d: Definition) -> bool:
    """True for a reduction by an associative combiner of the user that is no sum of each component."""
    if d.combine is None or d.combine.kind != "custom":
        return False
    return any(kind_of(f, n) == "custom" for n in range(len(f.dtypes)))


def fold_of(f: FuncDef, d: Definition, ranges: Elements) -> Fold:
    """The fold of a definition, whose variables have inclusive `ranges`.

    DefinitionError where its axes are no box, if it is an update, or if the combiner reads scalars.
    """
    assert d.combine is not None
    axes = {name: ranges[name] for name, _, _ in d.ranges}
    why = ""
    if len(f.definitions) > 1:
        why = "is one of several definitions"
    elif d.combine.scalars():
        why = f"combines by the scalar {d.combine.scalars()[0].name!r}"
    elif any(end is None or variables(end) for interval in axes.values() for end in interval):
        why = "has a range that depends on other variables"
    if why:
        raise DefinitionError(
            f"the reduction of {f.name!r} by a combiner {why}: it has no derivative",
            loc=d.loc,
            label="this reduction",
            hint="reduce in a func of its own, over ranges of numbers with a td.where, by numbers only",
        )
    values = d.values
    if d.where != TRUE:
        pairs = zip(d.values, d.combine.init, strict=True)
        values = tuple(Select(d.where, v, start) for v, start in pairs)
    free = {v: ranges[v] for v in d.free}
    return Fold(d.combine, f.dtypes, values, free, axes, d.loc)


def terms_of_fold(fold: Fold, adjoints: Sequence[Value | None], store: Stored) -> list[Terms]:
    """The adjoint of each value of a fold, given those of its results."""
    seeds: list[Terms] = [() if a is None else (Term(a),) for a in adjoints]
    levels = _levels(fold, store)
    for n, level in enumerate(levels):
        outer, axis, at = level.index[:-1], level.index[-1], level.index
        before, behind = ((*outer, e) for e in (subtract(axis, ONE), add(axis, ONE)))
        seeds = _through(fold, seeds, "a", fold.reads(level.prefix, at), fold.reads(level.suffix, behind))
        seeds = [_stored(level, terms, f"d_prefix_{m}", store) for m, terms in enumerate(seeds)]
        seeds = _through(fold, seeds, "b", fold.reads(level.values, at), fold.reads(level.prefix, before))
        if n < len(levels) - 1:
            seeds = [_stored(level, terms, f"d_totals_{m}", store) for m, terms in enumerate(seeds)]
    return seeds


def _through(fold: Fold, seeds: Sequence[Terms], side: str, values: Values, others: Values) -> list[Terms]:
    """The adjoints of `values`, one side of the combiner with `others`, given those of the results."""
    places = {f"{side}{n}": n for n in range(len(values))}
    params = tuple(Param(name, t) for name, t in zip(places, fold.dtypes, strict=True))
    results = fold.combined(params, others) if side == "a" else fold.combined(others, params)
    adjoints: list[list[Term]] = [[] for _ in values]

    def is_param(e: Expr) -> bool:
        return isinstance(e, Param) and e.name in places

    for result, seed in zip(results, seeds, strict=True):
        for param, terms in adjoints_of_reads(result, seed, is_param, {}).items() if seed else ():
            assert isinstance(param, Param)
            adjoints[places[param.name]] += terms
    sides = dict(zip(places, values, strict=True))
    return [
        tuple(Term(Value(_with_sides(x.value.node, sides)), _with_sides(x.cond, sides)) for x in terms)
        for terms in adjoints
    ]


def _stored(level: Level, terms: Terms, name: str, store: Stored) -> Terms:
    """The terms as one read of a new func."""
    if not terms:
        return ()
    value = total(terms, dtype_of(terms[0].value.node)).node
    func = store(name, level.elements, lambda _: [_pure(level.elements, (value,))])
    return (Term(Value(Read(func, level.index, 0, dtype_of(value)))),)


def _levels(fold: Fold, store: Stored) -> list[Level]:
    """The funcs of each axis of a fold, outermost first."""
    elements, levels = {**fold.free, **fold.axes}, list[Level]()
    values = store("values", {**elements}, lambda _: [_pure(elements, fold.values)])
    for axis in reversed(fold.axes):  # innermost first
        prefix, suffix = (_scan(fold, elements, values, store, reverse=reverse) for reverse in (False, True))
        levels.append(Level({**elements}, values, prefix, suffix))
        lo, _ = elements.pop(axis)
        assert lo is not None
        if len(levels) < len(fold.axes):
            total_of_axis = fold.reads(suffix, (*map(Var, elements), lo))
            values = store("totals", {**elements}, lambda _, of=total_of_axis: [_pure(elements, of)])  # type: ignore[misc]
    return levels[::-1]


def _pure(elements: Elements, values: Values) -> Definition:
    """The definition of a func at all elements."""
    names = tuple(elements)
    return Definition(tuple(map(Var, names)), names, (), TRUE, values, None, None)


def _scan(fold: Fold, elements: Elements, values: str, store: Stored, *, reverse: bool) -> str:
    """The func that combines all values up to each point of the last of `elements`, or from it on.

    It has a cell more, for no values: before the first point, or behind the last one.
    """
    *outer, axis = elements
    lo, hi = elements[axis]
    assert lo is not None
    assert hi is not None
    step = unused_name("r", elements)
    at: Expr = simplify(subtract(add(lo, hi), Var(step))) if reverse else Var(step)
    done = simplify(add(at, ONE) if reverse else subtract(at, ONE))

    def definitions(name: str) -> list[Definition]:
        index = (*map(Var, outer), at)
        sides = fold.reads(name, (*map(Var, outer), done)), fold.reads(values, index)
        combined = fold.combined(*(reversed(sides) if reverse else sides))
        ranges = ((step, lo, add(hi, ONE)),)
        update = Definition(index, tuple(outer), ranges, TRUE, combined, None, None, fold.loc)
        return [_pure(elements, fold.combine.init), update]

    box = {**elements, axis: (lo, add(hi, ONE)) if reverse else (subtract(lo, ONE), hi)}
    return store("suffix" if reverse else "prefix", box, definitions)


def _with_sides(e: Expr, sides: Mapping[str, Expr]) -> Expr:
    """An expression with values in place of the parameters of a combiner."""

    def visit(n: Node) -> Node:
        return sides.get(n.name, n) if isinstance(n, Param) else n

    return transform(e, visit)
