"""Integer solutions of systems of linear constraints: Fourier-Motzkin elimination, then a search.

A constraint is a `LinearForm` that is at least 0, or equal to 0. Elimination detects systems without a real
solution; for others integer values are tried, the last eliminated variable first. The answer is exact except
where the search exceeds its budget: `UNKNOWN`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import field
from math import gcd

from tdsl.core.node import frozen

Name = tuple[object, ...]
Point = dict[Name, int]
_MAX_CONSTRAINTS = 400  # constraints of a system beyond which the result is UNKNOWN
_MAX_TRIES = 2000  # values that a search tries, of all variables together
_FROM_END = 8  # values that a search tries of a half-bounded variable


@frozen
class LinearForm:
    """constant + the sum of coefficient * variable; no coefficient is 0."""

    terms: Mapping[Name, int] = field(default_factory=dict)
    constant: int = 0

    def plus(self, other: LinearForm, times: int = 1) -> LinearForm:
        """self + times * other."""
        terms = dict(self.terms)
        for name, c in other.terms.items():
            terms[name] = terms.get(name, 0) + times * c
        return LinearForm({n: c for n, c in terms.items() if c}, self.constant + times * other.constant)

    def less(self, constant: int) -> LinearForm:
        """self - constant."""
        return LinearForm(self.terms, self.constant - constant)

    def at(self, point: Mapping[Name, int]) -> int:
        """The value at a point."""
        return self.constant + sum(c * point[n] for n, c in self.terms.items())


class Unknown:
    """The result of a search that exceeded its budget: a point may exist."""


UNKNOWN = Unknown()


def find_point(zero: Iterable[LinearForm], least: Iterable[LinearForm]) -> Point | Unknown | None:
    """An integer point at which all of `zero` are 0 and all of `least` are >= 0; None if none exists.

    >>> i, j = LinearForm({("i",): 1}), LinearForm({("j",): 1})
    >>> below = [i, j.plus(i, -1).less(1), LinearForm({}, 9).plus(j, -1)]  # 0 <= i < j <= 9
    >>> sorted(find_point([i.plus(j, -2).less(-11)], below).items())  # i + 11 == 2 * j
    [(('i',), 1), (('j',), 6)]
    >>> find_point([LinearForm({("i",): 2, ("j",): -4}, 1)], below) is None
    True
    """
    eliminated: list[tuple[Name, LinearForm]] = []
    equal, system = list(zero), list(least)
    while equal:
        e = equal.pop()
        if not e.terms:
            if e.constant:
                return None
            continue
        g = gcd(*e.terms.values())
        if e.constant % g:
            return None
        e = LinearForm({n: c // g for n, c in e.terms.items()}, e.constant // g)
        name = next((n for n, c in e.terms.items() if abs(c) == 1), None)
        if name is None:
            system += [e, LinearForm().plus(e, -1)]
            continue
        # solve e == 0 for `name` and substitute
        c = e.terms[name]
        value = LinearForm().plus(LinearForm({n: k for n, k in e.terms.items() if n != name}, e.constant), -c)
        eliminated.append((name, value))
        equal = [_substitute(x, name, value) for x in equal]
        system = [_substitute(x, name, value) for x in system]
    point = _search(system)
    if isinstance(point, dict):
        for name, value in reversed(eliminated):
            for n in value.terms:
                point.setdefault(n, 0)
            point[name] = value.at(point)
    return point


def _substitute(e: LinearForm, name: Name, value: LinearForm) -> LinearForm:
    c = e.terms.get(name)
    if c is None:
        return e
    return LinearForm({n: k for n, k in e.terms.items() if n != name}, e.constant).plus(value, c)


def _drop_implied(system: Iterable[LinearForm]) -> list[LinearForm] | None:
    """The system without constraints that another one implies; None if a constant constraint is false."""
    tight: dict[frozenset[tuple[Name, int]], int] = {}
    for e in system:
        if not e.terms:
            if e.constant < 0:
                return None
            continue
        g = gcd(*e.terms.values())
        key = frozenset((n, c // g) for n, c in e.terms.items())
        tight[key] = min(tight.get(key, e.constant // g), e.constant // g)
    return [LinearForm(dict(key), c) for key, c in tight.items()]


def _search(system: list[LinearForm]) -> Point | Unknown | None:
    """An integer point at which all of a system are >= 0; None if none exists, UNKNOWN if out of budget."""
    levels: list[tuple[Name, list[LinearForm]]] = []
    now = _drop_implied(system)
    while now:
        name = min(
            {n: _elimination_growth(now, n) for e in now for n in e.terms}.items(),
            key=lambda x: x[1],
        )[0]
        levels.append((name, [e for e in now if name in e.terms]))
        low = [e for e in now if e.terms.get(name, 0) > 0]
        high = [e for e in now if e.terms.get(name, 0) < 0]
        rest = [e for e in now if name not in e.terms]
        for a in low:
            for b in high:
                scaled = LinearForm().plus(a, -b.terms[name]).plus(b, a.terms[name])
                rest.append(LinearForm({n: c for n, c in scaled.terms.items() if n != name}, scaled.constant))
        now = _drop_implied(rest)
        if now is not None and len(now) > _MAX_CONSTRAINTS:
            return UNKNOWN
    if now is None:
        return None
    budget = [_MAX_TRIES]
    point: Point = {}
    whole = _assign(levels, len(levels) - 1, point, budget)
    if whole is None:
        return None
    return point if whole else UNKNOWN


def _elimination_growth(system: list[LinearForm], name: Name) -> int:
    low = sum(e.terms.get(name, 0) > 0 for e in system)
    high = sum(e.terms.get(name, 0) < 0 for e in system)
    return low * high - low - high


def _assign(
    levels: list[tuple[Name, list[LinearForm]]], n: int, point: Point, budget: list[int]
) -> bool | None:
    """Assign variables n .. 0 in `point`: True on success, None if impossible, False if out of budget."""
    if n < 0:
        return True
    name, system = levels[n]
    cut = False
    for value in _candidate_values(name, system, point):
        if value is None or budget[0] <= 0:
            cut = True
            break
        budget[0] -= 1
        point[name] = value
        done = _assign(levels, n - 1, point, budget)
        if done:
            return True
        cut = cut or done is False
    point.pop(name, None)
    return False if cut else None


def _candidate_values(name: Name, system: list[LinearForm], point: Point) -> Iterator[int | None]:
    """The values of a variable that satisfy its constraints; if unbounded, some of them and then None."""
    lo: int | None = None
    hi: int | None = None
    for e in system:
        c = e.terms[name]
        # a variable without a level may have any value: `name` is unbounded on one side
        rest = e.constant + sum(k * point.setdefault(n, 0) for n, k in e.terms.items() if n != name)
        if c > 0:
            lo = -(rest // c) if lo is None else max(lo, -(rest // c))
        else:
            hi = rest // -c if hi is None else min(hi, rest // -c)
    if lo is not None and hi is not None:
        yield from range(lo, hi + 1)
        return
    if lo is not None:
        yield from range(lo, lo + _FROM_END)
    elif hi is not None:
        yield from range(hi, hi - _FROM_END, -1)
    else:
        yield from (0, 1, -1)
    yield None
