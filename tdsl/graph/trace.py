"""`Trace`: the operator calls of a function, in order, recorded while it runs once on symbols."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tdsl.codegen.runtime.arrays import as_array, as_scalar, placeholder_array
from tdsl.codegen.runtime.binding import bind, bind_sizes, output_shape
from tdsl.codegen.runtime.signature import ArrayArg, ScalarArg
from tdsl.compile import Compiled
from tdsl.core.source import here
from tdsl.errors import DefinitionError, TypeMismatch
from tdsl.graph.symbol import NumpyFunctions, Symbol
from tdsl.graph.values import Argument, Array, Base, Call, Constant, Operand, Result, Source, Spec


class Trace:
    """The recorded operator calls of a function, and the arrays that it captures as constants.

    `arguments` are the specs of its array arguments; `numpy` implements NumPy's functions on its symbols.
    """

    def __init__(self, name: str, arguments: Sequence[Spec], numpy: NumpyFunctions) -> None:
        self.name, self.arguments, self.numpy = name, tuple(arguments), numpy
        self.calls: list[Call] = []
        self.constants: list[Array] = []
        self._numbers: dict[
            int, tuple[int, Any]
        ] = {}  # by id, with a reference to the object, so that no other object gets the id

    def copy(self) -> Trace:
        """A copy of the trace; calls recorded in the copy do not change the original."""
        trace = Trace(self.name, self.arguments, self.numpy)
        trace.calls, trace.constants = [*self.calls], [*self.constants]
        trace._numbers = dict(self._numbers)
        return trace

    def argument(self, position: int) -> Symbol:
        """The symbol of the array argument at a position."""
        return Symbol(self, Argument(position), self.arguments[position])

    def spec_of(self, base: Base) -> Spec:
        """The shape and type of an argument, constant or result."""
        match base:
            case Argument(position):
                return self.arguments[position]
            case Constant(number):
                array = self.constants[number]
                return Spec(array.shape, array.dtype)
            case Result(call, output):
                return self.calls[call].results[output]

    def call(self, compiled: Compiled, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Record an operator call and return symbols for its results; raises the errors of a normal call."""
        signature = compiled.signature
        arguments = tuple(zip(signature.inputs, bind(signature, args, kwargs), strict=True))
        arrays = [
            (arg, as_array(arg, _placeholder(value))) for arg, value in arguments if isinstance(arg, ArrayArg)
        ]
        sizes = bind_sizes(signature, arrays)
        shapes = [output_shape(signature, arg, sizes) for arg in signature.outputs]
        inputs = tuple(
            self._number(arg, value) if isinstance(arg, ScalarArg) else self._source(arg, value)
            for arg, value in arguments
        )
        results = tuple(
            Spec(shape, arg.dtype.numpy) for shape, arg in zip(shapes, signature.outputs, strict=True)
        )
        self.calls.append(Call(compiled, inputs, sizes, results, here()))
        symbols = tuple(Symbol(self, Result(len(self.calls) - 1, n), spec) for n, spec in enumerate(results))
        return symbols[0] if len(symbols) == 1 else symbols

    def _number(self, arg: ScalarArg, value: Any) -> Operand:
        if not isinstance(value, Symbol):
            number: np.generic = as_scalar(arg, value)
            return number
        if value.shape or value.dtype != arg.dtype.numpy:
            raise TypeMismatch(
                f"{arg.name} needs a number of type {arg.dtype}, got an array {value.spec}",
                loc=here(),
                label="this call",
                related=((arg.loc, f"{arg.name} is declared here"),),
                hint="pass a Python number, or an array of that type without dimensions",
            )
        self.check_trace(value)
        return value.source

    def _source(self, arg: ArrayArg, value: Any) -> Source:
        if isinstance(value, Symbol):
            self.check_trace(value)
            return value.source
        return self._constant(value, as_array(arg, value))

    def constant_symbol(self, array: Array) -> Symbol:
        """The symbol of an array that the function captures."""
        return Symbol(self, self._constant(array, array), Spec(array.shape, array.dtype))

    def _constant(self, value: Any, array: Array) -> Constant:
        number, _ = self._numbers.setdefault(id(value), (len(self.constants), value))
        if number == len(self.constants):
            self.constants.append(array)
        return Constant(number)

    def is_same(self, one: Source, other: Source) -> bool:
        """True if both have the same values: the same array, or results of the same calls."""
        if one == other:
            return True
        if not (isinstance(one, Result) and isinstance(other, Result)) or one.output != other.output:
            return False
        a, b = self.calls[one.call], self.calls[other.call]
        return a.compiled.state.program == b.compiled.state.program and all(
            self.is_same(x, y) if isinstance(x, Source) and isinstance(y, Source) else x == y
            for x, y in zip(a.inputs, b.inputs, strict=True)
        )

    def check_trace(self, value: Symbol) -> None:
        """Raises DefinitionError for a symbol of another trace."""
        if value.trace is not self:
            raise DefinitionError(
                f"an array of graph {value.trace.name!r} is used outside of it",
                loc=here(),
                label="this call",
                hint="the function of a graph returns what others may use",
            )


def _placeholder(value: Any) -> Any:
    """For a symbol an array of its shape and type without values, for checks; any other value unchanged."""
    return placeholder_array(value.spec.shape, value.spec.dtype) if isinstance(value, Symbol) else value
