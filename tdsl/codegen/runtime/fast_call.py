"""Generates the fast path of a call: a Python function specialised for one variant.

Call overhead, beyond output allocation and machine code, must stay well under 1 us, of which each loop over
arguments would take a part; so the function is generated as text with the loops unrolled.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from tdsl.codegen.runtime.result_memory import new_output
from tdsl.codegen.runtime.signature import LARGE, ArrayArg, Signature, size_sources
from tdsl.core.node import Node, transform
from tdsl.lang.expr import Const, Expr, Size, const
from tdsl.lang.program import bind_expr
from tdsl.lang.show import show_expr
from tdsl.lang.types import BY_NAME

FastCall = Callable[[tuple[Any, ...]], Any]


def fast_call(signature: Signature, fixed: Mapping[str, int], entry: Callable[..., Any]) -> FastCall:
    """A function that maps a tuple of inputs to the result, or to None if `entry` does not accept them.

    `entry(*inputs, *outputs)` returns True if it ran. The inputs must determine every size that is not
    in `fixed`.
    """
    namespace: dict[str, Any] = {"empty": np.empty, "entry": entry, "result": new_output}
    namespace |= {"where": lambda cond, yes, no: yes if cond else no, "cast": lambda x, _: x}
    namespace |= BY_NAME
    for k, arg in enumerate(signature.outputs):
        namespace[f"t{k}"] = arg.dtype.numpy
    exec(fast_call_text(signature, fixed), namespace)
    call: FastCall = namespace["call"]
    return call


def fast_call_text(signature: Signature, fixed: Mapping[str, int]) -> str:
    """The Python source of the function that `fast_call` returns.

    >>> from tdsl.codegen.runtime.signature import ArrayArg
    >>> from tdsl.lang.types import f32
    >>> x = ArrayArg("x", f32, (Size("R"), Size("C")))
    >>> print(fast_call_text(Signature("f", (x,), (ArrayArg("y", f32, (Size("R"), const(2))),)), {"C": 3}))
    def call(args):
        try:
            (a0,) = args
            s0 = (a0.shape[0], 2)
            r0 = (empty if s0[0] < 131072 else result)(s0, t0)
        except (AttributeError, IndexError, TypeError, ValueError, ZeroDivisionError):
            return None  # the slow path reports the error
        if entry(a0, r0) is True:
            return r0
        return None
    """
    size_texts = {name: f"a{k}.shape[{axis}]" for name, (k, axis) in size_sources(signature).items()}
    inputs = [f"a{k}" for k in range(len(signature.inputs))]
    outputs = [f"r{k}" for k in range(len(signature.outputs))]
    results = [
        name if arg.shape else f"{name}[()]" for name, arg in zip(outputs, signature.outputs, strict=True)
    ]
    lines = ["def call(args):", "    try:", f"        {_tuple(inputs)} = args"]
    for k, (name, arg) in enumerate(zip(outputs, signature.outputs, strict=True)):
        lines.append(f"        s{k} = {_tuple([_python_text(e, fixed, size_texts) for e in arg.shape])}")
        lines.append(f"        {name} = {_allocator(k, arg, fixed)}(s{k}, t{k})")
    return "\n".join(
        [
            *lines,
            "    except (AttributeError, IndexError, TypeError, ValueError, ZeroDivisionError):",
            "        return None  # the slow path reports the error",
            f"    if entry({', '.join([*inputs, *outputs])}) is True:",
            f"        return {', '.join(results)}",
            "    return None",
        ]
    )


def _allocator(k: int, arg: ArrayArg, fixed: Mapping[str, int]) -> str:
    """The expression for the allocator of output `k`: `result` from `LARGE` bytes on, else `empty`."""
    extents = [bind_expr(e, fixed) for e in arg.shape]
    known_bytes = arg.dtype.bytes * math.prod(int(e.value) for e in extents if isinstance(e, Const))
    dynamic_extents = [f"s{k}[{n}]" for n, e in enumerate(extents) if not isinstance(e, Const)]
    if not dynamic_extents or known_bytes <= 0:
        return "result" if known_bytes >= LARGE else "empty"
    return f"(empty if {' * '.join(dynamic_extents)} < {-(-LARGE // known_bytes)} else result)"


def _tuple(items: list[str]) -> str:
    return f"({', '.join(items)}{',' if len(items) == 1 else ''})"


def _python_text(e: Expr, fixed: Mapping[str, int], size_texts: Mapping[str, str]) -> str:
    def replace(n: Node) -> Node:
        if not isinstance(n, Size):
            return n
        return const(fixed[n.name]) if n.name in fixed else Size(size_texts[n.name])

    return show_expr(transform(e, replace))
