"""`td.torch.op`: an operator as an operator of torch, with schema, fake tensors and gradients."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Protocol

import torch

from tdsl.adjoint_operators import AdjointOperators
from tdsl.codegen.runtime.program_signature import signature_of
from tdsl.codegen.runtime.signature import ArrayArg, Signature
from tdsl.core.source import here
from tdsl.errors import TypeMismatch, checked_call
from tdsl.op import Operator
from tdsl.torch.calls import direct_call, implementation
from tdsl.torch.shapes import schema_type, shape_function
from tdsl.torch.tensors import torch_type

_libraries: dict[str, torch.library.Library] = {}  # the registrations of an operator live with its library


class TorchFunction(Protocol):
    """A function of torch tensors; `overload` is the registered operator of torch that it stands for."""

    overload: torch._ops.OpOverload

    def __call__(self, *args: Any, **named: Any) -> Any:
        """The results, as tensors."""


@checked_call
def op(operator: Operator, *, name: str) -> TorchFunction:
    """A function that calls the operator as `torch.ops.<namespace>.<name>`, on torch tensors.

    `name` is "namespace::name". Gradients come from `td.vjp`, of any order; a result of integers has none.
    Its fake implementation gives shapes and types to `torch.compile`. Another operator of this name is
    replaced. Tensors are on the CPU.

    >>> import torch, tdsl as td
    >>> @td.op
    ... def scale(x: td.f32["N"], factor: td.f32):
    ...     i, y = td.vars("i"), td.Func("y")
    ...     y[i] = x[i] * factor
    ...     return y
    >>> scaled = td.torch.op(scale, name="documentation::scale")
    >>> x = torch.arange(3.0, requires_grad=True)
    >>> scaled(x, 2.0)
    tensor([0., 2., 4.], grad_fn=<GeneratedBackwardFor_documentation_scale_defaultBackward>)

    TypeMismatch for what is no operator or no such name.
    """
    if not isinstance(operator, Operator):
        raise TypeMismatch(
            f"td.torch.op takes an operator, not a {type(operator).__name__}",
            loc=here(),
            label="this call",
            hint="make one of a function: @td.op, then td.torch.op(f, name='mine::f')",
        )
    if not re.fullmatch(r"[A-Za-z_]\w*::[A-Za-z_]\w*", str(name)):
        raise TypeMismatch(
            f"{name!r} names no operator of torch",
            loc=here(),
            label="this call",
            hint=f'give a namespace and a name: name="mine::{operator.name}"',
        )
    return _register(operator, name)


def _register(operator: Operator, name: str) -> TorchFunction:
    """Defines and implements the torch operator; returns the function that calls it."""
    signature = signature_of(operator.program)
    adjoints = AdjointOperators(operator, signature, of_numbers=False)
    run = operator.compile()
    inputs = ", ".join(f"{schema_type(arg)} {arg.name}" for arg in signature.inputs)
    outputs = ", ".join("Tensor" for _ in signature.outputs)
    if name in _libraries:
        _libraries.pop(name)._destroy()
    namespace, short = name.split("::")
    library = torch.library.Library(namespace, "FRAGMENT")
    schema = f"{short}({inputs}) -> {outputs if len(signature.outputs) == 1 else f'({outputs})'}"
    library.define(schema, tags=(torch.Tag.pt2_compliant_tag,))
    _libraries[name] = library
    library.impl(short, implementation(signature, run, bool(adjoints)), "CPU")
    torch.library.register_fake(name, _fake(signature), lib=library)
    if adjoints:
        gradient = _Gradient(adjoints, name, signature)
        torch.library.register_autograd(name, gradient.backward, setup_context=gradient.save, lib=library)
    overload = getattr(getattr(torch.ops, namespace), short).default
    function: Any = direct_call(signature, run, overload)
    function.__name__ = function.__qualname__ = short
    function.__doc__ = operator.__doc__
    registered: TorchFunction = function
    return registered


def _fake(signature: Signature) -> Callable[..., Any]:
    """The function that returns tensors without values, of the shapes and types of the results."""
    shapes = shape_function(signature)
    types = [torch_type(arg.dtype) for arg in signature.outputs]

    def fake(*inputs: Any) -> Any:
        device = next((x.device for x in inputs if isinstance(x, torch.Tensor)), None)
        results = [
            torch.empty(shape, dtype=dtype, device=device)
            for shape, dtype in zip(shapes(inputs), types, strict=True)
        ]
        return results[0] if len(results) == 1 else tuple(results)

    return fake


class _Gradient:
    """The gradient of an operator in torch: an operator of its own for each set of inputs that need one."""

    def __init__(self, adjoints: AdjointOperators, name: str, signature: Signature) -> None:
        self._adjoints, self._name, self._signature = adjoints, name, signature
        self._operators: dict[tuple[int, ...], Any] = {}

    def save(self, ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        """Saves the inputs of a call for `backward`; results of integers have no gradient."""
        ctx.save_for_backward(*(x for x in inputs if isinstance(x, torch.Tensor)))
        outputs = output if isinstance(output, tuple) else (output,)
        ctx.mark_non_differentiable(*(x for n, x in enumerate(outputs) if n not in self._adjoints.results))
        ctx.numbers = [x for x in inputs if not isinstance(x, torch.Tensor)]

    def backward(self, ctx: Any, *adjoints: Any) -> tuple[Any, ...]:
        """The adjoint of each input; None for numbers, integers, and inputs that need none."""
        needed = tuple(n for n in self._adjoints.inputs if ctx.needs_input_grad[n])
        gradients: list[Any] = [None] * len(self._signature.inputs)
        if needed:
            tensors, numbers = iter(ctx.saved_tensors), iter(ctx.numbers)
            inputs = [
                next(tensors if isinstance(arg, ArrayArg) else numbers) for arg in self._signature.inputs
            ]
            seeds = [adjoints[n].contiguous() for n in self._adjoints.results]
            computed = self._operator(needed)(*inputs, *seeds)
            for n, gradient in zip(needed, computed if len(needed) > 1 else (computed,), strict=True):
                gradients[n] = gradient
        return tuple(gradients)

    def _operator(self, needed: tuple[int, ...]) -> Any:
        """The torch operator of the adjoints of some inputs, defined when it is first needed."""
        if needed not in self._operators:
            names = [self._signature.inputs[n].name for n in needed]
            suffix = "" if needed == self._adjoints.inputs else "_" + "_".join(names)
            self._operators[needed] = _register(self._adjoints.of(needed), f"{self._name}_backward{suffix}")
        return self._operators[needed]
