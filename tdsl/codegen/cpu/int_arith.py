"""Operators on integers and bools, as LLVM IR. Overflow wraps; division rounds down, and by zero gives 0."""

from __future__ import annotations

from tdsl.codegen.cpu.builder import Builder
from tdsl.codegen.cpu.ir_types import register_type, suffix, vector
from tdsl.codegen.cpu.values import Value, full, select, splat
from tdsl.lang.types import DType, i32, u32

_PLAIN = {"add": "add", "sub": "sub", "mul": "mul", "and": "and", "or": "or", "xor": "xor"}
BOOL = {
    "add": "or", "max": "or", "or": "or", "mul": "and", "min": "and", "and": "and",
    "xor": "xor", "sub": "xor",
}  # fmt: skip


def int_binary(b: Builder, op: str, x: Value, y: Value, nsw: bool = False) -> str:
    """`x op y`; `nsw` promises that an addition, subtraction or multiplication does not wrap."""
    t = x.type
    if x.dtype.kind == "b":
        return b.v(f"{BOOL[op]} {t} {full(b, x)}, {full(b, y)}")
    if op in _PLAIN:
        flag = " nsw" if nsw and op in ("add", "sub", "mul") else ""
        return b.v(f"{_PLAIN[op]}{flag} {t} {full(b, x)}, {full(b, y)}")
    if op in ("min", "max"):
        name = f"llvm.{'s' if x.dtype.kind == 'i' else 'u'}{op}.{suffix(t)}"
        return b.call(t, name, (t, full(b, x)), (t, full(b, y)))
    if op in ("shl", "shr"):
        return _shift(b, op, x, y)
    if op == "pow":
        return _power(b, x, y)
    assert op in ("floordiv", "mod"), op
    if y.constant is not None:
        return _divide_by_constant(b, op, x, y.constant)
    return _divide(b, op, x, y)


def int_compare(b: Builder, op: str, x: Value, y: Value) -> str:
    """The i1 mask of a comparison of integers or bools."""
    sign = "" if op in ("eq", "ne") else "s" if x.dtype.kind == "i" else "u"
    return b.v(f"icmp {sign}{op} {x.type} {full(b, x)}, {full(b, y)}")


def int_unary(b: Builder, op: str, x: Value) -> str:
    """neg, not or abs of `x`."""
    t, name = x.type, full(b, x)
    match op:
        case "not":
            return b.v(f"xor {t} {name}, {_constant(b, x, -1 if x.dtype.kind != 'b' else 1)}")
        case "neg":
            return b.v(f"sub {t} {_constant(b, x, 0)}, {name}")
        case _:
            assert op == "abs"
            if x.dtype.kind != "i":
                return name
            return b.call(t, f"llvm.abs.{suffix(t)}", (t, name), ("i1", "false"))


def count_bits(b: Builder, fn: str, x: Value) -> str:
    """popcount, clz or ctz of `x`, in its type."""
    t = x.type
    if fn == "popcount":
        return b.call(t, f"llvm.ctpop.{suffix(t)}", (t, full(b, x)))
    name = {"clz": "ctlz", "ctz": "cttz"}[fn]
    return b.call(t, f"llvm.{name}.{suffix(t)}", (t, full(b, x)), ("i1", "false"))


def _constant(b: Builder, like: Value, value: int) -> str:
    if like.dtype.kind == "b":
        return splat(b, "i1", "true" if value else "false", like.lanes)
    return splat(b, register_type(like.dtype), str(value), like.lanes)


def _shift(b: Builder, op: str, x: Value, y: Value) -> str:
    t, width, signed = x.type, x.dtype.bits, x.dtype.kind == "i"
    right = "ashr" if signed else "lshr"
    if y.constant is not None:
        count = y.constant
        if 0 <= count < width:
            return b.v(f"{'shl' if op == 'shl' else right} {t} {full(b, x)}, {full(b, y)}")
        if op == "shl" or not signed:
            return _constant(b, x, 0)
        return b.v(f"ashr {t} {full(b, x)}, {_constant(b, x, width - 1)}")
    top = _constant(b, x, width - 1)
    count_name = b.call(t, f"llvm.umin.{suffix(t)}", (t, full(b, y)), (t, top))
    shifted = b.v(f"{'shl' if op == 'shl' else right} {t} {full(b, x)}, {count_name}")
    if op == "shr" and signed:
        return shifted
    valid = b.v(f"icmp ule {t} {full(b, y)}, {top}")
    return select(b, t, valid, shifted, _constant(b, x, 0))


def _divide_by_constant(b: Builder, op: str, x: Value, c: int) -> str:
    t, name, signed = x.type, full(b, x), x.dtype.kind == "i"
    quotient = op == "floordiv"
    if c == 0 or (abs(c) == 1 and not quotient):
        return _constant(b, x, 0)
    if c == 1:
        return name
    if c == -1 and signed:
        return b.v(f"sub {t} {_constant(b, x, 0)}, {name}")
    if c > 0 and c & (c - 1) == 0:
        if not quotient:
            return b.v(f"and {t} {name}, {_constant(b, x, c - 1)}")
        shift_count = _constant(b, x, c.bit_length() - 1)
        return b.v(f"{'ashr' if signed else 'lshr'} {t} {name}, {shift_count}")
    divisor = _constant(b, x, c)
    if not signed:
        return b.v(f"{'udiv' if quotient else 'urem'} {t} {name}, {divisor}")
    q = b.v(f"sdiv {t} {name}, {divisor}")
    r = b.v(f"sub {t} {name}, {b.v(f'mul {t} {q}, {divisor}')}")
    # -1 where the remainder and the divisor differ in sign, so that truncation rounded up
    other = r if c > 0 else b.v(f"sub {t} {_constant(b, x, 0)}, {r}")
    correction = b.v(f"ashr {t} {other}, {_constant(b, x, x.dtype.bits - 1)}")
    if quotient:
        return b.v(f"add {t} {q}, {correction}")
    return b.v(f"add {t} {r}, {b.v(f'and {t} {correction}, {divisor}')}")


def _divide(b: Builder, op: str, x: Value, y: Value) -> str:
    t, a, d, signed = x.type, full(b, x), full(b, y), x.dtype.kind == "i"
    zero, one, minus = _constant(b, x, 0), _constant(b, x, 1), _constant(b, x, -1)
    by_zero = b.v(f"icmp eq {t} {d}, {zero}")
    divisor = select(b, t, by_zero, one, d)
    if not signed:
        q = _truncating(b, x.dtype, x.lanes, a, divisor)
        if op == "floordiv":
            return select(b, t, by_zero, zero, q)
        return b.v(f"sub {t} {a}, {b.v(f'mul {t} {q}, {divisor}')}")
    by_minus = b.v(f"icmp eq {t} {d}, {minus}")  # INT_MIN / -1 traps
    divisor = select(b, t, by_minus, one, divisor)
    q = _truncating(b, x.dtype, x.lanes, a, divisor)
    r = b.v(f"sub {t} {a}, {b.v(f'mul {t} {q}, {divisor}')}")
    inexact = b.v(f"icmp ne {t} {r}, {zero}")
    signs_differ = b.v(f"icmp slt {t} {b.v(f'xor {t} {r}, {divisor}')}, {zero}")
    mask = vector("i1", x.lanes)
    needs_fix = b.v(f"and {mask} {inexact}, {signs_differ}")
    if op == "mod":
        return select(b, t, needs_fix, b.v(f"add {t} {r}, {divisor}"), r)
    floored = select(b, t, needs_fix, b.v(f"add {t} {q}, {minus}"), q)
    floored = select(b, t, by_minus, b.v(f"sub {t} {zero}, {a}"), floored)
    return select(b, t, by_zero, zero, floored)


def _truncating(b: Builder, dtype: DType, lanes: int, x: str, y: str) -> str:
    """x / y rounded toward zero, y != 0. CPUs lack vector division of integers: floats are exact enough."""
    t, signed = register_type(dtype, lanes), dtype.kind == "i"
    if lanes == 1 or dtype.bits == 64:
        return b.v(f"{'sdiv' if signed else 'udiv'} {t} {x}, {y}")
    wide = vector("double" if dtype in (i32, u32) else "float", lanes)
    to, back = ("sitofp", "fptosi") if signed else ("uitofp", "fptoui")
    q = b.v(f"fdiv {wide} {b.v(f'{to} {t} {x} to {wide}')}, {b.v(f'{to} {t} {y} to {wide}')}")
    return b.v(f"{back} {wide} {q} to {t}")


def _power(b: Builder, x: Value, y: Value) -> str:
    t = x.type
    if y.constant is not None and 0 <= y.constant < 64:
        return _constant_power(b, x, y.constant)
    one = register_type(x.dtype)
    name = f"tdsl.pow.{x.dtype.name}"
    b.declare(_POWER.format(name=name, t=one, negative="slt" if x.dtype.kind == "i" else "ult"))
    if x.lanes == 1:
        return b.v(f"call {one} @{name}({one} {x.name}, {one} {y.name})")
    result = "poison"
    for k in range(x.lanes):
        base = b.v(f"extractelement {t} {full(b, x)}, i64 {k}")
        exponent = b.v(f"extractelement {t} {full(b, y)}, i64 {k}")
        power = b.v(f"call {one} @{name}({one} {base}, {one} {exponent})")
        result = b.v(f"insertelement {t} {result}, {one} {power}, i64 {k}")
    return result


def _constant_power(b: Builder, x: Value, exponent: int) -> str:
    t, square, result = x.type, full(b, x), ""
    while exponent:
        if exponent & 1:
            result = b.v(f"mul {t} {result}, {square}") if result else square
        exponent >>= 1
        if exponent:
            square = b.v(f"mul {t} {square}, {square}")
    return result or _constant(b, x, 1)


# Exponentiation by squaring. A negative exponent gives 1 / x ** -e rounded toward zero: 0 unless |x| is 1.
_POWER = """define internal {t} @{name}({t} %x, {t} %e) nounwind memory(none) {{
entry:
  %negative = icmp {negative} {t} %e, 0
  %next = add {t} %x, 1
  %unit = icmp ult {t} %next, 3
  %nonzero = icmp ne {t} %x, 0
  %invertible = and i1 %unit, %nonzero
  %kept = select i1 %invertible, {t} %x, {t} 0
  %one = and {t} %e, 1
  %even = icmp eq {t} %one, 0
  %square0 = mul {t} %kept, %kept
  %inverse = select i1 %even, {t} %square0, {t} %kept
  br i1 %negative, label %done, label %loop
loop:
  %s = phi {t} [%x, %entry], [%square, %loop]
  %n = phi {t} [%e, %entry], [%rest, %loop]
  %p = phi {t} [1, %entry], [%power, %loop]
  %bit = and {t} %n, 1
  %odd = icmp ne {t} %bit, 0
  %product = mul {t} %p, %s
  %power = select i1 %odd, {t} %product, {t} %p
  %square = mul {t} %s, %s
  %rest = lshr {t} %n, 1
  %more = icmp ne {t} %rest, 0
  br i1 %more, label %loop, label %done
done:
  %result = phi {t} [%inverse, %entry], [%power, %loop]
  ret {t} %result
}}"""
