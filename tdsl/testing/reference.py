"""Results of programs by their definitions alone, and comparisons of compiled programs with them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tdsl.compile import Compiled, compile
from tdsl.core.source import here
from tdsl.errors import ShapeError, TypeMismatch
from tdsl.lang.interp import interpret as interpret_program
from tdsl.lang.sizes import check_sizes
from tdsl.lang.tensor import Func
from tdsl.op import Operator
from tdsl.profiling import arguments_of
from tdsl.schedule.fluent import BaseSchedule
from tdsl.tuning.oracle import is_close, rounding_tolerance


def interpret(of: Any, *args: Any, **named: Any) -> Any:
    """The result of a call of `of` by its definitions: what a compiled program must compute.

    `of` is an operator, a func or several, a schedule or a compiled program; the arguments are those of a
    call. The interpreter evaluates every point in Python: it knows no schedules, and is slow. ShapeError and
    TypeMismatch for arguments that do not fit, RequireError where a check of the program fails.

    >>> import numpy as np, tdsl as td
    >>> i, a, f = td.vars("i"), td.Tensor("a", ("N",), td.i32), td.Func("f")
    >>> f[i] = a[i] + a[i + 1]
    >>> interpret(f, np.array([1, 2, 4], np.int32))
    array([3, 6], dtype=int32)
    """
    results = reference(as_compiled(of), args, named)
    return results[0] if len(results) == 1 else results


def tolerance(of: Any, **sizes: int) -> float:
    """The error that rounding explains for some sizes, relative to the largest value; 0 without floats.

    It counts the roundings of every definition in the coarsest element type used, so it is a bound for sums
    in any order whose terms do not cancel.

    >>> import tdsl as td
    >>> i, k, a, f = *td.vars("i k"), td.Tensor("a", (3, "N"), td.f32), td.Func("f")
    >>> f[i] = td.sum(a[i, k], axis=k)
    >>> tolerance(f, N=100) * 2**24
    100.0
    """
    compiled = as_compiled(of)
    return rounding_tolerance(compiled.schedule.program, all_sizes(compiled, sizes))


def assert_matches(of: Any, *args: Any, rtol: float | None = None, **named: Any) -> Any:
    """The result of a call of `of`; AssertionError if it is not what its definitions compute.

    Integers must be equal; floats may differ by `rtol` times the largest magnitude of their array, by default
    `tolerance`. NaN and infinities must be at the same points. The message names the first differing element.

    >>> import numpy as np, tdsl as td
    >>> i, a, f = td.vars("i"), td.Tensor("a", ("N",), td.f32), td.Func("f")
    >>> f[i] = a[i] * a[i]
    >>> schedule = td.Schedule(f)
    >>> _ = schedule[f].vectorize(i, 8)
    >>> assert_matches(schedule, np.float32([1, 2, 3]))
    array([1., 4., 9.], dtype=float32)
    """
    compiled = as_compiled(of)
    expected = reference(compiled, args, named)
    result = compiled(*args, **named)
    if rtol is None:
        _, sizes = bound_call(compiled, args, named)
        rtol = rounding_tolerance(compiled.schedule.program, sizes)
    compare(compiled, result, expected, rtol)
    return result


def as_compiled(of: Any) -> Compiled:
    """`of` compiled, if it is not, for whatever target its schedule names."""
    if isinstance(of, Compiled):
        return of
    if isinstance(of, Operator):
        return of.compile()
    several = of if isinstance(of, tuple | list) else (of,)
    compiled = None
    if isinstance(of, BaseSchedule) or (several and all(isinstance(f, Func) for f in several)):
        compiled = compile(of)
    if isinstance(compiled, Compiled):
        return compiled
    raise TypeMismatch(
        "tests take an operator, funcs, a schedule of one process or what is compiled of these, not "
        f" {type(of if compiled is None else compiled).__name__}",
        loc=here(),
        label="this call",
        hint="of a graph: graph.autoschedule(...); of ranks: compare simulate(...) with td.testing.interpret",
    )


def all_sizes(compiled: Compiled, sizes: Mapping[str, int]) -> dict[str, int]:
    """The sizes of a program: those that it was compiled for, and `sizes`; ShapeError if one is missing."""
    program = compiled.schedule.program
    given = check_sizes(
        program.name, program.sizes, sizes, fixed=compiled.sizes, equal=program.equal,
        agreements=program.agreements,
    )  # fmt: skip
    known = {**compiled.sizes, **given}
    missing = [n for n in program.sizes if n not in known]
    if missing:
        raise ShapeError(
            f"{program.name!r} needs all sizes; not known: {', '.join(missing)}",
            loc=here(),
            label="this call",
            hint=", ".join(f"{n}=100" for n in missing),
        )
    return known


def reference(compiled: Compiled, args: Sequence[Any], named: dict[str, Any]) -> tuple[Any, ...]:
    """The results of the interpreter for a call of a compiled program; those of rank 0 are NumPy scalars."""
    values, sizes = bound_call(compiled, args, named)
    results = interpret_program(compiled.schedule.program, values, sizes, out=lambda line: None)
    return tuple(r[()] for r in results)


def bound_call(
    compiled: Compiled, args: Sequence[Any], named: dict[str, Any]
) -> tuple[dict[str, Any], dict[str, int]]:  # fmt: skip
    """The arguments of a call of a compiled program by name, and all of its sizes."""
    values, specialisation = arguments_of(compiled.signature, args, named, None)
    return values, {**compiled.sizes, **dict(specialisation.sizes)}


def compare(compiled: Compiled, result: Any, expected: Sequence[Any], rtol: float) -> None:
    """Raises AssertionError if results of a call are not those expected."""
    results = result if isinstance(result, tuple) else (result,)
    for arg, got, want in zip(compiled.signature.outputs, results, expected, strict=True):
        if not is_close(got, want, rtol):
            raise AssertionError(_difference(arg.name, np.asarray(got), np.asarray(want), rtol))


def _difference(name: str, got: Any, want: Any, rtol: float) -> str:
    if got.shape != want.shape or got.dtype != want.dtype:
        return f"{name} is {got.dtype}{[*got.shape]}, its definition has {want.dtype}{[*want.shape]}"
    x, y = got.astype(np.float64), want.astype(np.float64)
    largest = np.abs(y[np.isfinite(y)]).max(initial=0)
    same = got == want
    if want.dtype.kind not in "biu":  # integers beyond 2**53 are no float64
        with np.errstate(invalid="ignore"):
            same |= (np.isnan(x) & np.isnan(y)) | (np.abs(x - y) <= rtol * largest)
    points = np.argwhere(~same)
    first = tuple(map(int, points[0]))
    place = f"{name}[{', '.join(map(str, first))}]" if first else name
    return (
        f"{place} is {got[first]}, its definition gives {want[first]}; {len(points)} of {want.size} elements "
        f"differ by more than {rtol:.2g} of the largest magnitude, {largest:.6g}"
    )
