"""The nodes of scalar expressions, from the user's definitions down to the loop IR.

    Expr = Const | Var | Size | Param                      leaves
         | Unary | Binary | Select | Cast | Call           arithmetic
         | Access | Read                                   values of tensors and funcs
         | Load | Ramp | Broadcast                         loops only: memory and vectors
         | Reduce | Range | Require | Show                 definitions only: sums over ranges, checks, prints

Operands have the type that their operator needs: `value.py` promotes types where the user's operators build
the nodes, so every later pass sees explicit casts. `Access` (by handle) becomes `Read` (by name) when a
program is built; lowering to loops turns `Read` into `Load`.
"""

from __future__ import annotations

import functools
import struct
from dataclasses import field
from typing import Any

from tdsl.core.node import Memo, Node, memoised, node
from tdsl.lang.types import DType, bool_, i64

# Operators by arity. Integer `floordiv` and `mod` floor, and give 0 for a zero divisor, as NumPy.
COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge")
_COMPARES = frozenset(COMPARISONS)
ARITHMETIC = ("add", "sub", "mul", "div", "floordiv", "mod", "pow", "min", "max")
BITWISE = ("and", "or", "xor", "shl", "shr")
UNARY = ("neg", "not", "abs")  # `not` is bitwise; on bool it is logical

# Functions by name, mostly of floats with NumPy's names, with their number of arguments (-1: any number).
FUNCTIONS = {
    "sqrt": 1, "rsqrt": 1, "exp": 1, "exp2": 1, "expm1": 1, "log": 1, "log2": 1, "log10": 1, "log1p": 1,
    "sin": 1, "cos": 1, "tan": 1, "arcsin": 1, "arccos": 1, "arctan": 1, "arctan2": 2, "sinh": 1,
    "cosh": 1, "tanh": 1, "arcsinh": 1, "arccosh": 1, "arctanh": 1, "erf": 1, "sigmoid": 1, "hypot": 2,
    "floor": 1, "ceil": 1, "trunc": 1, "round": 1, "copysign": 2, "fma": 3,
    "isnan": 1, "isinf": 1, "isfinite": 1,
    # integers
    "popcount": 1, "clz": 1, "ctz": 1,
    # random(seed, key...) is a hash of its integer arguments, uniform in [0, 1)
    "random": -1,
    # extent(v): the number of values of a loop variable; replaced when ranges are inferred
    "extent": 1,
    # reinterpret(x) has the bits of x in the dtype of the call
    "reinterpret": 1,
    # the index that numpy.pad would read: pad_<mode>(i, n); expanded to arithmetic before code generation
    "pad_edge": 2, "pad_reflect": 2, "pad_symmetric": 2, "pad_wrap": 2,
}  # fmt: skip


Number = Any  # a number of Python or NumPy


@node
class Const(Node):
    """A number of a type. Floats are compared by their bits, so 0.0 and -0.0 differ and NaN equals NaN."""

    value: Number
    dtype: DType

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Const) or self.dtype is not other.dtype:
            return False
        if self.dtype.kind in "fe":
            return struct.pack("<d", self.value) == struct.pack("<d", other.value)
        return bool(self.value == other.value)

    def __hash__(self) -> int:
        if self.dtype.kind in "fe":
            return hash((self.dtype, struct.pack("<d", self.value)))
        return hash((self.dtype, 2 * int(self.value)))  # -1 and -2 have one hash in Python


@node
class Var(Node):
    """The value of a loop variable, an i64."""

    name: str


@node
class Size(Node):
    """A named extent, a non-negative i64 that is known when a kernel is called."""

    name: str


@node
class Param(Node):
    """A scalar input; `created` is its number among the inputs that the user created (see `handle.py`)."""

    name: str
    dtype: DType
    created: int = field(default=0, kw_only=True, compare=False, repr=False)


@node
class Unary(Node):
    """`op` in UNARY."""

    op: str
    x: Expr


@node
class Binary(Node):
    """`op` in COMPARISONS (the result is bool), ARITHMETIC or BITWISE; both operands of one type."""

    op: str
    left: Expr
    right: Expr


@node
class Select(Node):
    """`yes` where `cond`, else `no`; both are evaluated, so both must be safe to evaluate."""

    cond: Expr
    yes: Expr
    no: Expr


@node
class Cast(Node):
    """`x` as another type: integers wrap, floats round to nearest even; `saturate` clips instead."""

    x: Expr
    dtype: DType
    saturate: bool = False


@node
class Call(Node):
    """`fn` in FUNCTIONS; `dtype` is the type of the result."""

    fn: str
    args: tuple[Expr, ...]
    dtype: DType


@node
class Access(Node):
    """An element of a tensor or func, which is referred to by its handle (compared by identity)."""

    source: Any
    index: tuple[Expr, ...]
    component: int
    dtype: DType


@node
class Read(Node):
    """An element of an input or func of a program, which is referred to by its unique name.

    `value_range` is the range of the element's value, None for an unknown end (`value_ranges.py`).
    """

    name: str
    index: tuple[Expr, ...]
    component: int
    dtype: DType
    value_range: tuple[Expr | None, Expr | None] = (None, None)


@node
class Reduce(Node):
    """A reduction over the variables `axes`; `terms` are the values combined at a point.

    `axes` are variables or ranges, outermost first; the `where` of a Range restricts the points. `combine`
    has one expression for each component over Param leaves named `a0, a1, ..., b0, b1, ...`, and `init` the
    identity. `component` is the number of the combined value that this expression is.
    """

    kind: str
    axes: tuple[Expr, ...]
    terms: tuple[Expr, ...]
    combine: tuple[Expr, ...]
    init: tuple[Expr, ...]
    component: int
    dtype: DType


@node
class Require(Node):
    """`x`, after a check that `cond` holds; the error message is `text` filled with the values `shown`."""

    cond: Expr
    x: Expr
    text: str
    shown: tuple[Expr, ...]


@node
class Show(Node):
    """`x`; where `cond` holds, `text` filled with the values `shown` is printed."""

    cond: Expr
    x: Expr
    text: str
    shown: tuple[Expr, ...]


@node
class Range(Node):
    """A variable with its own range lo <= name < hi, restricted to the points where `where` holds."""

    name: str
    lo: Expr
    hi: Expr
    where: Expr | None = None


@node
class Load(Node):
    """The element of a buffer at a multi-dimensional index; lanes where the mask is false give 0."""

    buffer: str
    index: tuple[Expr, ...]
    dtype: DType
    mask: Expr | None = None


@node
class Ramp(Node):
    """The vector base, base + stride, ..., of `lanes` i64 values."""

    base: Expr
    stride: int
    lanes: int


@node
class Broadcast(Node):
    """A scalar in every lane."""

    x: Expr
    lanes: int


Expr = (
    Const | Var | Size | Param | Unary | Binary | Select | Cast | Call | Access | Read | Reduce
    | Require | Show | Range | Load | Ramp | Broadcast
)  # fmt: skip


def dtype_of(e: Expr) -> DType:
    """The element type of an expression; for a vector, that of its lanes.

    >>> dtype_of(Binary("lt", Var("i"), Const(3, i64)))
    bool_
    """
    for _ in range(_STEPS):  # the most frequent kinds of nodes come first
        if isinstance(e, Binary):
            if e.op in _COMPARES:
                return bool_
            e = e.left
        elif isinstance(e, _TYPED):
            return e.dtype
        elif isinstance(e, _INDEX_TYPED):
            return i64
        elif isinstance(e, Select):
            e = e.yes
        else:
            e = e.x
    return memoised(_DTYPES, e, _dtype, _dtype_operand)


_INDEX_TYPED = (Var, Size, Range, Ramp)
_TYPED = (Const, Load, Read, Call, Cast, Param, Access, Reduce)
_STEPS = 8  # steps down an expression after which the dtypes of all nodes below are memoised


def _dtype_operand(e: Expr) -> tuple[Expr, ...]:
    """The operand whose element type an expression has, if any."""
    match e:
        case Binary(op, left) if op not in _COMPARES:
            return (left,)
        case Unary(_, x) | Broadcast(x) | Require(_, x) | Show(_, x) | Select(_, x):
            return (x,)
        case _:
            return ()


def _dtype(e: Expr) -> DType:
    operand = _dtype_operand(e)
    return _DTYPES[operand[0]] if operand else dtype_of(e)


def lanes_of(e: Expr) -> int:
    """The number of lanes of an expression of the loop IR; 1 for a scalar."""
    cached = _LANES.get(e)
    return memoised(_LANES, e, _lanes, _lane_operands) if cached is None else cached


def _lane_operands(e: Expr) -> tuple[Expr, ...]:
    """The operands that determine the number of lanes of an expression."""
    match e:
        case Binary(_, x) | Unary(_, x) | Cast(x) | Select(x) | Call(_, (x, *_)):
            return (x,)
        case Load(_, index, _, mask):
            return index if mask is None else (*index, mask)
        case _:
            return ()


def _lanes(e: Expr) -> int:
    if isinstance(e, Ramp | Broadcast):
        return e.lanes
    return max([_LANES[x] for x in _lane_operands(e)], default=1)


_DTYPES: Memo[Expr, DType] = Memo()
_LANES: Memo[Expr, int] = Memo()


@functools.lru_cache(maxsize=1 << 14, typed=True)
def const(value: int) -> Const:
    """An i64 constant, as for indices and extents; cached."""
    return Const(value, i64)


ZERO, ONE = const(0), const(1)
TRUE, FALSE = Const(True, bool_), Const(False, bool_)
