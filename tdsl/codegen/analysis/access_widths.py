"""The widths of memory accesses: how many consecutive elements a GPU thread loads or stores at once."""

from __future__ import annotations

from collections.abc import Sequence

from tdsl.cost.sectors import SHIFTED
from tdsl.lang.affine import AffineSum, as_sum
from tdsl.lang.expr import ZERO, Binary, Broadcast, Const, Expr, Ramp, const, lanes_of

_MAX_BYTES = 16  # bytes of one access of a thread, at most


def access_width(index: tuple[Expr, ...], strides: Sequence[int], lanes: int, size: int) -> int:
    """The number of elements, of `size` bytes each, that a vector access transfers at once: 16 bytes at most.

    The elements are consecutive in memory, and the offset of the first one is a multiple of their number.

    >>> from tdsl.lang.expr import Binary, Var, const
    >>> row, column = Var("i"), Ramp(Binary("mul", Var("j"), const(4)), 1, 8)
    >>> access_width((row, column), (64, 1), 8, 4), access_width((row, column), (63, 1), 8, 4)
    (4, 1)

    Adjacent rows of a dense array count as consecutive:

    >>> each, at = Broadcast(const(3), 8), Ramp(Binary("mul", Var("i"), const(8)), 1, 8)
    >>> access_width((Binary("floordiv", at, each), Binary("mod", at, each)), (3, 1), 8, 2)
    8

    Also if they are added to others, and if they are a part of the rows of each matrix of several:

    >>> row = Binary("mod", Binary("floordiv", at, each), Broadcast(const(8), 8))
    >>> row = Binary("add", Broadcast(Binary("mul", Var("y"), const(8)), 8), row)
    >>> column = Binary("mod", at, each)
    >>> access_width((Broadcast(Var("c"), 8), row, column), (3000, 3, 1), 8, 2)
    8
    """
    first = _first_offset(index, strides, lanes)
    if first is None:
        return 1
    count = max(1, _MAX_BYTES // size)
    while count > 1 and (lanes % count or any(n % count for n in (first.constant, *first.terms.values()))):
        count //= 2
    return count


def is_loaded_whole(mask: Expr | None, elements: int | None, width: int) -> bool:
    """True if a vector of `width` lanes is one load, although a `mask` may switch some of its lanes off.

    The vector begins at a multiple of its width, so it does not go beyond an array of a multiple of `width`
    elements if one of its lanes is in the array. None are `elements` whose number is not known.

    >>> from tdsl.lang.expr import Binary, Var, const
    >>> lanes = Binary("le", Ramp(const(0), 1, 4), Broadcast(Var("i"), 4))
    >>> [is_loaded_whole(lanes, n, 4) for n in (100, 102)], is_loaded_whole(None, 102, 4)
    ([True, False], True)
    """
    if mask is None or isinstance(mask, Broadcast):
        return True
    return elements is not None and elements % width == 0


def is_shifted(index: tuple[Expr, ...], strides: Sequence[int], lanes: int, size: int) -> bool:
    """True for whole vectors of 16 bytes that begin anywhere, of which two aligned vectors hold each.

    >>> from tdsl.lang.expr import Binary, Var, const
    >>> column = Ramp(Binary("mul", Var("j"), const(4)), 1, 4)
    >>> [is_shifted((Var("i"), column), (n, 1), 4, 4) for n in (63, 62, 64)]
    [True, False, False]
    """
    if lanes * size % _MAX_BYTES or access_width(index, strides, lanes, size) * size > SHIFTED:
        return False
    return _first_offset(index, strides, lanes) is not None


def _first_offset(index: tuple[Expr, ...], strides: Sequence[int], lanes: int) -> AffineSum | None:
    """The offset of the first element of a vector; None if its elements are not consecutive."""
    index, strides = _fuse_dimensions(index, strides)
    *outer, last = index or (ZERO,)
    last = _as_ramp(last, lanes)
    if not (isinstance(last, Ramp) and last.stride == 1 and all(_is_scalar(i) for i in outer)):
        return None
    first = AffineSum()
    for i, stride in zip((*outer, last), strides or (1,), strict=True):
        first = first.plus(as_sum(_first_lane(i)), stride)
    return first


def _fuse_dimensions(
    index: tuple[Expr, ...], strides: Sequence[int]
) -> tuple[tuple[Expr, ...], tuple[int, ...]]:
    """The index and strides with dimensions x // n and x % n, where contiguous, fused into x."""
    dimensions: list[tuple[Expr, int]] = []
    for i, stride in zip(index, strides, strict=True):
        dimensions.append((i, stride))
        while len(dimensions) > 1:
            fused = _fused_index(*dimensions[-2], *dimensions[-1])
            if fused is None:
                break
            dimensions[-2:] = [(fused, dimensions[-1][1])]
    return tuple(i for i, _ in dimensions), tuple(stride for _, stride in dimensions)


def _fused_index(outer: Expr, outer_stride: int, inner: Expr, inner_stride: int) -> Expr | None:
    """x for x // n and x % n, x % (m * n) for (x // n) % m and x % n, if outer_stride is n * inner_stride.

    With whatever is added to the outer index, n times.
    """
    match inner:
        case Binary("mod", x, by):
            n = _constant_value(by)
        case _:
            return None
    if n is None or outer_stride != n * inner_stride:
        return None
    match outer:
        case Binary("floordiv", y, by) if y == x and _constant_value(by) == n:
            return x
        case Binary("mod", Binary("floordiv", y, by), again) if y == x and _constant_value(by) == n:
            m = _constant_value(again)
            return None if m is None else Binary("mod", x, _constant_like(again, m * n))
        case Binary("floordiv", Binary("mod", y, whole), by) if y == x and _constant_value(by) == n:
            m = _constant_value(whole)
            return None if m is None or m % n else Binary("mod", x, whole)
        case Binary("add", y, z):
            for one, other in ((y, z), (z, y)):
                fused = _fused_index(one, outer_stride, inner, inner_stride)
                if fused is not None and _is_scalar(other):
                    return Binary("add", Binary("mul", _first_lane(other), const(n)), fused)
            return None
        case _:
            return None


def _as_ramp(e: Expr, lanes: int) -> Expr:
    """A ramp for one with a scalar added, or whose remainders by a multiple of its lanes are consecutive."""
    match e:
        case Binary("add", y, z):
            for one, other in ((y, z), (z, y)):
                ramp = _as_ramp(one, lanes)
                if isinstance(ramp, Ramp) and _is_scalar(other):
                    return Ramp(Binary("add", ramp.base, _first_lane(other)), ramp.stride, ramp.lanes)
            return e
        case Binary("mod", Ramp(base, 1, count), by):
            n = _constant_value(by)
            whole = all(c % count == 0 for c in (as_sum(base).constant, *as_sum(base).terms.values()))
            if n is None or n % count or not whole:
                return e
            part = Binary("mod", Binary("floordiv", base, const(count)), const(n // count))
            return Ramp(Binary("mul", part, const(count)), 1, count)
        case _:
            return e


def _constant_like(e: Expr, n: int) -> Expr:
    return Broadcast(const(n), e.lanes) if isinstance(e, Broadcast) else const(n)


def _constant_value(e: Expr) -> int | None:
    match e:
        case Const(n) | Broadcast(Const(n)):
            return int(n)
        case _:
            return None


def _is_scalar(i: Expr) -> bool:
    return lanes_of(i) == 1 or isinstance(i, Broadcast)


def _first_lane(i: Expr) -> Expr:
    match i:
        case Ramp(base):
            return base
        case Broadcast(x):
            return x
        case _:
            return i
