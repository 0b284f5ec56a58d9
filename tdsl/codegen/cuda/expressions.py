"""Lowers scalar expressions of the loop IR to TIR, with tdsl's arithmetic.

Indices are i64 in the loop IR, and 32 bits wide in TIR wherever the ranges of their variables allow it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from tvm import tirx as T  # noqa: N812  # as its own documentation calls it

from tdsl.codegen.cuda.identifiers import Identifiers
from tdsl.codegen.cuda.tir_types import (
    BYTES,
    C_TYPES,
    as_type,
    c_type,
    constant,
    dtype_text,
    tir_type,
    wide_type,
)
from tdsl.codegen.gpu.fragments import Fragment
from tdsl.codegen.gpu.shared_memory import Swizzle
from tdsl.codegen.ir.strides import Strides
from tdsl.codegen.passes.approximate_weights import LOG2_E
from tdsl.core.node import Node, children, memoised, post_order
from tdsl.lang.affine import as_expr, as_sum, has_data, height, tree_size
from tdsl.lang.bounds import NO_FACTS, Facts, value_range
from tdsl.lang.expr import (
    COMPARISONS,
    Binary,
    Call,
    Cast,
    Const,
    Expr,
    Load,
    Param,
    Select,
    Size,
    Unary,
    Var,
    dtype_of,
)  # fmt: skip
from tdsl.lang.expr import const as integer
from tdsl.lang.simplify import simplify
from tdsl.lang.types import DType, bool_, f16, f32, i64

TIR = Any

_SHARE_NODES = 200  # nodes of an expression written out; from this many on, shared parts become variables
_MIN_SHARED_NODES = 8  # nodes; smaller shared parts are not bound
_MAX_DEPTH = 60  # nested operators; deeper parts are bound

_COMPARE: dict[str, Callable[[TIR, TIR], TIR]] = {
    "eq": T.EQ, "ne": T.NE, "lt": T.LT, "le": T.LE, "gt": T.GT, "ge": T.GE,
}  # fmt: skip
_ARITHMETIC: dict[str, Callable[[TIR, TIR], TIR]] = {
    "add": T.Add, "sub": T.Sub, "mul": T.Mul, "div": T.Div, "min": T.Min, "max": T.Max,
}  # fmt: skip
_BITWISE: dict[str, Callable[[TIR, TIR], TIR]] = {
    "and": T.bitwise_and, "or": T.bitwise_or, "xor": T.bitwise_xor,
}  # fmt: skip
_LOGIC: dict[str, Callable[[TIR, TIR], TIR]] = {"and": T.And, "or": T.Or, "xor": T.NE}
# functions of CUDA with an overload for each type of float
_FUNCTIONS = {
    "sqrt": "sqrt", "exp": "exp", "exp2": "exp2", "expm1": "expm1", "log": "log", "log2": "log2",
    "log10": "log10", "log1p": "log1p", "sin": "sin", "cos": "cos", "tan": "tan", "arcsin": "asin",
    "arccos": "acos", "arctan": "atan", "arctan2": "atan2", "sinh": "sinh", "cosh": "cosh", "tanh": "tanh",
    "arcsinh": "asinh", "arccosh": "acosh", "arctanh": "atanh", "erf": "erf", "hypot": "hypot",
    "floor": "floor", "ceil": "ceil", "trunc": "trunc", "round": "rint", "copysign": "copysign",
    "fma": "fma", "sigmoid": "tdsl_sigmoid",
}  # fmt: skip


def in_int32(e: Expr, facts: Facts) -> bool:
    """True if an index and all of its subexpressions certainly fit into 32 bits."""
    global _narrow
    if _narrow[0] is not facts:
        _narrow = facts, {}
    narrow = _narrow[1]
    return memoised(narrow, e, lambda n: _fits(n, facts) and all(narrow[c] for c in children(n)), _indices)


_narrow: tuple[Facts, dict[Node, bool]] = (
    NO_FACTS,
    {},
)  # cache of `in_int32` for the latest facts


def _indices(n: Node) -> tuple[Node, ...]:
    return children(n) if isinstance(n, Binary | Select | Unary) else ()


def _fits(n: Expr, facts: Facts) -> bool:
    if not isinstance(n, Var | Const | Binary | Select | Unary) or dtype_of(n) not in (i64, bool_):
        return False
    lo, hi = (0, 1) if dtype_of(n) == bool_ else value_range(n, facts)
    return lo is not None and hi is not None and lo >= -(2**31) and hi < 2**31


def _cannot_overflow(e: Expr) -> bool:
    """True for an index of loop variables, sizes and small constants, which cannot overflow 64 bits."""
    return all(
        isinstance(n, Var | Size | Binary) or (isinstance(n, Const) and abs(n.value) < 2**31)
        for n in post_order(e)
    )


@dataclass(slots=True)
class Expressions:
    """Lowers expressions; `scalars` has TIR values by name, `buffers` flat TIR buffers and their strides."""

    scalars: dict[str, TIR] = field(default_factory=dict)
    buffers: dict[str, tuple[TIR, Strides]] = field(default_factory=dict)
    used: set[str] = field(default_factory=set)
    facts: Facts = NO_FACTS
    loops: Facts = NO_FACTS  # `facts` without conditions, which would hide the extents of loops
    fragments: Mapping[str, Fragment] = field(default_factory=dict)
    swizzles: Mapping[str, Swizzle] = field(default_factory=dict)
    policies: dict[str, tuple[str, TIR]] = field(default_factory=dict)  # of loads: name and variable
    tensor_columns: Mapping[str, TIR] = field(default_factory=dict)  # first ones of sums in tensor memory
    fast: bool = False  # approximate arithmetic is allowed
    identifiers: Identifiers = field(default_factory=Identifiers)
    bound: dict[Expr, TIR] = field(default_factory=dict)  # variables, by the expression they hold
    binds: list[TIR] = field(default_factory=list)  # the statements that bind them

    @contextmanager
    def statement(self) -> Iterator[list[TIR]]:
        """Collect the bindings of shared values, which have to precede the statements lowered inside."""
        outer = self.bound, self.binds
        self.bound, self.binds = {}, []
        yield self.binds
        self.bound, self.binds = outer

    def call(self, name: str, dtype: str, *args: TIR) -> TIR:
        """A call of a function of CUDA or of `device_functions`; the latter is added to `used`."""
        if name.startswith("tdsl_"):
            self.used.add(name)
        return T.call_pure_extern(dtype, name, *args)

    def statement_call(self, name: str, *args: TIR) -> TIR:
        """A call statement of a device function without result."""
        self.used.add(name)
        return T.Evaluate(T.call_extern("void", name, *args))

    def value(self, e: Expr) -> TIR:
        """The TIR of a scalar expression, in its own type."""
        self.bind_shared(e)
        return self.node(e, {})

    def bind_shared(self, *es: Expr) -> None:
        """Bind variables to parts of large expressions that these use several times or nest deeply."""
        if sum(map(tree_size, es)) < _SHARE_NODES and max(map(height, es)) < _MAX_DEPTH:
            return
        distinct = [n for n in dict.fromkeys(post_order(*es)) if isinstance(n, Expr)]
        uses = Counter(c for n in distinct for c in dict.fromkeys(children(n)))
        masked = [n for n in distinct if isinstance(n, Load) and n.mask is not None]
        indices = post_order(*(x for n in masked for x in n.index))
        guarded = {n for n in indices if isinstance(n, Expr) and has_data(n)}
        for n in distinct:
            is_shared = uses[n] > 1 and tree_size(n) >= _MIN_SHARED_NODES
            if (is_shared or height(n) % _MAX_DEPTH == 0) and not (n in self.bound or n in guarded):
                narrow = dtype_of(n) == i64 and in_int32(n, self.facts)
                value = self.index(n) if narrow else self.node(n, {})
                kind = dtype_text(value)
                if (
                    "int" in kind or kind == "bool"
                ):  # TVM would inline the value into the uses of the variable
                    value = T.call_extern(kind, f"({C_TYPES[kind]})", value)
                variable = T.Var(self.identifiers.declare("common"), kind)
                self.binds.append(T.Bind(variable, value))
                self.bound[n] = variable

    def node(self, e: Expr, done: dict[Expr, TIR]) -> TIR:
        """The TIR of an expression; `done` caches its parts, each of which is lowered once."""
        if e not in done:
            done[e] = self.lower(e, done)
        return done[e]

    def lower(self, e: Expr, done: dict[Expr, TIR]) -> TIR:
        """The TIR of an expression from the TIR of its operands."""
        if e in self.bound:
            return as_type(tir_type(dtype_of(e)), self.bound[e])
        if dtype_of(e) == i64 and not isinstance(e, Const) and in_int32(e, self.facts):
            return as_type("int64", self.index(e))
        match e:
            case Const(value, dtype):
                return constant(value, dtype)
            case Size(name):
                return self.scalars[f"size {name}"]
            case Var(name) | Param(name):
                return as_type(tir_type(dtype_of(e)), self.scalars[name])
            case Unary(op, x):
                return self.unary(op, dtype_of(x), self.node(x, done))
            case Binary(op, x, y) if dtype_of(x) == i64 and op in COMPARISONS:
                if in_int32(x, self.facts) and in_int32(y, self.facts):
                    return _COMPARE[op](self.index(x), self.index(y))
                return _COMPARE[op](self.node(x, done), self.node(y, done))
            case Binary(op, x, y):
                return self.binary(op, dtype_of(x), self.node(x, done), self.node(y, done))
            case Select(cond, yes, no):
                return T.Select(self.node(cond, done), self.node(yes, done), self.node(no, done))
            case Cast(x, to, saturate):
                return self.cast(self.node(x, done), dtype_of(x), to, saturate=saturate)
            case Call(fn, args, dtype):
                return self.function(fn, [self.node(a, done) for a in args], args, dtype)
            case Load(buffer, index, dtype, mask):
                memory, _ = self.buffers[buffer]
                certain = mask is None or not any(map(has_data, index))
                loaded = T.BufferLoad(memory, [self.offset(buffer, index, certain=certain)])
                if buffer in self.policies:
                    name, policy = self.policies[buffer]
                    kind = str(memory.dtype)
                    loaded = self.call(f"tdsl_load_{name}", kind, T.address_of(loaded), policy)
                if mask is None:
                    return loaded
                return T.if_then_else(self.node(mask, done), loaded, constant(0, dtype))
            case _:
                raise AssertionError(f"no scalar expression of loops is a {type(e).__name__}")

    def index(self, e: Expr) -> TIR:
        """The TIR of an index, in 32 bits if it fits."""
        if e in self.bound:
            return as_type(dtype_text(self.bound[e]), self.bound[e])
        if not in_int32(e, self.facts):
            return self.long_index(e) if _cannot_overflow(e) else self.node(e, {})
        match e:
            case Const(value):
                return T.const(int(value), "int32")
            case Var(name):
                return as_type("int32", self.scalars[name])
            case Binary("floordiv" | "mod" as op, x, y):
                return self.quotient(op, x, y)
            case Binary(op, x, y) if op in _ARITHMETIC:
                return _ARITHMETIC[op](self.index(x), self.index(y))
            case Select(cond, yes, no):
                return T.Select(self.node(cond, {}), self.index(yes), self.index(no))
            case Unary("neg", x):
                return T.Sub(T.const(0, "int32"), self.index(x))
            case _:
                return as_type("int32", self.general(e))

    def long_index(self, e: Expr) -> TIR:
        """An offset in 64 bits, in operators of TIR, from which TVM infers the alignment of accesses."""
        if in_int32(e, self.facts):
            return as_type("int64", self.index(e))
        match e:
            case Binary("add" | "sub" | "mul" as op, x, y):
                return _ARITHMETIC[op](self.long_index(x), self.long_index(y))
            case Binary("floordiv" | "mod" as op, x, Const(n)) if n > 0 and self.is_natural(x):
                divide = T.truncdiv if op == "floordiv" else T.truncmod
                return divide(self.long_index(x), T.const(int(n), "int64"))
            case _:
                return self.node(e, {})

    def is_natural(self, e: Expr) -> bool:
        """True if an index is certainly not negative."""
        low = value_range(e, self.facts)[0]
        return low is not None and low >= 0

    def general(self, e: Expr) -> TIR:
        """Index arithmetic for which `index` uses no operator of TIR, computed in 64 bits."""
        match e:
            case Binary(op, x, y):
                return self.binary(op, i64, as_type("int64", self.index(x)), as_type("int64", self.index(y)))
            case Unary(op, x):
                return self.unary(op, i64, as_type("int64", self.index(x)))
            case _:
                raise AssertionError(f"no index is a {type(e).__name__}")

    def quotient(self, op: str, x: Expr, y: Expr) -> TIR:
        """floordiv or mod of indices: truncating division if the operands are not negative."""
        if isinstance(y, Const) and y.value > 0 and self.is_natural(x):
            divide = T.truncdiv if op == "floordiv" else T.truncmod
            return divide(self.index(x), self.index(y))
        return self.call(f"tdsl_{op}", "int32", self.index(x), self.index(y))

    def offset(self, buffer: str, index: tuple[Expr, ...], *, certain: bool = True) -> TIR:
        """The offset of an element in a flat buffer; `certain` if its index may be computed in any case."""
        swizzle = self.swizzles.get(buffer)
        if swizzle is None:
            place = self.flat_offset(buffer, index)
            if certain:
                self.bind_shared(place)
            return self.index(place)
        inner, outer = swizzle.split_offset(self.in_panels(buffer, index), self.facts)
        chunk, line = (T.const(n, "int32") for n in (swizzle.chunk, swizzle.line))
        inner_offset = self.index(inner)
        order = T.truncmod(T.truncdiv(inner_offset, line), T.const(swizzle.count, "int32"))
        if simplify(Binary("mod", inner, integer(swizzle.chunk)), self.facts) == integer(0):
            # a multiple of a chunk, in a form that shows the compiler the alignment of chunk-wide accesses
            at = T.Mul(T.bitwise_xor(T.truncdiv(inner_offset, chunk), order), chunk)
        else:
            at = T.bitwise_xor(inner_offset, T.Mul(order, chunk))
        return T.Add(at, self.index(outer))

    def in_panels(self, buffer: str, index: tuple[Expr, ...]) -> Expr:
        """The offset of an element of a swizzled buffer before its chunks are permuted."""
        strides = tuple(n for n in self.buffers[buffer][1] if isinstance(n, int))
        return simplify(self.swizzles[buffer].panel_offset(index, strides), self.facts)

    def flat_offset(self, buffer: str, index: tuple[Expr, ...]) -> Expr:
        """The offset as a loop-IR expression; of a fragment's element, the number of its register."""
        fragment = self.fragments.get(buffer)
        if fragment is not None:
            return fragment.register(index, self.loops)
        total: Expr = integer(0)
        for i, stride in zip(index, self.buffers[buffer][1], strict=True):
            if isinstance(stride, int):
                total = as_expr(as_sum(total).plus(as_sum(i), stride))
            else:
                total = as_expr(as_sum(total).plus(as_sum(Binary("mul", i, stride))))
        return total

    def widen(self, t: DType, x: TIR) -> TIR:
        """A value converted to the type of its arithmetic, which is f32 for narrow floats."""
        if t in BYTES:
            return self.call(f"tdsl_from_{t.name}", "float32", x)
        return as_type("float32", x) if t.is_narrow else x

    def narrow(self, t: DType, x: TIR) -> TIR:
        """A result computed from `wide` values, rounded to type `t`."""
        if t in BYTES:
            return self.call(f"tdsl_to_{t.name}", "uint8", x)
        return as_type(tir_type(t), x)

    def unary(self, op: str, t: DType, x: TIR) -> TIR:
        """The TIR of a unary operator on a value of type `t`."""
        if t == bool_:
            return T.Not(x)
        if op == "not":
            return T.bitwise_not(x)
        if not t.is_float:
            return self.call(f"tdsl_{op}<{c_type(t)}>", tir_type(t), x)
        wide = self.widen(t, x)
        if op == "abs":
            return self.narrow(t, self.call("fabs", wide_type(t), wide))
        return self.narrow(t, T.Mul(T.const(-1.0, wide_type(t)), wide))

    def binary(self, op: str, t: DType, x: TIR, y: TIR) -> TIR:
        """The TIR of a binary operator on two values of type `t`."""
        if op in COMPARISONS:
            return _COMPARE[op](self.widen(t, x), self.widen(t, y))
        if t == bool_:
            return {"min": T.And, "max": T.Or, **_LOGIC}[op](x, y)
        if op in _BITWISE:
            return _BITWISE[op](x, y)
        name = tir_type(t)
        if not t.is_float:
            return self.call(f"tdsl_{op}<{c_type(t)}>", name, x, y)
        a, b, wide = self.widen(t, x), self.widen(t, y), wide_type(t)
        match op:
            case "div" if self.fast and isinstance(b, T.FloatImm) and b.value:
                result = T.Mul(a, T.const(1 / b.value, wide))
            case "add" | "sub" | "mul" | "div":
                result = _ARITHMETIC[op](a, b)
            case "floordiv" | "mod":
                result = self.call(f"tdsl_float_{op}", wide, a, b)
            case "pow":
                result = self.call("pow", wide, a, b)
            case _:
                result = self.call(f"tdsl_{op}", wide, a, b)
        return self.narrow(t, result)

    def cast(self, x: TIR, of: DType, to: DType, *, saturate: bool) -> TIR:
        """The value `x` of type `of` converted to type `to`."""
        if of == to:
            return x
        name = tir_type(to)
        if to == bool_:
            return T.NE(self.widen(of, x), T.const(0, wide_type(of)))
        if of in BYTES and to == f16:
            return self.call(f"tdsl_half_from_{of.name}", name, x)
        if to.is_float or of == bool_:
            wide = self.widen(of, x)
            # conversions to narrow floats go through f32
            return self.narrow(to, as_type("float32", wide) if to.is_narrow else wide)
        if of.is_float:
            return self.call(f"tdsl_to_integer<{c_type(to)}>", name, self.widen(of, x))
        if saturate:
            return self.call(f"tdsl_saturate<{c_type(to)}>", name, x)
        return as_type(name, x)

    def function(self, fn: str, args: list[TIR], given: tuple[Expr, ...], dtype: DType) -> TIR:
        """A call of a function of `lang.expr.FUNCTIONS`; `given` are its arguments in the loop IR."""
        of = dtype_of(given[0])
        if fn in ("popcount", "clz", "ctz"):
            bits = self.call(f"tdsl_{fn}<{c_type(of)}>", tir_type(of), args[0])
            return self.cast(bits, of, dtype, saturate=False)
        if fn == "reinterpret":
            return self.call(f"tdsl_bits<{c_type(dtype)}>", tir_type(dtype), args[0])
        if fn == "random":
            return self.random(args, dtype)
        wide, name = [self.widen(of, a) for a in args], wide_type(of)
        if fn in ("isnan", "isinf", "isfinite"):  # calls, since TVM folds x != x to false
            return self.call(f"tdsl_{fn}", "bool", wide[0])
        if fn == "rsqrt":
            root = self.call("sqrt", name, wide[0])
            return self.narrow(dtype, T.Div(T.const(1.0, name), root))
        if self.fast and fn in ("exp", "exp2") and name == "float32":
            exponent = self.exponent(given[0], wide[0]) if fn == "exp" else wide[0]
            return self.narrow(dtype, self.call("tdsl_exp2_approx", name, exponent))
        return self.narrow(dtype, self.call(_FUNCTIONS[fn], name, *wide))

    def exponent(self, e: Expr, value: TIR) -> TIR:
        """The exponent of 2 for a power of e: one fused multiply-add where a product or term varies.

        What is added is multiplied by log2(e) separately: that is done once where it is the same for several
        powers, as the maximum of a row is.
        """
        if dtype_of(e) != f32 or not (isinstance(e, Binary) and e.op in ("sub", "add")):
            return T.Mul(value, T.const(LOG2_E, "float32"))
        varying, other = e.left, e.right
        factor, addend = LOG2_E, LOG2_E if e.op == "add" else -LOG2_E
        if _loads(other) and not _loads(varying):
            varying, other, factor, addend = other, varying, addend, factor
        match varying:
            case Binary("mul", x, Const(c)) | Binary("mul", Const(c), x):
                varying, factor = x, factor * float(c)
            case Binary("div", x, Const(c)) if c:
                varying, factor = x, factor / float(c)
            case _:
                pass
        first, last = (self.node(x, {}) for x in (varying, other))
        scaled = T.Mul(last, T.const(addend, "float32"))
        return self.call("fma", "float32", first, T.const(factor, "float32"), scaled)

    def random(self, keys: list[TIR], dtype: DType) -> TIR:
        """A random float in [0, 1), from a hash of integers."""
        seed, *rest = (as_type("uint64", as_type("int64", k)) for k in keys)
        h = seed
        for k in (T.const(1, "uint64"), *rest):
            h = self.call("tdsl_mix_in", "uint64", h, k)
        unit = f"tdsl_unit_{'f32' if dtype == f32 else 'f64'}"
        return self.call(unit, tir_type(dtype), h)


def _loads(e: Expr) -> bool:
    return any(isinstance(n, Load) for n in post_order(e))
