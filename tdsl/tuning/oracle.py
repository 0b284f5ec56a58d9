"""What results of a program are compared with: inputs from a seed, and the error that rounding explains."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from tdsl.core.node import post_order
from tdsl.core.source import here
from tdsl.errors import ShapeError
from tdsl.lang.bounds import upper
from tdsl.lang.definition import Definition
from tdsl.lang.expr import Binary, Call, Cast, Expr, dtype_of
from tdsl.lang.program import Program, bind_sizes
from tdsl.lang.simplify import subtract

CALL_ROUNDINGS = 16  # rounding errors that a call of a function such as exp counts for


def random_values(program: Program, sizes: Mapping[str, int], seed: int = 0) -> dict[str, Any]:
    """Inputs of a program from a seed: normally distributed floats, integers 0 and 1, scalars 1.

    ShapeError if the arrays exceed memory.
    """
    rng = np.random.default_rng(seed)
    bound = bind_sizes(program, sizes)
    arrays: dict[str, Any] = {}
    for t in bound.inputs:
        shape = [upper(e) or 0 for e in t.array_shape()]
        try:
            if t.dtype.is_float:
                arrays[t.name] = rng.standard_normal(shape, dtype=np.float32).astype(t.dtype.numpy)
            else:
                arrays[t.name] = rng.integers(0, 2, shape).astype(t.dtype.numpy)
        except (MemoryError, ValueError):  # NumPy's, for more than memory or an index holds
            raise ShapeError(
                f"there is no memory for {t.name!r} of shape {tuple(shape)} to measure with",
                loc=here(),
                label="this call",
                hint="leave measure= away: the model decides; or measure for smaller sizes",
            ) from None
    return arrays | {x.name: x.dtype.numpy.type(1) for x in bound.scalars}


def rounding_tolerance(program: Program, sizes: Mapping[str, int]) -> float:
    """The tolerance between two correct results, relative to the largest value: 0 without floats.

    An element is rounded at most once for each operation of each definition at each point of its ranges, by
    at most the unit roundoff of the coarsest type used. The product bounds the error of sums in any order if
    their terms do not cancel, and almost certainly if they do, as rounding errors cancel, too. The tolerance
    is at most the square root of the unit roundoff: results that differ in half of their digits are wrong.

    >>> from tdsl.lang.build_program import build_program
    >>> from tdsl.lang.reduction import sum
    >>> from tdsl.lang.tensor import Func, Tensor
    >>> from tdsl.lang.value import vars
    >>> i, k = vars("i k")
    >>> a, f = Tensor("a", (3, "N"), "f32"), Func("f")
    >>> f[i] = sum(a[i, k] * 2, axis=k)
    >>> rounding_tolerance(build_program((f,)), {"N": 100}) * 2**24  # products and additions
    200.0
    """
    count, unit_roundoff = 0.0, 0.0
    for f in bind_sizes(program, sizes).funcs:
        for d in f.definitions:
            terms, operations = _terms(d), 0
            types = {*f.dtypes}
            for n in post_order(*d.values, *(d.combine.exprs if d.combine else ())):
                if isinstance(n, Binary | Call | Cast):
                    types.add(dtype_of(n))
                    operations += CALL_ROUNDINGS if isinstance(n, Call) else 1
            count += terms * operations
            unit_roundoff = max(unit_roundoff, *(2.0 ** -(t.fraction + 1) for t in types if t.is_float), 0.0)
    return min(count * unit_roundoff, math.sqrt(unit_roundoff))


def points(program: Program, sizes: Mapping[str, int]) -> float:
    """The number of points at which a program's definitions are evaluated at most; inf if data decide it."""
    return math.fsum(
        math.prod(_extent(lo, hi) + 1 for lo, hi in f.natural) * sum(map(_terms, f.definitions))
        for f in bind_sizes(program, sizes).funcs
    )


def _terms(d: Definition) -> float:
    """The number of terms that a definition sums at a point, at most."""
    return math.prod(max(_extent(lo, hi), 1) for _, lo, hi in d.ranges)


def _extent(lo: Expr | None, hi: Expr | None) -> float:
    extent = None if lo is None or hi is None else upper(subtract(hi, lo))
    return math.inf if extent is None else extent


def is_close(result: Any, expected: Any, bound: float) -> bool:
    """True if results agree: integers exactly, floats up to `bound` times the largest magnitude.

    >>> is_close(np.float32([1, np.nan]), np.float32([1.1, np.nan]), 0.2), is_close(np.int8(1), np.int8(2), 2)
    (True, False)
    """
    result, expected = np.asarray(result), np.asarray(expected)
    if result.shape != expected.shape or result.dtype != expected.dtype:
        return False
    if expected.dtype.kind in "biu":
        return bool(np.array_equal(result, expected))
    x, y = result.astype(np.float64), expected.astype(np.float64)
    finite = np.isfinite(y)
    same_nonfinite = np.array_equal(x[~finite], y[~finite], equal_nan=True)
    magnitude = np.abs(y[finite]).max(initial=1e-30)
    return bool(same_nonfinite and (np.abs(x[finite] - y[finite]) <= bound * magnitude).all())
