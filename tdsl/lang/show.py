"""Pretty-printer of expressions, in the notation of the user's source."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import assert_never

import numpy as np

from tdsl.core.node import post_order
from tdsl.core.text import Piece, call, infix, number, prefix, ternary
from tdsl.lang.expr import (
    ZERO,
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
from tdsl.lang.types import DType

Pieces = Callable[[Expr], Piece]

LONGEST = 20_000  # characters of a subexpression beyond which it is printed as `...`

SYMBOLS = {
    "eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">=",
    "add": "+", "sub": "-", "mul": "*", "div": "/", "floordiv": "//", "mod": "%", "pow": "**",
    "and": "&", "or": "|", "xor": "^", "shl": "<<", "shr": ">>", "neg": "-", "not": "~",
}  # fmt: skip


def show_expr(e: Expr) -> str:
    """An expression in source notation, with the fewest parentheses.

    A Ramp is printed as a slice `x:x + 16` in an index and as `x + ramp(16)` elsewhere; a Broadcast as its
    scalar.

    >>> from tdsl.lang.types import f32
    >>> i, k = Var("i"), Var("k")
    >>> show_expr(Binary("mul", Binary("add", Read("A", (i, k), 0, f32), Const(1, f32)), Param("s", f32)))
    '(A[i, k] + 1.0) * s'
    """
    return piece_of(e).text


def show_index(index: tuple[Expr, ...]) -> str:
    """The text of an index tuple, as between the brackets of an access.

    >>> show_index((Var("y"), Ramp(Var("x"), 1, 16)))
    'y, x:x + 16'
    """
    return _index(index, piece_of)


def show_const(c: Const) -> Piece:
    """A literal with the fewest digits that give the same value in its dtype.

    >>> from tdsl.lang.types import f32
    >>> print(show_const(Const(float(np.float32(0.1)), f32)))
    0.1
    """
    if not c.dtype.is_float:
        return number(bool(c.value) if c.dtype.kind == "b" else int(c.value))
    return number(_shortest_float(float(c.value), c.dtype))


def _shortest_float(value: float, dtype: DType) -> float:
    if dtype.kind != "f" or not math.isfinite(value):
        return value
    with np.errstate(over="ignore"):
        short = float(str(dtype.numpy.type(value)))
    return short if short == value or dtype.numpy.type(short) == dtype.numpy.type(value) else value


def piece_of(e: Expr) -> Piece:
    """The text of an expression with its precedence.

    A subexpression of more than LONGEST characters is printed as `...`: the text of a DAG with shared nodes
    may be exponentially long.
    """
    pieces: dict[int, Piece] = {}
    for n in post_order(e):
        piece = _piece(n, lambda x: pieces[id(x)])  # type: ignore[arg-type]  # expressions hold expressions only
        pieces[id(n)] = piece if len(piece.text) <= LONGEST else Piece("...")
    return pieces[id(e)]


def _piece(e: Expr, of: Pieces) -> Piece:
    """The text of a node, given a function `of` to the texts of its children."""
    match e:
        case Const():
            return show_const(e)
        case Var(name) | Size(name) | Param(name) | Range(name):
            return Piece(name)
        case Unary("abs", x):
            return call("abs", of(x))
        case Unary(op, x):
            return prefix(SYMBOLS[op], of(x))
        case Binary(op, left, right):
            return binary_piece(op, of(left), of(right))
        case Select(cond, yes, no):
            return call("where", *map(of, (cond, yes, no)))
        case Cast(x, dtype, saturate):
            return call("cast", of(x), dtype, *(("saturate=True",) if saturate else ()))
        case Call("reinterpret", (x,), dtype):
            return call("reinterpret", of(x), dtype)
        case Call(fn, args):
            return call(fn, *map(of, args))
        case Access(source, index, component):
            read = f"{source.name}[{_index(index, of)}]"
            several = len(getattr(source, "dtypes", ())) > 1
            return Piece(f"{read}[{component}]") if several else Piece(read)
        case Read(name, index, component):
            return _component(f"{name}[{_index(index, of)}]", component)
        case Load(buffer, index, _, mask):
            element = Piece(f"{buffer}[{_index(index, of)}]")
            return element if mask is None else ternary(of(mask), element, Piece("0"))
        case Ramp():
            return _ramp(e, of)
        case Broadcast(x):
            return of(x)
        case Reduce():
            return _reduce(e, of)
        case Require(cond, x, text, shown):
            return call("require", *map(of, (cond, x)), repr(text), *map(of, shown))
        case Show(cond, x, text, shown):
            return call("debug_print", *map(of, (x, *shown)), repr(text), f"where={of(cond)}")
        case _:
            assert_never(e)


def binary_piece(op: str, left: Piece, right: Piece) -> Piece:
    """The text of a binary operator of `lang.expr` on two pieces."""
    return call(op, left, right) if op in ("min", "max") else infix(SYMBOLS[op], left, right)


def _component(text: str, component: int) -> Piece:
    return Piece(f"{text}[{component}]" if component else text)


def _ramp(e: Ramp, of: Pieces) -> Piece:
    steps, size = call("ramp", e.lanes), abs(e.stride)
    if size != 1:
        steps = infix("*", number(size), steps)
    if e.base == ZERO:
        return steps if e.stride > 0 else prefix("-", steps)
    return infix("+" if e.stride > 0 else "-", of(e.base), steps)


def _index(index: tuple[Expr, ...], of: Pieces) -> str:
    return ", ".join(_subscript(i, of) for i in index) or "()"


def _subscript(i: Expr, of: Pieces) -> str:
    match i:
        case Ramp(base, stride, lanes) if stride > 0:
            span = number(stride * lanes)
            end = infix("+", of(base), span)
            if isinstance(base, Const):
                end = number(base.value + stride * lanes)
            step = f":{stride}" if stride != 1 else ""
            return f"{of(base)}:{end}{step}"
        case _:
            return of(i).text


def _reduce(e: Reduce, of: Pieces) -> Piece:
    terms = [of(t).text for t in e.terms]
    value = terms[0] if len(terms) == 1 else f"({', '.join(terms)})"
    axes = ", ".join(of(a).text for a in e.axes)
    axis = axes if len(e.axes) == 1 else f"({axes})"
    conditions = [of(a.where) for a in e.axes if isinstance(a, Range) and a.where is not None]
    where = []
    if conditions:
        where = [f"where={functools.reduce(_show_and, conditions)}"]
    custom = []
    if e.kind == "custom":
        custom = [show_tuple(e.combine, of), f"init={show_tuple(e.init, of)}"]
    name = "reduce" if e.kind == "custom" else e.kind
    return _component(call(name, *custom, value, f"axis={axis}", *where).text, e.component)


def _show_and(a: Piece, b: Piece) -> Piece:
    return infix("&", a, b)


def show_tuple(es: tuple[Expr, ...], of: Pieces = piece_of) -> str:
    """The text of one expression, or of several in parentheses, with commas."""
    texts = [of(x).text for x in es]
    return texts[0] if len(texts) == 1 else f"({', '.join(texts)})"
