"""Whether a value is linear and homogeneous in some sources: the value of a sum is the sum of the values.

Found from the structure of the expressions: 2 * y[i] + z[i] * w[i] is linear in {y, z}, y[i] + 1 and
max(y[i], 0) are not.
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set as AbstractSet

from tdsl.core.node import post_order
from tdsl.lang.expr import (
    Binary,
    Call,
    Cast,
    Const,
    Expr,
    Read,
    Reduce,
    Select,
    Unary,
    dtype_of,
)
from tdsl.lang.program import FuncDef

FREE, LINEAR, ZERO = "free", "linear", "zero"  # reads none of the sources; linear in them; is 0


class NotLinear(Exception):  # converted to a ScheduleError by `check_placed`
    """A value is not linear and homogeneous; its text says which expression is not."""


def check_linear(f: FuncDef, inlined: Mapping[str, FuncDef], sources: AbstractSet[str]) -> None:
    """Raise NotLinear unless a func is linear and homogeneous in `sources`.

    Reads of the funcs `inlined` are followed to what these read.

    >>> import tdsl as td
    >>> i, y, f, g = td.vars("i"), td.Tensor("y", (4,), td.f64), td.Func("f"), td.Func("g")
    >>> f[i] = 2 * y[i] - y[3 - i]
    >>> check_linear(td.Schedule(f).program.func("f"), {}, {"y"})
    >>> g[i] = 2 * y[i] + 1
    >>> check_linear(td.Schedule(g).program.func("g"), {}, {"y"})
    Traceback (most recent call last):
    tdsl.schedule.linear.NotLinear: it adds what is not partial
    """
    kind = _Linearity(inlined, sources).of_func(f)
    if kind == FREE:
        raise NotLinear(f"it does not depend on {', '.join(sorted(sources))}")


class _Linearity:
    def __init__(self, inlined: Mapping[str, FuncDef], sources: AbstractSet[str]) -> None:
        self.inlined, self.sources = inlined, sources
        self.known: dict[str, str] = {}

    def of_func(self, f: FuncDef) -> str:
        """FREE, LINEAR or ZERO for a func."""
        if f.name not in self.known:
            self.known[f.name] = self._of_func(f)
        return self.known[f.name]

    def _of_func(self, f: FuncDef) -> str:
        d = f.definitions[0]
        kinds = [self.of(e) for x in f.definitions for e in (*x.index, *x.values, x.where)]
        if all(kind != LINEAR for kind in kinds):
            return ZERO if len(f.definitions) == 1 and self.of(d.values[0]) == ZERO else FREE
        if len(f.definitions) > 1 or len(d.values) > 1:
            raise NotLinear(f"{f.name!r} has updates or several values")
        self._check_free(d.where, *d.index)
        if d.combine is not None and d.combine.kind != "sum":
            raise NotLinear(f"{f.name!r} is a {d.combine.kind}")
        if d.combine is not None and (d.init is None or any(self.of(e) != ZERO for e in d.init)):
            raise NotLinear(f"{f.name!r} does not start at 0")
        return self.of(d.values[0])

    def _check_free(self, *exprs: Expr) -> None:
        for e in exprs:
            if self.of(e) == LINEAR:
                raise NotLinear("an index or a condition depends on it")

    def of(self, e: Expr) -> str:
        """FREE, LINEAR or ZERO for an expression."""
        match e:
            case Const(value):
                return ZERO if value == 0 else FREE
            case Read(name, index):
                self._check_free(*index)
                if name in self.sources:
                    return LINEAR
                return self.of_func(self.inlined[name]) if name in self.inlined else FREE
            case Unary("neg", x):
                return self.of(x)
            case Binary("add" | "sub", a, b):
                return self._sum(a, b)
            case Binary("mul", a, b):
                kinds = {self.of(a), self.of(b)}
                if kinds == {LINEAR}:
                    raise NotLinear("it multiplies two of them")
                return ZERO if ZERO in kinds else LINEAR if LINEAR in kinds else FREE
            case Binary("div", a, b) if dtype_of(e).is_float:
                self._check_free(b)
                return self.of(a)
            case Select(cond, yes, no):
                self._check_free(cond)
                return self._sum(yes, no)
            case Cast(x, dtype) if self.of(x) == LINEAR:
                of = dtype_of(x)
                wraps = not of.is_float and not dtype.is_float and dtype.bits <= of.bits and dtype.kind != "b"
                if e.saturate or not (wraps or (of.is_float and dtype.is_float)):
                    raise NotLinear(f"a cast from {of} to {dtype} is not linear")
                return LINEAR
            case Call("fma", (a, b, c)):
                return self._sum(Binary("mul", a, b), c)
            case Reduce("sum", _, (term,)):
                return self.of(term)
            case _:
                if any(isinstance(n, Read) and self.of(n) == LINEAR for n in post_order(e)):
                    raise NotLinear(f"{_operation(e)} is not linear")
                return FREE

    def _sum(self, a: Expr, b: Expr) -> str:
        kinds = {self.of(a), self.of(b)}
        if kinds == {LINEAR, FREE}:
            raise NotLinear("it adds what is not partial")
        return LINEAR if LINEAR in kinds else FREE if FREE in kinds else ZERO


def _operation(e: Expr) -> str:
    match e:
        case Call(fn):
            return fn
        case Binary(op) | Unary(op):
            return op
        case _:
            return type(e).__name__
