"""Thread, block and cluster indices of a launch as TIR variables."""

from __future__ import annotations

from typing import Any

import tvm
from tvm import tirx as T  # noqa: N812  # as its own documentation calls it

from tdsl.codegen.gpu.launches import Launch
from tdsl.codegen.ir.loops import AXES, CLUSTER

TIR = Any


def axis_indices(launch: Launch) -> tuple[dict[str, TIR], dict[str, TIR]]:
    """The index of a thread on each axis of a launch, and the CUDA variables that the kernel uses, by name.

    The blocks of a cluster are adjacent on blockIdx.x.
    """
    variables = {a: T.Var(a, "int32") for a, n in _sizes(launch) if n > 1 or a.endswith("Idx.x")}
    zero, count = T.const(0, "int32"), T.const(launch.cluster, "int32")
    indices = {a: variables.get(a, zero) for a in AXES}
    if launch.cluster > 1:
        block = variables["blockIdx.x"]
        indices |= {CLUSTER: T.truncmod(block, count), "blockIdx.x": T.truncdiv(block, count)}
    return indices, variables


def _sizes(launch: Launch) -> list[tuple[str, int]]:
    """The extent of each CUDA axis; an upper bound if only a call tells the extent."""
    sizes = {axis: launch.extent(axis) for axis in AXES if axis != CLUSTER}
    sizes["blockIdx.x"] *= launch.cluster
    return list(sizes.items())


def with_thread_extents(body: TIR, variables: dict[str, TIR], launch: Launch) -> TIR:
    """`body` inside thread_extent attributes, which give the CUDA `variables` their ranges."""
    sizes = dict(_sizes(launch))
    for axis in reversed(variables):
        extent = T.const(sizes[axis], "int32")
        index = T.IterVar(tvm.ir.Range(0, extent), variables[axis], T.IterVar.ThreadIndex, axis)
        body = T.AttrStmt(index, "thread_extent", extent, body)
    return body
