"""A pass that partitions loops around vectors: an interior without clipping and masks, and its two ends.

1. For each min, max, comparison and padding call that depends on a vector lane, `_Interior` computes the
   values of the loop variable for which its result is the same for all lanes and inner loops.
2. The interior, lo' <= i <= hi', is where all expressions that are decided in most iterations are decided.
3. A serial loop becomes three, the middle one with the decided expressions replaced; the body of a parallel
   loop becomes a test with two branches.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field

from tdsl.codegen.analysis.facts import facts_inside, last_value, narrow_range
from tdsl.codegen.analysis.typical_values import typical_values
from tdsl.codegen.ir.fresh_names import FreshNames
from tdsl.codegen.ir.loops import PARALLEL, SERIAL, VECTORIZED, Alloc, For, Kernel, Let, Stmt
from tdsl.codegen.ir.statements import (
    conditional,
    exprs_of,
    loads_of,
    map_exprs,
    map_parts,
    rebuilt,
    scalars_of,
    sequence,
    walk,
)  # fmt: skip
from tdsl.codegen.passes.simplify_loops import simplify_loops
from tdsl.core.node import map_children, post_order
from tdsl.lang.affine import AffineSum, as_expr, as_sum, variables
from tdsl.lang.bounds import NO_FACTS, Facts, upper
from tdsl.lang.expr import FALSE, ONE, TRUE, Binary, Call, Const, Expr, Var, dtype_of
from tdsl.lang.regions import interval_of
from tdsl.lang.simplify import add, conjunction, maximum, minimum, subtract
from tdsl.lang.types import i64

_LARGEST_BODY = 4000  # nodes of expressions in a body that may be copied
_OUTER_SHARE = 0.75  # least share of iterations in the interior for which an outer loop is cut
_INNERMOST_SHARE = 0.25  # the same for the innermost loop


def partition(kernel: Kernel) -> Kernel:
    """Partition loops around vectorized ones, so that only the end parts have clipping, padding and tails.

    >>> from tdsl.codegen.ir.loops import If, Store
    >>> from tdsl.codegen.ir.show import show
    >>> from tdsl.lang.expr import ONE, ZERO, Load, const
    >>> x = Binary("add", Binary("mul", Var("x"), const(8)), Var("v"))
    >>> clipped = Binary("max", Binary("sub", x, ONE), ZERO)
    >>> store = If(Binary("lt", x, const(99)), Store("b", (x,), Load("a", (clipped,), i64)))
    >>> nest = For("x", ZERO, const(13), SERIAL, For("v", ZERO, const(8), VECTORIZED, store))
    >>> print(show(partition(Kernel("k", (), nest)).body))
    for v_1 in range(0, 8):  # vectorized
      b[v_1] = a[max(v_1 - 1, 0)]
    for x in range(1, 12):
      for v in range(0, 8):  # vectorized
        b[x * 8 + v] = a[x * 8 + v - 1]
    for v_2 in range(0, 8):  # vectorized
      if v_2 + 96 < 99:
        b[v_2 + 96] = a[v_2 + 95]
    """
    names = _clip_variables(kernel.body)
    if not names:
        return kernel
    body, cut = _LoopPartitioner(FreshNames(kernel), names).visit(kernel.body, NO_FACTS)
    return simplify_loops(dataclasses.replace(kernel, body=body)) if cut else kernel


def _clip_variables(s: Stmt) -> frozenset[str]:
    """The variables in tests, clamps and padding that depend on vector lanes; only their loops may be cut."""
    lanes = {x.name for x in walk(s) if isinstance(x, For) and x.kind == VECTORIZED}
    names: set[str] = set()
    roots = (e for x in walk(s) if not isinstance(x, For | Alloc) for e in exprs_of(x))
    for n in post_order(*roots):
        if isinstance(n, Binary | Call) and is_clamp_or_test(n):
            used = variables(n)
            if not lanes.isdisjoint(used):
                names |= used
    return frozenset(names)


@dataclass(slots=True)
class _LoopPartitioner:
    fresh: FreshNames
    clip_variables: frozenset[str]

    def visit(self, s: Stmt, facts: Facts) -> tuple[Stmt, bool]:
        """The statement with loops cut, and whether any loop has been cut."""
        if isinstance(s, For):
            return self.loop(s, facts)
        facts = facts_inside(facts, s)
        cuts = []

        def part(inner: Stmt) -> Stmt:
            new, cut = self.visit(inner, facts)
            cuts.append(cut)
            return new

        return map_parts(s, part), any(cuts)

    def loop(self, s: For, facts: Facts) -> tuple[Stmt, bool]:
        if s.kind == VECTORIZED:
            return s, False
        may_cut = s.kind in (SERIAL, PARALLEL) and s.name in self.clip_variables
        interior = _Interior.make(s, facts) if may_cut else None
        if interior is not None and interior.share() >= _OUTER_SHARE:
            return self.cut(s, interior), True
        body, was_cut = self.visit(s.body, facts_inside(facts, s))
        if not was_cut and interior is not None and interior.share() >= _INNERMOST_SHARE:
            return self.cut(s, interior), True
        return rebuilt(s, body=body), was_cut

    def cut(self, s: For, interior: _Interior) -> Stmt:
        facts, lo, end = interior.facts, s.lo, add(s.lo, s.extent, interior.facts)
        inner = interior.replace_decided(s.body)
        first, last = interior.first, interior.last
        if s.kind == PARALLEL:
            tests: list[Expr] = []
            if first != lo:
                tests.append(Binary("le", first, Var(s.name)))
            if last != last_value(s, facts):
                tests.append(Binary("le", Var(s.name), last))
            return rebuilt(s, body=conditional(conjunction(tests), inner, self.fresh.copy(s.body)))
        begin = minimum(first, end, facts)
        after = maximum(minimum(add(last, ONE, facts), end, facts), begin, facts)
        parts = [
            (self.fresh.copy, rebuilt(s, extent=subtract(begin, lo, facts))),
            (None, rebuilt(s, lo=begin, extent=subtract(after, begin, facts), body=inner)),
            (self.fresh.copy, rebuilt(s, lo=after, extent=subtract(end, after, facts))),
        ]
        nonempty = []
        for copy, loop in parts:
            most = upper(loop.extent, facts)
            if most is None or most > 0:
                nonempty.append(copy(loop) if copy else loop)
        return sequence(nonempty)


@dataclass(slots=True)
class _Interior:
    """The interior of a loop, first <= name <= last, where tests and clamps are the same for all lanes.

    `inner` are the known ranges of the variables that are `bound` inside the loop, outermost first;
    `replacements` maps each decided test or clamp to its value in the interior, `decided` every expression.
    """

    name: str
    facts: Facts
    first: Expr
    last: Expr
    full_range: tuple[Expr, Expr]
    inner: dict[str, tuple[Expr, Expr]] = field(default_factory=dict)
    bound: set[str] = field(default_factory=set)
    lanes: dict[str, int] = field(default_factory=dict)
    replacements: dict[Expr, Expr] = field(default_factory=dict)
    decided: dict[Expr, Expr] = field(default_factory=dict)

    @staticmethod
    def make(s: For, facts: Facts) -> _Interior | None:
        """The interior of the loop; None if nothing is decided in it, or its body is too large to copy."""
        last = last_value(s, facts)
        interior = _Interior(s.name, facts, s.lo, last, (s.lo, last))
        for part in walk(s.body):
            for e in exprs_of(part):
                if isinstance(part, For | Alloc):
                    interior.decided.setdefault(e, e)  # its constant bound may be of use
                else:
                    interior.decide_expr(e)
            if len(interior.decided) > _LARGEST_BODY:
                return None
            if isinstance(part, For | Let):
                interior.bound.add(part.name)
            match part:
                case For(name, lo, extent, kind):
                    if not loads_of(lo) and not loads_of(extent):
                        interior.inner[name] = lo, subtract(add(lo, extent), ONE)
                    if kind == VECTORIZED and isinstance(extent, Const):
                        interior.lanes[name] = int(extent.value)
                case Let(name, value) if dtype_of(value) == i64 and not loads_of(value):
                    interior.inner[name] = (interior.decided[value],) * 2
                case _:
                    pass
        return interior if interior.replacements else None

    def decide_expr(self, e: Expr) -> None:
        """Decide the tests and clamps of an expression, from the leaves up."""
        decided = self.decided
        for n in post_order(e):
            if n in decided:
                continue
            new = map_children(n, decided.__getitem__)  # type: ignore[arg-type]  # of an Expr: Exprs
            choice = self.replacement(n, new)  # type: ignore[arg-type]  # as above
            if choice is not None:
                self.replacements[n] = new = choice  # type: ignore[index]  # as above
            decided[n] = new  # type: ignore[index, assignment]  # as above

    def replacement(self, old: Expr, e: Expr) -> Expr | None:
        """The replacement of `e` in most of the loop, to which the interior is narrowed; None without one."""
        if not is_clamp_or_test(e) or loads_of(old) or variables(old).isdisjoint(self.lanes):
            return None
        best: tuple[float, Expr, Expr, Expr] | None = None
        for result, needs in _decisions(e):
            limits = self.limits(needs)
            if limits is None:
                continue
            share = self.share_of(*limits)
            if best is None or share > best[0]:
                best = share, result, *limits
        if best is None or best[0] < 0.5:
            return None
        _, result, self.first, self.last = best
        return result

    def limits(self, needs: list[AffineSum]) -> tuple[Expr, Expr] | None:
        """The bounds of the interior in which each sum of `needs`, too, is at most 0 for all lanes."""
        first, last = self.first, self.last
        if not all(map(self.step_covers_lanes, needs)):
            return None
        for need in needs:
            largest = self.upper_sum(need)
            if largest is None:
                return None
            variable = Var(self.name)
            if variable not in largest.terms or self.name in variables(as_expr(largest.without(variable))):
                return None
            first, last = narrow_range(largest, self.name, first, last, self.facts)
        return first, last

    def step_covers_lanes(self, s: AffineSum) -> bool:
        """True if one step of the loop passes all lanes, so that few of its iterations are at the ends."""
        step = abs(s.terms.get(Var(self.name), 0))
        return step > 0 and all(step >= n * abs(s.terms.get(Var(v), 0)) for v, n in self.lanes.items())

    def upper_sum(self, s: AffineSum) -> AffineSum | None:
        """The largest value of a sum over the variables bound inside the loop; None if unknown."""
        e: Expr = as_expr(s)
        for name in reversed(self.inner):
            if name in variables(e):
                hi = interval_of(e, {name: self.inner[name]}, self.facts)[1]
                if hi is None:
                    return None
                e = hi
        if scalars_of(e) & self.bound or loads_of(e):
            return None
        return as_sum(e)

    def share(self) -> float:
        return self.share_of(self.first, self.last)

    def share_of(self, first: Expr, last: Expr) -> float:
        """The share of iterations from `first` to `last`, for typical values of the outer variables."""
        lo, hi, first_at, last_at = typical_values((*self.full_range, first, last), self.facts)
        return max(last_at - first_at + 1, 0) / max(hi - lo + 1, 1)

    def replace_decided(self, s: Stmt) -> Stmt:
        """The body with each decided test and clamp replaced."""

        def statement(part: Stmt) -> Stmt:
            return map_parts(map_exprs(part, self.decided.__getitem__), statement)

        return statement(s)


_DECIDED = ("min", "max", "lt", "le", "gt", "ge", "eq", "ne")
Decision = tuple[Expr, list[AffineSum]]


def is_clamp_or_test(e: Expr) -> bool:
    """True for a min, max or comparison of integers and a padding call, which `partition` may decide."""
    match e:
        case Binary(op, a):
            return op in _DECIDED and dtype_of(a) == i64
        case Call(fn):
            return fn.startswith("pad_")
        case _:
            return False


def _decisions(e: Expr) -> list[Decision]:
    """The possible replacements of `e`, each with the sums that must be at most 0 where it is valid."""
    match e:
        case Binary(op, a, b):
            return _comparisons(op, a, b)
        case Call(_, (i, n)):
            beyond = as_sum(i).plus(as_sum(n), -1).plus(AffineSum({}, 1))
            return [(i, [as_sum(i).times(-1), beyond])]
        case _:
            return []


def _comparisons(op: str, a: Expr, b: Expr) -> list[Decision]:
    d = as_sum(a).plus(as_sum(b), -1)
    at_most_b, at_least_b = [d], [d.times(-1)]
    below, above = [d.plus(AffineSum({}, 1))], [d.times(-1).plus(AffineSum({}, 1))]
    decisions: dict[str, list[Decision]] = {
        "min": [(a, at_most_b), (b, at_least_b)],
        "max": [(b, at_most_b), (a, at_least_b)],
        "lt": [(TRUE, below), (FALSE, at_least_b)],
        "le": [(TRUE, at_most_b), (FALSE, above)],
        "gt": [(TRUE, above), (FALSE, at_most_b)],
        "ge": [(TRUE, at_least_b), (FALSE, below)],
        "eq": [(FALSE, below), (FALSE, above)],
        "ne": [(TRUE, below), (TRUE, above)],
    }
    return decisions[op]
