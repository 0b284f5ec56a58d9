"""The widths of memory accesses: how many consecutive elements a GPU thread loads or stores at once."""

from __future__ import annotations

from collections.abc import Sequence

from tdsl.lang.affine import Sum, as_sum
from tdsl.lang.expr import ZERO, Binary, Broadcast, Const, Expr, Ramp, const, lanes_of

MOST_BYTES = 16


def width(index: tuple[Expr, ...], strides: Sequence[int], lanes: int, size: int) -> int:
    """The number of elements, of `size` bytes each, that a vector access transfers at once: 16 bytes at most.

    The elements are consecutive in memory, and the offset of the first one is a multiple of their number.

    >>> from tdsl.lang.expr import Binary, Var, const
    >>> row, column = Var("i"), Ramp(Binary("mul", Var("j"), const(4)), 1, 8)
    >>> width((row, column), (64, 1), 8, 4), width((row, column), (63, 1), 8, 4)
    (4, 1)

    Adjacent rows of a dense array count as consecutive:

    >>> each, at = Broadcast(const(3), 8), Ramp(Binary("mul", Var("i"), const(8)), 1, 8)
    >>> width((Binary("floordiv", at, each), Binary("mod", at, each)), (3, 1), 8, 2)
    8
    """
    index, strides = _in_one(index, strides)
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


def _in_one(
    index: tuple[Expr, ...], strides: Sequence[int]
) -> tuple[tuple[Expr, ...], tuple[int, ...]]:
    """The index and strides with dimensions x // n and x % n, where contiguous, fused into x."""
    made: list[tuple[Expr, int]] = []
    for i, stride in zip(index, strides, strict=True):
        made.append((i, stride))
        while len(made) > 1:
            joined = _joined(*made[-2], *made[-1])
            if joined is None:
                break
            made[-2:] = [(joined, made[-1][1])]
    return tuple(i for i, _ in made), tuple(stride for _, stride in made)


def _joined(outer: Expr, far: int, inner: Expr, near: int) -> Expr | None:
    """x for x // n and x % n, x % (m * n) for (x // n) % m and x % n, if the strides have far = n * near."""
    match inner:
        case Binary("mod", x, by):
            n = _number(by)
        case _:
            return None
    if n is None or far != n * near:
        return None
    match outer:
        case Binary("floordiv", y, by) if y == x and _number(by) == n:
            return x
        case Binary("mod", Binary("floordiv", y, by), again) if y == x and _number(by) == n:
            m = _number(again)
            return None if m is None else Binary("mod", x, _like(again, m * n))
        case _:
            return None


def _like(e: Expr, n: int) -> Expr:
    return Broadcast(const(n), e.lanes) if isinstance(e, Broadcast) else const(n)


def _number(e: Expr) -> int | None:
    match e:
        case Const(n) | Broadcast(Const(n)):
            return int(n)
        case _:
            return None


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
