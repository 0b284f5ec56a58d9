"""Proofs that two iterations of a loop, or two threads, access different elements."""

from __future__ import annotations

from dataclasses import dataclass, field

from tdsl.lang.affine import AffineSum, as_expr, as_sum, variables
from tdsl.lang.bounds import Facts, lower, upper
from tdsl.lang.expr import Binary, Const, Expr, Var, const
from tdsl.lang.simplify import simplify, substitute


@dataclass(slots=True)
class DisjointIndices:
    """A proof that two instances with equal indices are the same instance.

    The variables of the second instance are renamed (`twins`) unless both have the same value. `differences`
    are the sums that are 0 at equal indices; `equal_atoms` the atoms proved equal in both instances;
    `unequal` the identifying variables not yet proved equal.

    >>> from tdsl.lang.expr import ZERO, const
    >>> i, j = Var("i"), Var("j")
    >>> facts = Facts({n: (ZERO, const(7)) for n in ("i", "i'", "j", "j'")})
    >>> def of(index: Expr) -> bool:
    ...     twins = {"i": Var("i'"), "j": Var("j'")}
    ...     d = as_sum(index).plus(as_sum(substitute(index, twins)), -1)
    ...     return DisjointIndices([d], facts, twins, {"i"}).is_proved()
    >>> of(Binary("add", Binary("mul", i, const(8)), j)), of(Binary("add", i, j))
    (True, False)
    """

    differences: list[AffineSum]
    facts: Facts
    twins: dict[str, Expr]
    unequal: set[str]
    equal_atoms: set[Expr] = field(default_factory=set)

    def is_proved(self) -> bool:
        """True if the indices of two different instances are proved never to be equal."""
        while self.unequal:
            if any(self._never_zero(d) for d in self.differences):
                return True
            if not (self._equate_variable() or self._equate_dividend()):
                return False
        return True

    def _never_zero(self, d: AffineSum) -> bool:
        lo, hi = self._limits(d)
        return (lo is not None and lo > 0) or (hi is not None and hi < 0) or are_distinct_slots(d)

    def _equate_variable(self) -> bool:
        """Deduce x = x' and rest = 0 from c * x - c * x' + rest = 0, |rest| < c; else False."""
        for n, d in enumerate(self.differences):
            for x, c in d.terms.items():
                twin = substitute(x, self.twins)
                if x == twin or d.terms.get(twin, 0) != -c:
                    continue
                rest = d.without(x).without(twin)
                if self._is_within(rest, const(abs(c))):
                    self.differences[n] = rest
                    self.equal_atoms.add(x)
                    if isinstance(x, Var):
                        self.unequal.discard(x.name)
                        self.differences = [self._unify(x, twin, e) for e in self.differences]
                    return True
        return False

    def _unify(self, x: Var, twin: Expr, d: AffineSum) -> AffineSum:
        assert isinstance(twin, Var)
        return as_sum(substitute(as_expr(d), {twin.name: x}))

    def _equate_dividend(self) -> bool:
        """Deduce x = x' from x % k = x' % k and (x // k = x' // k or |x - x'| < k); False if impossible.

        Or x % (m * k) = x' % (m * k) from x % (m * k) // k = x' % (m * k) // k and x % k = x' % k.
        """
        for m in list(self.equal_atoms):
            match m:
                case Binary("floordiv", Binary("mod", x, Const(whole)) as rest, Const(part) as k):
                    if part > 0 and whole % part == 0 and Binary("mod", x, k) in self.equal_atoms:
                        self.equal_atoms.discard(m)
                        self.equal_atoms.add(rest)
                        return True
                case Binary("mod", x, k) if self._is_period(k):
                    quotients = [Binary("floordiv", x, k)]
                    distance = as_sum(x).plus(as_sum(substitute(x, self.twins)), -1)
                    match x, k:
                        case Binary("floordiv", y, Const(n)), Const(period):
                            quotients.append(Binary("floordiv", y, const(int(n * period))))
                        case _:
                            pass
                    if self._is_within(distance, k) or any(
                        q in self.equal_atoms or simplify(q, self.facts) in self.equal_atoms
                        for q in quotients
                    ):
                        self.equal_atoms.discard(m)
                        self.differences.append(distance)
                        return True
                case _:
                    pass
        return False

    def _is_within(self, d: AffineSum, k: Expr) -> bool:
        """True if |d| < k is proved for a constant k."""
        lo, hi = self._limits(d)
        return isinstance(k, Const) and lo is not None and hi is not None and max(-lo, hi) < k.value

    def _is_period(self, k: Expr) -> bool:
        """True for a divisor that is positive and has the same value in both instances."""
        return substitute(k, self.twins) == k and (lower(k, self.facts) or 0) > 0

    def _limits(self, d: AffineSum) -> tuple[int | None, int | None]:
        e = as_expr(d)
        if any(v not in self.facts.ranges for v in variables(e)):
            return None, None
        return lower(e, self.facts), upper(e, self.facts)


def are_distinct_slots(d: AffineSum) -> bool:
    """True for x % k - y % k if x - y is a constant and no multiple of k: two different slots of a ring.

    >>> i, three = Var("i"), const(3)
    >>> later = Binary("mod", Binary("add", i, const(2)), three)
    >>> are_distinct_slots(as_sum(Binary("sub", later, Binary("mod", i, three))))
    True
    """
    match sorted(d.terms.items(), key=lambda term: term[1]):
        case [(Binary("mod", x, Const(k)), -1), (Binary("mod", y, Const(m)), 1)] if k == m:
            distance = as_sum(x).plus(as_sum(y), -1)
            return not (distance.terms or d.constant) and distance.constant % k != 0
        case _:
            return False
