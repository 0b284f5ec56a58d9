"""`Definition`: one equation of a func, with its index, values, free variables, ranges and combiner.

c[i, j] = td.sum(a[i, k] * b[k, j], axis=k)     free i, j; ranges k; combine sum; init 0
hist[image[y, x]] += 1                          ranges y, x; combine sum; no init
cdf[r] += cdf[r - 1]                            ranges r (its own)
f[i, r] = f[i, r - 1] * 2                       free i; ranges r; no combine
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Iterable
from dataclasses import field, replace
from typing import Any

from tdsl.core.node import Node, children, frozen, post_order, pre_order, transform
from tdsl.core.source import Loc
from tdsl.errors import DefinitionError, TypeMismatch
from tdsl.lang.expr import (
    TRUE,
    Access,
    Binary,
    Expr,
    Param,
    Range,
    Read,
    Reduce,
    Require,
    Show,
    Var,
    dtype_of,
)  # fmt: skip
from tdsl.lang.reduction import Combine, builtin_combiner, combiner_of
from tdsl.lang.regions import Indices, indices_in, reads_in
from tdsl.lang.show import show_expr, show_index, show_tuple
from tdsl.lang.simplify import add, conjunction, conjuncts
from tdsl.lang.types import DType
from tdsl.lang.value import Value, convert


@frozen(slots=False)
class Definition:
    """f[index] = values, for all `free` variables and, in order, all points of `ranges`.

    With `combine`, f[index] is set to combine(f[index], values) instead; with `init` as well, f[index] is
    first set to `init` (a pure definition by a reduction). `where` restricts the points; where `mask` is
    false the term equals `init` and may be skipped. A range whose `hi` is None has yet to be inferred.
    """

    index: tuple[Expr, ...]
    free: tuple[str, ...]
    ranges: tuple[tuple[str, Expr | None, Expr | None], ...]
    where: Expr
    values: tuple[Expr, ...]
    combine: Combine | None
    init: tuple[Expr, ...] | None
    loc: Loc | None = field(default=None, compare=False)
    mask: Expr = TRUE

    @property
    def variables(self) -> tuple[str, ...]:
        """All loop variables: the free ones, then the ranges, outermost first."""
        return (*self.free, *(name for name, _, _ in self.ranges))

    def expressions(self) -> tuple[Expr, ...]:
        """Every expression that is evaluated at each point: indices, values and the condition."""
        return (*self.index, *self.values, self.where)

    @functools.cached_property
    def named(self) -> tuple[Access | Param, ...]:
        """The accesses by handle and the scalar inputs, also of range bounds, in source order."""
        ends = [e for _, *both in self.ranges for e in both if e is not None]
        nodes = pre_order(*self.expressions(), *ends)
        return tuple(n for n in nodes if isinstance(n, Access | Param))

    @functools.cached_property
    def by_names(self) -> dict[tuple[str, ...], Definition]:
        """A cache of the definition with reads by name, for the last names of its tensors and funcs."""
        return {}

    @functools.cached_property
    def known_boxes(self) -> dict[object, Any]:
        """A cache of the boxes that the definition reads, for constant ranges of its variables."""
        return {}

    @functools.cached_property
    def reads(self) -> tuple[Read, ...]:
        """Every read in `expressions()`, also inside indices."""
        return tuple(n for n in post_order(*self.expressions()) if isinstance(n, Read))

    @functools.cached_property
    def sources(self) -> frozenset[str]:
        """The names of the tensors and funcs that `expressions()` read."""
        return frozenset(r.name for r in self.reads)

    @functools.cached_property
    def mentions(self) -> frozenset[str]:
        """The names of all tensors and funcs that the definition reads, also in range bounds and `mask`."""
        ends = [e for _, *both in self.ranges for e in both if e is not None]
        more = (n.name for n in post_order(*ends, self.mask) if isinstance(n, Read))
        return self.sources.union(more)

    @functools.cached_property
    def tested(self) -> tuple[Expr, Indices] | None:
        """The conditions without reads, and the indices of the others' reads; None if no condition reads."""
        conditions = [(c, indices_in(reads_in((c,)))) for c in conjuncts(self.where)]
        plain = [c for c, indices in conditions if not indices]
        reading = (c for c, indices in conditions if indices)
        return None if len(plain) == len(conditions) else (conjunction(plain), indices_in(reads_in(reading)))

    @functools.cached_property
    def indices(self) -> Indices:
        """The indices of `reads`, by name and dimension."""
        return indices_in(self.reads)


def has_effects(d: Definition) -> bool:
    """True if a definition has run-time checks or prints, so that it should run once for each point."""
    return any(isinstance(n, Require | Show) for n in post_order(*d.values))


def free_names(index: tuple[Expr, ...]) -> tuple[str, ...]:
    """The names of the variables that are by themselves an index on the left side, without duplicates."""
    return tuple(dict.fromkeys(e.name for e in index if isinstance(e, Var)))


def _unbound_children(n: Node) -> tuple[Node, ...]:
    """The children of a node; none for a Reduce, which binds its axes."""
    return () if isinstance(n, Reduce) else children(n)


def loop_variables(exprs: tuple[Expr, ...]) -> dict[str, Range | None]:
    """The unbound variables in order of appearance, each with its `td.range`, or None if it has none."""
    variables: dict[str, Range | None] = {}
    for e in exprs:
        for n in pre_order(e, inside=_unbound_children):
            match n:
                case Var(name):
                    variables.setdefault(name, None)
                case Range(name):
                    variables[name] = variables.get(name) or n  # not one in the condition of another
                case Reduce():
                    for name in _unbound(n):
                        variables.setdefault(name, None)
                case _:
                    pass
    return variables


def _unbound(r: Reduce) -> list[str]:
    """The names of the variables that a reduction uses and does not bind, also in its conditions."""
    bound = {a.name for a in r.axes if isinstance(a, Var | Range)}
    inside = loop_variables((*r.terms, *r.axes))
    return [name for name in inside if name not in bound]


def define(
    index: tuple[Expr, ...], values: tuple[Expr, ...], combine: Combine | None, loc: Loc | None,
    *, pure: bool,
) -> Definition:  # fmt: skip
    """The Definition of an equation; if `pure` and `values` are a Reduce, its axes become the ranges."""
    init = None
    top = common_reduction(values) if pure else None
    if top is not None:
        combine, init = combiner_of(top), top.init
        axes = [a for a in top.axes if isinstance(a, Var | Range)]
        values = top.terms
        ordered = {a.name: a if isinstance(a, Range) else None for a in axes}
        inside = loop_variables(values)
        ordered = {name: range_node or inside.get(name) for name, range_node in ordered.items()}
    else:
        indexing = free_names(index)
        ordered = {
            name: range_node
            for name, range_node in loop_variables((*index, *values)).items()
            if range_node is not None or name not in indexing
        }
    free = tuple(name for name in free_names(index) if name not in ordered)
    where = conjunction(r.where for r in ordered.values() if r is not None and r.where is not None)
    ranges = tuple((name, r.lo if r else None, r.hi if r else None) for name, r in ordered.items())
    return Definition(
        tuple(map(strip_ranges, index)), free,
        tuple((n, _strip_bound(a), _strip_bound(b)) for n, a, b in ranges),
        strip_ranges(where), tuple(map(strip_ranges, values)), combine, init, loc,
    )  # fmt: skip


def common_reduction(values: tuple[Expr, ...]) -> Reduce | None:
    """The Reduce node whose components `values` are, all and in order; None if they are not of one Reduce."""
    top = values[0]
    if not isinstance(top, Reduce) or len(values) != len(top.terms):
        return None
    for n, v in enumerate(values):
        if not isinstance(v, Reduce) or replace(top, component=n, dtype=v.dtype) != v:
            return None
    return top


def _strip_bound(e: Expr | None) -> Expr | None:
    return None if e is None else strip_ranges(e)


def strip_ranges(e: Expr) -> Expr:
    """The expression with each Range replaced by its variable; the definition keeps the bounds."""
    return transform(e, lambda n: Var(n.name, loc=n.loc) if isinstance(n, Range) else n)


def check_pure(name: str, index: tuple[Expr, ...], values: tuple[Expr, ...], loc: Loc | None) -> None:
    """Raise DefinitionError unless the indices are distinct variables, and the only free ones of `values`."""
    names = [e.name for e in index if isinstance(e, Var)]
    if len(names) < len(index) or len(set(names)) < len(names):
        raise DefinitionError(
            f"the first definition of {name!r} must have a variable of its own for each dimension",
            loc=loc,
            label="this definition",
            hint=f"write {name}[i, j] = ... first; then updates may use any index",
        )
    top = common_reduction(values)
    for axis in top.axes if top is not None else ():
        if isinstance(axis, Var | Range) and axis.name in names:
            raise DefinitionError(
                f"{axis.name!r} is reduced over, but indexes the left side of {name!r}",
                loc=loc,
                label="this definition",
                hint=f"take {axis.name} from the left, or reduce over another variable",
            )
    for variable, range_node in loop_variables(values).items():
        if range_node is not None or variable not in names:
            raise DefinitionError(
                f"{variable!r} is on the right of {name!r} but not on the left",
                loc=loc,
                label="this definition",
                hint=f"reduce over it, td.sum(..., axis={variable}), or add it to the left",
            )


def reads_of_other_points(handle: object, d: Definition) -> dict[str, Access]:
    """The first read of the updated func at an index other than v, for each free variable v with one."""
    firsts: dict[str, Access] = {}
    for n in (n for e in d.expressions() for n in post_order(e)):
        if isinstance(n, Access) and n.source is handle:
            for written, read in zip(d.index, n.index, strict=True):
                if isinstance(written, Var) and written.name in d.free and read != written:
                    firsts.setdefault(written.name, n)
    return firsts


def free_variables_as_ranges(
    d: Definition, names: Collection[str], domain: tuple[tuple[Expr, Expr], ...]
) -> Definition:
    """The update with the free variables `names` turned into ranges over the func's `domain`, innermost.

    d[i, j] = min(d[i, j], d[i, k] + d[k, j])       ranges k, i, j instead of k
    p[i, j] = p[i, j] - p[i, k] * u[k, j]           ranges k, j; i stays free
    """
    ends = {
        e.name: (e.name, lo, add(lo, extent))
        for e, (lo, extent) in zip(d.index, domain, strict=True)
        if isinstance(e, Var) and e.name in names
    }
    ordered = tuple(ends[name] for name in d.free if name in names)
    return replace(d, free=tuple(n for n in d.free if n not in names), ranges=(*d.ranges, *ordered))


def check_update(name: str, handle: object, definition: Definition, loc: Loc | None) -> None:
    """Raise DefinitionError if an update reads its func at another value of a free variable."""
    for variable, n in reads_of_other_points(handle, definition).items():
        raise DefinitionError(
            f"this update of {name!r} reads itself at another {variable!r}, so the order "
            f"of {variable!r} would matter",
            loc=n.loc or loc,
            label="read here",
            hint=f'say the order with a range: {variable} = td.range("{variable}", lo, hi)',
        )


def check_acyclic(name: str, handle: object, definition: Definition, loc: Loc | None) -> None:
    """Raise DefinitionError if an update reads a func computed from the updated one (a cyclic dependence)."""
    bounds = [b for _, lo, hi in definition.ranges for b in (lo, hi) if b is not None]
    for n in post_order(*definition.expressions(), *bounds):
        if not (isinstance(n, Access) and n.source is not handle and _depends_on(n.source, handle)):
            continue
        source: Any = n.source
        what, related = f"reads {source.name!r}, which is computed of it", source.definitions[0].loc
        hint = f"read {name!r} itself, or write to another td.Func: out[i] = {name}[i] + ..."
        if source.loc == n.loc:  # the func of a reduction inside the update
            what, related = "reduces over itself", None
            hint = (
                "make the terms ranges of the update, which run in order: with k and d of td.range, "
                f"{name}[r, k] += {name}[r - 1, d]"
            )
        raise DefinitionError(
            f"this update of {name!r} {what}",
            loc=n.loc or loc,
            label="read here",
            related=() if related is None else ((related, "computed here"),),
            hint=hint,
        )


def _depends_on(source: object, handle: object) -> bool:
    """True if `source` is or reads `handle`, directly or through other funcs."""
    seen: set[int] = set()
    stack: list[Any] = [source]
    while stack:
        f = stack.pop()
        if f is handle:
            return True
        if id(f) not in seen:
            seen.add(id(f))
            nodes = (n for d in getattr(f, "definitions", ()) for n in post_order(*d.expressions()))
            stack += [n.source for n in nodes if isinstance(n, Access)]
    return False


def convert_same_kind(v: Value, t: DType, name: str, loc: Loc | None) -> Expr:
    """The value converted to the func's type; TypeMismatch if NumPy's same-kind rule forbids it."""
    have = v.dtype
    if not v.becomes(t):
        raise TypeMismatch(
            f"{name!r} holds {t}, this update gives {have}",
            loc=loc,
            label="this update",
            hint=f"td.cast(value, td.{t}), or define {name!r} with a wider type",
        )
    return convert(v, t, loc)


_KINDS = {"add": "sum", "mul": "prod", "min": "min", "max": "max", "or": "any", "and": "all"}


def recognise_combine(
    handle: object, index: tuple[Expr, ...], values: tuple[Expr, ...]
) -> tuple[Combine | None, tuple[Expr, ...]]:
    """The combiner and values of an update f[x] = f[x] op e, if e does not read f; else None and `values`."""
    match values:
        case (Binary(op, left, right),) if op in _KINDS:
            kind = _KINDS[op]
            for old, other in ((left, right), (right, left)):
                if _is_self(old, handle, index) and not reads(other, handle):
                    return builtin_combiner(kind, (dtype_of(other),)), (other,)
        case _:
            pass
    return None, values


def _is_self(e: Expr, handle: object, index: tuple[Expr, ...]) -> bool:
    return isinstance(e, Access) and e.source is handle and e.index == index


def reads(e: Expr, handle: object) -> bool:
    """True if `e` reads the tensor or func `handle`."""
    return any(isinstance(n, Access) and n.source is handle for n in post_order(e))


_UPDATES = {"sum": "+=", "prod": "*=", "any": "|=", "all": "&="}


def show_definition(name: str, d: Definition) -> str:
    """One definition or update of the func `name`, in source notation."""
    left = f"{name}[{show_index(d.index)}]"
    values = show_tuple(d.values)
    if d.combine is None:
        text = f"{left} = {values}"
    elif d.init is not None:
        axis = _tuple(name for name, _, _ in d.ranges)
        text = f"{left} = {_reduction(d.combine, values)}, axis={axis})"
    elif d.combine.kind in _UPDATES:
        text = f"{left} {_UPDATES[d.combine.kind]} {values}"
    else:
        text = f"{left} = {_reduction(d.combine, f'{left}, {values}')})"
    spans = [
        f"for {n} in range({show_expr(lo)}, {show_expr(hi)})"
        for n, lo, hi in d.ranges
        if lo is not None and hi is not None
    ]
    where = [f"if {show_expr(d.where)}"] if d.where != TRUE else []
    return " ".join([text, *spans, *where])


def _reduction(c: Combine, values: str) -> str:
    if c.kind in ("custom", "custom_ordered"):
        return f"reduce({show_tuple(c.exprs)}, init={show_tuple(c.init)}, {values}"
    return f"{c.kind}({values}"


def _tuple(names: Iterable[str]) -> str:
    listed = list(names)
    return listed[0] if len(listed) == 1 else f"({', '.join(listed)})"
