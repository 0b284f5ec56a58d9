"""Operators on floats, as LLVM IR. Floats of 8 and 16 bits are computed in f32, each result is rounded."""

from __future__ import annotations

from collections.abc import Callable

from tdsl.codegen.cpu.builder import Builder
from tdsl.codegen.cpu.ir_types import literal, register_type, scalar_type, suffix, vector
from tdsl.codegen.cpu.narrow_floats import narrow, widen
from tdsl.codegen.cpu.values import Value, full, select, splat
from tdsl.lang.types import DType, f32

_ORDERED = {"eq": "oeq", "ne": "une", "lt": "olt", "le": "ole", "gt": "ogt", "ge": "oge"}
_PLAIN = {"add": "fadd", "sub": "fsub", "mul": "fmul", "div": "fdiv"}
_INTRINSICS = {
    "sqrt": "sqrt", "floor": "floor", "ceil": "ceil", "trunc": "trunc", "round": "roundeven",
    "copysign": "copysign", "fma": "fma",
}  # fmt: skip


def in_f32(b: Builder, f: Callable[[list[str], DType], str], t: DType, lanes: int, names: list[str]) -> str:
    """`f(names, t)`; operands of 8 or 16 bits are widened to f32, and the result is rounded back to `t`."""
    if not t.is_narrow:
        return f(names, t)
    return narrow(b, f([widen(b, x, t, lanes) for x in names], f32), t, lanes)


def float_binary(b: Builder, op: str, x: Value, y: Value) -> str:
    """`x op y` for an arithmetic operator, min or max."""

    def compute(names: list[str], t: DType) -> str:
        return _binary(b, op, names[0], names[1], t, x.lanes)

    return in_f32(b, compute, x.dtype, x.lanes, [full(b, x), full(b, y)])


def float_compare(b: Builder, op: str, x: Value, y: Value) -> str:
    """The i1 mask of an IEEE comparison: only `ne` is true for NaN."""
    t, names = _widened(b, x, y)
    return b.v(f"fcmp {_ORDERED[op]} {register_type(t, x.lanes)} {names[0]}, {names[1]}")


def float_unary(b: Builder, op: str, x: Value) -> str:
    """neg or abs of `x`, which change the sign bit only."""
    if x.dtype.is_narrow:  # bits
        sign = 1 << (x.dtype.bits - 1)
        mask = splat(b, scalar_type(x.dtype), str(sign - 1 if op == "abs" else -sign), x.lanes)
        return b.v(f"{'and' if op == 'abs' else 'xor'} {x.type} {full(b, x)}, {mask}")
    if op == "neg":
        return b.v(f"fneg {x.type} {full(b, x)}")
    assert op == "abs"
    return b.call(x.type, f"llvm.fabs.{suffix(x.type)}", (x.type, full(b, x)))


def float_test(b: Builder, fn: str, x: Value) -> str:
    """The i1 mask isnan, isinf or isfinite of `x`."""
    t, (name,) = _widened(b, x)
    type_ = register_type(t, x.lanes)
    if fn == "isnan":
        return b.v(f"fcmp uno {type_} {name}, {name}")
    magnitude = b.call(type_, f"llvm.fabs.{suffix(type_)}", (type_, name))
    infinity = splat(b, register_type(t), literal(float("inf"), t), x.lanes)
    how = "oeq" if fn == "isinf" else "olt"
    return b.v(f"fcmp {how} {type_} {magnitude}, {infinity}")


def float_call(b: Builder, fn: str, args: list[Value]) -> str:
    """Call a function of floats that returns a float."""
    lanes = args[0].lanes

    def compute(names: list[str], t: DType) -> str:
        type_ = register_type(t, lanes)
        if fn in _INTRINSICS:
            flags = _flags(b) if fn in ("sqrt", "fma") else ""
            name = f"llvm.{_INTRINSICS[fn]}.{suffix(type_)}"
            return b.call(type_, name, *((type_, x) for x in names), flags=flags)
        if fn == "rsqrt":
            root = b.call(type_, f"llvm.sqrt.{suffix(type_)}", (type_, names[0]), flags=_flags(b))
            one = splat(b, register_type(t), literal(1.0, t), lanes)
            return b.v(f"fdiv {_flags(b)}{type_} {one}, {root}")
        return _math_call(b, fn, names, t, lanes)

    return in_f32(b, compute, args[0].dtype, lanes, [full(b, x) for x in args])


def _math_call(b: Builder, fn: str, names: list[str], t: DType, lanes: int) -> str:
    from tdsl.codegen.cpu.vecmath import math_call  # eight files, which few programs need

    return math_call(b, fn, names, t, lanes)


def _flags(b: Builder) -> str:
    return "fast " if b.module.fast else "contract "


def _widened(b: Builder, *values: Value) -> tuple[DType, list[str]]:
    t, names = values[0].dtype, [full(b, x) for x in values]
    if t.is_narrow:
        return f32, [widen(b, x, t, values[0].lanes) for x in names]
    return t, names


def _binary(b: Builder, op: str, x: str, y: str, t: DType, lanes: int) -> str:
    type_ = register_type(t, lanes)
    if op in _PLAIN:
        return b.v(f"{_PLAIN[op]} {_flags(b)}{type_} {x}, {y}")
    if op in ("min", "max"):
        # The sign of a zero result is unspecified: that saves half of the instructions on x86.
        name = f"llvm.{op}imum.{suffix(type_)}"
        return b.call(type_, name, (type_, x), (type_, y), flags="nsz ")
    if op == "pow":
        return _math_call(b, "pow", [x, y], t, lanes)
    assert op in ("floordiv", "mod"), op
    return _Remainder(b, t, lanes).compute(op, x, y)


def half_power(b: Builder, x: Value, power: float) -> str:
    """`x` to the power 0.5, -0.5, 1.5 or -1.5 by a square root, with the special cases of C's pow."""
    t, lanes = x.type, x.lanes

    def constant(c: float) -> str:
        return splat(b, register_type(x.dtype), literal(c, x.dtype), lanes)

    base = b.v(f"fadd {t} {full(b, x)}, {constant(0.0)}")  # -0.0 as 0.0
    if power < 0:  # first, so that the result overflows and becomes subnormal where it should
        base = b.v(f"fdiv {t} {constant(1.0)}, {base}")
    result = b.call(t, f"llvm.sqrt.{suffix(t)}", (t, base))
    if abs(power) > 1:
        result = b.v(f"fmul {t} {result}, {base}")
    if power < 0:
        return result
    infinite = b.v(f"fcmp oeq {t} {full(b, x)}, {constant(float('-inf'))}")
    mask = vector("i1", lanes)
    return b.v(f"select {mask} {infinite}, {t} {constant(float('inf'))}, {t} {result}")


class _Remainder:
    """NumPy's floor division and remainder of floats, from C's fmod."""

    def __init__(self, b: Builder, t: DType, lanes: int) -> None:
        self.b, self.t, self.lanes = b, t, lanes
        self.type = register_type(t, lanes)
        self.zero, self.one, self.half = (self.constant(c) for c in (0.0, 1.0, 0.5))

    def constant(self, value: float) -> str:
        return splat(self.b, register_type(self.t), literal(value, self.t), self.lanes)

    def compute(self, op: str, x: str, y: str) -> str:
        b, t, mask = self.b, self.type, vector("i1", self.lanes)
        r = b.v(f"frem {t} {x}, {y}")
        nonzero = b.v(f"fcmp une {t} {r}, {self.zero}")
        negative = b.v(f"fcmp olt {t} {r}, {self.zero}")
        signs_differ = b.v(f"xor {mask} {negative}, {b.v(f'fcmp olt {t} {y}, {self.zero}')}")
        needs_fix = b.v(f"and {mask} {nonzero}, {signs_differ}")
        if op == "mod":
            fixed = select(b, t, needs_fix, b.v(f"fadd {t} {r}, {y}"), r)
            return select(b, t, nonzero, fixed, self.copysign(self.zero, y))
        exact = b.v(f"fdiv {t} {b.v(f'fsub {t} {x}, {r}')}, {y}")
        exact = select(b, t, needs_fix, b.v(f"fsub {t} {exact}, {self.one}"), exact)
        floored = b.call(t, f"llvm.floor.{suffix(t)}", (t, exact))
        rounds_up = b.v(f"fcmp ogt {t} {b.v(f'fsub {t} {exact}, {floored}')}, {self.half}")
        floored = select(b, t, rounds_up, b.v(f"fadd {t} {floored}, {self.one}"), floored)
        ratio = b.v(f"fdiv {t} {x}, {y}")
        is_zero = b.v(f"fcmp oeq {t} {exact}, {self.zero}")
        result = select(b, t, is_zero, self.copysign(self.zero, ratio), floored)
        by_zero = b.v(f"fcmp oeq {t} {y}, {self.zero}")
        return select(b, t, by_zero, ratio, result)

    def copysign(self, magnitude: str, sign: str) -> str:
        t = self.type
        return self.b.call(t, f"llvm.copysign.{suffix(t)}", (t, magnitude), (t, sign))
