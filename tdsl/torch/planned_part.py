"""Parts of torch's graphs as graphs of tdsl."""

from __future__ import annotations

import operator
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch

from tdsl.errors import CompileWarning, RequireError, TdslError
from tdsl.graph.graph import Graph
from tdsl.torch.elements import cast_to
from tdsl.torch.report import Part
from tdsl.torch.supported import BODIES
from tdsl.torch.tensors import DTYPES, to_array, to_tensor


def planned_part(
    module: torch.fx.GraphModule, part: Part, constants: Sequence[torch.Tensor | None]
) -> Callable[..., Any]:
    """The function of a part of a graph, planned for the shapes of each call; torch's if tdsl refuses it.

    `constants` are the arguments that are equal at each call, None for the others. A refusal is a
    CompileWarning, and the `problem` of the part in the report.
    """
    nodes = list(module.graph.nodes)
    outputs = nodes[-1].args[0]
    is_single = not isinstance(outputs, tuple | list)
    results = (outputs,) if is_single else tuple(outputs)
    placeholders = [n for n in nodes if n.op == "placeholder"]
    values = [n.meta["val"] for n in placeholders]
    convert = [to_array(DTYPES[v.dtype]) if isinstance(v, torch.Tensor) else None for v in values]
    varying = [n for n, x in enumerate(constants) if x is None]
    restore = [to_tensor(DTYPES[n.meta["val"].dtype], has_axes=False) for n in results]

    def trace(*inputs: Any) -> Any:
        known = {
            n: f(x) for n, x, f in zip(placeholders, constants, convert, strict=True) if x is not None and f
        }
        known |= zip((placeholders[n] for n in varying), inputs, strict=True)
        for node in nodes:
            if node.op == "call_function":
                args = torch.fx.map_arg(node.args, known.__getitem__)
                named = torch.fx.map_arg(node.kwargs, known.__getitem__)
                known[node] = _value(node, args, named)
        return tuple(known[n] for n in results)

    graph = Graph(trace)

    def run(*args: Any) -> Any:
        if part.problem:
            return module(*args)
        arrays = [args[n] if (f := convert[n]) is None else f(args[n].detach()) for n in varying]
        try:
            computed = graph(*arrays)
        except RequireError:  # torch raises its own error for these values
            return module(*args)
        except TdslError as error:
            part.problem = error.message
            warnings.warn(f"torch computes a part of a graph: {error.message}", CompileWarning, stacklevel=2)
            return module(*args)
        tensors = [f(x) for f, x in zip(restore, computed, strict=True)]
        return tensors[0] if is_single else tensors

    return run


def _value(node: torch.fx.Node, args: tuple[Any, ...], named: dict[str, Any]) -> Any:
    """The symbols of a node's results, of the types that torch gives them."""
    if node.target is operator.getitem:
        return args[0][args[1]]
    metas = node.meta["val"]
    if not isinstance(metas, tuple | list):
        dtype = DTYPES[metas.dtype].numpy
        return cast_to(dtype, BODIES[node.target](dtype, *args, **named))
    results = BODIES[node.target](DTYPES[metas[0].dtype].numpy, *args, **named)
    return [cast_to(DTYPES[m.dtype].numpy, x) for m, x in zip(metas, results, strict=False)]
