"""A kernel of NPBench as a case: a program beside NumPy, and beside code compiled by numba."""

from collections.abc import Callable
from typing import Any

import numpy as np

import tdsl as td
from benchmarks import numba_peers
from benchmarks.case import Array, Arrays, Case, function, kernel

GROUP = "unknown-npbench"
ERROR = {"f": 1e-4, "d": 1e-9}  # by the type of the result, of the largest magnitude
Values = Callable[[np.random.Generator], tuple[Any, ...]]


def case(
    name: str,
    program: td.Operator,
    inputs: Values,
    expected: Callable[..., Any],
    *loops: Callable[..., Any],
    group: str = GROUP,
    judge: Callable[[Any, Arrays], bool] | None = None,
) -> Case:
    """The kernel called `name` in NPBench, whose NumPy code is `expected`.

    `inputs(rng)` returns arrays and NumPy scalars, which no peer changes. `loops` are compiled by numba for
    one thread and for several (by `prange`), with float arithmetic in any order; the first one is loops, the
    second one, if any, is NumPy code that numba can compile.
    """
    text = (program.__doc__ or "").partition("\n")[0]
    peers = {"tdsl": kernel(program.compile), "numpy": function(expected)}
    for style, code in zip(("numba", "numba-numpy"), loops, strict=False):
        peers |= {style: numba_peers.serial(code), f"{style}-parallel": numba_peers.fast(code)}
    return Case(
        name=name,
        title=text,
        inputs=lambda: inputs(np.random.default_rng(23)),
        is_right=judge or agrees_with(expected),
        peers=peers,
        group=group,
    )


def agrees_with(expected: Callable[..., Any]) -> Callable[[Any, Arrays], bool]:
    """A judge of one result or of a tuple: all are near those of `expected`, integers are equal."""

    def is_right(result: Any, arrays: Arrays) -> bool:
        right = expected(*arrays)
        if not isinstance(right, tuple):
            result, right = (result,), (right,)
        return len(result) == len(right) and all(map(_agree, result, right))

    return is_right


def _agree(result: Array, right: Array) -> bool:
    result, right = np.asarray(result), np.asarray(right)
    if result.shape != right.shape:
        return False
    error = ERROR.get(right.dtype.char, 0.0) * np.abs(right).max(initial=0)
    return bool((np.abs(result.astype(np.float64) - right) <= error).all())
