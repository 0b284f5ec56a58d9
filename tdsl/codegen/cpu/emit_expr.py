"""Lowers expressions of the loop IR to LLVM IR."""

from __future__ import annotations

from itertools import chain
from typing import assert_never

from tdsl.codegen.cpu import arith, memory
from tdsl.codegen.cpu.address import Address, address, lane_sum, scalar_sum
from tdsl.codegen.cpu.context import LARGEST_INDEX, Context
from tdsl.codegen.cpu.convert import cast
from tdsl.codegen.cpu.float_arith import half_power
from tdsl.codegen.cpu.ir_types import constants, literal
from tdsl.codegen.cpu.values import Value, broadcast, index, splat
from tdsl.core.node import post_order
from tdsl.lang.affine import AffineSum, has_data
from tdsl.lang.bounds import lower
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
    Ramp,
    Range,
    Read,
    Reduce,
    Require,
    Select,
    Show,
    Size,
    Unary,
    Var,
    dtype_of,
    lanes_of,
)  # fmt: skip
from tdsl.lang.types import bool_, f32, f64, i64, u64


def value(cx: Context, e: Expr) -> Value:
    """The LLVM value of an expression; each distinct node is written once in a statement.

    Operands are written before operators, with an explicit stack: an unrolled sum may be thousands deep.
    """
    stack = [e]
    while stack:
        top = stack[-1]
        if id(top) in cx.memo:
            stack.pop()
            continue
        pending = [x for x in _operands(top) if id(x) not in cx.memo]
        if pending:
            stack += reversed(pending)
            continue
        stack.pop()
        cx.memo[id(top)] = top, _node(cx, top)
    return cx.memo[id(e)][1]


def access(cx: Context, buffer: str, indices: tuple[Expr, ...], certain: bool) -> Address:
    """The address of an element or of a vector of elements; `certain` promises that lanes are in bounds."""
    return address(cx, value, buffer, indices, certain)


def _operands(e: Expr) -> tuple[Expr, ...]:
    """The operands that must be memoised before `_node` runs; it evaluates others by shallow recursion."""
    match e:
        case Unary(_, x) | Cast(x) | Broadcast(x):
            return (x,)
        case Binary(op, x, y):
            return _factors_and_term(e) or (() if _compares_ramps(op, x) else (x, y))
        case Select(cond, yes, no):
            return cond, yes, no
        case Call(_, args):
            return args
        case Load(_, indices, _, mask):
            return (*chain.from_iterable(map(_index_operands, indices)), *((mask,) if mask else ()))
        case _:
            return ()


def _index_operands(index: Expr) -> list[Expr]:
    """The parts of an index to evaluate before it: its loads, or all of it if it is no ramp or operator."""
    if not isinstance(index, Ramp | Binary | Broadcast):
        return [index]
    return [n for n in post_order(index) if isinstance(n, Load)] if has_data(index) else []


def _node(cx: Context, e: Expr) -> Value:
    b = cx.b
    match e:
        case Const(x, t):
            limit = abs(int(x)) if t == i64 else None
            return Value(literal(x, t), t, limit=limit)
        case Var(name) | Size(name) | Param(name):
            return cx.names[name]
        case Binary(op, x, y) if _compares_ramps(op, x):
            return _compare_ramps(cx, e)
        case Binary(op, x, y):
            if not b.module.fast and (fused := _factors_and_term(e)):
                left, right, term = (value(cx, v) for v in fused)
                return arith.multiply_add(b, left, right, term, op, first=fused[2] is y)
            return _binary(cx, op, x, y)
        case Unary(op, x):
            return arith.unary(b, op, value(cx, x))
        case Select(cond, yes, no):
            return arith.select(b, value(cx, cond), value(cx, yes), value(cx, no))
        case Cast(x, t, saturate):
            result = cast(b, value(cx, x), t, saturate)
            small = t == i64 and not dtype_of(x).is_float and dtype_of(x).bits <= 32
            return result._replace(limit=1 << 32) if small else result
        case Call(fn, args, t):
            return arith.call(b, fn, [value(cx, x) for x in args], t)
        case Load():
            return _load(cx, e)
        case Ramp():
            return _ramp(cx, e)
        case Broadcast(x, lanes):
            return broadcast(value(cx, x), lanes)
        case Access() | Read() | Reduce() | Range() | Require() | Show():
            raise AssertionError(f"{type(e).__name__} is not in the loop IR")
        case _:
            assert_never(e)


def _factors_and_term(e: Binary) -> tuple[Expr, Expr, Expr] | None:
    """The factors of a product of floats, and what is added to it or subtracted; None for other expressions.

    Such a pair is one instruction wherever loops have it, so that no schedule changes the rounding.
    """
    if e.op not in ("add", "sub"):
        return None
    for product, term in ((e.left, e.right), (e.right, e.left)):
        if isinstance(product, Binary) and product.op == "mul":
            dtype = dtype_of(product.left)
            return (product.left, product.right, term) if dtype.is_float and not dtype.is_narrow else None
    return None


def _binary(cx: Context, op: str, left: Expr, right: Expr) -> Value:
    x, y = value(cx, left), value(cx, right)
    match right:
        case Const(c, t) | Broadcast(Const(c, t)) if op == "pow" and t in (f32, f64) and abs(c) in (0.5, 1.5):
            return Value(half_power(cx.b, x, float(c)), t, x.lanes)
    if op in ("floordiv", "mod") and x.dtype == i64 and (y.constant or 0) > 0 and x.lanes == 1:
        least = lower(left, cx.facts)
        if least is not None and least >= 0:  # no fix-up of negative quotients
            quotient = arith.binary(cx.b, op, x._replace(dtype=u64), y._replace(dtype=u64))
            limit = x.limit if op == "floordiv" else y.limit
            return Value(quotient.name, i64, limit=limit)
    return arith.binary(cx.b, op, x, y)


def _load(cx: Context, e: Load) -> Value:
    mask = None if e.mask is None else value(cx, e.mask)
    lanes = lanes_of(e)
    at = access(cx, e.buffer, e.index, certain=mask is None)
    return memory.load(cx, at, e.dtype, lanes, mask)


def _ramp(cx: Context, e: Ramp) -> Value:
    b = cx.b
    steps = constants("i64", (k * e.stride for k in range(e.lanes)))
    base = value(cx, e.base)
    if base.constant is not None:
        first = base.constant
        return Value(constants("i64", (first + k * e.stride for k in range(e.lanes))), i64, e.lanes)
    wide = splat(b, "i64", base.name, e.lanes)
    limit = None if base.limit is None else base.limit + abs(e.stride) * e.lanes
    return Value(b.v(f"add nsw <{e.lanes} x i64> {wide}, {steps}"), i64, e.lanes, limit=limit)


def _compares_ramps(op: str, x: Expr) -> bool:
    """True for a comparison of vectors of indices, whose operands may contain ramps."""
    return (
        op in COMPARISONS
        and isinstance(x, Ramp | Broadcast | Binary)
        and lanes_of(x) > 1
        and dtype_of(x) == i64
    )


def _compare_ramps(cx: Context, e: Binary) -> Value:
    """Compare lane * step with a scalar limit, in the narrowest integers that represent all lane * step."""
    b = cx.b
    total = lane_sum(e.left, e.right)
    has_limits = all(value(cx, atom).limit is not None for atom in total.scalar.terms)
    if total.vectors or not total.step or not has_limits:
        return arith.binary(b, e.op, value(cx, e.left), value(cx, e.right))
    lanes = lanes_of(e.left)
    limit = scalar_sum(cx, value, AffineSum().plus(total.scalar, -1))
    span = abs(total.step) * lanes + 1
    bits = 8 * cx.b.target.vector_bytes // lanes
    bits = next((w for w in (8, 16, 32) if w >= bits and span < 1 << (w - 1)), 64)
    for op, end in (("smax", -span), ("smin", span)):
        if bits < 64:
            limit = b.call("i64", f"llvm.{op}.i64", ("i64", limit), ("i64", str(end)))
    if bits < 64:
        limit = b.v(f"trunc i64 {limit} to i{bits}")
    steps = constants(f"i{bits}", (k * total.step for k in range(lanes)))
    sign = "" if e.op in ("eq", "ne") else "s"
    limit_lanes = splat(b, f"i{bits}", limit, lanes)
    return Value(b.v(f"icmp {sign}{e.op} <{lanes} x i{bits}> {steps}, {limit_lanes}"), bool_, lanes)


def scalar_index(cx: Context, e: Expr) -> Value:
    """The value of an extent or a loop bound, at most LARGEST_INDEX, so that sums do not wrap."""
    x = value(cx, e)
    return index(x.constant) if x.constant is not None else x._replace(limit=LARGEST_INDEX)
