"""The meaning of a program with a bound of what rounding may change: how exact a result has to be.

Next to every value stands an error: no way of evaluating the program that tdsl allows gives a value further
from it. Allowed are another order of a float reduction and a product fused with a sum; functions may be off
by FUNCTION_ULPS. What follows from IEEE alone (a sum or quotient of certain values) is certain, so many float
results must be equal to the bit. An integer whose bits depend on an uncertain float has an error that is not
0, and is not compared.

Running error analysis, after Higham, Accuracy and Stability of Numerical Algorithms, section 3.3:

    x + y       ex + ey + u |x + y|             x * y     |x| ey + |y| ex + ex ey + u |x y|
    sum of n    sum of the errors + n u times the sum of all magnitudes (any order)
    f(x)        2 max |f(x +- ex) - f(x)| + FUNCTION_ULPS 2 u |f(x)|
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

from tdsl.core.node import Node, post_order
from tdsl.lang import arithmetic
from tdsl.lang.definition import Definition
from tdsl.lang.expr import (
    COMPARISONS,
    Binary,
    Call,
    Cast,
    Const,
    Expr,
    Param,
    Read,
    Require,
    Select,
    Show,
    Unary,
    Var,
    dtype_of,
)
from tdsl.lang.interp import Evaluator, Interpretation, bind_arguments
from tdsl.lang.interpreted_boxes import Bounds
from tdsl.lang.program import FuncDef, Program
from tdsl.lang.regions import Box
from tdsl.lang.types import DType, f64

FUNCTION_ULPS = 8
Array = np.ndarray
ROUNDING = ("floor", "ceil", "trunc", "round")
EXACT_CALLS = ("copysign", "sqrt", "rsqrt", *ROUNDING)


def unit(t: DType) -> float:
    """Half the distance from 1 to the next number."""
    return 2.0 ** -(t.fraction + 1)


def tiny(t: DType) -> float:
    """Below this numbers may become 0: kernels flush subnormal ones."""
    return float(ml_dtypes.finfo(t.numpy).smallest_normal)


@dataclass(frozen=True, slots=True)
class Bounded:
    """Values, and how far right ones may be from them; infinity where nothing can be said."""

    value: Array
    error: Array


def reference(
    program: Program, arguments: Mapping[str, Any], sizes: Mapping[str, int] | None = None,
    *, moves_factors: bool = False,
) -> tuple[Bounded, ...]:  # fmt: skip
    """The outputs of a program with their errors, one for each component of each output.

    With `moves_factors` a quotient may be computed elsewhere, of what is cast before: it is rounded so too.
    """
    program, arrays = bind_arguments(program, arguments, sizes or {})
    run = ErrorRun(program, arrays, lambda _: None)
    run.moves_factors = moves_factors
    with np.errstate(all="ignore"):
        values = run.outputs()
    made = []
    for name, parts in zip(program.outputs, values, strict=True):
        errors = run.in_natural_range(program.func(name), tuple(run.errors[name]))
        made += [Bounded(v, e) for v, e in zip(parts, errors, strict=True)]
    return tuple(made)


def mismatch(got: Any, want: Bounded) -> str:
    """How a result differs by more than its error allows; empty where it does not."""
    got, value = np.asarray(got), want.value
    if got.shape != value.shape or got.dtype != value.dtype:
        return f"{got.dtype}{got.shape} instead of {value.dtype}{value.shape}"
    if got.dtype.kind in "biu":
        wrong = (got != value) & (want.error == 0)
    else:
        x, y = got.astype(np.float64), value.astype(np.float64)
        certain = np.isfinite(y) & np.isfinite(want.error)
        with np.errstate(all="ignore"):
            far = ~(np.abs(x - y) <= 2 * want.error)  # each of the two may be off by the error
        same = (x == y) | (np.isnan(x) & np.isnan(y))
        wrong = np.where(certain, far, ~same & (want.error == 0))
    if not wrong.any():
        return ""
    at = tuple(int(n) for n in np.argwhere(wrong)[0])
    count = f"{int(wrong.sum())} of {wrong.size} differ"
    return f"{count}, first at {at}: {got[at]} instead of {value[at]} (error {want.error[at]:.3g})"


def assert_matches(got: Any, want: tuple[Bounded, ...]) -> None:
    """All outputs of a program are right; `got` is what a compiled program returns."""
    results = got if isinstance(got, tuple) else (got,)
    for n, (x, y) in enumerate(zip(results, want, strict=True)):
        wrong = mismatch(x, y)
        assert not wrong, f"output {n}: {wrong}"


def grain(x: Array) -> Array:
    """The largest power of two that each number is a multiple of; 0 below 2**-30, infinity for 0."""
    scaled = x.astype(np.float64) * 2.0**30
    whole = (scaled == np.rint(scaled)) & (np.abs(scaled) < 2.0**62)
    n = np.where(whole, scaled, 0).astype(np.int64)
    return np.where(n != 0, (n & -n) * 2.0**-30, np.where(whole, np.inf, 0.0))


class ErrorRun(Interpretation):
    """A run that keeps an error beside every value."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.errors: dict[str, list[Array]] = {
            name: [np.zeros(s.parts[0].shape)] for name, s in self.stored.items()
        }
        self.doubt = self.moves_factors = False
        self.sums: _Sums | None = None

    def realise(self, f: FuncDef, box: Bounds | None) -> None:
        lengths = [0] * len(f.limits) if box is None else [hi - lo + 1 for lo, hi in box]
        self.errors[f.name] = [np.zeros(lengths) for _ in f.dtypes]
        super().realise(f, box)

    def define(self, f: FuncDef, d: Definition, box: Box) -> None:
        self.doubt, self.sums = False, None
        super().define(f, d, box)
        if self.doubt:  # an index or a condition is uncertain
            for error in self.errors[f.name]:
                error[...] = np.inf

    def evaluate(self, e: Expr, variables: dict[str, Array]) -> Array:
        value, error = self.pair(e, variables)
        self.doubt = self.doubt or bool(np.any(error > 0))
        return value

    def pair(self, e: Expr, variables: dict[str, Array]) -> tuple[Array, Array]:
        """A value and its error."""
        return ErrorEvaluator(self, variables).pair(e)

    def write(self, f: FuncDef, place: tuple[Array, ...], values: list[Array]) -> None:
        """What is written without a word of its error has none: an identity."""
        super().write(f, place, values)
        for error in self.errors[f.name]:
            error[place] = 0.0

    def run_at_point(self, f: FuncDef, d: Definition, variables: dict[str, Array]) -> None:
        pairs = [self.pair(v, variables) for v in d.values]
        place = self.positions(f, d, variables)
        if d.combine is not None:
            old = [part[place] for part in self.stored[f.name].parts]
            errors = [error[place] for error in self.errors[f.name]]
            if d.combine.kind == "sum" and f.dtypes[0].is_float:
                pairs = [self.add(f, place, pairs[0])]
            else:
                sides = {f"a{n}": x for n, x in enumerate(zip(old, errors, strict=True))}
                sides |= {f"b{n}": x for n, x in enumerate(pairs)}
                evaluator = ErrorEvaluator(self, variables, sides)
                pairs = [evaluator.pair(e) for e in d.combine.exprs]
        self.write(f, place, [v for v, _ in pairs])
        for error, (_, e) in zip(self.errors[f.name], pairs, strict=True):
            error[place] = e

    def add(self, f: FuncDef, place: Any, new: tuple[Array, Array]) -> tuple[Array, Array]:
        """One step of a float sum whose order is free."""
        part, error = self.stored[f.name].parts[0], self.errors[f.name][0]
        if self.sums is None:
            size, zeros = np.array(np.abs(part.astype(np.float64))), np.zeros(part.shape)
            self.sums = _Sums(size, error.copy(), np.array(grain(part)), zeros)
        s, t = self.sums, f.dtypes[0]
        value, e = new
        s.magnitude[place] += np.abs(value.astype(np.float64)) + e
        s.error[place] += e
        s.grain[place] = np.minimum(s.grain[place], np.where(e == 0, grain(value), 0.0))
        s.count[place] += 1
        exact = s.magnitude[place] < s.grain[place] / unit(t)
        rounding = s.count[place] * (unit(t) * s.magnitude[place] + tiny(t))
        total = arithmetic.binary("add", part[place], value)
        return total, s.error[place] + np.where(exact, 0.0, rounding)


@dataclass(slots=True)
class _Sums:
    """For each element of a sum so far: magnitudes, errors, the common grain, and how many terms."""

    magnitude: Array
    error: Array
    grain: Array
    count: Array


class ErrorEvaluator(Evaluator):
    """Expressions with an error for each value."""

    def __init__(
        self,
        run: ErrorRun,
        variables: Mapping[str, Array],
        params: Mapping[str, tuple[Array, Array]] | None = None,
    ) -> None:
        given = params or {}
        super().__init__(variables, run.stored, [], {n: v for n, (v, _) in given.items()})
        self.run, self.param_errors = run, {n: e for n, (_, e) in given.items()}

    def pair(self, root: Expr) -> tuple[Array, Array]:
        values: dict[int, Array] = {}
        errors: dict[int, Array] = {}
        for n in post_order(root):
            result = np.asarray(self.node(n, lambda x: values[id(x)], root))
            values[id(n)] = result
            error = self.error(n, result, lambda x: values[id(x)], lambda x: errors[id(x)])
            unknown = np.isnan(error)
            errors[id(n)] = np.where(unknown, np.inf, error) if np.any(unknown) else error
        return values[id(root)], errors[id(root)]

    def error(
        self, n: Expr, r: Array, value: Callable[[Node], Array], error: Callable[[Node], Array]
    ) -> Array:
        match n:
            case Const() | Var():
                return np.zeros(())
            case Param(name):
                return self.param_errors[name]
            case Unary(op, x):
                return error(x) if dtype_of(x).is_float or op == "not" else _spoiled(error(x))
            case Binary(op, x, y):
                return self.binary(op, dtype_of(x), r, value(x), value(y), error(x), error(y))
            case Select(c, x, y):
                either = np.maximum(error(x), error(y))
                return np.where(
                    error(c) == 0,
                    np.where(value(c), error(x), error(y)),
                    either + _apart(value(x), value(y)),
                )
            case Cast(x, t):
                return _cast(n, t, r, value(x), error(x))
            case Call("fma", args):
                x, y, z = map(value, args)
                return self.fused(n.dtype, r, x, y, z, *map(error, args))
            case Call(fn, args):
                return _call(fn, n, r, [value(a) for a in args], [error(a) for a in args])
            case Read(name, index, component):
                return self.read(name, component, [value(i) for i in index], map(error, index))
            case Require(_, x) | Show(_, x):
                return error(x)
            case _:
                raise AssertionError(f"no error of {type(n).__name__}")

    def read(self, name: str, component: int, index: list[Array], errors: Any) -> Array:
        stored, own = self.run.stored[name], self.run.errors[name][component]
        doubt = sum((_spoiled(e) for e in errors), start=np.zeros(()))
        if own.size == 0:
            return np.zeros(())
        place = tuple(i - first for i, first in zip(index, stored.first, strict=True))
        return np.asarray(own[place]) + doubt

    def binary(self, op: str, t: DType, r: Array, x: Array, y: Array, ex: Array, ey: Array) -> Array:
        if op in COMPARISONS:
            sure = (ex + ey == 0) | (_apart(x, y) > ex + ey)
            return np.where(sure, 0.0, 1.0)
        if op in ("min", "max") or not t.is_float:
            return np.maximum(ex, ey) if op in ("min", "max", "and", "or") else _spoiled(ex + ey)
        if op in ("floordiv", "mod", "pow"):
            changed = _perturbed(lambda a, b: arithmetic.binary(op, a, b), (x, y), (ex, ey), r)
            return changed + (_ulps(t, r) if op == "pow" else 0.0)
        x, y = x.astype(np.float64), y.astype(np.float64)
        match op:
            case "add" | "sub":
                spread = ex + ey
            case "mul":
                spread = np.abs(x) * ey + np.abs(y) * ex + ex * ey
                # a product may be fused with a sum: it is uncertain by its rounding
                exact = np.abs(r) <= grain(x) * grain(y) / unit(t)
                return spread + _rounding(t, r, exact & (spread == 0))
            case _:
                assert op == "div"
                least = np.maximum(np.abs(y) - ey, 0)
                spread = np.where(ex + ey == 0, 0, (ex + np.abs(x / y) * ey) / least)
        return spread + _rounding(t, r, (spread == 0) & (op != "div" or not self.run.moves_factors))

    def fused(
        self, t: DType, r: Array, x: Array, y: Array, z: Array, ex: Array, ey: Array, ez: Array
    ) -> Array:
        x, y = np.abs(x.astype(np.float64)), np.abs(y.astype(np.float64))
        # two roundings for a backend that has no fused instruction
        return x * ey + y * ex + ex * ey + ez + 2 * unit(t) * (np.abs(r.astype(np.float64)) + x * y)


def _spoiled(error: Array) -> Array:
    """Nothing is known of what depends on an uncertain integer."""
    return np.where(error > 0, np.inf, 0.0)


def _apart(x: Array, y: Array) -> Array:
    return np.abs(x.astype(np.float64) - y.astype(np.float64))


def _rounding(t: DType, r: Array, certain: Array) -> Array:
    """The rounding of one operation; none where IEEE decides the result and no other way is allowed."""
    size = np.abs(r.astype(np.float64))
    flushed = np.where((size < tiny(t)) & (size > 0), tiny(t), 0.0)
    return np.where(certain, flushed, unit(t) * size + flushed)


def _ulps(t: DType, r: Array) -> Array:
    return 2 * FUNCTION_ULPS * unit(t) * np.abs(r.astype(np.float64)) + tiny(t)


def _perturbed(
    f: Callable[..., Array], args: tuple[Array, ...], errors: tuple[Array, ...], r: Array
) -> Array:
    """How far the value moves when the arguments do, in f64."""
    wide = [a.astype(np.float64) for a in args]
    total = np.zeros(())
    for n, e in enumerate(errors):
        if not np.any(e > 0):
            continue
        moved = [_apart(f(*wide[:n], wide[n] + side * e, *wide[n + 1 :]), f(*wide)) for side in (1, -1)]
        total = total + np.where(e > 0, 2 * np.maximum(*moved), 0.0)
    return total + np.zeros(np.shape(r))


def _cast(n: Cast, t: DType, r: Array, x: Array, ex: Array) -> Array:
    if not dtype_of(n.x).is_float:
        return _spoiled(ex)
    if t.is_float:
        return ex + np.where(ex > 0, unit(t) * np.abs(r.astype(np.float64)), 0.0) + _flush(t, r)
    return _perturbed(lambda a: arithmetic.cast(a, t, n.saturate), (x,), (ex,), r)


def _flush(t: DType, r: Array) -> Array:
    size = np.abs(r.astype(np.float64))
    return np.where((size < tiny(t)) & (size > 0), tiny(t), 0.0)


def _call(fn: str, n: Call, r: Array, args: list[Array], errors: list[Array]) -> Array:
    t = n.dtype
    if fn in ("isnan", "isinf", "isfinite"):
        return _spoiled(np.where(np.isfinite(args[0].astype(np.float64)), 0.0, errors[0]))
    if fn == "reinterpret" or not t.is_float or fn == "random":
        return sum((_spoiled(e) for e in errors), start=np.zeros(np.shape(r)))
    moved = _perturbed(
        lambda *xs: arithmetic.call(fn, xs, f64), tuple(args), tuple(errors), r
    )  # fmt: skip
    if fn in ROUNDING or fn == "copysign":
        return moved
    return moved + _ulps(t, r)
