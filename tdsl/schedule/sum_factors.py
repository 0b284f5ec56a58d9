"""Terms of a sum as lists of factors, in which reads of another sum are replaced by that sum's terms.

A term is linear in its read of the other sum if the read is a factor of a product, possibly negated,
divided, selected by a condition (0 otherwise), or converted to a type that keeps sums and products:
from a float to a wider one, from an integer to one of the same width or narrower, which wraps.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce

from tdsl.lang.expr import Binary, Cast, Const, Expr, Read, Select, Unary, dtype_of
from tdsl.lang.regions import reads_in
from tdsl.lang.types import DType, promote

Factor = tuple[Expr, bool]  # an expression, and whether it is a divisor


def factors_of(e: Expr, expand: Callable[[Read], Expr | None]) -> list[Factor] | None:
    """The factors of a term with some reads expanded; None if it is not linear in each expanded read.

    `expand` returns the expression that replaces a read, None to keep it; called once for each read.

    >>> from tdsl.lang.expr import Var
    >>> from tdsl.lang.types import f32
    >>> a, b, s = (Read(n, (Var("i"),), 0, f32) for n in "abs")
    >>> term = Binary("mul", Unary("neg", s), b)
    >>> products = {s: Binary("mul", a, a)}
    >>> factors_of(term, products.get) == [(Const(-1.0, f32), False), *[(a, False)] * 2, (b, False)]
    True
    >>> factors_of(Binary("add", s, b), products.get) is None
    True
    """
    expansions: dict[Read, Expr | None] = {}

    def expanded_names(x: Expr) -> frozenset[str]:
        """The names of the funcs whose reads are expanded in an expression, at any depth."""
        names = frozenset[str]()
        for r in reads_in((x,)):
            if r not in expansions:
                expansions[r] = expand(r)
            value = expansions[r]
            names |= frozenset() if value is None else expanded_names(value) | {r.name}
        return names

    def factors(x: Expr, divides: bool, types: tuple[DType, ...]) -> list[Factor] | None:
        inside = expanded_names(x)
        if inside and divides:
            return None
        match x:
            case Binary("mul", left, right) if not expanded_names(left) & expanded_names(right):
                return _joined(factors(left, divides, types), factors(right, divides, types))
            case Binary("div", left, right):
                return _joined(factors(left, divides, types), factors(right, not divides, types))
            case Cast(value, t, False) if _distributes(dtype_of(value), t):
                return factors(value, divides, (t, *types))
            case Unary("neg", value) if inside:
                return _joined([(_number(-1, types, dtype_of(x)), divides)], factors(value, divides, types))
            case Select(cond, value, Const(0)) if inside and not expanded_names(cond):
                one, zero = (_number(n, types, dtype_of(x)) for n in (1, 0))
                return _joined([(Select(cond, one, zero), divides)], factors(value, divides, types))
            case Read() if (expansion := expansions[x]) is not None:
                return factors(expansion, divides, types)
            case _:
                return None if inside else [(reduce(Cast, types, x), divides)]

    return factors(e, False, ())


def product_of(factors: Sequence[Factor], dtype: DType) -> Expr:
    """The product of factors, divisions last; 1 if there are none."""
    product: Expr | None = None
    for e, divides in sorted(factors, key=lambda f: f[1]):
        product = product if product is not None or not divides else _number(1, (), dtype)
        product = e if product is None else Binary("div" if divides else "mul", product, e)
    return _number(1, (), dtype) if product is None else product


def _joined(left: list[Factor] | None, right: list[Factor] | None) -> list[Factor] | None:
    return None if left is None or right is None else left + right


def _number(value: int, types: tuple[DType, ...], dtype: DType) -> Const:
    t = types[-1] if types else dtype
    wrapped = value % 2**t.bits if t.kind == "u" else value
    return Const(float(value) if t.is_float else wrapped, t)


def _distributes(source: DType, target: DType) -> bool:
    """True if a sum or product of converted values equals the converted sum or product."""
    if source.is_float:
        return target.is_float and promote(source, target) == target
    return source.is_integer and target.is_integer and target.bits <= source.bits
