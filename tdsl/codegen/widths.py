"""How many neighbours in memory a thread of a GPU reads or writes at once."""

from __future__ import annotations

from collections.abc import Sequence

from tdsl.lang.affine import Sum, as_sum
from tdsl.lang.expr import ZERO, Broadcast, Expr, Ramp, lanes_of

MOST_BYTES = 16


def width(index: tuple[Expr, ...], strides: Sequence[int], lanes: int, size: int) -> int:
    """How many of the lanes of an access to elements of `size` bytes are one access, of 16 bytes at most.

    They are neighbours, and the first of each group lies at a multiple of so many elements.

    >>> from tdsl.lang.expr import Binary, Var, const
    >>> row, column = Var("i"), Ramp(Binary("mul", Var("j"), const(4)), 1, 8)
    >>> width((row, column), (64, 1), 8, 4), width((row, column), (63, 1), 8, 4)
    (4, 1)
    """
    *outer, last = index or (ZERO,)
    near = isinstance(last, Ramp) and last.stride == 1 and all(_is_scalar(i) for i in outer)
    if not near:
        return 1
    first = Sum()
    for i, stride in zip(index, strides, strict=True):
        first = first.plus(as_sum(_first(i)), stride)
    most = max(1, MOST_BYTES // size)
    while most > 1 and (
        lanes % most or any(n % most for n in (first.constant, *first.terms.values()))
    ):
        most //= 2
    return most


def _is_scalar(i: Expr) -> bool:
    return lanes_of(i) == 1 or isinstance(i, Broadcast)


def _first(i: Expr) -> Expr:
    match i:
        case Ramp(base):
            return base
        case Broadcast(x):
            return x
        case _:
            return i
