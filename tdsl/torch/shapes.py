"""The shapes of an operator's results from the shapes of its arguments, which may be symbolic."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from tdsl.codegen.runtime.binding import bind_sizes, output_shape
from tdsl.codegen.runtime.signature import ArrayArg, ScalarArg, Signature, size_sources
from tdsl.core.node import Node, transform
from tdsl.lang.expr import Const, Expr, Size
from tdsl.lang.show import show_expr
from tdsl.lang.types import BY_NAME

Shape = tuple[Any, ...]


@dataclass
class _Shaped:
    """The part of an array that the checks of extents read."""

    shape: Shape

    @property
    def ndim(self) -> int:
        return len(self.shape)


def shape_function(signature: Signature) -> Callable[[Sequence[Any]], tuple[Shape, ...]]:
    """The function from the inputs, tensors and numbers, to the shapes of the outputs.

    Extents that are symbols of torch remain symbolic if each extent of the inputs is a number or a name;
    else their values are used. It raises the ShapeError of a call.
    """
    arrays = [(n, arg) for n, arg in enumerate(signature.inputs) if isinstance(arg, ArrayArg)]
    is_simple = not signature.agreements and all(
        isinstance(e, Const | Size) for _, arg in arrays for e in arg.shape
    )
    sources = size_sources(signature)
    symbolic = _symbolic_shapes(signature) if is_simple and set(signature.sizes) == set(sources) else None

    def shapes(inputs: Sequence[Any]) -> tuple[Shape, ...]:
        given = [(arg, _Shaped(tuple(inputs[n].shape))) for n, arg in arrays]
        if symbolic is None or not any(isinstance(e, torch.SymInt) for _, x in given for e in x.shape):
            known = [(arg, _Shaped(tuple(map(int, x.shape)))) for arg, x in given]
            sizes = bind_sizes(signature, known)  # type: ignore[arg-type]  # it reads shape and ndim only
            return tuple(output_shape(signature, arg, sizes) for arg in signature.outputs)
        bind_sizes(signature, given)  # type: ignore[arg-type]  # as above; torch records what is compared
        sizes = {name: inputs[n].shape[axis] for name, (n, axis) in sources.items()}
        return symbolic(sizes)

    return shapes


def _symbolic_shapes(signature: Signature) -> Callable[[dict[str, Any]], tuple[Shape, ...]]:
    """The function from the sizes to the shapes of the outputs, by Python's operators."""

    def text(e: Expr) -> str:
        return show_expr(transform(e, replace))

    def replace(n: Node) -> Node:
        return Size(f"sizes[{n.name!r}]") if isinstance(n, Size) else n

    shapes = "".join(f"({''.join(f'{text(e)}, ' for e in arg.shape)}), " for arg in signature.outputs)
    namespace: dict[str, Any] = {
        "min": torch.sym_min, "max": torch.sym_max, "cast": lambda x, _: x,
        "where": lambda condition, yes, no: yes if condition else no, **BY_NAME,
    }  # fmt: skip
    exec(f"def function(sizes):\n    return ({shapes})", namespace)
    function: Callable[[dict[str, Any]], tuple[Shape, ...]] = namespace["function"]
    return function


def schema_type(arg: ArrayArg | ScalarArg) -> str:
    """The type of an input in torch's schemas."""
    if isinstance(arg, ArrayArg):
        return "Tensor"
    return {"b": "bool", "f": "float", "e": "float"}.get(arg.dtype.kind, "int")
