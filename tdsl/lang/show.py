"""Expressions as text, in the notation that the user writes."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, assert_never

import numpy as np

from tdsl.core.node import post_order
from tdsl.core.text import Piece, call, infix, number, prefix, ternary
from tdsl.lang.expr import (
    ONE,
    TRUE,
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

if TYPE_CHECKING:
    from tdsl.lang.definition import Definition
    from tdsl.lang.program import FuncDef, Program
    from tdsl.lang.reduction import Combine
    from tdsl.lang.tensor import Func

Pieces = Callable[[Expr], Piece]

LONGEST = 20_000  # characters of an expression

SYMBOLS = {
    "eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">=",
    "add": "+", "sub": "-", "mul": "*", "div": "/", "floordiv": "//", "mod": "%", "pow": "**",
    "and": "&", "or": "|", "xor": "^", "shl": "<<", "shr": ">>", "neg": "-", "not": "~",
}  # fmt: skip


def show_expr(e: Expr) -> str:
    """An expression in source notation, with no more parentheses than it needs.

    A vector reads as NumPy would have it: `x:x + 16` in an index and `x + ramp(16)` elsewhere; a scalar
    in every lane is just the scalar.

    >>> from tdsl.lang.types import f32
    >>> i, k = Var("i"), Var("k")
    >>> show_expr(Binary("mul", Binary("add", Read("A", (i, k), 0, f32), Const(1, f32)), Param("s", f32)))
    '(A[i, k] + 1.0) * s'
    """
    return piece_of(e).text


def show_index(index: tuple[Expr, ...]) -> str:
    """What stands between the brackets of an access.

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
    return number(_shortest(float(c.value), c.dtype))


def _shortest(value: float, dtype: DType) -> float:
    if dtype.kind != "f" or not math.isfinite(value):
        return value
    with np.errstate(over="ignore"):
        short = float(str(dtype.numpy.type(value)))
    return short if short == value or dtype.numpy.type(short) == dtype.numpy.type(value) else value


def piece_of(e: Expr) -> Piece:
    """The text of an expression and how tightly it binds.

    What is longer than any reader's patience is `...`: an expression that shares its parts may stand for
    more text than there is memory.
    """
    pieces: dict[int, Piece] = {}
    for n in post_order(e):
        piece = _piece(n, lambda x: pieces[id(x)])  # type: ignore[arg-type]  # expressions hold expressions only
        pieces[id(n)] = piece if len(piece.text) <= LONGEST else Piece("...")
    return pieces[id(e)]


def _piece(e: Expr, of: Pieces) -> Piece:
    """The piece of a node from those `of` its children."""
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
    """A binary operator of `lang.expr` between pieces."""
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
        where = [f"where={functools.reduce(_both, conditions)}"]
    custom = []
    if e.kind == "custom":
        custom = [_several(e.combine, of), f"init={_several(e.init, of)}"]
    name = "reduce" if e.kind == "custom" else e.kind
    return _component(call(name, *custom, value, f"axis={axis}", *where).text, e.component)


def _both(a: Piece, b: Piece) -> Piece:
    return infix("&", a, b)


def _several(es: tuple[Expr, ...], of: Pieces = piece_of) -> str:
    texts = [of(x).text for x in es]
    return texts[0] if len(texts) == 1 else f"({', '.join(texts)})"


_UPDATES = {"sum": "+=", "prod": "*=", "any": "|=", "all": "&="}


def show_func(f: Func) -> str:
    """The definitions of a func, one a line, each with the ranges of its variables where it has any.

    >>> from tdsl.lang.tensor import Func, Tensor
    >>> from tdsl.lang.reduction import range, sum
    >>> from tdsl.lang.value import vars
    >>> i, k = vars("i k")
    >>> a, f, r = Tensor("a", (3, 4), "f32"), Func("f"), range("r", 1, 3)
    >>> f[i] = sum(a[i, k], axis=k)
    >>> f[r] += f[r - 1] * 2
    >>> print(show_func(f))
    f[i] = sum(a[i, k], axis=k)
    f[r] += f[r - 1] * 2.0 for r in range(1, 3)
    """
    return "\n".join(show_definition(f.name, d) for d in f.definitions)


def show_program(p: Program) -> str:
    """A program: its inputs and outputs, then every func with its range, producers first.

    >>> from tdsl.lang.program import build_program
    >>> from tdsl.lang.tensor import Func, Tensor
    >>> from tdsl.lang.value import vars
    >>> i, a, f = vars("i"), Tensor("a", ("N",), "f32"), Func("f")
    >>> f[i] = a[i] + a[i + 1]
    >>> print(build_program((f,)))
    f(a: f32[N]) -> f
    f: f32 on 0 <= i < N - 1
      f[i] = a[i] + a[i + 1]
    """
    types = {t.name: f"{t.dtype}[{', '.join(map(show_expr, t.shape))}]" for t in p.inputs}
    types |= {s.name: f"{s.dtype}" for s in p.scalars}
    taken = ", ".join(f"{name}: {types[name]}" for name in p.parameters)
    lines = [f"{p.name}({taken}) -> {', '.join(p.outputs)}"]
    for f in p.funcs:
        lines.append(f"{f.name}: {', '.join(map(str, f.dtypes))}{_domain(f)}")
        lines += [f"  {show_definition(f.name, d)}" for d in f.definitions]
    return "\n".join(lines)


def _domain(f: FuncDef) -> str:
    from tdsl.lang.simplify import add

    known = [
        f"{show_expr(lo)} <= {name} < {show_expr(add(hi, ONE))}"
        for name, (lo, hi) in zip(f.variables, f.natural, strict=True)
        if lo is not None and hi is not None
    ]
    return f" on {', '.join(known)}" if known else ""


def show_definition(name: str, d: Definition) -> str:
    """One definition or update of the func `name`, in source notation."""
    own = f"{name}[{show_index(d.index)}]"
    values = _several(d.values)
    if d.combine is None:
        text = f"{own} = {values}"
    elif d.init is not None:
        axis = _tuple(name for name, _, _ in d.ranges)
        text = f"{own} = {_reduction(d.combine, values)}, axis={axis})"
    elif d.combine.kind in _UPDATES:
        text = f"{own} {_UPDATES[d.combine.kind]} {values}"
    else:
        text = f"{own} = {_reduction(d.combine, f'{own}, {values}')})"
    spans = [
        f"for {n} in range({show_expr(lo)}, {show_expr(hi)})"
        for n, lo, hi in d.ranges
        if lo is not None and hi is not None
    ]
    where = [f"if {show_expr(d.where)}"] if d.where != TRUE else []
    return " ".join([text, *spans, *where])


def _reduction(c: Combine, values: str) -> str:
    if c.kind in ("custom", "custom_ordered"):
        return f"reduce({_several(c.exprs)}, init={_several(c.init)}, {values}"
    return f"{c.kind}({values}"


def _tuple(names: Iterable[str]) -> str:
    listed = list(names)
    return listed[0] if len(listed) == 1 else f"({', '.join(listed)})"
