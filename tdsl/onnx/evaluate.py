"""`ModelFunction`: the function of a model, which evaluates its nodes in order on arrays or symbols."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any, NoReturn

import numpy as np

from tdsl.core.source import here
from tdsl.errors import DefinitionError, ShapeError, TdslError, TypeMismatch
from tdsl.graph.symbol import Symbol
from tdsl.onnx.model import MOST_BYTES, Branch, Model, Node, branches_of, nodes_of
from tdsl.onnx.operators import OPERATORS

_EXCEPTIONS = (ArithmeticError, LookupError, TypeError, ValueError)  # of NumPy, for wrong arguments

_NODE_HINT = "write this part of the model in NumPy, or with operators of td"


class ModelFunction:
    """A model as a function of its inputs, in order; a single output is returned without a tuple.

    An input is an array, a symbol, or numbers: a Python number, or numbers in lists and tuples. Nodes whose
    inputs are all known, such as computations of shapes, are computed when the function is called, and so
    once for a plan of a graph.
    """

    def __init__(self, model: Model) -> None:
        self.model = model
        self.__name__ = model.name if model.name.isidentifier() else "model"
        self.numbers = _inputs_as_numbers(model)

    def __call__(self, *inputs: Any) -> Any:
        """The outputs of the model for its inputs."""
        model = self.model
        if len(inputs) != len(model.inputs):
            raise TypeMismatch(
                f"{self.__name__} takes {len(model.inputs)} inputs, not {len(inputs)}",
                loc=here(),
                label="this call",
                hint=f"the inputs are: {', '.join(model.inputs)}",
            )
        arrays: dict[str, Any] = {"": None, **model.arrays}
        for (name, dtype), x in zip(model.inputs.items(), inputs, strict=True):
            arrays[name] = _checked_input(name, dtype, x)
        with np.errstate(all="ignore"):  # of the nodes whose inputs are known
            self._run(model.nodes, arrays)
        trace = next((x.trace for x in inputs if isinstance(x, Symbol)), None)
        outputs = tuple(
            trace.constant_symbol(x) if trace and not isinstance(x, Symbol) else x
            for x in (arrays[name] for name in model.outputs)
        )
        return outputs[0] if len(outputs) == 1 else outputs

    def _run(self, nodes: Sequence[Node], arrays: dict[str, Any]) -> None:
        """Adds the results of nodes to the arrays by name."""
        for node in nodes:
            results = self._branch_results(node, arrays) if branches_of(node) else self._results(node, arrays)
            arrays |= {name: x for name, x in zip(node.outputs, results, strict=False) if name}

    def _branch_results(self, node: Node, arrays: Mapping[str, Any]) -> tuple[Any, ...]:
        """The results of the branch of `If` that its condition chooses, which is a known number."""
        name = node.inputs[0] if node.inputs else ""
        condition = arrays.get(name)
        if isinstance(condition, Symbol):
            _refuse_symbol(node, "condition", name)
        if condition is None or np.size(condition) != 1:
            raise DefinitionError(
                f"{node}: the condition {name!r} is no single number",
                loc=here(),
                label="this model",
                hint=_NODE_HINT,
            )
        which = "then_branch" if np.asarray(condition).item() else "else_branch"
        chosen = node.attributes.get(which, Branch({}, (), ("",)))
        scope = {**arrays, **chosen.arrays}
        self._run(chosen.nodes, scope)
        missing = [output for output in chosen.outputs if output not in scope or not output]
        if missing:
            raise DefinitionError(
                f"{node}: its {which} has no output {missing[0]!r}",
                loc=here(),
                label="this model",
                hint=_NODE_HINT,
            )
        return tuple(scope[output] for output in chosen.outputs)

    def _results(self, node: Node, arrays: Mapping[str, Any]) -> tuple[Any, ...]:
        """The results of a node."""
        operator, named, rest = OPERATORS[node.operator], dict[str, Any](), list[Any]()
        known = {"opset": self.model.opsets.get("", 1), "outputs": len(node.outputs)}
        for position, name in enumerate(node.inputs):
            parameter = operator.parameter_of_input(position)
            if parameter is None or name not in arrays:
                raise DefinitionError(
                    f"{node}: there is no input {name!r}", loc=here(), label="this model", hint=_NODE_HINT
                )
            x = arrays[name]
            if x is not None and parameter in operator.numbers and isinstance(x, Symbol):
                _refuse_symbol(node, parameter, name)
            if operator.parameters[parameter].kind is operator.parameters[parameter].VAR_POSITIONAL:
                rest.append(x)
            else:
                named[parameter] = x
        unknown = node.attributes.keys() - operator.parameters.keys() | (
            known.keys() & node.attributes.keys()
        )
        if unknown:
            raise DefinitionError(
                f"{node}: the attribute {min(unknown)!r} is not known",
                loc=here(),
                label="this model",
                hint=_NODE_HINT,
            )
        given = {n: x for n, x in named.items() if x is not None} | dict(node.attributes)
        given |= {n: x for n, x in known.items() if n in operator.parameters}
        try:
            results = operator.body(*rest, **given)
        except TdslError as error:
            error.message = f"{node}: {error.message}"
            raise
        except _EXCEPTIONS as error:
            raise ShapeError(
                f"{node}: {error}",
                loc=here(),
                label="this call",
                hint="the inputs of the node do not go together, or one that it needs is missing",
            ) from error
        listed = results if isinstance(results, tuple) else (results,)
        results = tuple(x if isinstance(x, Symbol) else np.asarray(x) for x in listed)
        for name, x in zip(node.outputs, results, strict=False):
            if name and prod(x.shape) * x.dtype.itemsize > MOST_BYTES:
                raise DefinitionError(
                    f"{node}: {name!r} has shape {x.shape}, more than {MOST_BYTES:,} bytes",
                    loc=here(),
                    label="this model",
                    hint=_NODE_HINT,
                )
        missing = [name for name in node.outputs[len(results) :] if name]
        if missing:
            raise DefinitionError(
                f"{node}: graphs do not compute its output {missing[0]!r}",
                loc=here(),
                label="this model",
                hint=_NODE_HINT,
            )
        return results


def _checked_input(name: str, dtype: np.dtype[Any], x: Any) -> Any:
    """An input as an array or a symbol of the type that the model declares."""
    if isinstance(x, Symbol | np.ndarray):
        if x.dtype != dtype:
            raise TypeMismatch(
                f"the input {name!r} of the model has type {dtype}, got {x.dtype}",
                loc=here(),
                label="this call",
                hint=f"convert it: {name}.astype({str(dtype)!r})",
            )
        return x
    try:
        return np.asarray(x, dtype)
    except (TypeError, ValueError):
        raise TypeMismatch(
            f"the input {name!r} of the model is an array or numbers, not {x!r}",
            loc=here(),
            label="this call",
            hint=f"pass an array of {dtype}",
        ) from None


def _refuse_symbol(node: Node, parameter: str, name: str) -> NoReturn:
    raise DefinitionError(
        f"{node}: its {parameter} {name!r} depends on the elements of arrays",
        loc=here(),
        label="this call",
        hint="shapes are known while a graph is traced: pass an input that decides them as numbers, such as "
        "[2, 3]",
    )


def _inputs_as_numbers(model: Model) -> frozenset[str]:
    """The inputs that decide shapes, which are passed as numbers.

    Where a node needs an array as numbers, so are its producers' inputs needed.
    """
    needed = set[str]()
    for node in reversed([*nodes_of(model.nodes)]):
        if branches_of(node):
            needed.add(node.inputs[0])
            if not needed.isdisjoint(node.outputs):
                needed |= {name for branch in branches_of(node) for name in branch.outputs}
            continue
        operator = OPERATORS[node.operator]
        is_needed = not needed.isdisjoint(node.outputs)
        for position, name in enumerate(node.inputs):
            reads_shape_only = node.operator in ("Shape", "Size")
            if (is_needed and not reads_shape_only) or (
                operator.parameter_of_input(position) in operator.numbers
            ):
                needed.add(name)
    return frozenset(needed & model.inputs.keys())
