"""`numba_call`: a C function of a program as a function of arrays for code that numba compiles."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numba
from numba import types

from tdsl.codegen.ir.loops import Argument, BufferParam, ScalarParam, SizeParam
from tdsl.codegen.runtime.signature import ArrayArg, Signature
from tdsl.lang.expr import Size
from tdsl.lang.show import show_expr
from tdsl.lang.types import DType

_WRONG_ARGUMENT = 1  # as an exported function returns


def numba_call(function: Any, params: Sequence[Argument], signature: Signature) -> Callable[..., int]:
    """The function, compiled for contiguous arrays and numbers: inputs, then outputs.

    `function` is that of ctypes, with the arguments `params`. Sizes are those of the arrays; the result is 1
    if extents do not agree.
    """
    arrays = {a.name: a for a in signature.arrays}
    given = [p for p in params if not isinstance(p, SizeParam)]
    names = {p.name: f"a{n}" for n, p in enumerate(given)}
    sizes: dict[str, str] = {}
    checks: list[str] = []
    for p in given:
        if isinstance(p, BufferParam):
            for axis, e in enumerate(arrays[p.name].shape):
                extent = f"{names[p.name]}.shape[{axis}]"
                if isinstance(e, Size) and e.name not in sizes:
                    sizes[e.name] = extent
                else:
                    checks.append(f"    if {extent} != {show_expr(e)}:\n        return {_WRONG_ARGUMENT}\n")
    values = [_value(p, names) for p in params]
    text = (
        f"def call({', '.join(names.values())}):\n"
        + "".join(f"    {size} = {extent}\n" for size, extent in sizes.items())
        + "".join(checks)
        + f"    return function({', '.join(values)})\n"
    )
    scope: dict[str, Any] = {"function": function}
    exec(text, scope)
    compiled: Callable[..., int] = numba.njit(types.intc(*(_type(p, arrays) for p in given)), nogil=True)(
        scope["call"]
    )
    return compiled


def _value(p: Argument, names: dict[str, str]) -> str:
    match p:
        case BufferParam():
            return f"{names[p.name]}.ctypes.data"
        case SizeParam():
            return p.name
        case ScalarParam():
            return names[p.name]


def _type(p: Argument, arrays: dict[str, ArrayArg]) -> Any:
    dtype = _element(p.dtype) if not isinstance(p, SizeParam) else types.int64
    if not isinstance(p, BufferParam):
        return dtype
    return types.Array(dtype, len(arrays[p.name].shape), "C", readonly=not p.written)


def _element(dtype: DType) -> Any:
    """The type of numba for an element; narrow floats are passed by their bits."""
    if dtype.kind == "b":
        return types.boolean
    if dtype.name in ("f32", "f64"):
        return types.float32 if dtype.bits == 32 else types.float64
    return getattr(types, f"{'int' if dtype.kind == 'i' else 'uint'}{dtype.bits}")
