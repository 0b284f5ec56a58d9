"""Bounds inference: the box of a tensor that is touched when loop variables run over given ranges.

    box = box_of(index, ranges)         one access
    boxes = boxes_of(exprs, ranges)     every tensor and func that the expressions read, boxes united

Bounds of producers, out-of-range errors, storage, sliding windows, footprints, traffic and messages are
all computed with this region function. A box may be larger than the exact set of points if an index is not
affine (`x % 3`, products of variables, data), if two indices of one access share a variable, or if several
accesses are united; it is never smaller.

An end of an interval is an index expression over names that are not in `ranges` (outer loop variables,
sizes), or None if unbounded. Ranges are inclusive.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from tdsl.core.node import Node, map_children, memoised, post_order, transform
from tdsl.lang.affine import (
    AffineSum,
    as_expr,
    as_sum,
    constant_bounds,
    fold_remainders,
    has_data,
    height,
    variables,
)  # fmt: skip
from tdsl.lang.bounds import MAX_HEIGHT, NO_FACTS, Facts, at_most, integer_operands, value_range
from tdsl.lang.expr import (
    ONE,
    TRUE,
    ZERO,
    Binary,
    Call,
    Cast,
    Const,
    Expr,
    Read,
    Select,
    Size,
    Unary,
    Var,
    const,
    dtype_of,
)  # fmt: skip
from tdsl.lang.periodic import PADDINGS, padded_interval, remainder_interval
from tdsl.lang.periodic import Interval as Interval
from tdsl.lang.simplify import (
    add,
    conjuncts,
    floordiv,
    last_quotient,
    maximum,
    minimum,
    multiply,
    simplify,
    subtract,
)  # fmt: skip
from tdsl.lang.types import i64

Ranges = Mapping[str, Interval]
Box = tuple[Interval, ...]
Indices = Mapping[str, tuple[tuple[Expr, ...], ...]]  # distinct indices by tensor and dimension

UNBOUNDED: Interval = (None, None)


def interval_of(e: Expr, ranges: Ranges, facts: Facts = NO_FACTS) -> Interval:
    """The smallest and the largest value of an index expression when its variables run over `ranges`.

    >>> from tdsl.lang.show import show_expr
    >>> x = Binary("add", Binary("mul", const(2), Var("x")), Var("t"))
    >>> lo, hi = interval_of(x, {"x": (ZERO, const(9))})
    >>> show_expr(lo), show_expr(hi)
    ('t', 't + 18')
    """
    known = ranges if isinstance(ranges, _MemoRanges) else _MemoRanges(ranges)
    if height(e) > MAX_HEIGHT:
        return memoised(known.intervals, e, lambda n: _interval_of(n, known, facts), integer_operands)
    if e not in known.intervals:
        known.intervals[e] = _interval_of(e, known, facts)
    return known.intervals[e]


class _MemoRanges(dict[str, Interval]):
    """Ranges of variables, with a memo table of the intervals of expressions."""

    def __init__(self, ranges: Ranges) -> None:
        dict.__init__(self, ranges)
        self.intervals: dict[Node, Interval] = {}
        self.where: dict[tuple[Expr, Expr], Interval] = {}


def _interval_of(e: Expr, ranges: Ranges, facts: Facts) -> Interval:
    numbers = constant_bounds(e, ranges)
    if numbers is not None:
        return numbers
    if not _is_varying(e, ranges):
        return _invariant(e, facts)
    if dtype_of(e) != i64:
        return _integer(e, ranges, facts)
    s = fold_remainders(as_sum(e))
    lo: Expr | None = const(s.constant)
    hi: Expr | None = const(s.constant)
    for atom, coefficient in s.terms.items():
        varies = _is_varying(atom, ranges)
        low, high = _atom_interval(atom, ranges, facts) if varies else _invariant(atom, facts)
        if coefficient < 0:
            low, high = high, low
        factor = const(coefficient)
        lo = None if lo is None or low is None else add(lo, multiply(low, factor, facts), facts)
        hi = None if hi is None or high is None else add(hi, multiply(high, factor, facts), facts)
    return lo, hi


def _is_varying(e: Expr, ranges: Ranges) -> bool:
    return not ranges.keys().isdisjoint(variables(e)) or has_data(e)


def _invariant(e: Expr, facts: Facts) -> Interval:
    simple = simplify(e if dtype_of(e) == i64 else Cast(e, i64), facts)
    return simple, simple


def _atom_interval(e: Expr, ranges: Ranges, facts: Facts) -> Interval:
    match e:
        case Var(name):
            return ranges[name]
        case Binary("floordiv", x, n) if not _is_varying(n, ranges) and at_most(ZERO, n, facts):
            lo, hi = interval_of(x, ranges, facts)
            last = last_quotient if lo is not None and at_most(ZERO, lo, facts) else floordiv
            first = None if lo is None else floordiv(lo, n, facts)
            return first, None if hi is None else last(hi, n, facts)
        case Binary("mod", x, Const(k)) if k > 0:
            return remainder_interval(interval_of(x, ranges, facts), k, facts)
        case Binary("mod", x, n) if not _is_varying(n, ranges):
            lo, hi = interval_of(x, ranges, facts)
            positive = lo is not None and at_most(ZERO, lo, facts)
            if positive and hi is not None and at_most(add(hi, ONE), n, facts):
                return lo, hi
            # the result has the sign of n
            return minimum(add(n, ONE), ZERO, facts), maximum(subtract(n, ONE), ZERO, facts)
        case Call(mode, (x, n)) if mode in PADDINGS:
            return padded_interval(mode, interval_of(x, ranges, facts), n, facts)
        case _:
            return _integer(e, ranges, facts)


def _read_interval(e: Expr, known: Interval, ranges: Ranges, facts: Facts) -> Interval:
    """The range `known` of a stored value, with each unknown end replaced by the bound of its type."""
    if None not in known:
        return known
    (lo, hi), (low, high) = known, _constant_interval(e, ranges, facts)
    return low if lo is None else lo, high if hi is None else hi


def _constant_interval(e: Expr, ranges: Ranges, facts: Facts) -> Interval:
    """Constant bounds by interval arithmetic and dtypes (`value_range`)."""
    lo, hi = value_range(e, _facts_of_ranges(ranges, facts))
    return None if lo is None else const(lo), None if hi is None else const(hi)


def _facts_of_ranges(ranges: Ranges, facts: Facts) -> Facts:
    for name, (lo, hi) in ranges.items():
        if lo is not None and hi is not None:
            facts = facts.with_range(name, lo, hi)
    return facts


def _integer(e: Expr, ranges: Ranges, facts: Facts) -> Interval:
    """The interval of an integer expression of any width: exact through min and max, else by its type."""
    match e:
        case Binary("min" | "max" as op, x, y):
            return _min_max(op, interval_of(x, ranges, facts), interval_of(y, ranges, facts), facts)
        case Select(_, yes, no):
            return union(interval_of(yes, ranges, facts), interval_of(no, ranges, facts), facts)
        case Cast(x, t, True) if dtype_of(x) == i64 and t.bits < 64:
            return interval_of(simplify(Cast(e, i64), facts), ranges, facts)
        case Cast(x) if not dtype_of(x).is_float:
            return _cast(e, ranges, facts)
        case Read(value_range=known) if known != UNBOUNDED:
            return _read_interval(e, known, ranges, facts)
        case _:
            return _constant_interval(e, ranges, facts)


def _cast(e: Cast, ranges: Ranges, facts: Facts) -> Interval:
    lo, hi = interval_of(e.x, ranges, facts)
    t = e.dtype
    if t == i64 and (dtype_of(e.x).kind != "u" or dtype_of(e.x).bits < 64):
        return lo, hi
    if lo is None or hi is None:
        return _constant_interval(e, ranges, facts)
    fits = at_most(const(int(t.low)), lo, facts) and at_most(hi, const(int(t.high)), facts)
    return (lo, hi) if fits else _constant_interval(e, ranges, facts)


def _quotient(inner: Interval, k: int, facts: Facts) -> Interval:
    first, last = (None if e is None else floordiv(e, const(k), facts) for e in inner)
    return first, last


def _min_max(op: str, a: Interval, b: Interval, facts: Facts) -> Interval:
    pick = minimum if op == "min" else maximum
    # an unbounded end of one operand: max(-inf, c) is c, max(inf, c) is inf, and vice versa for min
    ends: list[Expr | None] = []
    for side, (x, y) in enumerate(zip(a, b, strict=True)):
        if x is not None and y is not None:
            ends.append(pick(x, y, facts))
        elif (op == "max") == (side == 0):
            ends.append(y if x is None else x)
        else:
            ends.append(None)
    return ends[0], ends[1]


def modular_index(e: Expr) -> tuple[Expr, int] | None:
    """(x, n) if an index is `x % n` or padding in mode wrap, for a constant n > 0; else None."""
    match e:
        case Call("pad_wrap", (x, Const(n))) | Binary("mod", x, Const(n)) if n > 0:
            return x, int(n)
        case _:
            return None


def union(a: Interval, b: Interval, facts: Facts = NO_FACTS) -> Interval:
    """The smallest interval that contains both."""
    lo = None if a[0] is None or b[0] is None else minimum(a[0], b[0], facts)
    hi = None if a[1] is None or b[1] is None else maximum(a[1], b[1], facts)
    return lo, hi


def union_box(a: Box | None, b: Box, facts: Facts = NO_FACTS) -> Box:
    """The smallest box that contains both; None is the empty box."""
    return b if a is None else tuple(union(x, y, facts) for x, y in zip(a, b, strict=True))


def interval_where(e: Expr, ranges: Ranges, where: Expr, facts: Facts = NO_FACTS) -> Interval:
    """The interval of an index at the points where a condition holds.

    A comparison bounds every sum that it contains: if 8 * o + i < 37, the index 8 * o + i is at most 36 even
    if the ranges of o and i alone allow more.

    >>> x = Binary("add", Binary("mul", const(8), Var("o")), Var("i"))
    >>> runs = {"o": (ZERO, const(4)), "i": (ZERO, const(7))}
    >>> lo, hi = interval_where(x, runs, Binary("lt", x, const(37)))
    >>> lo.value, hi.value
    (0, 36)
    """
    known = ranges if isinstance(ranges, _MemoRanges) else _MemoRanges(ranges)
    if where == TRUE or height(e) > MAX_HEIGHT:
        return interval_of(e, known, facts)
    if (e, where) not in known.where:
        known.where[e, where] = _interval_where(e, known, where, facts)
    return known.where[e, where]


def _interval_where(e: Expr, ranges: Ranges, where: Expr, facts: Facts) -> Interval:
    s = whole = as_sum(e)
    known = _quotient_where(s, ranges, where, facts)
    parts: dict[str, Interval] = {}
    unfolded = fold_remainders(s).terms
    for atom, times in s.terms.items():
        folds = atom not in unfolded and isinstance(atom, Binary) and atom.op == "mod"
        inner = None if folds else _atom_where(atom, ranges, where, facts)
        if inner is not None:
            name = f"part {len(parts)}"
            parts[name] = inner
            s = s.without(atom).plus(AffineSum({Var(name): times}))
    ranges = {**ranges, **parts}
    lo, hi = interval_of(as_expr(s), ranges, facts)
    # terms that the condition shares with quotients cancel in `whole`, where these are not replaced by parts
    for d, candidate in itertools.product(nonpositive_sums(where), (s, whole) if parts else (s,)):
        shared = next((a for a in d.terms if a in candidate.terms), None)
        if shared is None:
            continue
        times, rest = divmod(candidate.terms[shared], d.terms[shared])
        if rest or not times:
            continue
        # d <= 0, so e <= e - times * d for times > 0, and e >= e - times * d for times < 0
        low, high = interval_of(as_expr(candidate.plus(d, -times)), ranges, facts)
        if times > 0 and high is not None:
            hi = high if hi is None else _tighter_bound("min", hi, high, lo, facts)
        if times < 0 and low is not None:
            lo = low if lo is None else _tighter_bound("max", lo, low, hi, facts)
    return intersection((lo, hi), known, facts)


def _tighter_bound(op: str, plain: Expr, implied: Expr, other: Expr | None, facts: Facts) -> Expr:
    """The tighter of two bounds; `implied` follows from a condition, `other` is the opposite end.

    It is `implied` alone if that is tighter for every size but 0, and the interval is empty for size 0; this
    keeps the bounds of nested tiles short.
    """
    both = minimum(plain, implied, facts) if op == "min" else maximum(plain, implied, facts)
    sizes = {n.name for e in (both, other) if e for n in post_order(e) if isinstance(n, Size)}
    if len(sizes) != 1 or both in (plain, implied) or other is None:
        return both
    first, last = (implied, plain) if op == "min" else (plain, implied)
    if not at_most(first, last, facts.with_positive_sizes()):
        return both
    left, right = (
        simplify(transform(e, lambda n: ZERO if isinstance(n, Size) else n), facts)
        for e in ((other, implied) if op == "min" else (implied, other))
    )
    return implied if is_empty((left, right), facts) else both


def _quotient_where(s: AffineSum, ranges: Ranges, where: Expr, facts: Facts) -> Interval:
    """The interval of rest + x // k, computed as that of (k * rest + x) // k, which a condition may bound."""
    for atom, times in s.terms.items():
        match atom:
            case Binary("floordiv", x, Const(k)) if k > 0 and times == 1 and len(s.terms) > 1:
                whole = as_expr(as_sum(x).plus(s.without(atom), int(k)))
                return _quotient(interval_where(whole, ranges, where, facts), k, facts)
    return UNBOUNDED


def _atom_where(atom: Expr, ranges: Ranges, where: Expr, facts: Facts) -> Interval | None:
    """The interval of an atom under a condition, by those of its operands; None for variables and reads."""
    match atom:
        case Binary("floordiv", x, Const(k)) if k > 0 and _is_varying(x, ranges):
            return _quotient(interval_where(x, ranges, where, facts), k, facts)
        case Binary("mod", x, Const(k)) if k > 0 and _is_varying(x, ranges):
            inner = interval_where(x, ranges, where, facts)
            return None if is_empty(inner, facts) else remainder_interval(inner, k, facts)
        case Call(mode, (x, n)) if mode in PADDINGS and _is_varying(x, ranges):
            inner = interval_where(x, ranges, where, facts)
            return None if is_empty(inner, facts) else padded_interval(mode, inner, n, facts)
        case Binary("min" | "max" as op, x, y) if _is_varying(atom, ranges) and dtype_of(x) == i64:
            a, b = (interval_where(z, ranges, where, facts) for z in (x, y))
            return _min_max(op, a, b, facts)
        case Unary() | Binary() | Select() | Cast() | Call() if _is_varying(atom, ranges):
            return _by_operands(atom, ranges, where, facts)
        case _:
            return None


def _by_operands(atom: Expr, ranges: Ranges, where: Expr, facts: Facts) -> Interval | None:
    """The interval of `abs`, a select, a cast or a product, each i64 operand bounded by a condition."""
    bounded = dict(ranges)

    def operand(x: Any) -> Any:
        if isinstance(x, Const | Read | Var) or dtype_of(x).kind not in "iu":
            return x
        if dtype_of(x) != i64:
            return map_children(x, operand)
        name = f"operand {len(bounded)}"
        bounded[name] = interval_where(x, ranges, where, facts)
        return Var(name)

    e = map_children(atom, operand)
    if len(bounded) == len(ranges) or any(is_empty(i, facts) for i in bounded.values()):
        return None
    return intersection(interval_of(e, bounded, facts), interval_of(atom, ranges, facts), facts)


def nonpositive_sums(cond: Expr) -> Iterator[AffineSum]:
    """The affine sums that are at most 0 where a condition holds, one or two for each i64 comparison."""
    for c in conjuncts(cond):
        match c:
            case Binary("lt" | "le" | "gt" | "ge" | "eq" as op, a, b) if dtype_of(a) == i64:
                d = as_sum(a).plus(as_sum(b), -1)
                if op in ("gt", "ge"):
                    d = d.times(-1)
                yield d.plus(AffineSum({}, 1)) if op in ("lt", "gt") else d
                if op == "eq":
                    yield d.times(-1)


def box_of(index: Iterable[Expr], ranges: Ranges, facts: Facts = NO_FACTS, where: Expr = TRUE) -> Box:
    """The box of the values of an index tuple, at the points where a condition holds."""
    return tuple(interval_where(e, ranges, where, facts) for e in index)


def intersection_box(a: Box, b: Box, facts: Facts = NO_FACTS) -> Box:
    """The intersection of two boxes."""
    return tuple(intersection(x, y, facts) for x, y in zip(a, b, strict=True))


def intersection(a: Interval, b: Interval, facts: Facts = NO_FACTS) -> Interval:
    """The intersection of two intervals."""
    (lo, hi), (low, high) = a, b
    first = lo if low is None else low if lo is None else maximum(lo, low, facts)
    last = hi if high is None else high if hi is None else minimum(hi, high, facts)
    return first, last


def free_range(name: str, index: Iterable[Expr], box: Box, facts: Facts = NO_FACTS) -> Interval:
    """The range of a free variable: the intersection of the box's dimensions that it indexes.

    >>> lo, hi = free_range("i", (Var("i"), Var("i")), ((ZERO, const(5)), (ONE, const(9))))
    >>> lo.value, hi.value
    (1, 5)
    """
    places = zip(index, box, strict=True)
    intervals = [interval for e, interval in places if isinstance(e, Var) and e.name == name]
    return functools.reduce(lambda a, b: intersection(a, b, facts), intervals)


def reads_in(exprs: Iterable[Expr]) -> Iterator[Read]:
    """Every read in the expressions, also inside indices."""
    for n in post_order(*exprs):
        if isinstance(n, Read):
            yield n


def boxes_of_reads(
    exprs: Iterable[Expr], ranges: Ranges, facts: Facts = NO_FACTS, where: Expr = TRUE
) -> dict[str, Box]:
    """For each tensor or func that the expressions read, a box around all reads.

    Only points where the condition holds count.

    >>> a = lambda x: Read("a", (x,), 0, i64)
    >>> i = Var("i")
    >>> e = Binary("add", a(Binary("sub", i, ONE)), a(Binary("add", i, ONE)))
    >>> [(lo.value, hi.value) for lo, hi in boxes_of_reads([e], {"i": (ZERO, const(9))})["a"]]
    [(-1, 10)]
    """
    return boxes_of(indices_in(reads_in(exprs)), ranges, facts, where)


def indices_in(reads: Iterable[Read]) -> Indices:
    """The distinct indices of each tensor and func in each dimension (few, also for stencils)."""
    indices: dict[str, tuple[dict[Expr, None], ...]] = {}
    for r in reads:
        axes = indices.setdefault(r.name, tuple({} for _ in r.index))
        for e, axis in zip(r.index, axes, strict=True):
            axis[e] = None
    return {name: tuple(map(tuple, axes)) for name, axes in indices.items()}


def boxes_of(indices: Indices, ranges: Ranges, facts: Facts = NO_FACTS, where: Expr = TRUE) -> dict[str, Box]:
    """`boxes_of_reads`, given the indices of the reads instead of the expressions."""
    interval = functools.cache(lambda e: interval_where(e, ranges, where, facts))
    unite = functools.partial(functools.reduce, lambda a, b: union(a, b, facts))

    def box(axes: tuple[tuple[Expr, ...], ...]) -> Box:
        unique = (dict.fromkeys(map(interval, a)) if len(a) > 1 else map(interval, a) for a in axes)
        return tuple(map(unite, unique))

    return {name: box(axes) for name, axes in indices.items()}


def restrict_ranges(ranges: Ranges, cond: Expr, facts: Facts = NO_FACTS, v: str = "") -> dict[str, Interval]:
    """Ranges restricted by a condition: each comparison bounds each variable (a single one only a given `v`).

    >>> r = restrict_ranges({"i": (ZERO, const(9))}, Binary("lt", multiply(const(2), Var("i")), const(7)))
    >>> r["i"][1].value
    3
    """
    result, sums = dict(ranges), list(nonpositive_sums(cond))
    for d in sums:
        _restrict(result, d, facts, {v} if v and len(sums) == 1 else {*ranges})
    return result


def _restrict(ranges: dict[str, Interval], d: AffineSum, facts: Facts, names: set[str]) -> None:
    """Restrict the range of each variable in `names` in turn, by d <= 0; changes `ranges`."""
    for name in [a.name for a in d.terms if isinstance(a, Var) and a.name in names]:
        c = d.terms[Var(name)]
        rest = d.without(Var(name))
        others = {n: r for n, r in ranges.items() if n != name}
        if name in variables(as_expr(rest)):
            continue
        least, _ = interval_of(as_expr(rest), others, facts)
        if least is None:
            continue
        lo, hi = ranges[name]
        bound = subtract(ZERO, least, facts)  # c * v <= bound
        if c > 0:
            limit = floordiv(bound, const(c), facts)
            ranges[name] = (lo, limit if hi is None else minimum(hi, limit, facts))
        else:
            limit = subtract(ZERO, floordiv(bound, const(-c), facts), facts)
            ranges[name] = (limit if lo is None else maximum(lo, limit, facts), hi)


def is_empty(interval: Interval, facts: Facts = NO_FACTS) -> bool:
    """True if an interval is proved empty."""
    lo, hi = interval
    if isinstance(lo, Const) and isinstance(hi, Const):
        return int(hi.value) < int(lo.value)
    return lo is not None and hi is not None and at_most(add(hi, ONE), lo, facts)
