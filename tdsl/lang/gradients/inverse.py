"""`invert`: the points of a loop nest whose index is a given element, solved for the loop variables.

    index x + r - 1          element u:  x = u - r + 1, for all r
    index 4 * x + r          r in 0..3:  x = u // 4, r = u % 4
    index x // 2             x = 2 * u + t, for t in 0..1
    index x % 3              x = 3 * q + u, for all q
    index pad_edge(x, n)     x = u; and for u = 0 and u = n - 1 the points beyond the edge

An index that is not solved (data, products of variables) has no inverse: `None`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from tdsl.core.node import frozen
from tdsl.lang.affine import AffineSum, as_expr, as_sum, has_data, variables
from tdsl.lang.bounds import Facts, at_most
from tdsl.lang.expr import FALSE, ONE, TRUE, ZERO, Binary, Const, Expr, Var, const
from tdsl.lang.gradients.preimages import is_fresh, preimages_of
from tdsl.lang.regions import Interval, interval_of
from tdsl.lang.simplify import add, simplify, substitute, subtract

Values = Mapping[str, Expr]


@frozen
class Inverse:
    """The points with a given index: values of solved variables, ranges of those left, and conditions.

    A point exists for each value of the variables in `ranges` for which all `guards` hold.
    """

    values: dict[str, Expr]
    ranges: dict[str, Interval]
    guards: tuple[Expr, ...]


@frozen
class _State:
    """Equations element = index yet to be solved, and what is known of the variables."""

    equations: tuple[tuple[Expr, Expr], ...]  # an expression of solved variables, and the index equal to it
    values: dict[str, Expr]
    ranges: dict[str, Interval]  # of the variables that are not solved
    solved: dict[str, Interval]  # the ranges of those that are
    guards: tuple[Expr, ...]
    elements: dict[str, Interval]

    def facts(self) -> Facts:
        facts = Facts()
        for name, (lo, hi) in (self.elements | self.ranges).items():
            if lo is not None and hi is not None:
                facts = facts.with_range(name, lo, hi)
        return facts

    def solve(self, name: str, value: Expr, *guards: Expr) -> _State:
        """The state with a variable replaced by its value, which may contain variables not solved."""
        ranges = dict(self.ranges)
        interval = ranges.pop(name)
        one = {name: value}
        return replace(
            self,
            equations=tuple((substitute(t, one), substitute(e, one)) for t, e in self.equations),
            values={n: substitute(v, one) for n, v in self.values.items()} | one,
            ranges=ranges,
            solved=self.solved | {name: interval},
            guards=tuple(substitute(g, one) for g in self.guards) + guards,
        )

    def with_equation(self, old: int, target: Expr, index: Expr, *guards: Expr) -> _State:
        """The state with one equation replaced by another."""
        rest = self.equations[:old] + self.equations[old + 1 :]
        return replace(self, equations=(*rest, (target, index)), guards=self.guards + guards)


def invert(
    index: tuple[Expr, ...], elements: Mapping[str, Interval], ranges: Mapping[str, Interval]
) -> list[Inverse] | None:
    """The points of `ranges` at which `index` is the element named by the variables of `elements`.

    The points of several inverses are distinct. None if an index cannot be solved.
    """
    equations = tuple((Var(n), e) for n, e in zip(elements, index, strict=True))
    states = [_State(equations, {}, dict(ranges), {}, (), dict(elements))]
    results: list[Inverse] = []
    while states:
        state = _simplified(states.pop(0))
        if not state.equations:
            inverse = _finished(state)
            results += [] if FALSE in inverse.guards else [inverse]
            continue
        following = _solve_one(state)
        # quotients of several variables may lead to new ones without an end
        introduced = sum(map(is_fresh, {**state.ranges, **state.solved}))
        if following is None or introduced > 2 * len(elements):
            return None
        states += following
    return results


def _simplified(state: _State) -> _State:
    """The state with simplified equations; those without unknowns become guards."""
    facts = state.facts()
    equations, guards = [], list(state.guards)
    for target, index in state.equations:
        difference = as_sum(simplify(index, facts)).plus(as_sum(simplify(target, facts)), -1)
        terms = {a: c for a, c in difference.terms.items() if variables(a) & state.ranges.keys()}
        unknown = AffineSum(terms)
        known = as_expr(difference.plus(unknown, -1).times(-1))
        if unknown.terms:
            equations.append((known, as_expr(unknown)))
        else:
            guards.append(Binary("eq", target, index))
    return replace(state, equations=tuple(equations), guards=tuple(guards))


def _finished(state: _State) -> Inverse:
    facts = state.facts()
    guards = list(state.guards)
    for name, (lo, hi) in state.solved.items():
        value = state.values[name]
        guards += [Binary("le", lo, value)] if lo is not None else []
        guards += [Binary("le", value, hi)] if hi is not None else []
    simple = dict.fromkeys(simplify(_strict(g), facts) for g in guards)
    values = {n: simplify(v, facts) for n, v in state.values.items()}
    return Inverse(values, state.ranges, tuple(g for g in simple if g != TRUE))


def _strict(guard: Expr) -> Expr:
    """x <= n - 1 as x < n, the form in which td.pad tests an index."""
    match guard:
        case Binary("le", x, hi) if not isinstance(x, Const):
            return Binary("lt", x, add(hi, ONE))
        case _:
            return guard


def _solve_one(state: _State) -> list[_State] | None:
    """The states after one more step; None if no equation can be solved."""
    order = sorted(range(len(state.equations)), key=lambda n: len(as_sum(state.equations[n][1]).terms))
    for step in (_bare, _digit, _operand, _quotient, _longest):
        for n in order:
            following = step(state, n)
            if following is not None:
                return following
    return None


def _bare(state: _State, n: int) -> list[_State] | None:
    """Solve an equation with a single variable."""
    _, index = state.equations[n]
    match list(as_sum(index).terms.items()):
        case [(Var(name), c)]:
            return [_solve_for(state, n, name, c, AffineSum())]
        case _:
            return None


def _solve_for(state: _State, n: int, name: str, c: int, rest: AffineSum) -> _State:
    """Solve target = c * variable + rest for the variable."""
    target, _ = state.equations[n]
    numerator = as_expr(as_sum(target).plus(rest, -1).times(1 if c > 0 else -1))
    state = replace(state, equations=state.equations[:n] + state.equations[n + 1 :])
    if abs(c) == 1:
        return state.solve(name, numerator)
    k = const(abs(c))
    return state.solve(
        name, Binary("floordiv", numerator, k), Binary("eq", Binary("mod", numerator, k), ZERO)
    )


def _operand(state: _State, n: int) -> list[_State] | None:
    """Solve for the variable that is the operand of an inverted quotient or remainder."""
    _, index = state.equations[n]
    s = as_sum(index)
    match [(a, c) for a, c in s.terms.items() if not (isinstance(a, Var) and is_fresh(a.name))]:
        case [(Var(name) as v, 1 | -1 as c)]:
            return [_solve_for(state, n, name, c, s.without(v))]
        case _:
            return None


def _digit(state: _State, n: int) -> list[_State] | None:
    """Split target = c * x + rest with 0 <= rest < c into target // c = x and target % c = rest."""
    target, index = state.equations[n]
    s = as_sum(index)
    atom, c = max(s.terms.items(), key=lambda item: item[1])
    if c <= 1 or len(s.terms) == 1:
        return None
    rest = as_expr(s.without(atom))
    lo, hi = interval_of(rest, state.ranges)
    if lo is None or hi is None or not (at_most(ZERO, lo) and at_most(hi, const(c - 1))):
        return None
    state = state.with_equation(n, Binary("floordiv", target, const(c)), atom)
    return [replace(state, equations=(*state.equations, (Binary("mod", target, const(c)), rest)))]


def _quotient(state: _State, n: int) -> list[_State] | None:
    """Replace a quotient, remainder or padded index in an equation by its operand."""
    target, index = state.equations[n]
    s = as_sum(index)
    for atom, c in s.terms.items():
        if isinstance(atom, Var) or has_data(atom):
            continue
        # the atom is `value`, an expression of the target and the other terms
        value, guards = as_expr(as_sum(target).plus(s.without(atom), -1).times(1 if c > 0 else -1)), []
        if abs(c) > 1:
            guards.append(Binary("eq", Binary("mod", value, const(abs(c))), ZERO))
            value = Binary("floordiv", value, const(abs(c)))
        preimages = preimages_of(
            atom, value, state.solved | state.ranges
        )  # new names differ from all of them
        if preimages is not None:
            x = preimages.operand
            return [
                replace(
                    state.with_equation(n, p.value, x, *guards, *p.guards), ranges=state.ranges | p.ranges
                )
                for p in preimages.parts
            ]
    return None


def _longest(state: _State, n: int) -> list[_State] | None:
    """Solve for the variable with the longest range; the others remain."""
    _, index = state.equations[n]
    s = as_sum(index)
    solvable = [a for a in s.terms if isinstance(a, Var) and a.name not in variables(as_expr(s.without(a)))]
    if not solvable:
        return None
    longest = max(solvable, key=lambda v: _length(state.ranges[v.name]))
    return [_solve_for(state, n, longest.name, s.terms[longest], s.without(longest))]


def _length(interval: Interval) -> int:
    lo, hi = interval
    length = None if lo is None or hi is None else subtract(hi, lo)
    return int(length.value) if isinstance(length, Const) else _LONG


_LONG = 1 << 40  # the assumed length of a range with a symbolic end
