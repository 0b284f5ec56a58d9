"""Emits scalar expressions for numba, whose types of results differ from NumPy's.

In numba an operator on integers narrower than 64 bits gives 64 bits, and a Python literal is an i64 or f64.
Therefore each constant gets an explicit type and each narrow result is cast back; operations that numba
computes otherwise than the definition (division by zero, wide shifts, casts out of range) are functions of
`SUPPORT`.
"""

from __future__ import annotations

from tdsl.codegen.python.expressions import BOOL, SCALAR, Expressions, Value, integer, tuple_text
from tdsl.core.node import Node
from tdsl.core.text import Piece, call, infix, number, prefix, ternary
from tdsl.lang.expr import (
    COMPARISONS,
    Binary,
    Const,
    Expr,
    dtype_of,
)  # fmt: skip
from tdsl.lang.show import SYMBOLS, show_const
from tdsl.lang.types import DType, bool_, f64, i64, u64

SUPPORT = {
    "CheckFailed": '''
class CheckFailed(Exception):
    """A check of the kernel failed: the number of its message, and the values shown."""
''',
    "floordiv": '''
@njit
def floordiv(x, y):
    if y == 0:
        return x - x
    return -x if y == -1 else x // y
''',
    "mod": '''
@njit
def mod(x, y):
    return x - x if y == 0 or y == -1 else x % y
''',
    "float_floordiv": '''
@njit
def float_floordiv(x, y):
    """floor(x / y) as NumPy has it, from an exact remainder."""
    if y == 0:
        return x / y
    rest = np.fmod(x, y)
    quotient = (x - rest) / y
    if rest != 0 and (y < 0) != (rest < 0):
        quotient -= 1
    if quotient == 0:
        return np.copysign(0.0, x / y)
    whole = np.floor(quotient)
    return whole + 1 if quotient - whole > 0.5 else whole
''',
    "float_mod": '''
@njit
def float_mod(x, y):
    rest = np.fmod(x, y)
    if y == 0 or rest != rest:
        return rest
    if rest == 0:
        return np.copysign(rest, y)
    return rest + y if (y < 0) != (rest < 0) else rest
''',
    "power": '''
@njit
def power(x, y):
    """x ** y modulo 2**64, from u64."""
    result = np.uint64(1)
    while y:
        if y & np.uint64(1):
            result *= x
        x *= x
        y >>= np.uint64(1)
    return result
''',
    "signed_power": '''
@njit
def signed_power(x, y):
    """x ** y that wraps, from i64; 0 for a negative y, except that 1 and -1 have exact inverses."""
    if y >= 0:
        return np.int64(power(np.uint64(x), np.uint64(y)))
    if x == -1:
        return np.int64(1 - 2 * (y & 1))
    return np.int64(x == 1)
''',
    "shl": '''
@njit
def shl(x, count, bits):
    return x << count if 0 <= count < bits else x - x
''',
    "shr": '''
@njit
def shr(x, count, bits):
    return x >> count if 0 <= count < bits else (x - x if x >= 0 else ~(x - x))
''',
    "to_i64": '''
@njit
def to_i64(x, lo, hi):
    """Truncate towards zero; clip to lo ... hi; NaN gives 0."""
    if x != x:
        return 0
    if x >= 9223372036854775808.0:
        return hi
    if x < -9223372036854775808.0:
        return lo
    return min(max(np.int64(x), lo), hi)
''',
    "to_u64": '''
@njit
def to_u64(x):
    """Truncate towards zero; clip to u64; NaN gives 0."""
    if x != x or x <= 0:
        return np.uint64(0)
    if x >= 18446744073709551616.0:
        return np.uint64(18446744073709551615)
    return np.uint64(x)
''',
    "popcount": '''
@njit
def popcount(x):
    """Bits set, of u64."""
    count = 0
    while x:
        x &= x - np.uint64(1)
        count += 1
    return count
''',
    "length": '''
@njit
def length(x):
    """The position after the highest bit set, of u64."""
    count = 0
    while x:
        x >>= np.uint64(1)
        count += 1
    return count
''',
    "random": '''
@njit
def mix(x):
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


@njit
def random(seed, keys):
    """A hash of u64 integers, the same for equal keys."""
    h = seed
    for k in keys:
        h = mix(h ^ (k * np.uint64(0x9E3779B97F4A7C15)))
    return h
''',
    "sigmoid": '''
@njit
def sigmoid(x):
    return 1 / (1 + np.exp(-x))
''',
    "rsqrt": '''
@njit
def rsqrt(x):
    return 1 / np.sqrt(x)
''',
    "fma": '''
@intrinsic
def fma(context, a, b, c):
    """a * b + c, rounded once."""
    def code(context, builder, signature, arguments):
        return builder.fma(*arguments)

    return a(a, a, a), code
''',
}  # fmt: skip

CALLS = {"signed_power": ("power",)}


class TypedExpressions(Expressions):
    """Emits scalar expressions as text in which numba infers the types of the loop IR."""

    def fit(self, v: Value) -> Value:
        """The value unchanged: 64-bit integers wrap."""
        return v  # 64-bit integers wrap

    def typed(self, v: Value, t: DType) -> Value:
        """The value unchanged: every text has its type."""
        return v  # every text has its type

    def node(self, e: Expr, memo: dict[Node, Value]) -> Value:
        """The text of a node; division and shifts by valid constants need no support function."""
        match e:
            case Const():
                return self.constant(e)
            case Binary(("shl" | "shr" | "floordiv" | "mod") as op, x, Const(k) as c):
                t, limit = dtype_of(x), 1 << 62 if op in ("floordiv", "mod") else dtype_of(x).bits
                if t.is_integer and 0 < k < limit:
                    return self.narrow(infix(SYMBOLS[op], memo[x].piece, memo[c].piece), t)
                return self.binary(op, memo[x], memo[c], t)
            case _:
                return Expressions.node(self, e, memo)

    def constant(self, c: Const) -> Value:
        """A constant as text from which numba infers its type."""
        t = c.dtype
        if t == bool_:
            return Value(Piece(str(bool(c.value))), BOOL)
        if t == i64 and c.value > i64.low:
            return integer(number(int(c.value)), c.value, c.value)
        if t.is_float and (c.value != c.value or abs(c.value) == float("inf")):
            text = "np.nan" if c.value != c.value else "np.inf" if c.value > 0 else "-np.inf"
            return Value(call(self.scalar_type(t), text), SCALAR)
        literal = show_const(c)
        return Value(literal if t == f64 else call(self.scalar_type(t), literal), SCALAR)

    def narrow(self, piece: Piece, t: DType) -> Value:
        """A result cast back to `t`, unless `t` is a 64-bit type, which numba preserves."""
        if t in (i64, u64, f64):
            return Value(piece, SCALAR)
        return Value(call(self.scalar_type(t), piece), SCALAR)

    def unary(self, op: str, x: Value, t: DType) -> Value:
        """`-x`, `~x` or `abs(x)` in type `t`."""
        if op == "not" and t == bool_:
            return Value(prefix("not", x.piece), BOOL)
        piece = call("abs", x.text) if op == "abs" else prefix(SYMBOLS[op], x.piece)
        return Value(piece, SCALAR) if t.is_float else self.narrow(piece, t)

    def binary(self, op: str, a: Value, b: Value, t: DType) -> Value:
        """`a op b` of two values of type `t`."""
        if t == bool_:
            symbol = {"and": "and", "or": "or", "min": "and", "max": "or", "xor": "!="}.get(op)
            return Value(infix(symbol or SYMBOLS[op], a.piece, b.piece), BOOL)
        if op in COMPARISONS:
            return Value(infix(SYMBOLS[op], a.piece, b.piece), BOOL)
        if t.is_float:
            return self.of_floats(op, a, b, t)
        if op in ("min", "max"):
            return self.narrow(call(op, a.text, b.text), t)
        if op in ("floordiv", "mod"):
            return self.narrow(self.support(op, a.text, b.text), t)
        wide = "np.int64" if t.kind == "i" else "np.uint64"
        if op == "pow":
            name = "signed_power" if t.kind == "i" else "power"
            return self.narrow(self.support(name, call(wide, a.text), call(wide, b.text)), t)
        if op in ("shl", "shr"):
            bits = call(wide, t.bits)
            piece = self.support(op, call(wide, a.text), call(wide, b.text), bits)
            return self.narrow(piece, t)
        return self.narrow(infix(SYMBOLS[op], a.piece, b.piece), t)

    def of_floats(self, op: str, a: Value, b: Value, t: DType) -> Value:
        """`a op b` of two floats."""
        if op in ("min", "max", "pow"):
            name = {"min": "np.minimum", "max": "np.maximum", "pow": "np.power"}[op]
            return self.narrow(call(name, a.text, b.text), t)
        if op in ("floordiv", "mod"):
            return self.narrow(self.support(f"float_{op}", a.text, b.text), t)
        return Value(infix(SYMBOLS[op], a.piece, b.piece), SCALAR)

    def select(self, cond: Value, yes: Value, no: Value, t: DType) -> Value:
        """`yes` if a condition is true, else `no`."""
        return Value(ternary(cond.piece, yes.piece, no.piece), BOOL if t == bool_ else SCALAR)

    def cast(self, x: Value, source: DType, target: DType, saturate: bool) -> Value:
        """A value of type `source` converted to `target`."""
        if source == target:
            return x
        if target == bool_:
            return Value(infix("!=", x.piece, number(0)), BOOL)
        if source.is_float and target == u64:
            return Value(self.support("to_u64", x.text), SCALAR)
        if source.is_float and target.is_integer:
            limits = (f"np.int64({target.low})", f"np.int64({target.high})")
            return self.narrow(self.support("to_i64", x.text, *limits), target)
        if saturate and source.is_integer and target.is_integer:
            x = self.clip(x, source, target)
        return Value(call(self.scalar_type(target), x.text), SCALAR)

    def clip(self, x: Value, source: DType, target: DType) -> Value:
        """An integer clipped to the values that both types represent."""
        lo, hi = max(int(source.low), int(target.low)), min(int(source.high), int(target.high))
        limits = [self.constant(Const(v, source)).text for v in (lo, hi)]
        return Value(call("min", call("max", x.text, limits[0]), limits[1]), SCALAR)

    def call(self, fn: str, args: list[tuple[Value, DType]], result: DType) -> Value:
        """A call of a function of `expr.FUNCTIONS`."""
        texts, t = [v.text for v, _ in args], args[0][1]
        if fn == "random":
            return self.random(texts, result)
        if fn == "reinterpret":
            view = f"{call(self.scalar_type(t), *texts)}.view({self.scalar_type(result)})"
            return Value(Piece(view), SCALAR)
        if fn in ("popcount", "clz", "ctz"):
            bits = call("np.uint64", call(f"np.uint{t.bits}", *texts))
            return Value(call(self.scalar_type(result), self.count(fn, bits, t.bits)), SCALAR)
        if fn in SUPPORT:
            piece = self.support(fn, *texts)
        elif fn == "erf":
            self.used.add("math")
            piece = call("math.erf", *texts)
        else:
            piece = call("np.rint" if fn == "round" else f"np.{fn}", *texts)
        return Value(piece, BOOL) if result == bool_ else self.narrow(piece, result)

    def count(self, fn: str, x: Piece, bits: int) -> Piece:
        """The popcount, clz or ctz of an unsigned integer that has `bits` significant bits."""
        if fn == "popcount":
            return self.support("popcount", x)
        if fn == "clz":
            return infix("-", number(bits), self.support("length", x))
        below = f"~{x} & ({x} - np.uint64(1))"  # the bits under the lowest one set
        return call("min", self.support("popcount", below), bits)

    def random(self, texts: list[str], result: DType) -> Value:
        """A random float in [0, 1), from a hash of a seed and keys."""
        seed, *keys = (call("np.uint64", t).text for t in texts)
        h = self.support("random", seed, tuple_text(["np.uint64(1)", *keys]))
        name = self.scalar_type(result)
        shift, scale = (40, "2.0**-24") if result.bits == 32 else (11, "2.0**-53")
        bits = call(name, f"{h} >> np.uint64({shift})")
        return Value(infix("*", bits, call(name, scale)), SCALAR)
