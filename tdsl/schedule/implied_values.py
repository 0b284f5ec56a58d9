"""Values that an expression must have (0, an infinity, true) where a comparison of indices is decided."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf, isinf
from typing import Any

from tdsl.core.node import Node, post_order, transform
from tdsl.lang.definition import has_effects
from tdsl.lang.expr import (
    COMPARISONS,
    TRUE,
    Binary,
    Call,
    Cast,
    Const,
    Expr,
    Read,
    Select,
    Unary,
    Var,
    dtype_of,
)  # fmt: skip
from tdsl.lang.program import Program
from tdsl.lang.simplify import substitute
from tdsl.lang.types import bool_
from tdsl.schedule.inlining import value_at

Value = tuple[Any, bool]  # a number, and whether it may be NaN instead, then in all terms of a row
Ranges = tuple[tuple[str, Expr | None, Expr | None], ...]


def has_condition(e: Expr) -> bool:
    """True if an expression contains a select or a comparison, whose conditions may decide its value."""
    return any(
        isinstance(n, Select) or (isinstance(n, Binary) and n.op in COMPARISONS) for n in post_order(e)
    )


@dataclass(slots=True)
class ConditionalFuncs:
    """Inlines the element-wise funcs of a program whose values conditions may decide."""

    program: Program
    names: frozenset[str]

    @staticmethod
    def of(program: Program) -> ConditionalFuncs:
        """The element-wise funcs of a program that contain conditions, or read such a func."""
        names: set[str] = set()
        for f in program.funcs:  # producers first
            d = f.definitions[0]
            single = len(f.definitions) == 1 == len(f.dtypes)
            plain = single and d.combine is None and not has_effects(d)
            if plain and (any(r.name in names for r in d.reads) or any(map(has_condition, d.values))):
                names.add(f.name)
        return ConditionalFuncs(program, frozenset(names))

    def inlined(self, e: Expr) -> Expr:
        """An expression with the reads of these funcs replaced by their definitions."""
        return transform(e, self._visit)

    def _visit(self, n: Node) -> Node:
        if isinstance(n, Read) and n.name in self.names:
            return self.inlined(value_at(self.program.func(n.name).definitions[0], n))
        return n


@dataclass(slots=True)
class ImpliedValues:
    """Values that terms over some ranges must have if a comparison is true (`holds`) or false."""

    conditional: ConditionalFuncs
    comparison: Expr
    holds: bool
    ranges: Ranges
    lenient: bool
    known: dict[Expr, Value | None] = field(default_factory=dict)

    def value(self, e: Expr) -> Value | None:
        """The value of an expression; None if it is not determined."""
        if e not in self.known:
            self.known[e] = self._value(e)
        return self.known[e]

    def _value(self, e: Expr) -> Value | None:
        if e == self.comparison:
            return self.holds, False
        match e:
            case Const(value):
                return value, False
            case Select(cond, yes, no):
                decided = self.value(cond)
                if decided is not None:
                    return self.value(yes if decided[0] else no)
                a, b = self.value(yes), self.value(no)
                either = a if a is not None and b is not None and a[0] == b[0] else None
                sure = a is not None and b is not None and not a[1] and not b[1]
                return either if sure or self.lenient else None
            case Cast(x, t):
                a = self.value(x)
                fits = a is not None and (a[0] in (0, 1) or (isinf(a[0]) and -t.low == t.high == inf))
                floats = t.is_float and dtype_of(x).is_float
                return a if fits and a is not None and (floats or not a[1]) else None
            case Unary("not", x) if dtype_of(e) == bool_:
                a = self.value(x)
                return None if a is None else (1.0 - a[0], False)
            case Unary("neg", x):
                a = self.value(x)
                return None if a is None else (-a[0], a[1])
            case Binary("and" | "or" as op, x, y) if dtype_of(e) == bool_:
                return self._logical(op, x, y)
            case Binary(op, x, y) if op in COMPARISONS:
                return self._compared(op, x, y)
            case Binary("mul", x, y):
                return self._product(x, y) or self._product(y, x)
            case Binary("div", x, y):
                a = self.value(x)
                plain = isinstance(y, Const) and y.value != 0 and self._is_number(y)
                kept = a is not None and isinf(a[0]) and plain and isinstance(y, Const) and y.value > 0
                return a if kept or (a is not None and a[0] == 0 and (plain or self.lenient)) else None
            case Binary("add" | "sub", x, y):
                return self._sum(e, x, y)
            case Call("exp" | "exp2", (x,)):
                a = self.value(x)
                return (0.0, a[1]) if a is not None and a[0] == -inf else None
            case _:
                return None

    def _logical(self, op: str, x: Expr, y: Expr) -> Value | None:
        a, b = self.value(x), self.value(y)
        strong = float(op == "or")  # the value of one operand that decides the result
        if (a is not None and a[0] == strong) or (b is not None and b[0] == strong):
            return strong, False
        return (1.0 - strong, False) if a is not None and b is not None else None

    def _compared(self, op: str, x: Expr, y: Expr) -> Value | None:
        """The value of a comparison; with NaN it is False, True for `ne`."""
        a, b = self.value(x), self.value(y)
        if a is None or b is None:
            return None
        truth = {
            "eq": a[0] == b[0], "ne": a[0] != b[0], "lt": a[0] < b[0], "le": a[0] <= b[0],
            "gt": a[0] > b[0], "ge": a[0] >= b[0],
        }[op]  # fmt: skip
        return (float(truth), False) if not (a[1] or b[1]) or truth == (op == "ne") else None

    def _product(self, x: Expr, y: Expr) -> Value | None:
        """The value of x * y: 0 if x is 0 and y finite, an infinity if x is and y is a positive constant."""
        a = self.value(x)
        if a is None:
            return None
        if a[0] == 0:
            other = self.value(y)
            nan = a[1] or (other is not None and other[1])
            return (0.0, nan) if not dtype_of(x).is_float or self._finite(y) else None
        return a if isinf(a[0]) and isinstance(y, Const) and y.value > 0 else None

    def _sum(self, e: Expr, x: Expr, y: Expr) -> Value | None:
        """The value of x + y or x - y: -inf if x is and y is finite, or is -inf only in rows all -inf."""
        assert isinstance(e, Binary)
        a, b = self.value(x), self.value(y)
        if a is not None and a[0] == 0 and b is not None and b[0] == 0:
            return 0.0, a[1] or b[1]
        if e.op == "add" and b is not None and b[0] == -inf:
            x, y, a = y, x, b
        if a is None or a[0] != -inf:
            return None
        if isinstance(y, Const) or self._is_number(y):
            return a if self._is_number(y) else None
        bounds = e.op == "sub" and self._is_largest(x, y)
        return (-inf, True) if bounds or self.lenient else None

    def _finite(self, e: Expr) -> bool:
        return self.lenient or self._is_number(e)

    def _is_number(self, e: Expr) -> bool:
        """True if an expression is finite by its form: finite constants and integers."""
        match e:
            case Const(value):
                return not isinf(value) and value == value
            case Cast(x, t):
                return not dtype_of(x).is_float and (not t.is_float or t.bits >= 32)
            case Select(_, yes, no):
                return self._is_number(yes) and self._is_number(no)
            case _:
                return not dtype_of(e).is_float

    def _is_largest(self, x: Expr, m: Expr) -> bool:
        """True if m is the maximum of the terms x of a row: if m is -inf or NaN, all x - m are NaN."""
        program = self.conditional.program
        if not isinstance(m, Read) or not program.has_func(m.name):
            return False
        f = program.func(m.name)
        d = f.definitions[0]
        plain = len(f.definitions) == 1 and d.where == TRUE and d.init is not None
        if not plain or d.combine is None or d.combine.kind != "max":
            return False
        if [r[1:] for r in d.ranges] != [r[1:] for r in self.ranges]:
            return False
        at: dict[str, Expr] = dict(zip(d.free, m.index, strict=True))
        at |= {r[0]: Var(row_range[0]) for r, row_range in zip(d.ranges, self.ranges, strict=True)}
        return self.conditional.inlined(substitute(d.values[0], at)) == x
