"""`as_strided` as views of arrays of one dimension, which do not depend on the strides of a tensor."""

from __future__ import annotations

from math import prod

import torch

aten = torch.ops.aten


def flatten_strided_views(module: torch.fx.GraphModule) -> bool:
    """Rewrites `as_strided` of each tensor to that of its elements in the order of memory, in one dimension.

    False if one remains: of a tensor whose elements are not all those of its memory, or of symbolic extents.
    """
    graph, rewritten = module.graph, True
    for node in graph.find_nodes(op="call_function", target=aten.as_strided.default):
        source = node.args[0]
        value = source.meta["val"]
        if not _is_dense(value):
            rewritten = False
            continue
        strides = value.stride()
        order = sorted(range(value.ndim), key=strides.__getitem__, reverse=True)
        with graph.inserting_before(node):
            permuted = graph.call_function(aten.permute.default, (source, order))
            permuted.meta["val"] = aten.permute.default(value, order)
            flat = graph.call_function(aten.reshape.default, (permuted, [-1]))
            flat.meta["val"] = aten.reshape.default(permuted.meta["val"], [-1])
        node.update_arg(0, flat)
    module.recompile()
    return rewritten


def _is_dense(value: torch.Tensor) -> bool:
    """True if the elements of a tensor are all of its memory, in some order, and its extents are known."""
    numbers = (*value.shape, *value.stride(), value.storage_offset())
    if any(isinstance(n, torch.SymInt) for n in numbers) or value.storage_offset():
        return False
    axes = sorted(
        (stride, extent) for stride, extent in zip(value.stride(), value.shape, strict=True) if extent != 1
    )
    return all(stride == prod(e for _, e in axes[:n]) for n, (stride, _) in enumerate(axes))
