"""Nodes of a graph that depend on no input, computed once by torch: masks, positions, tables."""

from __future__ import annotations

from typing import Any

import torch
from torch._subclasses.fake_tensor import unset_fake_temporarily

from tdsl.torch.tensors import DTYPES

MOST_BYTES = 1 << 26  # of a constant: a larger one is computed at each call


def fold_constants(module: torch.fx.GraphModule) -> None:
    """Replaces the nodes that depend on no input of a graph by tensors that the module holds.

    An output of the graph that is one of them becomes a copy of it, which the caller may change. Random
    numbers and values that depend on symbolic extents remain nodes.
    """
    graph = module.graph
    values: dict[torch.fx.Node, Any] = {}
    for node in graph.nodes:
        if node.op == "get_attr" and isinstance(value := getattr(module, node.target), torch.Tensor):
            values[node] = value
        elif _is_foldable(node) and all(n in values for n in node.all_input_nodes):
            args, kwargs = torch.fx.map_arg((node.args, node.kwargs), values.__getitem__)
            with unset_fake_temporarily(), torch.no_grad():
                values[node] = node.target(*args, **kwargs)
    for number, (node, value) in enumerate(values.items()):
        if node.op == "get_attr" or all(user in values for user in node.users):
            continue
        name = f"_folded_{number}"
        module.register_buffer(name, value)
        with graph.inserting_before(node):
            constant = graph.create_node("get_attr", name)
            constant.meta = node.meta.copy()
        node.replace_all_uses_with(constant, delete_user_cb=lambda user: user.op != "output")
        if node.users:
            with graph.inserting_before(node):
                copy = graph.call_function(torch.ops.aten.clone.default, (constant,))
                copy.meta = node.meta.copy()
            node.replace_all_uses_with(copy)
    for node in reversed(values):
        if node.op != "get_attr" and not node.users:
            graph.erase_node(node)
    module.recompile()


def _is_foldable(node: torch.fx.Node) -> bool:
    """True if torch computes the same tensor at each call with the same arguments."""
    target, value = node.target, node.meta.get("val")
    return (
        isinstance(target, torch._ops.OpOverload)
        and not target._schema.is_mutable
        and torch.Tag.nondeterministic_seeded not in target.tags
        and isinstance(value, torch.Tensor)
        and value.dtype in DTYPES
        and value.device.type == "cpu"
        and not any(isinstance(n, torch.SymInt) for n in value.shape)
        and value.numel() * value.itemsize <= MOST_BYTES
    )
