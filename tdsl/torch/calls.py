"""Calls of an operator with torch tensors: below torch's dispatcher, and past it where it would add nothing.

The dispatcher costs some 3 us a call, and 10 us more with a gradient registered in Python.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NoReturn

import torch

from tdsl.codegen.runtime.arrays import declaration_of
from tdsl.codegen.runtime.call import Entry
from tdsl.codegen.runtime.signature import ArrayArg, Signature
from tdsl.core.source import here
from tdsl.errors import TypeMismatch
from tdsl.lang.types import DType
from tdsl.torch.tensors import has_numpy_type, to_array, to_tensor, torch_type

_STATE: dict[str, Any] = {  # functions that tell of a call that the dispatcher has to see
    "compiling": torch.compiler.is_dynamo_compiling,  # the first one: what follows is not traced
    "modes": torch._C._len_torch_dispatch_stack,
    "function_modes": torch._C._len_torch_function_stack,
    "tracing": torch._C._is_tracing,
    "level": torch._C._functorch.maybe_current_level,
}


def implementation(signature: Signature, run: Callable[..., Any], has_gradient: bool) -> Callable[..., Any]:
    """The function from tensors and numbers to tensors that the dispatcher calls.

    It is called without recording for autograd if the operator has a gradient; else tensors are detached.
    """
    inputs = ", ".join(f"a{n}" for n in range(len(signature.inputs)))
    detached = "" if has_gradient else ".detach()"
    tensors, results = _tensors(signature), [f"r{n}" for n in range(len(signature.outputs))]
    values = ", ".join(f"v{n}" if n in tensors else f"a{n}" for n in range(len(signature.inputs)))
    lines = [
        f"def function({inputs}):",
        *(f"    if a{n}.dtype is not t{n}: refuse({n}, a{n})" for n in tensors),
        *(f"    v{n} = i{n}(a{n}{detached})" for n in tensors),
        f"    {', '.join(results)} = run({values})",
        f"    return {', '.join(f'o{n}({r})' for n, r in enumerate(results))}",
    ]
    types = {f"t{n}": torch_type(signature.inputs[n].dtype) for n in tensors}
    state = {**types, **_conversions(signature), "run": run, "refuse": partial(_refuse, signature)}
    return _function(lines, state)


def _tensors(signature: Signature) -> list[int]:
    """The positions of the inputs that are tensors."""
    return [n for n, arg in enumerate(signature.inputs) if isinstance(arg, ArrayArg)]


def _refuse(signature: Signature, position: int, tensor: torch.Tensor) -> NoReturn:
    arg = signature.inputs[position]
    expected = torch_type(arg.dtype)
    raise TypeMismatch(
        f"{arg.name} has dtype {tensor.dtype}, expected {expected}",
        loc=here(),
        label="this call",
        related=declaration_of(arg),
        hint=f"convert it: {arg.name}.to({expected})",
    )


def direct_call(signature: Signature, run: Entry, overload: Any) -> Callable[..., Any]:
    """The function that calls `run` on plain CPU tensors, and `overload`, by the dispatcher, for all others.

    Those are tensors that require grad, subclasses, and all tensors while torch compiles, traces or
    transforms a function. What fails is called again by the dispatcher, whose error is raised.
    """
    names = [arg.name for arg in signature.inputs]
    prefix = "_" * (1 + max(map(len, names), default=0))  # no argument has a name that begins so
    tensors = {n: names[n] for n in _tensors(signature)}
    dispatched = [
        *(f"{prefix}{state}()" for state in _STATE if state != "level"),
        f"{prefix}level() is not None",
        *(
            f"type({x}) is not {prefix}Tensor and type({x}) is not {prefix}Parameter"
            for x in tensors.values()
        ),
    ]
    values = "".join(f"{prefix}v{n}, " if n in tensors else f"{name}, " for n, name in enumerate(names))
    results = [f"{prefix}r{n}" for n in range(len(signature.outputs))]
    lines = [
        f"def function({', '.join(names)}):",
        f"    if {' or '.join(dispatched)}:",
        f"        return {prefix}overload({', '.join(names)})",
        "    try:",
        *(
            f"        {prefix}v{n} = {_array_text(signature.inputs[n].dtype, x, prefix, n)}"
            for n, x in tensors.items()
        ),
        f"        {prefix}values = ({values})",
        f"        for {prefix}call in {prefix}run.quick_calls:",
        f"            {prefix}result = {prefix}call({prefix}values)",
        f"            if {prefix}result is not None:",
        "                break",
        "        else:",
        f"            {prefix}result = {prefix}run(*{prefix}values)",
        f"        {', '.join(results)} = {prefix}result",
        f"        return {', '.join(f'{prefix}o{n}({r})' for n, r in enumerate(results))}",
        "    except (RuntimeError, TypeError, ValueError):",
        "        pass",
        f"    return {prefix}overload({', '.join(names)})",
    ]
    classes = {"Tensor": torch.Tensor, "Parameter": torch.nn.Parameter}
    state = {**_STATE, **classes, **_conversions(signature), "run": run, "overload": overload}
    function = _function(lines, {f"{prefix}{name}": x for name, x in state.items()})
    vars(function)["overload"] = overload
    return function


def _array_text(dtype: DType, tensor: str, prefix: str, position: int) -> str:
    """The expression for the array over the memory of a tensor; a method is called faster than a function."""
    return f"{tensor}.numpy()" if has_numpy_type(dtype) else f"{prefix}i{position}({tensor})"


def _conversions(signature: Signature) -> dict[str, Any]:
    """The functions `i0` and so on from tensors to arrays, `o0` and so on from results to tensors."""
    inputs = {f"i{n}": to_array(signature.inputs[n].dtype) for n in _tensors(signature)}
    outputs = enumerate(signature.outputs)
    return {**inputs, **{f"o{n}": to_tensor(arg.dtype, has_axes=bool(arg.shape)) for n, arg in outputs}}


def _function(lines: list[str], namespace: dict[str, Any]) -> Callable[..., Any]:
    """The function of a text, which is written for one signature so that calls are short."""
    exec("\n".join(lines), namespace)
    function: Callable[..., Any] = namespace["function"]
    return function
