"""`AdjointOperators`: the derivatives of an operator, for libraries that differentiate what calls it."""

from __future__ import annotations

import functools
from typing import Any

from tdsl.codegen.runtime.signature import ArrayArg, Signature
from tdsl.gradients import vjp
from tdsl.lang.gradients.activity import active_sources
from tdsl.op import Operator


class AdjointOperators:
    """The vector-Jacobian products of an operator: an operator for each set of inputs that need an adjoint.

    `results` are the positions of the outputs of floats, whose adjoints follow the inputs in a call; `inputs`
    those of the inputs of floats that these depend on, of numbers only if `of_numbers`. It is false if there
    are none.
    """

    def __init__(self, operator: Operator, signature: Signature, of_numbers: bool) -> None:
        self._operator, self._signature = operator, signature
        self.results = tuple(n for n, arg in enumerate(signature.outputs) if arg.dtype.is_float)
        results = {signature.outputs[n].name for n in self.results}
        self.inputs = tuple(
            n
            for n, arg in enumerate(signature.inputs)
            if (of_numbers or isinstance(arg, ArrayArg))
            and not results.isdisjoint(active_sources(operator.program, [arg.name]))
        )

    def __bool__(self) -> bool:
        return bool(self.inputs)

    def of(self, needed: tuple[int, ...]) -> Operator:
        """The operator of the adjoints of the inputs at some positions; raises the errors of `td.vjp`."""
        names = tuple(self._signature.inputs[n].name for n in needed)
        derivative: Operator = vjp(self._floats(), names)
        return derivative

    def _floats(self) -> Operator:
        """The operator with its results of floats only."""
        operator = self._operator
        if len(self.results) == len(self._signature.outputs):
            return operator

        @functools.wraps(operator.function)
        def function(*inputs: Any) -> Any:
            outputs = operator.function(*inputs)
            return [outputs[n] for n in self.results]

        return Operator(function, operator.loc)
