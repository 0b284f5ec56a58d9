"""Emits expressions as Python over NumPy, with bit-exact results.

An i64 computed from loop variables, sizes and constants is a Python integer, which does not wrap; its range
is tracked, and `wrap(...)` is emitted only where it may leave i64. Other values are NumPy scalars, or arrays
for vectors, which wrap and round as the language defines. Constant operands remain plain literals, which take
the dtype of the other operand.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import assert_never

from tdsl.codegen.python.support import SUPPORT
from tdsl.core.node import Node, children, frozen, post_order
from tdsl.core.text import ATOM, SIGN, Names, Piece, call, infix, number, prefix, ternary
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
)  # fmt: skip
from tdsl.lang.show import SYMBOLS, show_const
from tdsl.lang.types import ALL, DType, bool_, f16, f32, i64

INT, BOOL, SCALAR, ARRAY, LITERAL = "int", "bool", "scalar", "array", "literal"
NARROW = tuple(t for t in ALL if t.is_narrow)
ML_FLOATS = tuple(t for t in ALL if t.kind == "e")  # types of ml_dtypes
LONGEST_LINE = 60  # nodes of an expression on one line
LONGEST_BRANCH = 2000  # nodes of an expression inside a select's branch
LARGEST_SIZE = 1 << 40  # elements along an axis; no array has more


@frozen
class Value:
    """The text of an expression of `size` nodes, the kind of its Python value, the range of an integer."""

    piece: Piece
    kind: str
    lo: float = -math.inf
    hi: float = math.inf
    size: int = 1

    @property
    def text(self) -> str:
        """The text alone."""
        return self.piece.text


def integer(piece: Piece, lo: float, hi: float) -> Value:
    """A value that is a Python integer from `lo` to `hi`."""
    return Value(piece, INT, lo, hi)


def _unconditional(roots: Iterable[Expr]) -> set[Node]:
    """The nodes of expressions that are evaluated unconditionally: those outside of select branches."""
    nodes, stack = set[Node](), list[Node](roots)
    while stack:
        n = stack.pop()
        if n not in nodes:
            nodes.add(n)
            stack += [n.cond] if isinstance(n, Select) else children(n)
    return nodes


@dataclass(slots=True)
class Expressions:
    """Emits expressions as text.

    `scalars`, `sizes` and `buffers` map names to values and identifiers; `used` collects the names of support
    functions; `emit` emits a statement before the current one; `checked` adds a bounds check to each access.
    """

    names: Names
    emit: Callable[[str], None]
    checked: bool = False
    scalars: dict[str, Value] = field(default_factory=dict)
    sizes: dict[str, Value] = field(default_factory=dict)
    buffers: dict[str, str] = field(default_factory=dict)
    used: set[str] = field(default_factory=set)

    def values(self, *roots: Expr) -> list[Value]:
        """The texts of expressions; shared and long parts are assigned to variables first.

        Parts of select branches of up to LONGEST_BRANCH nodes are not: loads that are not chosen do not run.
        """
        parents: dict[Node, int] = {}
        order = list(post_order(*roots))
        for n in order:
            for child in children(n):
                parents[child] = parents.get(child, 0) + 1
        unconditional, memo = _unconditional(roots), dict[Node, Value]()
        for n in order:
            if n in memo:
                continue
            parts = sum(memo[child].size for child in children(n))
            value = self.node(n, memo)  # type: ignore[arg-type]  # expressions hold expressions only
            value = replace(value, size=1 + parts)
            long = parts > (LONGEST_LINE if n in unconditional else LONGEST_BRANCH)
            if long or (parts > 5 and parents.get(n, 0) > 1):
                value = self.hoist(value)
            memo[n] = value
        return [memo[root] for root in roots]

    def value(self, e: Expr) -> Value:
        """The text of one expression; see `values`."""
        return self.values(e)[0]

    def hoist(self, v: Value) -> Value:
        """The value as a new variable, assigned on a line before; literals are returned unchanged."""
        if v.kind == LITERAL:
            return v
        name = self.names.fresh("t")
        self.emit(f"{name} = {v.text}")
        return replace(v, piece=Piece(name), size=1)

    def support(self, name: str, *args: object) -> Piece:
        """A call of a support function, which is added to `used`."""
        self.used.add(name)
        return call(name, *args)

    def scalar_type(self, t: DType) -> str:
        """The name of the NumPy or ml_dtypes scalar type."""
        if t in ML_FLOATS:
            self.used.add(t.numpy.name)
            return t.numpy.name
        return f"np.{t.numpy.name}" if t != bool_ else "np.bool_"

    # Forms of a value

    def fit(self, v: Value) -> Value:
        """The value within the range of i64: a Python integer that may leave it is wrapped."""
        if v.kind != INT or (v.lo >= i64.low and v.hi <= i64.high):
            return v
        return integer(self.support("wrap", v.text), i64.low, i64.high)

    def typed(self, v: Value, t: DType) -> Value:
        """The value as a NumPy scalar or array of `t`, its type in the loop IR."""
        v = self.fit(v)
        if v.kind in (SCALAR, ARRAY):
            return v
        return Value(call(self.scalar_type(t), v.text), SCALAR)

    def with_dtype(self, v: Value, t: DType) -> Value:
        """The value for a context in which no other operand gives a literal its dtype."""
        return self.typed(v, t) if v.kind == LITERAL else self.fit(v)

    def widened(self, v: Value, t: DType, narrow: tuple[DType, ...] = ML_FLOATS) -> Value:
        """Narrow floats converted to f32 for arithmetic; NumPy's operators do so for f16 themselves."""
        if t not in narrow or v.kind == LITERAL:
            return v
        return Value(call("np.float32", v.text), v.kind)

    def rounded(self, v: Value, t: DType, narrow: tuple[DType, ...] = ML_FLOATS) -> Value:
        """The f32 result of `widened` values rounded to the narrow type."""
        if t not in narrow:
            return v
        if t == f16:
            return Value(call("np.float16", v.text), v.kind)
        return Value(Piece(f"{v.piece.inside(ATOM)}.astype({self.scalar_type(t)})"), v.kind)

    # Nodes

    def node(self, e: Expr, memo: dict[Node, Value]) -> Value:
        """The text of a node from the texts of its children."""
        match e:
            case Const():
                return _constant(e)
            case Var(name) | Param(name):
                return self.scalars[name]
            case Size(name):
                return self.sizes[name]
            case Unary(op, x):
                return self.unary(op, memo[x], dtype_of(x))
            case Binary(op, left, right):
                return self.binary(op, memo[left], memo[right], dtype_of(left))
            case Select(cond, yes, no):
                return self.select(memo[cond], memo[yes], memo[no], dtype_of(yes))
            case Cast(x, dtype, saturate):
                return self.cast(memo[x], dtype_of(x), dtype, saturate)
            case Call(fn, args, dtype):
                return self.call(fn, [(memo[a], dtype_of(a)) for a in args], dtype)
            case Load():
                return self.load(e, memo)
            case Ramp(base, stride, lanes):
                return self.ramp(memo[base], stride, lanes)
            case Broadcast(x):
                return memo[x]
            case Access() | Read() | Reduce() | Require() | Show() | Range():
                raise AssertionError(f"{type(e).__name__} does not exist in loops")
            case _:
                assert_never(e)

    def unary(self, op: str, x: Value, t: DType) -> Value:
        """`-x`, `~x` or `abs(x)` in type `t`."""
        if op == "not" and t == bool_:
            return Value(prefix("~" if x.kind == ARRAY else "not", x.piece), x.kind)
        if x.kind == INT:
            if op == "abs":
                x = self.fit(x)
                return integer(call("abs", x.text), 0, max(-x.lo, x.hi))
            shift = 1 if op == "not" else 0
            return integer(prefix(SYMBOLS[op], x.piece), -x.hi - shift, -x.lo - shift)
        x = self.widened(self.typed(x, t), t)
        piece = call("abs", x.text) if op == "abs" else prefix(SYMBOLS[op], x.piece)
        return self.rounded(Value(piece, x.kind), t)

    def binary(self, op: str, a: Value, b: Value, t: DType) -> Value:
        """`a op b` of two values of type `t`."""
        if a.kind == INT and b.kind == INT:
            return self.of_integers(op, a, b)
        kind = ARRAY if ARRAY in (a.kind, b.kind) else SCALAR
        if t == bool_ and kind != ARRAY:
            return _of_bools(op, a, b)
        narrow = NARROW if op == "pow" else ML_FLOATS
        a, b = (self.widened(self.fit(x), t, narrow) for x in (a, b))
        if (a.kind == LITERAL and b.kind == LITERAL) or op == "pow":
            a, b = (self.typed(x, f32 if t in narrow else t) for x in (a, b))
        if op in ("shl", "shr") and a.kind != ARRAY:
            a = self.typed(a, t)
        if op in COMPARISONS:
            return Value(_infix(op, a, b), ARRAY if kind == ARRAY else BOOL)
        if op == "pow" and not t.is_float:
            return Value(self.support("int_power", a.text, b.text), kind)
        functions = {"min": "np.minimum", "max": "np.maximum", "pow": "np.power"}
        piece = call(functions[op], a.text, b.text) if op in functions else _infix(op, a, b)
        return self.rounded(Value(piece, kind), t, narrow)

    def of_integers(self, op: str, a: Value, b: Value) -> Value:
        """`a op b` of Python integers; results of + - * are wrapped where they are used, if at all."""
        if op in ("add", "sub", "mul"):
            return integer(_infix(op, a, b), *_range(op, a, b))
        a, b = self.fit(a), self.fit(b)
        if op in COMPARISONS:
            return Value(_infix(op, a, b), BOOL)
        if op in ("min", "max"):
            pick = min if op == "min" else max
            return integer(call(op, a.text, b.text), pick(a.lo, b.lo), pick(a.hi, b.hi))
        if op in ("floordiv", "mod"):
            is_nonzero = b.lo > 0 or b.hi < 0
            piece = _infix(op, a, b) if is_nonzero else self.support(op, a.text, b.text)
            if op == "mod":
                return integer(piece, min(b.lo + 1, 0), max(b.hi - 1, 0))
            bound = max(-a.lo, a.hi, 0)
            return integer(piece, 0 if a.lo >= 0 < b.lo else -bound - 1, bound)
        if op == "and" and a.lo >= 0 and b.lo >= 0:
            return integer(_infix(op, a, b), 0, min(a.hi, b.hi))
        if op in ("and", "or", "xor"):
            return integer(_infix(op, a, b), i64.low, i64.high)
        if op == "shr" and b.lo >= 0 and b.hi < 64:
            return integer(_infix(op, a, b), min(a.lo, 0), max(a.hi, 0))
        a = self.typed(a, i64)
        if op == "pow":
            return Value(self.support("int_power", a.text, self.typed(b, i64).text), SCALAR)
        return Value(_infix(op, a, b), SCALAR)

    def select(self, cond: Value, yes: Value, no: Value, t: DType) -> Value:
        """`yes` if a condition is true, else `no`; lane by lane for a vector condition."""
        yes, no = self.fit(yes), self.fit(no)
        if cond.kind == ARRAY:
            if LITERAL in (yes.kind, no.kind) and (yes.kind == no.kind or t in ML_FLOATS):
                yes, no = self.typed(yes, t), self.typed(no, t)
            return Value(call("np.where", cond.text, yes.text, no.text), ARRAY)
        if yes.kind == no.kind == INT:
            piece = ternary(cond.piece, yes.piece, no.piece)
            return integer(piece, min(yes.lo, no.lo), max(yes.hi, no.hi))
        if t != bool_:
            yes, no = self.typed(yes, t), self.typed(no, t)
        kind = ARRAY if ARRAY in (yes.kind, no.kind) else yes.kind
        return Value(ternary(cond.piece, yes.piece, no.piece), kind)

    def cast(self, x: Value, source: DType, target: DType, saturate: bool) -> Value:
        """A value of type `source` converted to `target`."""
        if source == target:
            return x
        x = self.fit(x)
        if target == bool_:
            x = self.with_dtype(x, source)
            return Value(infix("!=", x.piece, number(0)), ARRAY if x.kind == ARRAY else BOOL)
        if source.is_float and target.is_integer:
            x = self.with_dtype(x, source)
            piece = self.support("to_int", x.text, self.scalar_type(target))
            return Value(piece, x.kind)
        if saturate and target.is_integer and source.is_integer:
            x = self.clip(x, source, target)
        if target == i64 and source.bits < 64 and x.kind in (SCALAR, BOOL):
            return integer(call("int", x.text), source.low, source.high)
        name = self.scalar_type(target)
        if x.kind == INT:
            exact = 1 << 53 if target.is_float else target.high
            if x.lo < (-exact if target.is_float else target.low) or x.hi > exact:
                return Value(call(name, call("np.int64", x.text)), SCALAR)
        elif x.kind == LITERAL:
            x = self.typed(x, source)
        kind = ARRAY if x.kind == ARRAY else SCALAR
        if target in ML_FLOATS:
            if x.kind in (INT, BOOL):
                x = Value(call("np.float32", x.text), SCALAR)
            return Value(Piece(f"{x.piece.inside(ATOM)}.astype({name})"), kind)
        return Value(call(name, x.text), kind)

    def clip(self, x: Value, source: DType, target: DType) -> Value:
        """An integer clipped to the values that both types represent."""
        lo, hi = max(int(source.low), int(target.low)), min(int(source.high), int(target.high))
        if x.kind == INT:
            return integer(call("min", call("max", x.text, lo), hi), lo, hi)
        x = self.typed(x, source)
        return Value(call("np.clip", x.text, lo, hi), x.kind)

    def call(self, fn: str, args: list[tuple[Value, DType]], result: DType) -> Value:
        """A call of a function of `expr.FUNCTIONS`."""
        t = args[0][1]
        kind = ARRAY if any(v.kind == ARRAY for v, _ in args) else SCALAR
        if fn == "random":
            texts = [(self.fit(v) if v.kind == INT else self.typed(v, s)).text for v, s in args]
            return Value(self.support(fn, self.scalar_type(result), *texts), kind)
        typed = [self.typed(v, s) for v, s in args]
        if fn == "reinterpret":
            view = f"{typed[0].piece.inside(ATOM)}.view({self.scalar_type(result)})"
            return Value(Piece(view), kind)
        texts = [self.widened(v, t, NARROW).text for v in typed]
        piece = self.support(fn, *texts) if fn in SUPPORT else call(f"np.{fn}", *texts)
        if result == bool_:
            return Value(piece, ARRAY if kind == ARRAY else BOOL)
        if t.is_integer:
            return Value(call(self.scalar_type(result), piece), kind)
        return self.rounded(Value(piece, kind), t, NARROW)

    # Memory

    def load(self, e: Load, memo: dict[Node, Value]) -> Value:
        """A load; 0 in lanes whose mask is false."""
        index = [memo[i] for i in e.index]
        vector = any(v.kind == ARRAY for v in index)
        kind = ARRAY if vector else BOOL if e.dtype == bool_ else SCALAR
        if e.mask is None:
            return Value(self.element(e.buffer, e.index, index), kind)
        mask = memo[e.mask]
        if mask.kind != ARRAY:
            zero = self.typed(self.node(Const(0, e.dtype), {}), e.dtype)
            element = self.element(e.buffer, e.index, index)
            return Value(ternary(mask.piece, element, zero.piece), kind)
        where = tuple_text(v.text for v in index)
        return Value(self.support("load", self.buffers[e.buffer], where, mask.text), ARRAY)

    def element(self, buffer: str, index: tuple[Expr, ...], values: list[Value]) -> Piece:
        """buffer[index], with a slice if the only vector index is a ramp of positive stride."""
        texts = [v.text for v in values]
        name = self.buffers[buffer]
        if self.checked:
            return Piece(f"{name}[{self.support('inside', name, *texts)}]")
        vectors = [axis for axis, v in enumerate(values) if v.kind == ARRAY]
        if len(vectors) == 1:
            match index[vectors[0]]:
                case Ramp(base, stride, lanes) if stride > 0:
                    texts[vectors[0]] = self.slice(self.value(base), stride, lanes)
        return Piece(f"{name}[{', '.join(texts) or '()'}]")

    def slice(self, base: Value, stride: int, lanes: int) -> str:
        """The slice of `lanes` elements with a stride, from `base` on."""
        last = stride * (lanes - 1) + 1
        constant = base.lo == base.hi and base.kind == INT
        end = number(int(base.lo) + last) if constant else infix("+", base.piece, number(last))
        return f"{base.piece}:{end}" + (f":{stride}" if stride != 1 else "")

    def ramp(self, base: Value, stride: int, lanes: int) -> Value:
        """An array of indices, one for each lane."""
        base = self.fit(base)
        steps = call("np.arange", *((lanes,) if stride == 1 else (0, stride * lanes, stride)))
        if base.kind == INT and base.lo == base.hi == 0:
            return Value(steps, ARRAY)
        return Value(infix("+", base.piece, steps), ARRAY)


def tuple_text(texts: Iterable[str]) -> str:
    """(a, b), or (a,) for one."""
    items = list(texts)
    return f"({items[0]},)" if len(items) == 1 else f"({', '.join(items)})"


def _infix(op: str, a: Value, b: Value) -> Piece:
    return infix(SYMBOLS[op], a.piece, b.piece)


def _of_bools(op: str, a: Value, b: Value) -> Value:
    """`a op b` of scalar bools; `and` and `or` may short-circuit: operands are safe to skip."""
    symbol = {"and": "and", "or": "or", "min": "and", "max": "or", "xor": "!="}.get(op)
    return Value(infix(symbol or SYMBOLS[op], a.piece, b.piece), BOOL)


def _constant(c: Const) -> Value:
    if c.dtype == bool_:
        return Value(Piece(str(bool(c.value))), BOOL)
    if c.dtype == i64:
        return integer(number(int(c.value)), c.value, c.value)
    if not c.dtype.is_float:
        return Value(number(int(c.value)), LITERAL)
    value = float(c.value) if c.dtype not in ML_FLOATS else float(c.dtype.numpy.type(c.value))
    if math.isfinite(value):
        return Value(show_const(Const(value, c.dtype)), LITERAL)
    sign = "-" if value < 0 else ""
    name = "np.nan" if math.isnan(value) else "np.inf"
    return Value(Piece(sign + name, SIGN if sign else ATOM), LITERAL)


def _range(op: str, a: Value, b: Value) -> tuple[float, float]:
    """The range of a sum, difference or product of Python integers."""
    if op == "add":
        return a.lo + b.lo, a.hi + b.hi
    if op == "sub":
        return a.lo - b.hi, a.hi - b.lo
    corners = [x * y if x and y else 0 for x in (a.lo, a.hi) for y in (b.lo, b.hi)]
    return min(corners), max(corners)
