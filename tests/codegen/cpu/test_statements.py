"""Random statements leave the same memory behind as NumPy: what is reused is never out of date."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tdsl.codegen.ir.loops import (
    Alloc,
    Block,
    BufferParam,
    For,
    If,
    Kernel,
    Let,
    ScalarParam,
    SizeParam,
    Stmt,
    Store,
)
from tdsl.lang.expr import (
    Binary,
    Broadcast,
    Cast,
    Expr,
    Load,
    Param,
    Ramp,
    Select,
    Size,
    Var,
    const,
)
from tdsl.lang.types import i32, i64
from tests.codegen.cpu.plain import run_plain
from tests.codegen.cpu.running import dense, run, wide

SIDE, LANES = 12, 4
BUFFERS = ("a", "b")
# The same nodes in many statements: their values may be reused, or not any more.
COMMON = tuple(Load(name, (const(0), const(c)), i64) for name in BUFFERS for c in (0, 1))


def position(draw: st.DrawFn, names: tuple[str, ...]) -> Expr:
    """A scalar index that is inside a row for any value of its names."""
    if draw(st.integers(0, 3)):
        return const(draw(st.integers(0, 1)))
    e: Expr = Var(draw(st.sampled_from(names)))
    e = Binary("add", Binary("mul", e, const(draw(st.integers(-2, 2)))), Param("p", i64))
    return Binary("mod", e, const(SIDE))


def element(draw: st.DrawFn, names: tuple[str, ...], buffer: str, lanes: int) -> tuple[Expr, ...]:
    row = position(draw, names)
    if lanes == 1:
        return row, position(draw, names)
    column = Binary("min", position(draw, names), const(SIDE - LANES))
    return wide(row, lanes) if draw(st.booleans()) else row, Ramp(column, 1, lanes)


def value(draw: st.DrawFn, names: tuple[str, ...], lanes: int, depth: int) -> Expr:
    """An i64 expression that reads both buffers."""
    match draw(st.integers(-3, 6 if depth else 2)):
        case -3 | -2 | -1:
            return wide(draw(st.sampled_from(COMMON)), lanes)
        case 0:
            return wide(const(draw(st.integers(-9, 9))), lanes)
        case 1:
            return wide(Var(draw(st.sampled_from(names))), lanes)
        case 2 | 3:
            buffer = draw(st.sampled_from(BUFFERS))
            return Load(buffer, element(draw, names, buffer, lanes), i64)
        case 4:
            condition = comparison(draw, names, lanes, depth - 1)
            arms = (value(draw, names, lanes, depth - 1) for _ in range(2))
            return Select(condition, *arms)
        case 5:
            return Cast(Cast(value(draw, names, lanes, depth - 1), i32), i64)
        case _:
            op = draw(st.sampled_from(["add", "sub", "mul", "floordiv", "mod", "min", "xor"]))
            left, right = (value(draw, names, lanes, depth - 1) for _ in range(2))
            return Binary(op, left, right)


def comparison(draw: st.DrawFn, names: tuple[str, ...], lanes: int, depth: int) -> Expr:
    op = draw(st.sampled_from(["lt", "ge", "ne"]))
    if lanes > 1 and draw(st.booleans()):
        limit = Var(draw(st.sampled_from(names)))
        return Binary(op, Ramp(Param("p", i64), 1, lanes), Broadcast(limit, lanes))
    return Binary(op, value(draw, names, lanes, depth), value(draw, names, lanes, depth))


@st.composite
def statements(draw: st.DrawFn, names: tuple[str, ...] = ("n",), depth: int = 4) -> Stmt:
    name = f"v{depth}"
    match draw(st.integers(0, 7 if depth else 1)):
        case 0 | 1:
            lanes = draw(st.sampled_from([1, 1, LANES]))
            buffer = draw(st.sampled_from(BUFFERS))
            mask = comparison(draw, names, lanes, 1) if not draw(st.integers(0, 3)) else None
            atomic = draw(st.sampled_from(["", "", "add"]))
            index = element(draw, names, buffer, lanes)
            return Store(buffer, index, value(draw, names, lanes, 2), mask, atomic)
        case 2:
            lo = const(draw(st.integers(-1, 2)))
            extent = draw(st.sampled_from([const(0), const(1), const(2), Var(names[-1]), Size("n")]))
            bounded = Binary("min", extent, const(3))
            body = draw(statements((*names, name), depth - 1))
            return For(
                name,
                lo,
                draw(st.sampled_from([extent, bounded])) if extent == const(2) else bounded,
                "serial",
                body,
            )
        case 3:
            bound = Binary("mod", value(draw, names, 1, 2), const(7))
            return Let(name, bound, draw(statements((*names, name), depth - 1)))
        case 4:
            orelse = draw(statements(names, depth - 1)) if draw(st.booleans()) else None
            return If(comparison(draw, names, 1, 1), draw(statements(names, depth - 1)), orelse)
        case _:
            parts = (draw(statements(names, depth - 1)) for _ in range(draw(st.integers(2, 6))))
            return Block(tuple(parts))


def copied(to: str, source: str) -> Stmt:
    cell = Var("row"), Var("column")
    inner = For("column", const(0), const(SIDE), "serial", Store(to, cell, Load(source, cell, i64)))
    return For("row", const(0), const(SIDE), "serial", inner)


@given(statements(), st.integers(0, 3), st.integers(0, 20), st.booleans())
def test_any_statement(body: Stmt, n: int, p: int, local: bool) -> None:
    # `n` is a loop of one iteration, so that it can be used as a variable, too
    body = For("n", Size("n"), const(1), "serial", body)
    if local:
        extents = const(SIDE), const(SIDE)
        steps = (copied("a", "c"), body, copied("c", "a"))
        body = Alloc("a", i64, extents, "stack", Block(steps))
    params = (
        dense("c" if local else "a", i64, SIDE, SIDE, written=True),
        BufferParam("b", i64, (const(SIDE), const(SIDE)), (None, None), True),
        SizeParam("n"),
        ScalarParam("p", i64),
    )
    arrays = [np.random.default_rng(k).integers(-50, 50, (SIDE, SIDE)) for k in range(2)]
    expected = [x.copy() for x in arrays]
    kernel = Kernel("statement", params, body)
    run_plain(kernel, *expected, n, p)
    assert run(kernel, *arrays, n, p) == 0
    assert all(np.array_equal(x, y) for x, y in zip(arrays, expected, strict=True))
