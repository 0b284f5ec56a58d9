"""Which nodes of a graph of torch tdsl computes."""

from __future__ import annotations

import operator

import torch

from tdsl.torch.arrays import ARRAYS, FIRST_ONLY
from tdsl.torch.elements import ELEMENTS
from tdsl.torch.indexing import INDEXING, reason_against_indexing
from tdsl.torch.tensors import DTYPES
from tdsl.torch.windows import WINDOWS

BODIES = {**ELEMENTS, **ARRAYS, **INDEXING, **WINDOWS}


def reason_against(node: torch.fx.Node) -> str:
    """Why torch computes a node; "" if tdsl does."""
    if node.op != "call_function":
        return "no operator"
    if node.target is operator.getitem:
        source = node.args[0]
        return reason_against(source) if isinstance(source, torch.fx.Node) else "no operator"
    name = str(node.target)
    if node.target not in BODIES:
        return name
    if node.target in FIRST_ONLY and any(
        user.target is operator.getitem and user.args[1] != 0 for user in node.users
    ):
        return f"{name}: a result beside the first"
    if node.target is torch.ops.aten.convolution.default and node.args[6]:
        return f"{name}: transposed"
    if reason := reason_against_indexing(node):
        return reason
    if all(n.op == "get_attr" for n in node.all_input_nodes):
        return f"{name} of constants"
    values = [n.meta.get("val") for n in (node, *node.all_input_nodes)]
    listed = [x for v in values for x in (v if isinstance(v, tuple | list) else (v,))]
    tensors = [x for x in listed if isinstance(x, torch.Tensor)]
    for x in tensors:
        if x.device.type != "cpu":
            return f"{name} on {x.device.type}"
        if x.dtype not in DTYPES or x.layout != torch.strided:
            return f"{name} of {x.dtype}, {x.layout}"
    return ""
