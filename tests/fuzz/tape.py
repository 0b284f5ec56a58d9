"""An oracle for gradients: a program run point by point on scalars that record how they were computed.

It solves no index: each element is a number with its parents, and adjoints are summed in reverse.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from tdsl.lang.definition import Definition
from tdsl.lang.expr import (
    Binary,
    Call,
    Cast,
    Const,
    Expr,
    Param,
    Range,
    Read,
    Require,
    Select,
    Show,
    Unary,
    Var,
    const,
    dtype_of,
)  # fmt: skip
from tdsl.lang.interp import bind_arguments
from tdsl.lang.interpreted_boxes import number_of, ranges_at, realised_boxes
from tdsl.lang.program import FuncDef, Program


class Number:
    """A float with the numbers it was computed of and the derivatives by them."""

    __slots__ = ("adjoint", "parents", "value")

    def __init__(self, value: float, *parents: tuple[Any, float]) -> None:
        self.value, self.adjoint = value, 0.0
        self.parents = [(p, d) for p, d in parents if isinstance(p, Number)]


def value_of(x: Any) -> Any:
    return x.value if isinstance(x, Number) else x


def _extremum(sign: int, x: float, y: float) -> tuple[float, float, float]:
    if x == y:
        return x, 0.5, 0.5
    first = (x > y) == (sign > 0)
    return (x if first else y), float(first), float(not first)


def _power(x: float, y: float) -> tuple[float, float, float]:
    return x**y, y * x ** (y - 1) if y else 0.0, x**y * math.log(x) if x > 0 else 0.0


# the value, and the derivative by each operand
OPERATORS: dict[str, Any] = {
    "add": lambda x, y: (x + y, 1.0, 1.0),
    "sub": lambda x, y: (x - y, 1.0, -1.0),
    "mul": lambda x, y: (x * y, y, x),
    "div": lambda x, y: (x / y, 1 / y, -x / y**2),
    "min": lambda x, y: _extremum(-1, x, y),
    "max": lambda x, y: _extremum(1, x, y),
    "mod": lambda x, y: (x % y, 1.0, -float(x // y)),
    "floordiv": lambda x, y: (x // y, 0.0, 0.0),
    "pow": _power,
    "neg": lambda x: (-x, -1.0),
    "abs": lambda x: (abs(x), float(np.sign(x))),
    "exp": lambda x: (math.exp(x), math.exp(x)),
    "exp2": lambda x: (2.0**x, 2.0**x * math.log(2)),
    "expm1": lambda x: (math.expm1(x), math.exp(x)),
    "log": lambda x: (math.log(x), 1 / x),
    "log1p": lambda x: (math.log1p(x), 1 / (1 + x)),
    "sqrt": lambda x: (math.sqrt(x), 0.5 / math.sqrt(x)),
    "rsqrt": lambda x: (x**-0.5, -0.5 * x**-1.5),
    "sin": lambda x: (math.sin(x), math.cos(x)),
    "cos": lambda x: (math.cos(x), -math.sin(x)),
    "tan": lambda x: (math.tan(x), 1 / math.cos(x) ** 2),
    "arctan": lambda x: (math.atan(x), 1 / (1 + x * x)),
    "sinh": lambda x: (math.sinh(x), math.cosh(x)),
    "cosh": lambda x: (math.cosh(x), math.sinh(x)),
    "tanh": lambda x: (math.tanh(x), 1 - math.tanh(x) ** 2),
    "arcsinh": lambda x: (math.asinh(x), 1 / math.sqrt(1 + x * x)),
    "erf": lambda x: (math.erf(x), 2 / math.sqrt(math.pi) * math.exp(-x * x)),
    "sigmoid": lambda x: (1 / (1 + math.exp(-x)), math.exp(-x) / (1 + math.exp(-x)) ** 2),
    "floor": lambda x: (math.floor(x), 0.0),
    "round": lambda x: (float(np.round(x)), 0.0),
    "hypot": lambda x, y: (math.hypot(x, y), x / math.hypot(x, y), y / math.hypot(x, y)),
    "arctan2": lambda y, x: (math.atan2(y, x), x / (x * x + y * y), -y / (x * x + y * y)),
    "fma": lambda x, y, z: (x * y + z, y, x, 1.0),
}  # fmt: skip
CONDITIONS: dict[str, Any] = {
    "lt": lambda x, y: x < y, "le": lambda x, y: x <= y, "gt": lambda x, y: x > y, "ge": lambda x, y: x >= y,
    "eq": lambda x, y: x == y, "ne": lambda x, y: x != y, "and": lambda x, y: x & y, "or": lambda x, y: x | y,
    "not": lambda x: not x,
}  # fmt: skip


def _pad(mode: str, i: int, n: int) -> int:
    return int(np.pad(np.arange(n), (n + 400, n + 400), mode=mode)[i + n + 400])


class Tape:
    """The elements of a program's inputs and funcs as numbers, computed in the order of its definitions."""

    def __init__(self, program: Program, arguments: Mapping[str, Any]) -> None:
        self.program, arrays = bind_arguments(program, arguments, {})
        self.cells: dict[str, dict[tuple[int, ...], list[Any]]] = {
            name: {
                at: [Number(float(x)) if x.dtype.kind == "f" else x.item()]
                for at, x in np.ndenumerate(a)
                for x in [a[at]]
            }
            for name, a in arrays.items()
        }
        self.shapes = {name: a.shape for name, a in arrays.items()}
        self.boxes = realised_boxes(self.program)
        self.numbers: list[Number] = []
        for f in self.program.funcs:
            if f.name in self.boxes:
                self._run(f)

    def run_backward(self, output: str, seed: np.ndarray) -> None:
        """Compute the adjoints of all numbers, given those of an output."""
        for s, cell in zip(seed.flat, self._in_order(output), strict=True):
            if isinstance(cell[0], Number):
                cell[0].adjoint += float(s)
        for n in reversed(self.numbers):
            for parent, derivative in n.parents:
                parent.adjoint += n.adjoint * derivative

    def adjoint(self, name: str) -> np.ndarray:
        """The adjoint of an input."""
        result = np.zeros(self.shapes[name])
        for at, cell in self.cells[name].items():
            result[at] = cell[0].adjoint
        return result

    def _in_order(self, name: str) -> list[list[Any]]:
        natural = [range(number_of(lo), number_of(hi) + 1) for lo, hi in self.program.func(name).natural]  # type: ignore[arg-type]
        return [self.cells[name][at] for at in itertools.product(*natural)]

    def _run(self, f: FuncDef) -> None:
        self.cells[f.name] = {}
        box = tuple((const(lo), const(hi)) for lo, hi in self.boxes[f.name])
        for d in f.definitions:
            ranges = {n: range(number_of(lo), number_of(hi) + 1) for n, (lo, hi) in ranges_at(d, box).items()}
            outer = [n for n, _, _ in d.ranges]
            if d.init is not None:
                for at in itertools.product(*(ranges[n] for n in d.free)):
                    index = self._index(d, dict(zip(d.free, at, strict=True)))
                    self.cells[f.name][index] = [self.expr(e, {}) for e in d.init]
            for at in itertools.product(*(ranges[n] for n in (*outer, *d.free))):
                self._point(f, d, dict(zip((*outer, *d.free), at, strict=True)))

    def _index(self, d: Definition, env: dict[str, int]) -> tuple[int, ...]:
        return tuple(int(value_of(self.expr(e, env))) for e in d.index)

    def _point(self, f: FuncDef, d: Definition, env: dict[str, int]) -> None:
        if not value_of(self.expr(d.where, env)):
            return
        index, cells = self._index(d, env), self.cells[f.name]
        values = [self.expr(v, env) for v in d.values]
        if d.combine is not None:
            sides = {f"a{n}": x for n, x in enumerate(cells[index])}
            sides |= {f"b{n}": x for n, x in enumerate(values)}
            values = [self.expr(e, sides) for e in d.combine.exprs]
        cells[index] = values

    def expr(self, e: Expr, env: Mapping[str, Any]) -> Any:
        match e:
            case Const(value):
                return value
            case Var(name) | Range(name) | Param(name):
                return env[name]
            case Read(name, index, component):
                return self.cells[name][tuple(int(value_of(self.expr(x, env))) for x in index)][component]
            case Select(cond, yes, no):
                return self.expr(yes if value_of(self.expr(cond, env)) else no, env)
            case Cast(x, t):
                inner = self.expr(x, env)
                if t.is_float:
                    return inner if isinstance(inner, Number) else float(inner)
                return t.numpy.type(value_of(inner)).item()
            case Require(_, x) | Show(_, x):
                return self.expr(x, env)
            case Call(fn, (i, n)) if fn.startswith("pad_"):
                return _pad(fn[4:], value_of(self.expr(i, env)), value_of(self.expr(n, env)))
            case Unary(op, x):
                return self._operation(op, [self.expr(x, env)], e)
            case Binary(op, x, y):
                return self._operation(op, [self.expr(x, env), self.expr(y, env)], e)
            case Call(fn, args):
                return self._operation(fn, [self.expr(x, env) for x in args], e)
            case _:
                raise AssertionError(f"the tape has no {type(e).__name__}")

    def _operation(self, op: str, operands: list[Any], e: Expr) -> Any:
        values = [value_of(x) for x in operands]
        if op in CONDITIONS:
            return CONDITIONS[op](*values)
        if not dtype_of(e).is_float:
            return OPERATORS[op](*values)[0]
        result, *derivatives = OPERATORS[op](*values)
        n = Number(result, *zip(operands, derivatives, strict=True))
        if not n.parents:
            return result
        self.numbers.append(n)
        return n
