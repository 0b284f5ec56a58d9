"""Calls of an operator with torch tensors: below torch's dispatcher, and past it where it would add nothing.

The dispatcher costs some 3 us a call, and 10 us more with a gradient registered in Python.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NoReturn

import torch

from tdsl.codegen.runtime.arrays import declaration_of
from tdsl.codegen.runtime.signature import ArrayArg, Signature
from tdsl.core.source import here
from tdsl.errors import TypeMismatch
from tdsl.torch.tensors import to_array, to_tensor, torch_type

# Tensors without a subclass; those of torch.vmap and torch.func are told by the level below.
_PLAIN = frozenset({torch.Tensor, torch.nn.Parameter})
_STATE: dict[str, Any] = {
    "PLAIN": _PLAIN,
    "compiling": torch.compiler.is_compiling,
    "modes": torch._C._len_torch_dispatch_stack,
    "function_modes": torch._C._len_torch_function_stack,
    "level": torch._C._functorch.maybe_current_level,
    "traced": torch._C._get_tracing_state,
}


def implementation(signature: Signature, run: Callable[..., Any], has_gradient: bool) -> Callable[..., Any]:
    """The function from tensors and numbers to tensors that the dispatcher calls.

    It is called without recording for autograd if the operator has a gradient; else tensors are detached.
    """
    inputs = ", ".join(f"a{n}" for n in range(len(signature.inputs)))
    convert, compute = _conversions(signature, has_gradient), _computation(signature)
    checks = [f"if a{n}.dtype is not t{n}: refuse({n}, a{n})" for n in _tensors(signature)]
    lines = [f"def function({inputs}):", *(f"    {x}" for x in (*checks, *convert, *compute))]
    return _function(lines, signature, run, {"refuse": partial(_refuse, signature)})


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


def direct_call(
    signature: Signature, run: Callable[..., Any], overload: Any, has_gradient: bool
) -> Callable[..., Any]:
    """The function that calls `run` on plain CPU tensors, and `overload`, by the dispatcher, for all others.

    Those are tensors that require grad, subclasses, and all tensors while torch compiles, traces or
    transforms a function.
    """
    inputs = "".join(f"a{n}, " for n in range(len(signature.inputs)))
    guards = [
        "named", "modes()", "function_modes()", "level() is not None", "traced() is not None",
        *(f"type(a{n}) not in PLAIN or a{n}.dtype is not t{n}" for n in _tensors(signature)),
    ]  # fmt: skip
    lines = [
        "def function(*args, **named):",
        "    if compiling():",
        "        return overload(*args, **named)",
        "    try:",
        f"        ({inputs}) = args",
        f"        if {' or '.join(guards)}:",
        "            raise TypeError",
        *(f"        {x}" for x in _conversions(signature, has_gradient)),
        "    except (RuntimeError, TypeError, ValueError):  # the dispatcher handles or refuses it",
        "        return overload(*args, **named)",
        *(f"    {x}" for x in _computation(signature)),
    ]
    function = _function(lines, signature, run, {**_STATE, "overload": overload})
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    parameters = [inspect.Parameter(arg.name, kind) for arg in signature.inputs]
    vars(function).update(__signature__=inspect.Signature(parameters), overload=overload)
    return function


def _conversions(signature: Signature, has_gradient: bool) -> list[str]:
    """Statements that convert the arguments `a0` and so on to the arrays and numbers `v0` and so on."""
    detached = "" if has_gradient else ".detach()"
    return [
        f"v{n} = i{n}(a{n}{detached})" if isinstance(arg, ArrayArg) else f"v{n} = a{n}"
        for n, arg in enumerate(signature.inputs)
    ]


def _computation(signature: Signature) -> list[str]:
    """Statements that run the program and return its results as tensors."""
    values = ", ".join(f"v{n}" for n in range(len(signature.inputs)))
    results = [f"r{n}" for n in range(len(signature.outputs))]
    returned = ", ".join(f"o{n}({r})" for n, r in enumerate(results))
    return [f"{', '.join(results)} = run({values})", f"return {returned}"]


def _function(
    lines: list[str],
    signature: Signature,
    run: Callable[..., Any],
    state: Mapping[str, Any],
) -> Callable[..., Any]:
    """The function of a text; it has no loops, so that calls are short."""
    namespace: dict[str, Any] = {**state, "run": run}
    for n, arg in enumerate(signature.inputs):
        if isinstance(arg, ArrayArg):
            namespace |= {f"i{n}": to_array(arg.dtype), f"t{n}": torch_type(arg.dtype)}
    for n, arg in enumerate(signature.outputs):
        namespace[f"o{n}"] = to_tensor(arg.dtype, has_axes=bool(arg.shape))
    exec("\n".join(lines), namespace)
    function: Callable[..., Any] = namespace["function"]
    return function
