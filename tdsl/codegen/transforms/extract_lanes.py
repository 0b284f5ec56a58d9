"""Extraction of one lane, or of consecutive lanes, from vector code."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tdsl.codegen.ir.loops import Stmt, Store
from tdsl.codegen.ir.statements import map_exprs, map_parts
from tdsl.core.node import children, map_children, memoised
from tdsl.lang.affine import as_expr, as_sum
from tdsl.lang.expr import Broadcast, Expr, Ramp, const, lanes_of


def extract_lane(e: Expr, n: int) -> Expr:
    """The n-th lane of a vector expression.

    >>> from tdsl.lang.expr import Binary, Load, Param, Var
    >>> from tdsl.lang.show import show_expr
    >>> from tdsl.lang.types import f32
    >>> x = Load("a", (Ramp(Var("i"), 2, 4),), f32)
    >>> show_expr(extract_lane(Binary("mul", x, Broadcast(Param("s", f32), 4)), 3))
    'a[i + 6] * s'
    """
    memo: dict[Expr, Expr] = {}
    return memoised(memo, e, lambda x: _extract_lane(x, n, memo), _vector_operands)


def _vector_operands(e: Expr) -> tuple[Expr, ...]:
    return () if isinstance(e, Ramp | Broadcast) else children(e)  # type: ignore[return-value]  # Exprs


def _extract_lane(e: Expr, n: int, operand_lanes: Mapping[Any, Expr]) -> Expr:
    match e:
        case Ramp(base, stride):
            return as_expr(as_sum(base).plus(as_sum(const(stride * n))))
        case Broadcast(x):
            return x
        case _:
            return map_children(e, lambda x: operand_lanes[x])


def extract_lanes(e: Expr, first: int, count: int) -> Expr:
    """The lanes `first`, ..., `first + count - 1` of a vector expression, as a shorter vector.

    >>> from tdsl.lang.expr import Load, Var
    >>> from tdsl.lang.show import show_expr
    >>> from tdsl.lang.types import f32
    >>> show_expr(extract_lanes(Load("a", (Ramp(Var("i"), 2, 7),), f32), 4, 2))
    'a[i + 8:i + 8 + 4:2]'
    """
    if count == 1:
        return extract_lane(e, first)
    match e:
        case Ramp(_, stride):
            return Ramp(extract_lane(e, first), stride, count)
        case Broadcast(x):
            return Broadcast(x, count)
        case _:
            return map_children(e, lambda x: extract_lanes(x, first, count))  # type: ignore[arg-type]  # of an Expr: Exprs


def lane_statement(s: Stmt, n: int) -> Stmt:
    """A statement of vector code for its n-th lane alone."""
    return map_parts(map_exprs(s, lambda e: extract_lane(e, n)), lambda part: lane_statement(part, n))


def lane_store(s: Store, n: int) -> Store:
    """The store of the n-th lane of a vector store."""
    index = tuple(extract_lane(i, n) for i in s.index)
    mask = None if s.mask is None else extract_lane(s.mask, n)
    return Store(s.buffer, index, extract_lane(s.value, n), mask, s.atomic)


def lane_count(s: Store) -> int:
    """The number of elements that a store writes."""
    return max(map(lanes_of, s.index), default=1)
