"""`Value`: the expression object of the user, with Python's operators and NumPy's type promotion.

A value wraps an expression node. It is *weak* if it is built of Python numbers, loop variables and extents
only: like a Python number in NumPy (NEP 50), a weak value adopts the type of the other operand.
"""

from __future__ import annotations

import keyword
import numbers
from typing import Any, ClassVar

import numpy as np

from tdsl.core.source import Loc, here
from tdsl.errors import DefinitionError, TypeMismatch
from tdsl.lang.expr import (
    BITWISE,
    COMPARISONS,
    Access,
    Binary,
    Cast,
    Const,
    Expr,
    Size,
    Unary,
    Var,
    dtype_of,
)  # fmt: skip
from tdsl.lang.handle import Handle, iteration_error, number_error
from tdsl.lang.show import show_expr
from tdsl.lang.types import DType, bool_, default_int, f64, from_numpy, i64, promote, u64

UNKNOWN_TYPE = DType("unknown", "?", 0)  # the type of a func that has no definition yet


class Value:
    """An expression of the index language.

    `+ - * / // % ** & | ^ ~ << >> < <= == != > >= abs` work as on NumPy scalars: `/` is true division,
    `//` and `%` floor, `==` compares values and gives a bool value. There is no truth value: choose with
    `td.where`, combine conditions with `&`, `|` and `~`.
    """

    __slots__ = ("node", "weak")
    __hash__: ClassVar[None]  # type: ignore[assignment]  # == builds an expression

    def __init__(self, node: Expr, *, weak: bool = False) -> None:
        self.node, self.weak = node, weak

    @property
    def dtype(self) -> DType:
        """The element type."""
        return dtype_of(self.node)

    def becomes(self, t: DType) -> bool:
        """True if NumPy's same-kind rule lets this value be stored as `t` without a cast."""
        return self.dtype.order <= t.order or (self.weak and not self.dtype.is_float)

    def __repr__(self) -> str:
        return show_expr(self.node)

    def __bool__(self) -> bool:
        raise DefinitionError(
            "an expression has no truth value while a program is written",
            loc=here(),
            label="used as a condition",
            hint="choose with td.where(cond, yes, no); combine with &, | and ~",
        )

    def __float__(self) -> float:
        raise number_error()

    def __int__(self) -> int:
        raise number_error()

    def __iter__(self) -> Any:
        raise iteration_error("an expression")

    def __add__(self, other: Any) -> Value:
        return binary("add", self, other)

    def __radd__(self, other: Any) -> Value:
        return binary("add", other, self)

    def __sub__(self, other: Any) -> Value:
        return binary("sub", self, other)

    def __rsub__(self, other: Any) -> Value:
        return binary("sub", other, self)

    def __mul__(self, other: Any) -> Value:
        return binary("mul", self, other)

    def __rmul__(self, other: Any) -> Value:
        return binary("mul", other, self)

    def __truediv__(self, other: Any) -> Value:
        return binary("div", self, other)

    def __rtruediv__(self, other: Any) -> Value:
        return binary("div", other, self)

    def __floordiv__(self, other: Any) -> Value:
        return binary("floordiv", self, other)

    def __rfloordiv__(self, other: Any) -> Value:
        return binary("floordiv", other, self)

    def __mod__(self, other: Any) -> Value:
        return binary("mod", self, other)

    def __rmod__(self, other: Any) -> Value:
        return binary("mod", other, self)

    def __pow__(self, other: Any) -> Value:
        return binary("pow", self, other)

    def __rpow__(self, other: Any) -> Value:
        return binary("pow", other, self)

    def __and__(self, other: Any) -> Value:
        return binary("and", self, other)

    def __rand__(self, other: Any) -> Value:
        return binary("and", other, self)

    def __or__(self, other: Any) -> Value:
        return binary("or", self, other)

    def __ror__(self, other: Any) -> Value:
        return binary("or", other, self)

    def __xor__(self, other: Any) -> Value:
        return binary("xor", self, other)

    def __rxor__(self, other: Any) -> Value:
        return binary("xor", other, self)

    def __lshift__(self, other: Any) -> Value:
        return binary("shl", self, other)

    def __rlshift__(self, other: Any) -> Value:
        return binary("shl", other, self)

    def __rshift__(self, other: Any) -> Value:
        return binary("shr", self, other)

    def __rrshift__(self, other: Any) -> Value:
        return binary("shr", other, self)

    def __lt__(self, other: Any) -> Value:
        return binary("lt", self, other)

    def __le__(self, other: Any) -> Value:
        return binary("le", self, other)

    def __gt__(self, other: Any) -> Value:
        return binary("gt", self, other)

    def __ge__(self, other: Any) -> Value:
        return binary("ge", self, other)

    def __eq__(self, other: object) -> Value:  # type: ignore[override]  # an expression, as in NumPy
        return binary("eq", self, other)

    def __ne__(self, other: object) -> Value:  # type: ignore[override]  # an expression, as in NumPy
        return binary("ne", self, other)

    def __neg__(self) -> Value:
        return unary("neg", self)

    def __pos__(self) -> Value:
        return self

    def __invert__(self) -> Value:
        return unary("not", self)

    def __abs__(self) -> Value:
        return unary("abs", self)


class Variable(Value):
    """A loop variable or a `td.range`: usable as an index, as a value, and as the name of a loop."""

    __slots__ = ()

    @property
    def name(self) -> str:
        """The name of the variable."""
        return self.node.name  # type: ignore[union-attr]  # a Var or a Range


def lift(x: Any, loc: Loc | None = None) -> Value:
    """`x` as a Value: a Value, a Python number (weak) or a NumPy scalar; TypeMismatch for anything else."""
    if isinstance(x, Value):
        if x.node.__class__ is Access and x.dtype is UNKNOWN_TYPE:
            raise _undefined(x.node.source.name, x.node.loc or loc or here())
        return x
    return _lift_number(x, loc)


def _undefined(name: str, loc: Loc | None) -> DefinitionError:
    return DefinitionError(
        f"func {name!r} is read before it is defined",
        loc=loc,
        label="no definition yet",
        hint=f"first write {name}[...] = ...; a recurrence is an update over a td.range",
    )


def _lift_number(x: Any, loc: Loc | None) -> Value:
    if isinstance(x, bool | np.bool_):
        return Value(Const(bool(x), bool_))
    if isinstance(x, np.generic):
        t = from_numpy(x.dtype)
        return Value(Const(float(x) if t.kind == "e" else x.item(), t))
    if isinstance(x, numbers.Integral):
        n = int(x)
        if not i64.low <= n <= u64.high:
            raise TypeMismatch(
                f"{n} does not fit in any integer type",
                loc=loc or here(),
                label="a value is needed here",
                hint="write it as a float",
            )
        return Value(Const(n, default_int(n)), weak=True)
    if isinstance(x, numbers.Real):
        return Value(Const(float(x), f64), weak=True)
    if isinstance(x, np.ndarray) and x.ndim == 0:
        return _lift_number(x[()], loc)
    if isinstance(x, Handle):
        raise x.refusal(loc or here())
    raise TypeMismatch(
        f"{type(x).__name__} is not a value of the index language",
        loc=loc or here(),
        label="a value is needed here",
        hint="declare it, td.Tensor(name, shape, dtype), and pass the array in the call"
        if hasattr(x, "shape")
        else "values are numbers, loop variables, and reads such as a[i, j]",
    )


def convert(v: Value, t: DType, loc: Loc | None, saturate: bool = False) -> Expr:
    """The node of `v` cast to `t`, constants at once; with `saturate`, weak values are clipped."""
    node = v.node
    if isinstance(node, Const):
        return convert_const(node, t, loc)
    return node if dtype_of(node) == t else Cast(node, t, saturate and v.weak, loc=loc)


def convert_const(c: Const, t: DType, loc: Loc | None) -> Const:
    """A constant converted to another type; TypeMismatch if an integer is out of range."""
    if c.dtype == t:
        return c
    if t.is_float:
        with np.errstate(over="ignore"):
            return Const(float(t.numpy.type(c.value)), t, loc=loc)
    if t.kind == "b":
        return Const(bool(c.value), t, loc=loc)
    if not c.dtype.is_float and not t.low <= int(c.value) <= t.high:
        raise TypeMismatch(
            f"{c.value} does not fit in {t}",
            loc=loc,
            label="used here",
            hint=f"{t} holds {t.low} to {t.high}; td.cast the other operand to a wider type",
        )
    return Const(int(c.value), t, loc=loc)


def common_type(a: Value, b: Value) -> DType:
    """NumPy's result type of two operands (NEP 50: a weak operand adopts the type of the other)."""
    ta, tb = a.dtype, b.dtype
    if a.weak == b.weak:
        return promote(ta, tb)
    weak, strong = (ta, tb) if a.weak else (tb, ta)
    if strong.kind == "b":
        return weak
    if weak.is_float and not strong.is_float:
        return f64
    return strong


def binary(op: str, left: Any, right: Any) -> Value:
    """`left op right` with NumPy's types."""
    loc = here()
    a, b = lift(left, loc), lift(right, loc)
    t = common_type(a, b)
    weak = a.weak and b.weak
    if op == "div" and not t.is_float:
        t = f64
    elif op in BITWISE and t.is_float:
        raise TypeMismatch(
            f"`{_SYMBOLS[op]}` needs integers or bools, not {a.dtype} and {b.dtype}",
            loc=loc,
            label="this operator",
            hint="td.reinterpret gives the bits of a float",
        )
    elif t.kind == "b" and op in ("sub", "div", "floordiv", "mod", "pow", "shl", "shr"):
        raise TypeMismatch(
            f"`{_SYMBOLS[op]}` is not defined on bools",
            loc=loc,
            label="this operator",
            hint="use &, |, ^ or cast to an integer",
        )
    if t.kind == "b" and op in ("add", "mul"):
        op = "or" if op == "add" else "and"
    # min(narrow integer, extent) is right also for an extent out of the narrow range: the cast saturates
    limits = op in ("min", "max") and t.is_integer
    x, y = convert(a, t, loc, saturate=limits), convert(b, t, loc, saturate=limits)
    if op == "pow" and t.is_integer and isinstance(y, Const) and y.value < 0:
        raise TypeMismatch(
            f"{t} to the power {y.value} is no integer",
            loc=loc,
            label="this operator",
            hint="td.cast the base to a float type",
        )
    folded = _fold(op, x, y)
    if folded is not None:
        return Value(folded, weak=weak and op not in COMPARISONS)
    if op == "pow" and isinstance(y, Const) and y.value == 2:
        return Value(Binary("mul", x, x, loc=loc), weak=weak)
    return Value(Binary(op, x, y, loc=loc), weak=weak and op not in COMPARISONS)


_SYMBOLS = {
    "and": "&", "or": "|", "xor": "^", "shl": "<<", "shr": ">>", "sub": "-", "div": "/",
    "floordiv": "//", "mod": "%", "pow": "**",
}  # fmt: skip


def _fold(op: str, x: Expr, y: Expr) -> Const | None:
    """The folded constant of an operator on two i64 constants; None for other types and on overflow."""
    if not (isinstance(x, Const) and isinstance(y, Const) and x.dtype == i64):
        return None
    a, b = int(x.value), int(y.value)
    match op:
        case "add":
            value = a + b
        case "sub":
            value = a - b
        case "mul":
            value = a * b
        case "floordiv":
            value = a // b if b else 0
        case "mod":
            value = a % b if b else 0
        case _:
            return None
    return Const(value, i64) if i64.low <= value <= i64.high else None


def unary(op: str, x: Any) -> Value:
    """`-x`, `~x` or `abs(x)`."""
    loc = here()
    v = lift(x, loc)
    t = v.dtype
    if (op == "not" and t.is_float) or (op == "neg" and t.kind == "b"):
        symbol = "~" if op == "not" else "-"
        raise TypeMismatch(
            f"`{symbol}` is not defined on {t}",
            loc=loc,
            label="this operator",
            hint="td.reinterpret gives the bits of a float" if op == "not" else "use ~ for not",
        )
    if isinstance(v.node, Const) and op == "neg" and (t == i64 or t.is_float):
        return Value(Const(-v.node.value, t), weak=v.weak)
    if op == "abs" and t.kind in "bu":
        return v
    return Value(Unary(op, v.node, loc=loc), weak=v.weak)


def as_index(x: Any, loc: Loc | None, label: str = "this access") -> Expr:
    """An index expression, an i64; TypeMismatch for floats and bools."""
    if isinstance(x, slice):
        raise TypeMismatch(
            "a slice is no index",
            loc=loc,
            label=label,
            hint='index with variables, i, j = td.vars("i j"), which stand for all points at once',
        )
    v = lift(x, loc)
    t = v.dtype
    if not t.is_integer:
        raise TypeMismatch(
            f"an index must be an integer, not {t}",
            loc=loc,
            label=label,
            hint="td.cast(index, td.i64)",
        )
    return v.node if isinstance(v.node, Var | Size) else convert(v, i64, loc)


def vars(names: str) -> Any:
    """Loop variables with the given names, separated by spaces or commas; for one name, not a tuple.

    A variable belongs to the definition that uses it; two definitions may use the same one.

    >>> i, j = vars("i j")
    >>> i + 1
    i + 1
    """
    loc = here()
    if not isinstance(names, str):
        raise TypeMismatch(
            f"vars takes names in one string, not {names!r}",
            loc=loc,
            label="this call",
            hint='i, j = td.vars("i j")',
        )
    listed = names.replace(",", " ").split()
    for name in listed:
        check_name(name, loc)
    if len(set(listed)) < len(listed):
        raise DefinitionError(
            f"vars names a variable twice: {names!r}",
            loc=loc,
            label="this call",
            hint="give each variable a name of its own; one variable may serve several definitions",
        )
    variables = tuple(Variable(Var(name), weak=True) for name in listed)
    if not variables:
        raise DefinitionError(
            "vars needs at least one name", loc=loc, label="this call", hint='td.vars("i j")'
        )
    return variables[0] if len(variables) == 1 else variables


def check_name(name: object, loc: Loc | None) -> None:
    """Raise DefinitionError unless `name` is a Python identifier, as printed schedules and code require."""
    if not isinstance(name, str) or not name.isidentifier():
        raise DefinitionError(
            f"{name!r} is not a name",
            loc=loc,
            label="this name",
            hint="use letters, digits and _, as in Python",
        )
    if keyword.iskeyword(name):
        raise DefinitionError(
            f"{name!r} is a keyword of Python",
            loc=loc,
            label="this name",
            hint=f"for instance {name}_",
        )
