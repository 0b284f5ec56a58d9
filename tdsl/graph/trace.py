"""A function of arrays, run once on symbols: the calls of operators that it makes, in order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tdsl.codegen.runtime.arrays import as_array, as_scalar, without_values
from tdsl.codegen.runtime.binding import bind, bind_sizes, output_shape
from tdsl.codegen.runtime.signature import ArrayArg, ScalarArg
from tdsl.compile import Compiled
from tdsl.core.source import here
from tdsl.errors import DefinitionError, TypeMismatch
from tdsl.graph.symbol import NumpyFunctions, Symbol
from tdsl.graph.values import Argument, Array, Base, Call, Constant, Given, Result, Source, Spec


class Trace:
    """The calls that a function makes, and the arrays that it takes from elsewhere.

    `numpy` is what NumPy's functions are on its symbols.
    """

    def __init__(self, name: str, arguments: Sequence[Spec], numpy: NumpyFunctions) -> None:
        self.name, self.arguments, self.numpy = name, tuple(arguments), numpy
        self.calls: list[Call] = []
        self.constants: list[Array] = []
        self._numbers: dict[
            int, tuple[int, Any]
        ] = {}  # with what is numbered, so that its id stays its own

    def copy(self) -> Trace:
        """The same calls, to which others can be added."""
        made = Trace(self.name, self.arguments, self.numpy)
        made.calls, made.constants = [*self.calls], [*self.constants]
        made._numbers = dict(self._numbers)
        return made

    def argument(self, position: int) -> Symbol:
        """The symbol of an argument."""
        return Symbol(self, Argument(position), self.arguments[position])

    def spec_of(self, base: Base) -> Spec:
        """Shape and type of what is no view."""
        match base:
            case Argument(position):
                return self.arguments[position]
            case Constant(number):
                array = self.constants[number]
                return Spec(array.shape, array.dtype)
            case Result(call, output):
                return self.calls[call].results[output]

    def call(self, compiled: Compiled, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Record a call of an operator; its results are symbols. Raises what a call with arrays raises."""
        signature = compiled.signature
        given = tuple(zip(signature.inputs, bind(signature, args, kwargs), strict=True))
        taken = [
            (arg, as_array(arg, _stand_in(value)))
            for arg, value in given
            if isinstance(arg, ArrayArg)
        ]
        sizes = bind_sizes(signature, taken)
        shapes = [output_shape(signature, arg, sizes) for arg in signature.outputs]
        inputs = tuple(
            self._number(arg, value) if isinstance(arg, ScalarArg) else self._source(arg, value)
            for arg, value in given
        )
        results = tuple(
            Spec(shape, arg.dtype.numpy)
            for shape, arg in zip(shapes, signature.outputs, strict=True)
        )
        self.calls.append(Call(compiled, inputs, sizes, results, here()))
        made = tuple(
            Symbol(self, Result(len(self.calls) - 1, n), spec) for n, spec in enumerate(results)
        )
        return made[0] if len(made) == 1 else made

    def _number(self, arg: ScalarArg, value: Any) -> Given:
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
        self.check_own(value)
        return value.source

    def _source(self, arg: ArrayArg, value: Any) -> Source:
        if isinstance(value, Symbol):
            self.check_own(value)
            return value.source
        return self._constant(value, as_array(arg, value))

    def known(self, array: Array) -> Symbol:
        """The symbol of an array that the function takes from elsewhere."""
        return Symbol(self, self._constant(array, array), Spec(array.shape, array.dtype))

    def _constant(self, given: Any, array: Array) -> Constant:
        number, _ = self._numbers.setdefault(id(given), (len(self.constants), given))
        if number == len(self.constants):
            self.constants.append(array)
        return Constant(number)

    def check_own(self, value: Symbol) -> None:
        """DefinitionError for a symbol of another graph."""
        if value.trace is not self:
            raise DefinitionError(
                f"an array of graph {value.trace.name!r} is used outside of it",
                loc=here(),
                label="this call",
                hint="the function of a graph returns what others may use",
            )


def _stand_in(value: Any) -> Any:
    """What is checked in the place of a symbol; else the value itself."""
    return (
        without_values(value.spec.shape, value.spec.dtype) if isinstance(value, Symbol) else value
    )
