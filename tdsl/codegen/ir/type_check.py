"""Type checking of loop IR expressions: the dtype, the number of vector lanes and the free names of each.

Operands agree in dtype and lanes, conditions and masks are bool, indices are i64.
"""

from __future__ import annotations

from typing import Any, NamedTuple, assert_never

from tdsl.lang.expr import (
    ARITHMETIC,
    BITWISE,
    COMPARISONS,
    FUNCTIONS,
    UNARY,
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
)  # fmt: skip
from tdsl.lang.types import DType, bool_, i64

_INTEGER_FUNCTIONS = ("popcount", "clz", "ctz", "random")
_TESTS = ("isnan", "isinf", "isfinite")
SCALAR, SIZE, BUFFER = "scalar", "size", "buffer"  # kinds of names


class BadIR(AssertionError):
    """Ill-formed loop IR: a bug of the compiler. The message has the path to the node."""


FreeNames = frozenset[tuple[Any, ...]]  # (kind of name, name, dtype, rank of a buffer)
_NONE: FreeNames = frozenset()


class Typed(NamedTuple):
    """A well-formed expression with its dtype, its number of lanes and its free names."""

    expr: Expr
    dtype: DType
    lanes: int
    names: FreeNames


def type_check(e: Expr, parts: tuple[Typed, ...]) -> Typed:
    """Type-checks an expression whose children are `parts`; BadIR if their types do not fit the operator.

    >>> one = type_check(Const(1, i64), ())
    >>> type_check(Binary("lt", one.expr, one.expr), (one, one)).dtype
    bool_
    """
    names = _union_of_names(parts)
    match e:
        case Const(value, dtype):
            fits = dtype.is_float or dtype.low <= value <= dtype.high
            require(fits, f"{value} in {dtype}")
            return Typed(e, dtype, 1, names)
        case Var(name):
            return Typed(e, i64, 1, frozenset([(SCALAR, name, i64)]))
        case Param(name, dtype):
            return Typed(e, dtype, 1, frozenset([(SCALAR, name, dtype)]))
        case Size(name):
            return Typed(e, i64, 1, frozenset([(SIZE, name)]))
        case Unary():
            return Typed(e, _unary_dtype(e, *parts), parts[0].lanes, names)
        case Binary():
            return Typed(e, _binary_dtype(e, *parts), parts[0].lanes, names)
        case Select():
            cond, yes, no = parts
            require(cond.dtype == bool_, f"a condition of dtype {cond.dtype}")
            _same_dtype(yes, no)
            require_lanes(cond.lanes, yes)
            require_lanes(cond.lanes, no)
            return Typed(e, yes.dtype, cond.lanes, names)
        case Cast(_, dtype):
            return Typed(e, dtype, parts[0].lanes, names)
        case Call(_, _, dtype):
            _check_call(e, parts)
            return Typed(e, dtype, parts[0].lanes, names)
        case Load(buffer, index, dtype, mask):
            lanes = lanes_of_index(parts[: len(index)], f"{buffer}: ")
            if mask is not None:
                require_mask(parts[-1], lanes)
            return Typed(e, dtype, lanes, names | {(BUFFER, buffer, dtype, len(index))})
        case Ramp(_, stride, lanes):
            (base,) = parts
            require(base.dtype is i64, f"a base of dtype {base.dtype}")
            require_lanes(1, base)
            require(lanes > 1 and stride != 0, f"{lanes} lanes, stride {stride}")
            return Typed(e, i64, lanes, names)
        case Broadcast(_, lanes):
            (x,) = parts
            require_lanes(1, x)
            require(lanes > 1, f"{lanes} lanes")
            return Typed(e, x.dtype, lanes, names)
        case Access() | Read() | Reduce() | Range() | Require() | Show():
            raise BadIR("does not exist in loops")
        case _:
            assert_never(e)


def _unary_dtype(e: Unary, x: Typed) -> DType:
    require(e.op in UNARY, f"no operator is called {e.op!r}")
    fits = not x.dtype.is_float if e.op == "not" else x.dtype != bool_
    require(fits, f"{e.op} of {x.dtype}")
    return x.dtype


def _binary_dtype(e: Binary, left: Typed, right: Typed) -> DType:
    compares = e.op in COMPARISONS
    known = compares or e.op in ARITHMETIC or e.op in BITWISE
    require(known, f"no operator is called {e.op!r}")
    _same_dtype(left, right, f"{e.op}: ")
    require_lanes(left.lanes, right, f"{e.op}: ")
    t = left.dtype
    if e.op == "div":
        require(t.is_float, f"div: true division of {t}")
    elif e.op in BITWISE:
        fits = t.is_integer or (t == bool_ and e.op in ("and", "or", "xor"))
        require(fits, f"{e.op}: bit operation on {t}")
    elif e.op in ARITHMETIC and e.op not in ("min", "max"):
        require(t != bool_, f"{e.op}: arithmetic on bool")
    return bool_ if compares else t


def _check_call(e: Call, args: tuple[Typed, ...]) -> None:
    known = e.fn in FUNCTIONS and e.fn != "extent"
    require(known, f"no function of loops is called {e.fn!r}")
    within, arity = f"{e.fn}: ", FUNCTIONS[e.fn]
    require(arity in (-1, len(args)) and bool(args), f"{within}{len(args)} arguments")
    for a in args:
        require_lanes(args[0].lanes, a, within)
    types = [a.dtype for a in args]
    if e.fn.startswith("pad_"):
        require({e.dtype, *types} == {i64}, f"{within}arguments of {types}")
    elif e.fn == "reinterpret":
        same_size = types[0].bits == e.dtype.bits and bool_ not in (types[0], e.dtype)
        require(same_size, f"{within}{types[0]} as {e.dtype}")
    elif e.fn in _INTEGER_FUNCTIONS:
        require(all(t.is_integer for t in types), f"{within}arguments of {types}")
        fits = e.dtype.is_float if e.fn == "random" else e.dtype.is_integer
        require(fits, f"{within}result of {e.dtype}")
    else:
        result = bool_ if e.fn in _TESTS else types[0]
        require(types[0].is_float and len(set(types)) == 1, f"{within}arguments of {types}")
        require(e.dtype == result, f"{within}{types[0]} gives {e.dtype}")


def _same_dtype(a: Typed, b: Typed, within: str = "") -> None:
    require(a.dtype is b.dtype, f"{within}operands of {a.dtype} and {b.dtype}")


def require(holds: bool, reason: str) -> None:
    """Raise BadIR for `reason` unless `holds` is true."""
    if not holds:
        raise BadIR(reason)


def require_lanes(lanes: int, e: Typed, within: str = "") -> None:
    """Raise BadIR unless an expression has `lanes` lanes."""
    if e.lanes != lanes:
        raise BadIR(f"{within}{e.lanes} lanes where {lanes} are needed")


def require_mask(e: Typed, lanes: int) -> None:
    """Raise BadIR unless an expression is a bool mask of `lanes` lanes."""
    require(e.dtype is bool_, f"a mask of dtype {e.dtype}")
    require_lanes(lanes, e)


def lanes_of_index(parts: tuple[Typed, ...], within: str = "") -> int:
    """The lanes of an index, whose parts are i64 scalars or i64 vectors of one length; BadIR for others."""
    lanes = {1}
    for e in parts:
        require(e.dtype is i64, f"{within}an index or extent of dtype {e.dtype}")
        lanes.add(e.lanes)
    require(len(lanes) <= 2, f"{within}indices or extents of {sorted(lanes - {1})} lanes")
    return max(lanes)


def _union_of_names(parts: tuple[Typed, ...]) -> FreeNames:
    """The union of the free names of several expressions; one of the sets is reused if it is the union."""
    names = _NONE
    for part in parts:
        if names <= part.names:
            names = part.names
        elif not part.names <= names:
            names |= part.names
    return names
