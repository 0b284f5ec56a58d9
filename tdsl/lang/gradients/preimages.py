"""`preimages_of`: which operands a quotient, a remainder or a clipped index maps to a given value.

x // k = v      x = k * v + t for t in 0..k - 1
x % n = v       x = n * q + v
clip(x) = v     x = v; if v is the first index, all x below; if it is the last, all x above
reflected       x = v + p * q, and x = p * q - v, for the period p
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import field

from tdsl.core.node import frozen
from tdsl.lang.affine import variables
from tdsl.lang.bounds import NO_FACTS, at_most
from tdsl.lang.expr import ONE, ZERO, Binary, Call, Const, Expr, Var, const
from tdsl.lang.regions import Interval, interval_of
from tdsl.lang.simplify import add, maximum, minimum, multiply, subtract

_MOST_PARTS = 3  # values of a variable of one part that become parts of their own


@frozen
class Preimage:
    """Operands `value`, for all values of the variables in `ranges`, if all `guards` hold."""

    value: Expr
    guards: tuple[Expr, ...] = ()
    ranges: dict[str, Interval] = field(default_factory=dict)


@frozen
class Preimages:
    """All operands that an operator maps to a value: disjoint parts."""

    operand: Expr
    parts: tuple[Preimage, ...]


def preimages_of(e: Expr, v: Expr, ranges: Mapping[str, Interval]) -> Preimages | None:
    """The values of the operand of `e` for which `e` is `v`; None if they are not known.

    >>> from tdsl.lang.show import show_expr
    >>> half = preimages_of(Binary("floordiv", Var("x"), const(2)), Var("u"), {"x": (ZERO, const(9))})
    >>> show_expr(half.parts[0].value), list(half.parts[0].ranges)
    ('u * 2 + rest 0', ['rest 0'])
    """
    match e:
        case Binary("floordiv", x, Const(k)) if k > 0:
            t = _fresh("rest", ranges)
            value = add(multiply(const(k), v), Var(t))
            return Preimages(x, (Preimage(value, (), {t: (ZERO, const(k - 1))}),))
        case Binary("mod", x, Const() as n) | Call("pad_wrap", (x, n)) if at_most(ONE, n, _POSITIVE):
            inside = (Binary("le", ZERO, v), Binary("lt", v, n))
            return _preimages(x, _periodic(v, n, inside, n, interval_of(x, ranges), ranges))
        case Call("pad_symmetric", (x, n)):
            inside, period = (Binary("le", ZERO, v), Binary("lt", v, n)), add(n, n)
            forth = _periodic(v, n, inside, period, interval_of(x, ranges), ranges)
            back = _periodic(
                subtract(subtract(period, ONE), v), n, inside, period, interval_of(x, ranges), ranges
            )
            return None if forth is None or back is None else Preimages(x, (*forth, *back))
        case Call("pad_reflect", (x, Const(n))) if n > 1:
            inside = Binary("le", ZERO, v), Binary("lt", v, const(n))
            between = Binary("lt", ZERO, v), Binary("lt", v, const(n - 1))
            forth, back = (
                _periodic(y, const(n), guards, const(2 * n - 2), interval_of(x, ranges), ranges)
                for y, guards in ((v, inside), (subtract(const(2 * n - 2), v), between))
            )
            return None if forth is None or back is None else Preimages(x, (*forth, *back))
        case Call("pad_reflect", (x, Const(1))):
            return _preimages(x, _clipped(v, ZERO, ZERO, interval_of(x, ranges), ranges))
        case Binary("max" | "min"):
            y, low, high = _limits(e, ranges)
            parts = None if y is None else _clipped(v, low, high, interval_of(y, ranges), ranges)
            return None if y is None else _preimages(y, parts)
        case _:
            return None


_POSITIVE = NO_FACTS.with_positive_sizes()


def _preimages(x: Expr, parts: tuple[Preimage, ...] | None) -> Preimages | None:
    return None if parts is None else Preimages(x, parts)


def _fresh(name: str, ranges: Mapping[str, Interval]) -> str:
    """A name that no variable has yet."""
    count = 0
    while f"{name} {count}" in ranges:
        count += 1
    return f"{name} {count}"


def is_fresh(name: str) -> bool:
    """True for the name of a variable that an inversion has introduced."""
    return " " in name


def _periodic(
    v: Expr, n: Expr, guards: tuple[Expr, ...], period: Expr, x: Interval, ranges: Mapping[str, Interval]
) -> tuple[Preimage, ...] | None:
    """The x = v + period * q in an interval, for v in 0..period - 1 that belong to 0..n - 1."""
    lo, hi = x
    if lo is None or hi is None:
        return None
    if isinstance(period, Const) and isinstance(lo, Const) and isinstance(hi, Const):
        first, last = (int(end.value) // int(period.value) for end in (lo, hi))
    elif at_most(subtract(ZERO, n), lo, _POSITIVE) and at_most(hi, subtract(add(n, n), ONE), _POSITIVE):
        first = 0 if at_most(ZERO, lo, _POSITIVE) else -1
        last = 0 if at_most(hi, subtract(n, ONE), _POSITIVE) else 1
    else:
        return None
    if last - first < _MOST_PARTS:
        steps = range(first, last + 1)
        return tuple(Preimage(add(v, multiply(period, const(q))), guards) for q in steps)
    q = _fresh("period", ranges)
    value = add(v, multiply(period, Var(q)))
    return (Preimage(value, guards, {q: (const(first), const(last))}),)


def _limits(e: Expr, ranges: Mapping[str, Interval]) -> tuple[Expr | None, Expr | None, Expr | None]:
    """(x, lo, hi) if `e` is x limited to lo..hi by invariant ends, of which one may be None."""
    lo = hi = None
    while isinstance(e, Binary) and e.op in ("min", "max"):
        left, right = (bool(variables(x) & ranges.keys()) for x in (e.left, e.right))
        if left == right:
            return None, None, None
        x, end = (e.left, e.right) if left else (e.right, e.left)
        if e.op == "min":
            hi = end if hi is None else minimum(hi, end)
        else:
            lo = end if lo is None else maximum(lo, end)
        e = x
    return e, lo, hi


def _clipped(
    v: Expr, lo: Expr | None, hi: Expr | None, x: Interval, ranges: Mapping[str, Interval]
) -> tuple[Preimage, ...] | None:
    guards = [Binary("le", lo, v)] if lo is not None else []
    guards += [Binary("le", v, hi)] if hi is not None else []
    parts = [Preimage(v, tuple(guards))]
    for end, sign, outermost in ((lo, -1, x[0]), (hi, 1, x[1])):
        if end is None:
            continue
        beyond = None if outermost is None else subtract(outermost, end)
        if not isinstance(beyond, Const):
            return None
        parts += _beyond(v, end, sign, sign * int(beyond.value), ranges)
    return tuple(parts)


def _beyond(v: Expr, end: Expr, sign: int, count: int, ranges: Mapping[str, Interval]) -> Iterator[Preimage]:
    """The `count` operands beyond an end, all of which have the value `end`."""
    at_end = (Binary("eq", v, end),)
    if count < _MOST_PARTS:
        for t in range(1, count + 1):
            yield Preimage(add(end, const(sign * t)), at_end)
    else:
        fresh = _fresh("beyond", ranges)
        yield Preimage(add(end, multiply(const(sign), Var(fresh))), at_end, {fresh: (ONE, const(count))})
