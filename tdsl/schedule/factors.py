"""Terms of a sum as products, with the terms of another sum in the place of its reads.

A term is linear in what it reads of the other sum where this is a factor of a product, perhaps negated,
divided by something, chosen by a condition or else 0, or converted to a type in which sums and products are
what they were: from a float to a wider one, from an integer to one as wide or narrower, which wraps.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce

from tdsl.lang.expr import Binary, Cast, Const, Expr, Read, Select, Unary, dtype_of
from tdsl.lang.regions import reads_in
from tdsl.lang.types import DType, promote

Factor = tuple[Expr, bool]  # and whether it divides


def factors_of(e: Expr, expand: Callable[[Read], Expr | None]) -> list[Factor] | None:
    """The factors of a term with some reads written out; None where it is not linear in each of these.

    `expand` gives what stands in the place of a read, None for what stays; it is asked once about each.

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
    stands: dict[Read, Expr | None] = {}

    def held(x: Expr) -> frozenset[str]:
        """The names of what is written out in an expression, and in what stands for that."""
        names = frozenset[str]()
        for r in reads_in((x,)):
            if r not in stands:
                stands[r] = expand(r)
            value = stands[r]
            names |= frozenset() if value is None else held(value) | {r.name}
        return names

    def found(x: Expr, divides: bool, types: tuple[DType, ...]) -> list[Factor] | None:
        inside = held(x)
        if inside and divides:
            return None
        match x:
            case Binary("mul", left, right) if not held(left) & held(right):
                return _both(found(left, divides, types), found(right, divides, types))
            case Binary("div", left, right):
                return _both(found(left, divides, types), found(right, not divides, types))
            case Cast(value, t, False) if _distributes(dtype_of(value), t):
                return found(value, divides, (t, *types))
            case Unary("neg", value) if inside:
                return _both(
                    [(_number(-1, types, dtype_of(x)), divides)], found(value, divides, types)
                )
            case Select(cond, value, Const(0)) if inside and not held(cond):
                one, zero = (_number(n, types, dtype_of(x)) for n in (1, 0))
                return _both([(Select(cond, one, zero), divides)], found(value, divides, types))
            case Read() if (written := stands[x]) is not None:
                return found(written, divides, types)
            case _:
                return None if inside else [(reduce(Cast, types, x), divides)]

    return found(e, False, ())


def product_of(factors: Sequence[Factor], dtype: DType) -> Expr:
    """A product, its divisions last; 1 of no factors."""
    made: Expr | None = None
    for e, divides in sorted(factors, key=lambda f: f[1]):
        made = made if made is not None or not divides else _number(1, (), dtype)
        made = e if made is None else Binary("div" if divides else "mul", made, e)
    return _number(1, (), dtype) if made is None else made


def _both(left: list[Factor] | None, right: list[Factor] | None) -> list[Factor] | None:
    return None if left is None or right is None else left + right


def _number(value: int, types: tuple[DType, ...], dtype: DType) -> Const:
    t = types[-1] if types else dtype
    wrapped = value % 2**t.bits if t.kind == "u" else value
    return Const(float(value) if t.is_float else wrapped, t)


def _distributes(source: DType, target: DType) -> bool:
    """Whether a sum or product of conversions is the conversion of a sum or product."""
    if source.is_float:
        return target.is_float and promote(source, target) == target
    return source.is_integer and target.is_integer and target.bits <= source.bits
