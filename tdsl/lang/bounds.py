"""Constant bounds of index expressions for given ranges of their variables, and proofs of inequalities.

A difference is bounded as one affine sum, so that common terms of two expressions cancel first; min and max
are bounded operand by operand, so `min(16 * t + 18, n) - max(16 * t, 1)` is at most 18 for any t.
"""

from __future__ import annotations

from dataclasses import field

from tdsl.core.node import Memo, children, frozen, memoised
from tdsl.lang.affine import AffineSum, as_sum, height, may_wrap
from tdsl.lang.bitwise_bounds import and_bounds, or_bounds, xor_bounds
from tdsl.lang.expr import (
    COMPARISONS,
    Binary,
    Broadcast,
    Call,
    Cast,
    Const,
    Expr,
    Load,
    Param,
    Ramp,
    Read,
    Select,
    Size,
    Unary,
    Var,
    dtype_of,
)  # fmt: skip
from tdsl.lang.types import DType

Bounds = tuple[int | None, int | None]

MAX_HEIGHT = 32  # height of an expression up to which recursion is used
_MAX_ATOM_DEPTH = 16  # nested quotients and remainders that are bounded in terms of their operands
_MAX_ARMS = 64  # min/max combinations tried before each atom is bounded independently


@frozen
class Facts:
    """Inclusive ranges of variables, outermost first: a range refers only to variables before it.

    Named sizes are at least `min_size`. `bounds`, `values`, `proofs` and `simple` are memo tables: constant
    bounds of i64 indices and of any integer expression, results of `at_most`, simplified indices. Equal facts
    are one object, so that successive passes share these tables.
    """

    ranges: dict[str, tuple[Expr, Expr]] = field(default_factory=dict)
    min_size: int = 0
    bounds: Memo[tuple[Expr, bool], int | None] = field(default_factory=Memo, compare=False, repr=False)
    values: Memo[Expr, Bounds] = field(default_factory=Memo, compare=False, repr=False)
    proofs: Memo[tuple[Expr, Expr], bool] = field(default_factory=Memo, compare=False, repr=False)
    simple: Memo[Expr, Expr] = field(default_factory=Memo, compare=False, repr=False)

    def with_range(self, name: str, lo: Expr, hi: Expr) -> Facts:
        """These facts, extended by lo <= name <= hi."""
        return _shared_facts({**self.ranges, name: (lo, hi)}, self.min_size)

    def with_positive_sizes(self) -> Facts:
        """These facts, extended by the assumption that no named size is 0."""
        return _shared_facts(self.ranges, min_size=1)


def _shared_facts(ranges: dict[str, tuple[Expr, Expr]], min_size: int) -> Facts:
    key = (min_size, *ranges.items())
    facts = _FACTS.get(key)
    if facts is None:
        if len(_FACTS) >= _MAX_FACTS:
            _FACTS.clear()
        facts = _FACTS[key] = Facts(ranges, min_size)
    return facts


def clear_facts() -> None:
    """Free the cache of facts, with their memo tables."""
    _FACTS.clear()


_FACTS: dict[tuple[object, ...], Facts] = {}
_MAX_FACTS = 1000  # entries of the cache; about as many as one program uses at a time

NO_FACTS = Facts()
_MISSING = object()


def upper(e: Expr, facts: Facts = NO_FACTS) -> int | None:
    """A constant upper bound of `e`, or None.

    >>> from tdsl.lang.expr import const
    >>> upper(Binary("sub", Var("i"), const(1)), NO_FACTS.with_range("i", const(0), const(9)))
    8
    """
    return _cached_bound(e, facts, rising=True)


def lower(e: Expr, facts: Facts = NO_FACTS) -> int | None:
    """A constant lower bound of `e`, or None."""
    return _cached_bound(e, facts, rising=False)


def _cached_bound(e: Expr, facts: Facts, *, rising: bool) -> int | None:
    if isinstance(e, Const):
        return int(e.value)
    key = (e, rising)
    bound = facts.bounds.get(key, _MISSING)
    if bound is _MISSING:
        _bound_operands(e, facts)
        bound = _upper(as_sum(e) if rising else as_sum(e).times(-1), facts, _MAX_ARMS)
        bound = facts.bounds[key] = bound if rising or bound is None else -bound
    return bound  # type: ignore[return-value]  # the object that is not in the memo is replaced above


def _bound_operands(e: Expr, facts: Facts) -> None:
    """Bound the operands of a deep expression from the leaves up, to limit the depth of recursion."""
    if height(e) > MAX_HEIGHT:
        for x in integer_operands(e):
            memoised(facts.values, x, lambda n: _value_range(n, facts), integer_operands)


def integer_operands(e: Expr) -> list[Expr]:
    """The integer operands of an expression from which its bounds are computed."""
    match e:
        case Select(_, yes, no):
            operands: tuple[Expr, ...] = (yes, no)
        case Binary(op) if op in COMPARISONS:
            operands = ()
        case Binary() | Unary() | Cast() | Broadcast() | Ramp() | Call():
            operands = children(e)  # type: ignore[assignment]  # of an expression
        case _:
            operands = ()
    return [x for x in operands if not dtype_of(x).is_float]


def at_most(a: Expr, b: Expr, facts: Facts = NO_FACTS) -> bool:
    """True if a <= b is proved; False says nothing."""
    if isinstance(a, Const) and isinstance(b, Const):
        return int(a.value) <= int(b.value)
    proved = facts.proofs.get((a, b))
    if proved is None:
        d = as_sum(a).plus(as_sum(b), -1)
        for e in (a, b):
            _bound_operands(e, facts)
        bound = _upper(d, facts, _MAX_ARMS) if d.terms else d.constant
        proved = facts.proofs[a, b] = bound is not None and bound <= 0
    return proved


def _upper(s: AffineSum, facts: Facts, arms: int, atoms: int = _MAX_ATOM_DEPTH) -> int | None:
    choice = _min_max_or_select(s) if arms > 1 else None
    if choice is not None:
        atom, first, second, larger = choice
        rest, coefficient = s.without(atom), s.terms[atom]
        left = _upper(rest.plus(as_sum(first), coefficient), facts, arms // 2, atoms)
        right = _upper(rest.plus(as_sum(second), coefficient), facts, arms // 2, atoms)
        if not larger:
            return _smaller_bound(left, right)
        return None if left is None or right is None else max(left, right)
    for atom, coefficient in s.terms.items():
        if not isinstance(atom, Var | Size):
            without = _cancel_atom(s, facts)
            if without is not None:
                return _upper(without, facts, arms, atoms)
            limits = _atom_bounds(atom, coefficient, facts, atoms > 0)
            if arms <= 1:
                limits = limits[:1]
            factor = 1
            match atom:
                case Binary("floordiv", _, Const(k)) if k > 0 and coefficient % k and arms > 1:
                    factor = int(k) if atoms > 0 else 1
            rest, each = s.without(atom), arms // max(len(limits) + (factor > 1), 1)
            bounds = [_upper(rest.plus(limit), facts, each, atoms - 1) for limit in limits]
            if factor > 1:
                whole = _upper(
                    s.times(factor), facts, each, atoms - 1
                )  # k * (x // k) differs from x by less than k
                bounds.append(None if whole is None else whole // factor)
            return min((b for b in bounds if b is not None), default=None)
    if not s.terms:
        return s.constant
    unknown = [atom for atom in s.terms if isinstance(atom, Var)]
    if not unknown:  # sizes come last, since ranges of variables may cancel them
        if any(c > 0 for c in s.terms.values()):
            return None
        return s.constant + facts.min_size * sum(s.terms.values())
    if any(v.name not in facts.ranges for v in unknown):
        return None
    v = unknown[0] if len(unknown) == 1 else _innermost(unknown, facts)
    lo, hi = facts.ranges[v.name]
    coefficient = s.terms[v]
    return _upper(s.without(v).plus(as_sum(hi if coefficient > 0 else lo), coefficient), facts, arms, atoms)


def _cancel_atom(s: AffineSum, facts: Facts) -> AffineSum | None:
    """An upper bound of `s` in which the bound of a variable cancels an atom; None if no atom cancels.

    4 * (i // 2) - 2 * d for d up to 2 * (i // 2) + 1 is at least -2, for any i // 2.
    """
    for v, coefficient in s.terms.items():
        if isinstance(v, Var) and v.name in facts.ranges:
            end = as_sum(facts.ranges[v.name][coefficient > 0])
            for atom, times in end.terms.items():
                if not isinstance(atom, Var | Size) and s.terms.get(atom) == -times * coefficient:
                    return s.without(v).plus(end, coefficient)
    return None


def _innermost(variables: list[Var], facts: Facts) -> Var:
    by_name = {v.name: v for v in variables}
    return next(by_name[name] for name in reversed(facts.ranges) if name in by_name)


def _min_max_or_select(s: AffineSum) -> tuple[Expr, Expr, Expr, bool] | None:
    """An atom of two operands (min, max, select), and whether the larger operand bounds the sum.

    Such atoms are returned before those bounded by the smaller operand: that operand may then differ for each
    operand of the former, which gives a tighter bound.
    """
    smaller: tuple[Expr, Expr, Expr, bool] | None = None
    for atom, coefficient in s.terms.items():
        match atom:
            case Select(_, yes, no):
                return atom, yes, no, True
            case Binary("min" | "max" as op, x, y):
                if (op == "max") == (coefficient > 0):
                    return atom, x, y, True
                smaller = smaller or (atom, x, y, False)
            case _:
                pass
    return smaller


def _smaller_bound(a: int | None, b: int | None) -> int | None:
    if a is None or b is None:
        return b if a is None else a
    return min(a, b)


def _atom_bounds(atom: Expr, coefficient: int, facts: Facts, inside: bool) -> list[AffineSum]:
    """Upper bounds of coefficient * atom: constants and, if `inside`, sums over the atom's operand."""
    limits: list[AffineSum] = []
    match atom:
        case Binary("floordiv", x, Const(k)) if inside and k > 0 and coefficient % k == 0:
            m = coefficient // k  # k * (x // k) is between x - (k - 1) and x
            limits.append(as_sum(x).times(m).plus(AffineSum({}, 0 if m > 0 else -m * (k - 1))))
            if m > 0:
                top = upper(x, facts) if isinstance(x, Var) else None
                return limits if top is None else [*limits, AffineSum({}, coefficient * (top // int(k)))]
        case Binary("mod", x, Const(k)) if k > 0 and not _is_below(x, k, facts):
            return [AffineSum({}, max(coefficient * (k - 1), 0))]
        case Binary("mod", x, Const(k)) if inside and k > 0:
            return [as_sum(x).times(coefficient)]
    bound = value_range(atom, facts)[1 if coefficient > 0 else 0]
    return limits if bound is None else [*limits, AffineSum({}, coefficient * bound)]


def _is_below(x: Expr, k: int, facts: Facts) -> bool:
    lo, hi = lower(x, facts), upper(x, facts)
    return lo is not None and hi is not None and lo >= 0 and hi < k


def value_range(e: Expr, facts: Facts = NO_FACTS) -> Bounds:
    """Constant bounds of an integer or bool expression, by interval arithmetic and its dtype.

    >>> from tdsl.lang.types import u8, i64
    >>> value_range(Cast(Param("p", u8), i64))
    (0, 255)
    """
    bounds = facts.values.get(e)
    if bounds is None:
        _bound_operands(e, facts)
        bounds = facts.values[e] = _value_range(e, facts)
    return bounds


def _value_range(e: Expr, facts: Facts) -> Bounds:
    match e:
        case Ramp(base, step, lanes):
            furthest = step * (lanes - 1)
            first, last = lower(base, facts), upper(base, facts)
            return _add_bounds(first, min(furthest, 0)), _add_bounds(last, max(furthest, 0))
        case Broadcast(x):
            return _operand_range(x, facts)
        case Binary(op, x, Broadcast(y)):
            return value_range(Binary(op, x, y), facts)
        case _:
            return _scalar_range(e, facts)


def _scalar_range(e: Expr, facts: Facts) -> Bounds:
    """`value_range` of a scalar expression, by its top node."""
    match e:
        case Const(value):
            return int(value), int(value)
        case Size():
            return facts.min_size, None
        case Binary() | Unary() if may_wrap(e):
            return None, None
        case Binary(op) if op in COMPARISONS:
            return 0, 1
        case Binary("floordiv", x, Const(k)) if k > 0:
            lo, hi = _operand_range(x, facts)
            return None if lo is None else lo // k, None if hi is None else hi // k
        case Binary("floordiv", x, n) if (least := lower(n, facts)) is not None and least >= 0:
            lo, hi = _operand_range(x, facts)
            k = max(least, 1)
            return None if lo is None else min(lo // k, 0), None if hi is None else max(hi // k, 0)
        case Binary("mod", _, Const(k)) if k > 0:
            lo, hi = _operand_range(e.left, facts)
            inside = lo is not None and hi is not None and lo >= 0 and hi < k
            return (lo, hi) if inside else (0, k - 1)
        case Binary("mod", _, n) if (least := lower(n, facts)) is not None and least >= 0:
            most = upper(n, facts)
            return 0, None if most is None else max(most - 1, 0)
        case Binary("mul", x, y):
            return _within_dtype(e, _product_range(_operand_range(x, facts), _operand_range(y, facts)))
        case Binary("min" | "max" as op, x, y):
            return _min_max_range(op, _operand_range(x, facts), _operand_range(y, facts))
        case Binary("add" | "sub") | Unary("neg") | Var():
            return _within_dtype(e, _affine_range(e, facts))
        case Binary("and" | "or" | "xor" | "shl" | "shr") | Unary("not"):
            return _bitwise_range(e, facts)
        case Unary("abs", x) if dtype_of(x).kind == "i":
            return _within_dtype(e, _abs_range(_operand_range(x, facts)))
        case Select(_, yes, no):
            return _union_range(_operand_range(yes, facts), _operand_range(no, facts))
        case Cast(x, t, saturate):
            return _cast_range(x, t, saturate, facts)
        case Call("pad_edge" | "pad_reflect" | "pad_symmetric" | "pad_wrap", (_, n)):
            most = upper(n, facts)
            return 0, None if most is None else max(most - 1, 0)
        case Call("popcount" | "clz" | "ctz", (x,)):
            return 0, dtype_of(x).bits
        case Load() | Read() | Param() | Call() | Binary() | Unary():
            return _read_range(e, facts) if isinstance(e, Read) else _dtype_range(dtype_of(e))
        case _:
            return None, None


def _read_range(e: Read, facts: Facts) -> Bounds:
    """The bounds of the value of a read: those of the values that its source stores, or else of its dtype."""
    least, most = _dtype_range(e.dtype)
    lo, hi = e.value_range
    low = None if lo is None else lower(lo, facts)
    high = None if hi is None else upper(hi, facts)
    return least if low is None else low, most if high is None else high


def _operand_range(e: Expr, facts: Facts) -> Bounds:
    if dtype_of(e).bits == 64 and dtype_of(e).kind == "i":
        return lower(e, facts), upper(e, facts)
    return value_range(e, facts)


def _affine_range(e: Expr, facts: Facts) -> Bounds:
    if dtype_of(e).bits == 64 and dtype_of(e).kind == "i" and not isinstance(e, Var):
        return lower(e, facts), upper(e, facts)
    match e:
        case Var(name) if name in facts.ranges:
            return lower(e, facts), upper(e, facts)
        case Binary(op, x, y):
            (a, b), (c, d) = _operand_range(x, facts), _operand_range(y, facts)
            if op == "sub":
                c, d = _negate_range(c, d)
            return _add_bounds(a, c), _add_bounds(b, d)
        case Unary("neg", x):
            return _negate_range(*_operand_range(x, facts))
        case _:
            return None, None


def _add_bounds(a: int | None, b: int | None) -> int | None:
    return None if a is None or b is None else a + b


def _negate_range(lo: int | None, hi: int | None) -> Bounds:
    return None if hi is None else -hi, None if lo is None else -lo


def _product_range(a: Bounds, b: Bounds) -> Bounds:
    corners = [None if x is None or y is None else x * y for x in a for y in b]
    known = [c for c in corners if c is not None]
    if len(known) == 4:
        return min(known), max(known)
    if a[0] is not None and b[0] is not None and a[0] >= 0 and b[0] >= 0:
        return a[0] * b[0], None
    return None, None


def _bitwise_range(e: Expr, facts: Facts) -> Bounds:
    """The bounds of an operation on bits, or of its dtype."""
    t = dtype_of(e)
    match e:
        case Binary("and" | "or" | "xor" as op, x, y):
            ranges = _operand_range(x, facts), _operand_range(y, facts)
            match ranges:
                case (int(a), int(b)), (int(c), int(d)) if 0 <= a <= b and 0 <= c <= d:
                    of = {"and": and_bounds, "or": or_bounds, "xor": xor_bounds}[op]
                    return of((a, b), (c, d))
                case _:
                    most = [hi for lo, hi in ranges if lo is not None and lo >= 0]
            if op == "and" and most:  # no larger than an operand that is not negative
                return 0, min((n for n in most if n is not None), default=None)
        case Binary("shr", x, Const(k)) if 0 <= k < t.bits:
            lo, hi = _operand_range(x, facts)
            return None if lo is None else lo >> k, None if hi is None else hi >> k
        case Binary("shl", x, Const(k)) if 0 <= k < t.bits:
            match _operand_range(x, facts):
                case int(lo), int(hi) if t.low <= lo << k and hi << k <= t.high:
                    return lo << k, hi << k
        case Unary("not", x) if t.kind == "i":
            lo, hi = _operand_range(x, facts)
            return None if hi is None else ~hi, None if lo is None else ~lo
        case _:
            pass
    return _dtype_range(t)


def _min_max_range(op: str, a: Bounds, b: Bounds) -> Bounds:
    if op == "max":
        flipped = _min_max_range("min", _negate_range(*a), _negate_range(*b))
        return _negate_range(*flipped)
    lo = None if a[0] is None or b[0] is None else min(a[0], b[0])
    return lo, _smaller_bound(a[1], b[1])


def _abs_range(a: Bounds) -> Bounds:
    lo, hi = a
    most = None if lo is None or hi is None else max(abs(lo), abs(hi))
    if lo is not None and lo >= 0:
        return lo, hi
    return (-hi if hi is not None and hi <= 0 else 0), most


def _union_range(a: Bounds, b: Bounds) -> Bounds:
    lo = None if a[0] is None or b[0] is None else min(a[0], b[0])
    hi = None if a[1] is None or b[1] is None else max(a[1], b[1])
    return lo, hi


def _dtype_range(t: DType) -> Bounds:
    """The bounds of an integer type; none for 64 bits, which bound no index in practice."""
    return (int(t.low), int(t.high)) if not t.is_float and t.bits < 64 else (None, None)


def _within_dtype(e: Expr, bounds: Bounds) -> Bounds:
    """The bounds of `e`, or of its dtype if the result may wrap; i64 index arithmetic does not wrap."""
    t = dtype_of(e)
    if t.kind == "i" and t.bits == 64:
        return bounds
    lo, hi = bounds
    if lo is None or hi is None or lo < t.low or hi > t.high:
        return _dtype_range(t)
    return bounds


def _clip_bound(bound: int | None, t: DType, unknown: int | None) -> int | None:
    return unknown if bound is None else int(max(t.low, min(bound, t.high)))


def _cast_range(x: Expr, t: DType, saturate: bool, facts: Facts) -> Bounds:
    if dtype_of(x).is_float or t.is_float:
        return _dtype_range(t)
    lo, hi = _operand_range(x, facts)
    if saturate:
        least, most = _dtype_range(t)
        return _clip_bound(lo, t, least), _clip_bound(hi, t, most)
    if lo is not None and hi is not None and lo >= t.low and hi <= t.high:
        return lo, hi
    if t.bits == 64 and t.kind == "i" and dtype_of(x).bits < 64:
        return _dtype_range(dtype_of(x))
    return _dtype_range(t)
