"""The table of ONNX operators: the function that computes each of them on arrays and symbols.

A function has the inputs of the operator as its positional parameters and the attributes as parameters of
their names. What is an attribute in one version of the operator and an input in another is so one parameter.
Functions whose parameters include `opset` get the version, those with `outputs` the number of results.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any

from tdsl.onnx import elements, movement, normalisation, quantised, reductions, windows


class Operator:
    """An ONNX operator: its function, and which parameters it needs as numbers while a graph is traced.

    The results of shapes depend on the numbers, as of Reshape on its second input.
    """

    def __init__(self, body: Callable[..., Any], numbers: str = "") -> None:
        self.body, self.numbers = body, frozenset(numbers.split())

    @cached_property
    def parameters(self) -> Mapping[str, inspect.Parameter]:
        """The parameters of the function by name."""
        return inspect.signature(self.body).parameters

    def parameter_of_input(self, position: int) -> str | None:
        """The name of the parameter for an input; None if there are not as many."""
        names = [n for n, p in self.parameters.items() if p.kind is not p.KEYWORD_ONLY]
        if position < len(names):
            return names[position]
        is_open = names and self.parameters[names[-1]].kind is inspect.Parameter.VAR_POSITIONAL
        return names[-1] if is_open else None


_TABLES = (elements, movement, reductions, windows, normalisation, quantised)
OPERATORS: Mapping[str, Operator] = {
    name: Operator(*row) if isinstance(row, tuple) else Operator(row)
    for table in _TABLES
    for name, row in table.OPERATORS.items()
}
