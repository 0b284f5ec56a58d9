"""Operators, selections and function calls on values of any element type and number of lanes, as LLVM IR."""

from __future__ import annotations

from tdsl.codegen.cpu.builder import Builder
from tdsl.codegen.cpu.convert import cast
from tdsl.codegen.cpu.float_arith import (
    float_binary,
    float_call,
    float_compare,
    float_test,
    float_unary,
)  # fmt: skip
from tdsl.codegen.cpu.int_arith import count_bits, int_binary, int_compare, int_unary
from tdsl.codegen.cpu.ir_types import literal, register_type, suffix, vector
from tdsl.codegen.cpu.values import Value, full, splat
from tdsl.codegen.cpu.values import select as choose
from tdsl.lang.expr import COMPARISONS
from tdsl.lang.types import DType, bool_, f64, i32, i64, u64


def binary(b: Builder, op: str, x: Value, y: Value) -> Value:
    """`x op y`; both operands have the same type and number of lanes."""
    if x.uniform and y.uniform:
        return _uniform(binary(b, op, x.lane(), y.lane()), x.lanes)
    if op in COMPARISONS:
        compare = float_compare if x.dtype.is_float else int_compare
        return Value(compare(b, op, x, y), bool_, x.lanes)
    if x.dtype.is_float:
        return Value(float_binary(b, op, x, y), x.dtype, x.lanes)
    if x.lanes == 1 and x.dtype == i64 and (known := _fold(op, x, y)) is not None:
        return known
    limit = _limit(op, x, y)
    return Value(int_binary(b, op, x, y, nsw=limit is not None), x.dtype, x.lanes, limit=limit)


def multiply_add(b: Builder, x: Value, y: Value, z: Value, op: str, *, first: bool) -> Value:
    """`x * y op z` with the product `first`, else `z op x * y`; op is add or sub. CPUs may round once."""
    if x.uniform and y.uniform and z.uniform:
        return _uniform(multiply_add(b, x.lane(), y.lane(), z.lane(), op, first=first), x.lanes)
    if op == "sub":
        x, z = (x, unary(b, "neg", z)) if first else (unary(b, "neg", x), z)
    type_ = register_type(x.dtype, x.lanes)
    operands = [(type_, full(b, v)) for v in (x, y, z)]
    name = b.call(type_, f"llvm.fmuladd.{suffix(type_)}", *operands, flags="contract ")
    return Value(name, x.dtype, x.lanes)


def unary(b: Builder, op: str, x: Value) -> Value:
    """neg, not or abs of `x`."""
    if x.uniform:
        return _uniform(unary(b, op, x.lane()), x.lanes)
    apply = float_unary if x.dtype.is_float else int_unary
    return Value(apply(b, op, x), x.dtype, x.lanes)


def select(b: Builder, cond: Value, yes: Value, no: Value) -> Value:
    """`yes` in the lanes where `cond` is true, else `no`."""
    if cond.constant is not None:
        return yes if cond.constant else no
    if cond.uniform and yes.uniform and no.uniform:
        return _uniform(select(b, cond.lane(), yes.lane(), no.lane()), cond.lanes)
    names = full(b, yes), full(b, no)
    if cond.uniform:  # one scalar condition chooses a whole vector
        name = b.v(f"select i1 {cond.name}, {yes.type} {names[0]}, {yes.type} {names[1]}")
    else:
        name = choose(b, yes.type, full(b, cond), *names)
    return Value(name, yes.dtype, yes.lanes)


def call(b: Builder, fn: str, args: list[Value], t: DType) -> Value:
    """Call a function of `lang.expr.FUNCTIONS`, with a result of type `t`."""
    lanes = args[0].lanes
    if lanes > 1 and all(x.uniform for x in args):
        return _uniform(call(b, fn, [x.lane() for x in args], t), lanes)
    match fn:
        case "isnan" | "isinf" | "isfinite":
            return Value(float_test(b, fn, args[0]), bool_, lanes)
        case "popcount" | "clz" | "ctz":
            x = args[0]
            return cast(b, Value(count_bits(b, fn, x), x.dtype, lanes), t)
        case "random":
            return _random(b, args, t)
        case "reinterpret":
            return _reinterpret(b, args[0], t)
        case _:
            return cast(b, Value(float_call(b, fn, args), args[0].dtype, lanes), t)


def _uniform(x: Value, lanes: int) -> Value:
    return Value(x.name, x.dtype, lanes, True, x.limit)


def _fold(op: str, x: Value, y: Value) -> Value | None:
    """The result of an i64 operation on constants or a neutral element; None if it needs an instruction."""
    a, c = x.constant, y.constant
    if op == "add" and 0 in (a, c):
        return y if a == 0 else x
    if (op == "sub" and c == 0) or (op == "mul" and c == 1):
        return x
    if op == "mul" and a == 1:
        return y
    if a is None or c is None or op not in ("add", "sub", "mul", "min", "max"):
        return None
    total = {"add": a + c, "sub": a - c, "mul": a * c, "min": min(a, c), "max": max(a, c)}[op]
    return Value(str(total), i64, limit=abs(total)) if abs(total) < 1 << 63 else None


def _limit(op: str, x: Value, y: Value) -> int | None:
    """An upper bound of the magnitude of an i64 result that cannot overflow, or None."""
    a, c = (v.limit if v.constant is None else abs(v.constant) for v in (x, y))
    if x.dtype != i64 or a is None or c is None:
        return None
    match op:
        case "add" | "sub":
            total = a + c
        case "mul":
            total = a * c
        case "min" | "max":
            total = max(a, c)
        case "floordiv" if y.constant:
            total = a + 1
        case "mod" if y.constant:
            total = c
        case _:
            return None
    return total if total < 1 << 63 else None


def _reinterpret(b: Builder, x: Value, t: DType) -> Value:
    if x.dtype.kind == "b":  # a bool is a byte in memory
        return Value(b.v(f"zext {x.type} {full(b, x)} to {vector('i8', x.lanes)}"), t, x.lanes)
    if t.kind == "b":
        return cast(b, x, t)
    if register_type(t) == register_type(x.dtype):
        return Value(full(b, x), t, x.lanes)
    name = b.v(f"bitcast {x.type} {full(b, x)} to {register_type(t, x.lanes)}")
    return Value(name, t, x.lanes)


def _random(b: Builder, args: list[Value], t: DType) -> Value:
    """A float in [0, 1), uniformly distributed: the top bits of splitmix64 chained over the arguments."""
    lanes = max(x.lanes for x in args)
    words = [cast(b, x, u64) for x in args]
    h = words[0]
    for word in (_word(1, h.lanes), *words[1:]):  # the word 1, as mixing maps 0 to 0
        step = binary(b, "mul", word, _word(0x9E3779B97F4A7C15, word.lanes))
        h = _mix(b, binary(b, "xor", h, step))
    shift = 11 if t == f64 else 40
    top = binary(b, "shr", h, _word(shift, lanes))
    # 24 bits are a positive i32, 53 bits a positive i64: signed conversions are the fast ones
    whole = cast(b, Value(full(b, top), i64, lanes), i64 if t == f64 else i32)
    scale = literal(2.0**-53 if t == f64 else 2.0**-24, t)
    number = cast(b, whole, t)
    product = b.v(f"fmul {number.type} {number.name}, {splat(b, register_type(t), scale, lanes)}")
    return Value(product, t, lanes)


def _word(value: int, lanes: int) -> Value:
    return Value(str(value), u64, lanes, lanes > 1)


def _mix(b: Builder, x: Value) -> Value:
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        x = binary(b, "xor", x, binary(b, "shr", x, _word(shift, x.lanes)))
        x = binary(b, "mul", x, _word(factor, x.lanes))
    return binary(b, "xor", x, binary(b, "shr", x, _word(31, x.lanes)))
