"""Index expressions as affine sums: constant + coefficient * atom + ..., an atom being any non-linear node.

    16 * y_o + y_i - 1          {Var y_o: 16, Var y_i: 1} + -1
    min(n, 3 * x) + x // 4      {Binary min: 1, Binary floordiv: 1} + 0
    data[x] + 1                 {Binary add: 1} + 0, for data of 64 bits

Index arithmetic is assumed not to overflow. Arithmetic on data that may overflow is an atom: no inequality
is derived from it. Two index expressions are equal if the difference of their sums is 0; by this rule common
terms of the ranges of adjacent tiles cancel.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from math import gcd, prod

from tdsl.core.node import Memo, Node, children, memoised
from tdsl.lang.expr import (
    COMPARISONS,
    Access,
    Binary,
    Broadcast,
    Call,
    Cast,
    Const,
    Expr,
    Load,
    Param,
    Read,
    Reduce,
    Require,
    Select,
    Show,
    Size,
    Unary,
    Var,
    const,
    dtype_of,
)
from tdsl.lang.types import DType, i64


@dataclass(slots=True)
class AffineSum:
    """The affine sum constant + sum of coefficient * atom; no coefficient is 0. Treat as immutable."""

    terms: dict[Expr, int] = field(default_factory=dict)
    constant: int = 0

    def plus(self, other: AffineSum, times: int = 1) -> AffineSum:
        """self + times * other."""
        if not other.terms:
            return AffineSum(self.terms, self.constant + times * other.constant)
        terms = dict(self.terms)
        for atom, coefficient in other.terms.items():
            total = terms.get(atom, 0) + times * coefficient
            if total:
                terms[atom] = total
            else:
                terms.pop(atom, None)
        return AffineSum(terms, self.constant + times * other.constant)

    def times(self, factor: int) -> AffineSum:
        """The sum times an integer."""
        if factor == 0:
            return AffineSum()
        if factor == 1:
            return self
        return AffineSum({a: c * factor for a, c in self.terms.items()}, self.constant * factor)

    def without(self, atom: Expr) -> AffineSum:
        """The sum without the term of an atom."""
        terms = dict(self.terms)
        terms.pop(atom, None)
        return AffineSum(terms, self.constant)

    def divided(self, factor: int) -> AffineSum:
        """The sum divided by `factor`, which must divide every coefficient and the constant."""
        return AffineSum({a: c // factor for a, c in self.terms.items()}, self.constant // factor)


_SUMS: Memo[Expr, AffineSum] = Memo()


def as_sum(e: Expr) -> AffineSum:
    """The affine sum equal to an i64 expression.

    >>> from tdsl.lang.show import show_expr
    >>> i, j = Var("i"), Var("j")
    >>> e = Binary("sub", Binary("add", Binary("mul", const(2), i), j), Binary("sub", i, const(3)))
    >>> show_expr(as_expr(as_sum(e)))
    'i + j + 3'
    """
    cached = _SUMS.get(e)
    return memoised(_SUMS, e, _as_sum, _sum_operands) if cached is None else cached


def _as_sum(e: Expr) -> AffineSum:
    total = modular_sum(e)
    return AffineSum({e: 1}) if may_wrap(e) else total


def _sum_operands(e: Expr) -> tuple[Expr, ...]:
    """The operands from whose affine sums that of `e` is computed."""
    match e:
        case Binary("add" | "sub" | "mul", left, right):
            return left, right
        case Unary("neg", x):
            return (x,)
        case Cast(x, t) if t == i64 and dtype_of(x) == i64:
            return (x,)
        case _:
            return ()


def modular_sum(e: Expr) -> AffineSum:
    """The affine sum equal to an i64 expression modulo 2**64, also if the expression itself may wrap."""
    match e:
        case Const(value):
            return AffineSum({}, int(value))
        case Var() | Size():
            return AffineSum({e: 1})
        case Binary("add", left, right):
            return as_sum(left).plus(as_sum(right))
        case Binary("sub", left, right):
            return as_sum(left).plus(as_sum(right), -1)
        case Binary("mul", left, right):
            a, b = as_sum(left), as_sum(right)
            if not a.terms:
                return b.times(a.constant)
            if not b.terms:
                return a.times(b.constant)
            return AffineSum({e: 1})
        case Unary("neg", x):
            return as_sum(x).times(-1)
        case Cast(x, t) if t == i64 and dtype_of(x) == i64:
            return as_sum(x)
        case _:
            return AffineSum({e: 1})


_LARGEST = 2**63 - 1
_MAGNITUDES: Memo[Expr, int] = Memo()


def may_wrap(e: Expr) -> bool:
    """True for a sum, difference, product, negation or absolute value of data that may overflow 64 bits.

    >>> from tdsl.lang.expr import Param
    >>> from tdsl.lang.types import i32
    >>> narrow, wide = Cast(Param("a", i32), i64), Param("b", i64)
    >>> [may_wrap(Binary("add", x, const(1))) for x in (Var("i"), narrow, wide)]
    [False, False, True]
    """
    match e:
        case Binary("add" | "sub" | "mul") | Unary("neg" | "abs"):
            return dtype_of(e) == i64 and data_magnitude(e) > _LARGEST
        case _:
            return False


def data_magnitude(e: Expr) -> int:
    """A bound of what data contribute to |e|, by their dtypes; 0 if only loop variables and extents do."""
    cached = _MAGNITUDES.get(e)
    return memoised(_MAGNITUDES, e, _clamped_magnitude, _magnitude_operands) if cached is None else cached


def _clamped_magnitude(e: Expr) -> int:
    return min(_magnitude(e), 2**64)


def _magnitude_operands(e: Expr) -> tuple[Expr, ...]:
    """The operands from whose `data_magnitude` that of `e` is computed."""
    match e:
        case Unary(_, x) | Broadcast(x) | Require(_, x) | Show(_, x) | Cast(x):
            return (x,)
        case Select(_, yes, no):
            return yes, no
        case Binary(_, x, y):
            return x, y
        case _:
            return ()


def _magnitude(e: Expr) -> int:
    match e:
        case Read() | Load() | Access() | Param() | Reduce():
            return _max_magnitude(e.dtype)
        case Unary(_, x) | Broadcast(x) | Require(_, x) | Show(_, x):
            return data_magnitude(x)
        case Cast(x, t):
            result = _max_magnitude(t) if dtype_of(x).is_float else data_magnitude(x)
            most = _max_magnitude(t)
            return most if result and t.kind == "u" else min(result, most)
        case Select(_, yes, no):
            return max(data_magnitude(yes), data_magnitude(no))
        case Call(fn, _, t):
            return 0 if fn in INDEX_CALLS else _max_magnitude(t)
        case Binary(op, x, y):
            return _binary_magnitude(op, e, x, y)
        case _:
            return 0


INDEX_CALLS = ("pad_edge", "pad_reflect", "pad_symmetric", "pad_wrap", "extent")


def _binary_magnitude(op: str, e: Binary, x: Expr, y: Expr) -> int:
    magnitudes = data_magnitude(x), data_magnitude(y)
    if magnitudes == (0, 0) or op in COMPARISONS or _is_clip(e):
        return 0
    tight = [
        abs(int(a.value)) if isinstance(a, Const) else s for a, s in zip((x, y), magnitudes, strict=True)
    ]
    match op:
        case "add" | "sub":
            return sum(tight)
        case "mul":
            return max(tight[0], 1) * max(tight[1], 1)
        case "min" | "max" | "floordiv" | "shr":
            return max(magnitudes)
        case "mod" | "and" if isinstance(y, Const) and y.value >= 0:
            return 0
        case _:
            return _max_magnitude(dtype_of(e))


def _is_clip(e: Binary) -> bool:
    """True for min(max(x, lo), hi) and max(min(x, hi), lo) where lo and hi are indices."""
    match e:
        case Binary("min", Binary("max", _, a), b) | Binary("max", Binary("min", _, a), b):
            return not (data_magnitude(a) or data_magnitude(b))
        case _:
            return False


def _max_magnitude(t: DType) -> int:
    return 0 if t.is_float else int(max(-t.low, t.high))


def as_expr(s: AffineSum) -> Expr:
    """A sum as an expression: variables, larger coefficients first, then sizes, other atoms, the constant."""
    result: Expr | None = None
    for atom, coefficient in sorted(s.terms.items(), key=_term_order):
        magnitude = abs(coefficient)
        term: Expr = atom if magnitude == 1 else Binary("mul", atom, const(magnitude))
        if result is None:
            result = term if coefficient > 0 else Binary("mul", atom, const(coefficient))
        else:
            result = Binary("add" if coefficient > 0 else "sub", result, term)
    if result is None:
        return const(s.constant)
    if s.constant:
        op = "add" if s.constant > 0 else "sub"
        return Binary(op, result, const(abs(s.constant)))
    return result


def _term_order(item: tuple[Expr, int]) -> tuple[int, int, int, str]:
    atom, coefficient = item
    first = 0 if coefficient > 0 else 1
    match atom:
        case Var(name):
            return (first, 0, -abs(coefficient), name)
        case Size(name):
            return (first, 1, -abs(coefficient), name)
        case _:
            return (first, 2, 0, "")


def constant_bounds(
    e: Expr, ranges: Mapping[str, tuple[Expr | None, Expr | None]]
) -> tuple[Expr, Expr] | None:
    """The smallest and the largest value of an i64 expression that is affine in variables of constant ranges.

    None for other expressions. If the range of a variable is empty, the expression has no values.

    >>> e = Binary("sub", Binary("mul", const(2), Var("i")), Var("j"))
    >>> lo, hi = constant_bounds(e, {"i": (const(0), const(9)), "j": (const(1), const(3))})
    >>> lo.value, hi.value
    (-3, 17)
    """
    if dtype_of(e) != i64:
        return None
    s = as_sum(e)
    lo = hi = s.constant
    for atom, coefficient in s.terms.items():
        first, last = ranges.get(atom.name, (None, None)) if isinstance(atom, Var) else (None, None)
        if not isinstance(first, Const) or not isinstance(last, Const):
            return None
        low, high = (first, last) if coefficient > 0 else (last, first)
        lo, hi = lo + coefficient * int(low.value), hi + coefficient * int(high.value)
    return const(lo), const(hi)


def fold_remainders(s: AffineSum) -> AffineSum:
    """The sum with x - x % k rewritten to x // k * k, whose bounds are exact although x and x % k correlate.

    >>> from tdsl.lang.show import show_expr
    >>> x, eight, four = Var("x"), const(8), const(4)
    >>> e = Binary("add", Binary("sub", x, Binary("mod", x, eight)), Binary("mod", x, four))
    >>> show_expr(as_expr(fold_remainders(as_sum(e))))
    'x % 4 + x // 8 * 8'
    """
    for atom, c in s.terms.items():
        match atom:
            case Binary("mod", x, Const(k)) if k > 0:
                inner = as_sum(x)
                if inner.terms and all(s.terms.get(a) == -c * n for a, n in inner.terms.items()):
                    steps = AffineSum({Binary("floordiv", x, const(int(k))): -c * int(k)})
                    return fold_remainders(s.without(atom).plus(inner, c).plus(steps))
            case _:
                pass
    return s


def constant_difference(a: Expr, b: Expr) -> int | None:
    """a - b if it is a constant, else None; also if both are min (or max) with operands of equal differences.

    >>> i = Var("i")
    >>> clipped = [Binary("min", Binary("add", i, const(n)), const(n + 9)) for n in (0, 4)]
    >>> constant_difference(clipped[1], clipped[0])
    4
    """
    d = as_sum(a).plus(as_sum(b), -1)
    match list(d.terms.items()):
        case []:
            return d.constant
        case [(Binary("min" | "max") as x, c), (Binary("min" | "max") as y, other)] if (
            x.op == y.op and c == -other
        ):
            shift = constant_difference(x.left, y.left)
            if shift is not None and shift == constant_difference(x.right, y.right):
                return d.constant + c * shift
    return None


def variables(e: Expr) -> frozenset[str]:
    """The names of the loop variables in an expression."""
    cached = _VARIABLES.get(e)
    return memoised(_VARIABLES, e, _variables) if cached is None else cached


def _variables(n: Node) -> frozenset[str]:
    return frozenset((n.name,)) if isinstance(n, Var) else union_of_children(_VARIABLES, n)


def has_data(e: Expr) -> bool:
    """True if an expression reads a tensor, a func or memory."""
    cached = _DATA.get(e)
    return memoised(_DATA, e, _has_data) if cached is None else cached


def _has_data(n: Node) -> bool:
    return isinstance(n, Read | Load) or any(_DATA[c] for c in children(n))


def union_of_children(memo: Mapping[Node, frozenset[str]], n: Node) -> frozenset[str]:
    """The union of the sets of a node's children in `memo`; one child's set itself if it is the union."""
    result: frozenset[str] = frozenset()
    for c in children(n):
        names = memo[c]
        if not names <= result:
            result = names if result <= names else result | names
    return result


def height(e: Node) -> int:
    """The number of nodes on the longest path from `e` to a leaf."""
    cached = _HEIGHTS.get(e)
    return memoised(_HEIGHTS, e, _height) if cached is None else cached


def _height(n: Node) -> int:
    return 1 + max([_HEIGHTS[c] for c in children(n)], default=0)


def tree_size(e: Node) -> int:
    """The number of nodes of `e` as a tree: a shared node counts once for each path to it."""
    cached = _TREE_SIZES.get(e)
    return memoised(_TREE_SIZES, e, _tree_size) if cached is None else cached


def _tree_size(n: Node) -> int:
    return min(1 + sum([_TREE_SIZES[c] for c in children(n)]), 2**60)


def arm_count(e: Expr) -> int:
    """The number of affine sums to which the choices of min and max resolve an index; at most MOST_ARMS.

    >>> i = Var("i")
    >>> arm_count(Binary("add", Binary("min", i, const(3)), Binary("max", i, const(1))))
    4
    """
    cached = _ARM_COUNTS.get(e)
    return memoised(_ARM_COUNTS, e, _arm_count, _arm_operands) if cached is None else cached


def _arm_count(e: Expr) -> int:
    counts = [_ARM_COUNTS[x] for x in _arm_operands(e)]
    is_choice = isinstance(e, Binary) and e.op in ("min", "max")
    return min(sum(counts) if is_choice else prod(counts), MOST_ARMS)


def _arm_operands(e: Expr) -> tuple[Expr, ...]:
    return (e.left, e.right) if isinstance(e, Binary) and e.op in _ARITHMETIC else ()


MOST_ARMS = 16
_ARITHMETIC = ("add", "sub", "mul", "min", "max", "floordiv", "mod")
_VARIABLES: Memo[Node, frozenset[str]] = Memo()
_HEIGHTS: Memo[Node, int] = Memo()
_TREE_SIZES: Memo[Node, int] = Memo()
_ARM_COUNTS: Memo[Node, int] = Memo()
_DATA: Memo[Node, bool] = Memo()


def known_divisor(e: Expr) -> int:
    """The largest integer that is known to divide an index; 1 for the index 0.

    >>> i = Var("i")
    >>> ten = Binary("add", i, Binary("sub", const(10), i))
    >>> known_divisor(Binary("min", Binary("mul", i, const(8)), ten))
    2
    """
    return gcd(*_known_divisors(e)) or 1


def _known_divisors(e: Expr) -> Iterator[int]:
    s = as_sum(e)
    yield s.constant
    for atom, factor in s.terms.items():
        match atom:
            case Binary("min" | "max", left, right):
                yield factor * gcd(*_known_divisors(left), *_known_divisors(right))
            case _:
                yield factor
