"""The backend "tdsl" of `torch.compile`: parts of a graph as compiled plans, the rest by torch.

torch.compile -> aot_autograd: a functional graph of torch's core operators, for inference, or one for each
direction -> supported nodes joined to parts -> each part a `td.Graph`, planned for the shapes of a call
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._decomp import core_aten_decompositions
from torch._dynamo.backends.common import aot_autograd
from torch._functorch.aot_autograd import make_boxed_func
from torch._functorch.partitioners import min_cut_rematerialization_partition
from torch.fx.passes.infra.partitioner import CapabilityBasedPartitioner
from torch.fx.passes.operator_support import create_op_support

from tdsl.torch.fold_constants import fold_constants
from tdsl.torch.planned_part import planned_part
from tdsl.torch.report import report_of
from tdsl.torch.strided_views import flatten_strided_views
from tdsl.torch.supported import reason_against

# Decompositions of these would hide rows, products and attention from the schedules of tdsl.
_WHOLE = frozenset({
    "_softmax", "native_layer_norm", "gelu", "silu", "addmm", "rsqrt", "split_with_sizes",
    "_native_batch_norm_legit_no_training", "_scaled_dot_product_flash_attention_for_cpu",
})  # fmt: skip


def compile_fx(module: torch.fx.GraphModule, inputs: Sequence[Any], **_: Any) -> Callable[..., Any]:
    """The compiled form of a graph that torch captured; `torch.compile(backend="tdsl")` calls it."""
    backend = aot_autograd(
        fw_compiler=_compile_graph,
        bw_compiler=_compile_graph,
        inference_compiler=_compile_graph,
        decompositions=_decompositions(),
        partition_fn=min_cut_rematerialization_partition,
    )
    compiled: Callable[..., Any] = backend(module, inputs)
    return compiled


def _decompositions() -> dict[Any, Any]:
    table = core_aten_decompositions()
    return {
        overload: body
        for overload, body in table.items()
        if overload.name().split("::")[1].split(".")[0] not in _WHOLE
    }


def _compile_graph(module: torch.fx.GraphModule, inputs: Sequence[Any]) -> Any:
    """The graph with its supported parts compiled, as a function of a list of its inputs."""
    fold_constants(module)
    depends_on_strides = not flatten_strided_views(module)
    report = report_of(module)
    reasons = {node: reason_against(node) for node in module.graph.nodes if node.op == "call_function"}
    if depends_on_strides:  # those of results of tdsl differ
        reasons = dict.fromkeys(reasons, "aten.as_strided.default")
    report.reasons = Counter(reason for reason in reasons.values() if reason)
    support = create_op_support(lambda _, node: not reasons.get(node, "no operator"))
    partitioner = CapabilityBasedPartitioner(module, support, allows_single_node_partition=True)
    partitions = partitioner.propose_partitions()
    report.compiled = sum(len(p.nodes) for p in partitions)
    fused = partitioner.fuse_partitions(partitions)
    parts = dict(fused.named_children())
    for node in list(fused.graph.nodes):
        if node.op == "call_module":
            part = parts[node.target]
            with fused.graph.inserting_before(node):
                constants = [getattr(fused, x.target) if x.op == "get_attr" else None for x in node.args]
                function = planned_part(part, report.add(node.target, part), constants)
                call = fused.graph.call_function(function, node.args, node.kwargs)
            node.replace_all_uses_with(call)
            fused.graph.erase_node(node)
    fused.recompile()
    return make_boxed_func(fused.forward)
