"""Simplifier of expressions: normalises sums, resolves min and max, splits divisions, proves conditions.

Only i64 index arithmetic, which does not wrap, is reassociated; for other types only constants, conditions
and casts are folded, and the order of evaluation is kept.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable
from math import gcd

from tdsl.core.node import Node, children, map_children, post_order
from tdsl.lang import arithmetic
from tdsl.lang.affine import (
    MOST_ARMS,
    AffineSum,
    arm_count,
    as_expr,
    as_sum,
    data_magnitude,
    fold_remainders,
    may_wrap,
    modular_sum,
    variables,
)
from tdsl.lang.bounds import NO_FACTS, Facts, at_most, lower, upper
from tdsl.lang.expr import (
    FALSE,
    ONE,
    TRUE,
    ZERO,
    Binary,
    Broadcast,
    Call,
    Cast,
    Const,
    Expr,
    Ramp,
    Select,
    Unary,
    Var,
    const,
    dtype_of,
    lanes_of,
)  # fmt: skip
from tdsl.lang.types import bool_, i64


def simplify(e: Expr, facts: Facts = NO_FACTS) -> Expr:
    """An equivalent expression, usually smaller; `facts` bound its variables.

    >>> from tdsl.lang.show import show_expr
    >>> i = Var("i")
    >>> e = Binary("min", Binary("add", i, const(3)), Binary("add", i, const(5)))
    >>> show_expr(simplify(e))
    'i + 3'
    """
    done: dict[int, Node] = {}
    for n in post_order(e):
        done[id(n)] = simplify_node(map_children(n, lambda child: done[id(child)]), facts)
    return done[id(e)]  # type: ignore[return-value]  # an Expr stays one


def simplify_node(e: Node, facts: Facts) -> Node:
    """The simplified form of a node whose children are already simplified."""
    match e:
        case Var() | Const():
            return e
        case Unary(_, Const()) | Binary(_, Const(), Const()) | Call(_, (Const(), *_)):
            folded = _fold(e)
            return e if folded is None else folded
        case Binary("add" | "sub" | "mul" | "min" | "max" | "floordiv" | "mod") | Unary("neg"):
            if dtype_of(e) == i64 and lanes_of(e) == 1:
                return _simplify_index(e, facts)
            return e
        case Binary("lt" | "le" | "gt" | "ge" | "eq" | "ne", x) if dtype_of(x) == i64 and lanes_of(x) == 1:
            return _simplify_comparison(e, facts)
        case Binary("and" | "or", x, y) if dtype_of(e) == bool_:
            return _simplify_and_or(e.op, x, y)
        case Unary("not", x) if dtype_of(e) == bool_:
            return _simplify_not(x)
        case Select(cond, yes, no):
            if yes == no or cond == TRUE:
                return yes
            if cond == FALSE:
                return no
            if isinstance(cond, Broadcast) and isinstance(cond.x, Const):
                return yes if cond.x.value else no
            return e
        case Cast(Const(value, source), t) if not source.is_float and not t.is_float:
            return Const(_cast_constant(int(value), e), t)
        case Cast(x, t) if dtype_of(x) == t:
            return x
        case Cast(Cast(x, t, True), wide) if wide == dtype_of(x) == i64 and t.bits < 64:
            low, high = const(int(t.low)), const(int(t.high))
            return maximum(minimum(x, high, facts), low, facts)
        case Call("pad_edge", (i, n)):
            return maximum(minimum(i, subtract(n, ONE, facts), facts), ZERO, facts)
        case Call("pad_reflect" | "pad_symmetric" | "pad_wrap", (i, n)):
            inside = at_most(ZERO, i, facts) and at_most(as_expr(as_sum(i).plus(AffineSum({}, 1))), n, facts)
            return i if inside else e
        case Ramp(base, 0, lanes):
            return Broadcast(base, lanes)
        case _:
            return e


_INDEX_OPERATORS: dict[str, Callable[[int, int], int]] = {
    "add": operator.add, "sub": operator.sub, "mul": operator.mul, "min": min, "max": max,
    "floordiv": lambda a, b: a // b if b else 0, "mod": lambda a, b: a % b if b else 0,
    "eq": operator.eq, "ne": operator.ne, "lt": operator.lt, "le": operator.le, "gt": operator.gt,
    "ge": operator.ge,
}  # fmt: skip


_LEAST, _MOST = int(i64.low), int(i64.high)


def _fold(e: Unary | Binary | Call) -> Const | None:
    """The constant that an operator on integer constants folds to; None for other operands and floats."""
    operands = e.args if isinstance(e, Call) else tuple(children(e))
    t = dtype_of(e)
    if t.is_float or not all(isinstance(x, Const) and not x.dtype.is_float for x in operands):
        return None
    match e:
        case Binary(op, Const(a, t_a), Const(b)) if op in _INDEX_OPERATORS and t_a == i64:
            # a fast path for indices, the most frequent constants: NumPy takes ten times as long
            index = _INDEX_OPERATORS[op](a, b)
            if _LEAST <= index <= _MOST:
                return Const(index, t)
    values = tuple(arithmetic.constant(x) for x in operands)  # type: ignore[arg-type]  # all Const
    match e:
        case Unary(op):
            return Const(arithmetic.unary(op, *values).item(), t)
        case Binary(op):
            return Const(arithmetic.binary(op, *values).item(), t)
        case Call(fn):
            return Const(arithmetic.call(fn, values, t).item(), t)


def _cast_constant(value: int, e: Cast) -> int:
    t = e.dtype
    if t.kind == "b":
        return int(value != 0)
    if e.saturate:
        return int(min(max(value, t.low), t.high))
    value &= (1 << t.bits) - 1
    return value - (1 << t.bits) if t.kind == "i" and value >> (t.bits - 1) else value


def _simplify_binary(op: str, a: Expr, b: Expr, facts: Facts) -> Expr:
    if isinstance(a, Const) and isinstance(b, Const):  # a fast path for boxes of known sizes
        index = _INDEX_OPERATORS[op](a.value, b.value)
        if _LEAST <= index <= _MOST:
            return const(index)
    return simplify_node(Binary(op, a, b), facts)  # type: ignore[return-value]  # an Expr


def add(a: Expr, b: Expr, facts: Facts = NO_FACTS) -> Expr:
    """a + b of two indices."""
    return _simplify_binary("add", a, b, facts)


def subtract(a: Expr, b: Expr, facts: Facts = NO_FACTS) -> Expr:
    """a - b of two indices."""
    return _simplify_binary("sub", a, b, facts)


def multiply(a: Expr, b: Expr, facts: Facts = NO_FACTS) -> Expr:
    """a * b of two indices."""
    return _simplify_binary("mul", a, b, facts)


def minimum(a: Expr, b: Expr, facts: Facts = NO_FACTS) -> Expr:
    """min(a, b) of two indices."""
    return _simplify_min_max("min", a, b, facts)


def maximum(a: Expr, b: Expr, facts: Facts = NO_FACTS) -> Expr:
    """max(a, b) of two indices."""
    return _simplify_min_max("max", a, b, facts)


def floordiv(a: Expr, b: Expr, facts: Facts = NO_FACTS) -> Expr:
    """a // b of two indices."""
    return _simplify_binary("floordiv", a, b, facts)


def ceildiv(a: Expr, b: Expr, facts: Facts = NO_FACTS) -> Expr:
    """a / b rounded up, for b > 0."""
    return floordiv(add(a, subtract(b, ONE, facts), facts), b, facts)


def last_quotient(last: Expr, n: Expr, facts: Facts = NO_FACTS) -> Expr:
    """The largest x // n for 0 <= x <= `last`, if that range is not empty: m - 1 for `last` m * n - 1."""
    match add(last, ONE, facts):
        case Binary("mul", m, factor) if n in (m, factor):
            return subtract(m if factor == n else factor, ONE, facts)
        case _:
            return floordiv(last, n, facts)


def conjunction(conditions: Iterable[Expr]) -> Expr:
    """The logical and of the conditions; TRUE for none."""
    result: Expr = TRUE
    for c in conditions:
        result = _simplify_and_or("and", result, c)
    return result


def conjuncts(cond: Expr) -> list[Expr]:
    """The operands of the nested `and` of `cond`, without duplicates and TRUE."""
    operands, stack, seen = list[Expr](), [cond], set[int]()
    while stack:
        c = stack.pop()
        if id(c) in seen:
            continue
        seen.add(id(c))
        if isinstance(c, Binary) and c.op == "and":
            stack += (c.right, c.left)
        elif c != TRUE:
            operands.append(c)
    return operands


def _simplify_index(e: Binary | Unary, facts: Facts) -> Expr:
    simple = facts.simple.get(e)
    if simple is None:
        simple = facts.simple[e] = _simplify_index_uncached(e, facts)
    return simple


def _simplify_index_uncached(e: Binary | Unary, facts: Facts) -> Expr:
    match e:
        case Binary("min" | "max", x, y):
            return _simplify_min_max(e.op, x, y, facts)
        case Binary("floordiv", x, Const(k)):
            return _divide(x, int(k), facts)
        case Binary("mod", x, Const(k)):
            return _remainder(x, int(k), facts)
        case Binary("floordiv", x, y) if at_most(ZERO, x, facts) and at_most(
            as_expr(as_sum(x).plus(AffineSum({}, 1))), y, facts
        ):
            return ZERO
        case Binary("floordiv" | "mod"):
            return e
        case _:
            return as_expr(modular_sum(e)) if may_wrap(e) else _simplify_sum(as_sum(e), facts)


_MAX_SAFE_MAGNITUDE = (
    2**40
)  # magnitude of data whose product with a coefficient or an index stays below 2**63


def _simplify_sum(s: AffineSum, facts: Facts) -> Expr:
    """A sum as an expression; the other terms are moved into a single min or max, where they may cancel."""
    s = _cancel_quotients(s, facts)
    extremes = [a for a in s.terms if isinstance(a, Binary) and a.op in ("min", "max")]
    if len(extremes) != 1 or (len(s.terms) == 1 and s.constant == 0 and s.terms[extremes[0]] == 1):
        return as_expr(s)
    atom = extremes[0]
    if max(data_magnitude(atom.left), data_magnitude(atom.right)) > _MAX_SAFE_MAGNITUDE:
        return as_expr(s)  # the sum with one operand alone may wrap
    if arm_count(atom) >= MOST_ARMS:
        return as_expr(s)  # each level of such an index would double its size
    coefficient, rest = s.terms[atom], s.without(atom)
    left, right = (
        _simplify_sum(as_sum(x).times(coefficient).plus(rest), facts) for x in (atom.left, atom.right)
    )
    op = atom.op if coefficient > 0 else ("max" if atom.op == "min" else "min")
    return _simplify_min_max(op, left, right, facts)


def _cancel_quotients(s: AffineSum, facts: Facts) -> AffineSum:
    """The sum with x // k * k + x % k rewritten to x, and x - x % k to x // k * k."""
    for atom, c in s.terms.items():
        match atom:
            case Binary("mod", x, Const(k)) if k > 0:
                other, times, k = _divide(x, int(k), facts), c, int(k)
                cancels = s.terms.get(other) == c * k
            case Binary("floordiv", Binary("mod") as x, Const(k)) if k > 0 and c % k == 0:
                other, times = _remainder(x, int(k), facts), c // int(k)
                cancels = s.terms.get(other) == times
            case _:
                continue
        if cancels:
            rest = s.without(atom).without(other)
            return _cancel_quotients(rest.plus(as_sum(x), times), facts)
    return fold_remainders(s)


def _simplify_min_max(op: str, a: Expr, b: Expr, facts: Facts) -> Expr:
    if isinstance(a, Const) and isinstance(b, Const):
        return a if (a.value <= b.value if op == "min" else a.value >= b.value) else b
    arms: list[Expr] = []
    for arm in (*_arms(op, a), *_arms(op, b)):
        arms = _add_arm(op, arms, arm, facts)
    result = arms[0]
    for arm in arms[1:]:
        result = Binary(op, result, arm)
    return result


def _arms(op: str, e: Expr) -> list[Expr]:
    """The operands of the nested min (or max) `e`; `e` alone if there are more than MOST_ARMS."""
    stack, arms = [e], list[Expr]()
    while stack:
        match stack.pop():
            case Binary(o, x, y) if o == op:
                stack += (y, x)
            case arm:
                arms.append(arm)
        if len(arms) + len(stack) > MOST_ARMS:
            return [e]
    return arms


def _add_arm(op: str, arms: list[Expr], new: Expr, facts: Facts) -> list[Expr]:
    """The operands of a min (or max) with `new` added, without those that are never the result."""

    def beats(a: Expr, b: Expr) -> bool:
        return at_most(a, b, facts) if op == "min" else at_most(b, a, facts)

    if any(beats(arm, new) for arm in arms):
        return arms
    return [arm for arm in arms if not beats(new, arm)] + [new]


def _divide(x: Expr, k: int, facts: Facts) -> Expr:
    if k == 0:
        return ZERO
    if k == 1:
        return x
    s = as_sum(x)
    if k < 0:
        return Binary("floordiv", x, const(k)) if s.terms else const(s.constant // k)
    whole = AffineSum({a: c for a, c in s.terms.items() if c % k == 0}, s.constant - s.constant % k)
    rest = s.plus(whole, -1)
    quotient = whole.divided(k)
    if not rest.terms:
        return _simplify_sum(quotient.plus(AffineSum({}, rest.constant // k)), facts)
    rest_expr = as_expr(rest)
    lo, hi = lower(rest_expr, facts), upper(rest_expr, facts)
    if lo is not None and hi is not None and lo // k == hi // k:
        return _simplify_sum(quotient.plus(AffineSum({}, lo // k)), facts)
    split = _split_by_divisor(rest, k, facts)
    if split is not None:
        step, steps, _ = split
        return _simplify_sum(quotient.plus(as_sum(_divide(as_expr(steps), k // step, facts))), facts)
    match rest_expr:
        case Binary("floordiv", y, Const(m)) if m > 0:
            inner: Expr = Binary("floordiv", y, const(m * k))
        case Binary("min" | "max" as op, y, z) if arm_count(rest_expr) < MOST_ARMS:
            inner = _simplify_min_max(op, _divide(y, k, facts), _divide(z, k, facts), facts)
        case _:
            inner = Binary("floordiv", rest_expr, const(k))
    return _simplify_sum(quotient.plus(as_sum(inner)), facts)


def _remainder(x: Expr, k: int, facts: Facts) -> Expr:
    if k in (0, 1):
        return ZERO
    s = as_sum(x)
    if k < 0:
        return Binary("mod", x, const(k)) if s.terms else const(s.constant % k)
    rest = AffineSum({a: c for a, c in s.terms.items() if c % k}, s.constant % k)
    if not rest.terms:
        return const(rest.constant)
    rest_expr = as_expr(rest)
    lo, hi = lower(rest_expr, facts), upper(rest_expr, facts)
    if lo is not None and hi is not None and lo // k == hi // k:
        return _simplify_sum(rest.plus(AffineSum({}, -k * (lo // k))), facts)
    split = _split_by_divisor(rest, k, facts)
    if split is not None:
        step, steps, within = split
        whole = _remainder(as_expr(steps), k // step, facts)
        return _simplify_sum(within.plus(as_sum(whole), step), facts)
    match rest_expr:
        case Binary("mod", y, Const(m)) if m > 0 and m % k == 0:
            return _remainder(y, k, facts)
    return Binary("mod", rest_expr, const(k))


def _split_by_divisor(s: AffineSum, k: int, facts: Facts) -> tuple[int, AffineSum, AffineSum] | None:
    """(g, a, r) with s = g * a + r and 0 <= r < g, for the largest such divisor g of k above 1."""
    for g in sorted({gcd(k, c) for c in s.terms.values()} - {1}, reverse=True):
        within = AffineSum({a: c for a, c in s.terms.items() if c % g}, s.constant % g)
        expr = as_expr(within)
        lo, hi = lower(expr, facts), upper(expr, facts)
        if lo is not None and hi is not None and lo >= 0 and hi < g:
            return g, s.plus(within, -1).divided(g), within
    return None


_SWAPPED = {"gt": "lt", "ge": "le"}


def _simplify_comparison(e: Binary, facts: Facts) -> Expr:
    op, a, b = e.op, e.left, e.right
    if op in _SWAPPED:
        op, a, b = _SWAPPED[op], b, a
    d = as_sum(a).plus(as_sum(b), -1)
    expr = as_expr(d)
    hi, lo = upper(expr, facts), lower(expr, facts)
    match op:
        case "lt":
            yes, no = hi is not None and hi < 0, lo is not None and lo >= 0
        case "le":
            yes, no = hi is not None and hi <= 0, lo is not None and lo > 0
        case _:
            same = hi is not None and hi == lo == 0
            differ = (hi is not None and hi < 0) or (lo is not None and lo > 0)
            yes, no = (same, differ) if op == "eq" else (differ, same)
    if yes or no:
        return TRUE if yes else FALSE
    return Binary(op, a, b) if (op, a, b) != (e.op, e.left, e.right) else e


def _simplify_and_or(op: str, x: Expr, y: Expr) -> Expr:
    neutral, absorbing = (TRUE, FALSE) if op == "and" else (FALSE, TRUE)
    if x in (neutral, y):
        return y
    if y == neutral:
        return x
    if absorbing in (x, y):
        return absorbing
    return Binary(op, x, y)


_OPPOSITE = {"lt": "ge", "ge": "lt", "le": "gt", "gt": "le", "eq": "ne", "ne": "eq"}


def _simplify_not(x: Expr) -> Expr:
    match x:
        case Const(value):
            return FALSE if value else TRUE
        case Unary("not", y):
            return y
        case Binary(op, left, right) if op in _OPPOSITE and not dtype_of(left).is_float:
            return Binary(_OPPOSITE[op], left, right)
        case _:
            return Unary("not", x)


def substitute(e: Expr, values: dict[str, Expr]) -> Expr:
    """`e` with variables replaced by values, not simplified."""
    if values.keys().isdisjoint(variables(e)):
        return e
    done: dict[int, Node] = {}
    for n in post_order(e):
        if isinstance(n, Var):
            done[id(n)] = values.get(n.name, n)
        else:
            done[id(n)] = map_children(n, lambda child: done[id(child)])
    return done[id(e)]  # type: ignore[return-value]  # an Expr stays one
