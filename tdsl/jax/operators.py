"""`td.jax.op`: an operator as a function of JAX arrays, under `jax.jit`, `jax.grad` and `jax.vmap`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tdsl.adjoint_operators import AdjointOperators
from tdsl.codegen.runtime.arrays import as_scalar, declaration_of
from tdsl.codegen.runtime.binding import bind, bind_sizes, output_shape
from tdsl.codegen.runtime.call_signature import call_signature
from tdsl.codegen.runtime.signature import ArrayArg, ScalarArg
from tdsl.core.source import here
from tdsl.errors import TypeMismatch, checked_call
from tdsl.jax.targets import target_of
from tdsl.op import Operator


@checked_call
def op(operator: Operator) -> Callable[..., Any]:
    """A function that calls the operator on JAX arrays, under `jax.jit`, `jax.grad` and `jax.vmap`, too.

    It takes arrays of the declared types, of JAX or NumPy, and numbers, and returns JAX arrays. XLA calls the
    kernel without Python; a kernel is compiled for each combination of shapes. Reverse-mode gradients come
    from `td.vjp`, of any order, for arrays and numbers of floats. Arrays are on the CPU.

    >>> import jax, jax.numpy as jnp, tdsl as td
    >>> @td.op
    ... def scale(x: td.f32["N"], factor: td.f32):
    ...     i, y = td.vars("i"), td.Func("y")
    ...     y[i] = x[i] * factor
    ...     return y
    >>> scaled = td.jax.op(scale)
    >>> scaled(jnp.arange(3.0), 2.0)
    Array([0., 2., 4.], dtype=float32)
    >>> jax.grad(lambda x, factor: scaled(x, factor).sum(), argnums=(0, 1))(jnp.arange(3.0), 2.0)
    (Array([2., 2., 2.], dtype=float32), Array(3., dtype=float32, weak_type=True))

    TypeMismatch for what is no operator; calls raise TypeMismatch for other element types and ShapeError for
    shapes that do not agree, when they are traced. A check of the kernel that fails is a
    ValueError of JAX.
    """
    if not isinstance(operator, Operator):
        raise TypeMismatch(
            f"td.jax.op takes an operator, not a {type(operator).__name__}",
            loc=here(),
            label="this call",
            hint="make one of a function: @td.op, then td.jax.op(f)",
        )
    return _function(operator)


def _function(operator: Operator) -> Callable[..., Any]:
    calls = _Calls(operator)
    signature = calls.signature
    count = len(signature.inputs)
    numbers = [(n, arg) for n, arg in enumerate(signature.inputs) if isinstance(arg, ScalarArg)]
    traced = jax.jit(lambda *values: calls(values), inline=True)

    def function(*args: Any, **named: Any) -> Any:
        values = args if not named and len(args) == count else bind(signature, args, named, extra="")
        if numbers:
            listed = list(values)
            for n, arg in numbers:
                listed[n] = _number(arg, listed[n])
            return traced(*listed)
        return traced(*values)

    function.__name__ = function.__qualname__ = operator.name
    function.__doc__ = operator.__doc__
    vars(function)["__signature__"] = call_signature(signature)
    return function


class _Calls:
    """The calls of an operator while JAX traces them, as a function of JAX for each combination of shapes."""

    def __init__(self, operator: Operator) -> None:
        self._compiled = operator.compile(target="cpu")
        self.signature = self._compiled.signature
        self._adjoints = AdjointOperators(operator, self.signature, of_numbers=True)
        self._adjoint_calls: dict[tuple[int, ...], _Calls] = {}
        self._by_shapes: dict[tuple[tuple[int, ...], ...], Callable[..., Any]] = {}
        args = (*self.signature.inputs, *self.signature.outputs)
        self._wide = next((arg for arg in args if arg.dtype.bits == 64), None)

    def __call__(self, values: Sequence[Any]) -> Any:
        """The results, for arrays of JAX in the order of the inputs; numbers have rank 0."""
        if self._wide is not None and not jax.config.jax_enable_x64:
            raise _needs_64_bits(self._wide)
        for arg, x in zip(self.signature.inputs, values, strict=True):
            _check_type(arg, x)
        shapes = tuple(x.shape for x in values)
        if shapes not in self._by_shapes:
            self._by_shapes[shapes] = self._prepare(values)
        return self._by_shapes[shapes](*values)

    def _prepare(self, arrays: Sequence[Any]) -> Callable[..., Any]:
        """The function of arrays of the shapes of these; raises the ShapeError of a call."""
        signature = self.signature
        given = zip(signature.inputs, arrays, strict=True)
        sizes = bind_sizes(signature, [(arg, x) for arg, x in given if isinstance(arg, ArrayArg)])
        types = [
            jax.ShapeDtypeStruct(output_shape(signature, arg, sizes), arg.dtype.numpy)
            for arg in signature.outputs
        ]
        results = jax.ffi.ffi_call(target_of(self._compiled, sizes), types, vmap_method="expand_dims")

        def call(*inputs: Any) -> Any:
            outputs = results(*inputs)
            return outputs[0] if len(outputs) == 1 else tuple(outputs)

        if not self._adjoints:
            return call
        differentiable: Any = jax.custom_vjp(call)

        def forward(*inputs: Any) -> Any:
            needed = dict.fromkeys(n for n in self._adjoints.inputs if inputs[n].perturbed)
            values = [x.value for x in inputs]
            return differentiable(*values), (values, needed)  # JAX does not trace keys of a dict

        differentiable.defvjp(forward, self._backward, symbolic_zeros=True)
        function: Callable[..., Any] = differentiable
        return function

    def _backward(self, saved: Any, adjoints: Any) -> tuple[Any, ...]:
        """The adjoint of each input; None for integers, and inputs that need none."""
        values, needed = saved[0], tuple(saved[1])
        gradients: list[Any] = [None] * len(values)
        if needed:
            listed = adjoints if isinstance(adjoints, tuple) else (adjoints,)
            seeds = [_filled(listed[n]) for n in self._adjoints.results]
            computed = self._calls_of(needed)([*values, *seeds])
            for n, x in zip(needed, computed if len(needed) > 1 else (computed,), strict=True):
                gradients[n] = x
        return tuple(gradients)

    def _calls_of(self, needed: tuple[int, ...]) -> _Calls:
        """The calls of the operator of the adjoints of some inputs."""
        if needed not in self._adjoint_calls:
            self._adjoint_calls[needed] = _Calls(self._adjoints.of(needed))
        return self._adjoint_calls[needed]


def _filled(adjoint: Any) -> Any:
    """The adjoint of a result; zeros for a result that the loss does not use."""
    if isinstance(adjoint, jax.custom_derivatives.SymbolicZero):
        return jnp.zeros(adjoint.aval.shape, adjoint.aval.dtype)
    return adjoint


def _check_type(arg: ArrayArg | ScalarArg, x: Any) -> None:
    """Raises TypeMismatch for what is no array of the element type of `arg`."""
    dtype = getattr(x, "dtype", None)
    if dtype is None:
        raise _mismatch(arg, f"{arg.name} is a {type(x).__name__}, not an array", f"jnp.asarray({arg.name})")
    if dtype != arg.dtype.numpy:
        message = f"{arg.name} has dtype {dtype}, expected {arg.dtype.numpy}"
        raise _mismatch(arg, message, f"{arg.name}.astype(jnp.{arg.dtype.numpy})")


def _number(arg: ScalarArg, x: Any) -> Any:
    """A number as an array of rank 0: of Python as in other calls, one of JAX where JAX would convert it."""
    if not isinstance(x, jax.Array):
        return np.asarray(as_scalar(arg, x))
    dtype = arg.dtype.numpy
    if x.shape != () or jnp.result_type(x, dtype) != dtype:
        shape = f" of shape {x.shape}" if x.shape else ""
        message = f"{arg.name} is {x.dtype}{shape}, expected a number of {dtype}"
        raise _mismatch(arg, message, f"{arg.name}.astype(jnp.{dtype})" if x.shape == () else "jax.vmap")
    return jax.lax.convert_element_type(x, dtype)


def _mismatch(arg: ArrayArg | ScalarArg, message: str, hint: str) -> TypeMismatch:
    return TypeMismatch(
        message, loc=here(), label="this call", related=declaration_of(arg), hint=f"convert it: {hint}"
    )


def _needs_64_bits(arg: ArrayArg | ScalarArg) -> TypeMismatch:
    return TypeMismatch(
        f"{arg.name} is {arg.dtype.numpy}, which JAX does not have by default",
        loc=here(),
        label="this call",
        related=declaration_of(arg),
        hint='jax.config.update("jax_enable_x64", True)',
    )
