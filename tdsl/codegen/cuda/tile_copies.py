"""Lowers asynchronous copies from global to shared memory to calls: boxes by TMA, elements by cp.async."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tvm import tirx as T  # noqa: N812  # as its own documentation calls it

from tdsl.codegen.cuda.expressions import Expressions
from tdsl.codegen.gpu.launches import Launch
from tdsl.codegen.gpu.tensor_map_specs import TensorMapSpec, tensor_map_spec
from tdsl.codegen.ir.loops import Alloc, BufferParam, CopyTile, Store
from tdsl.codegen.ir.statements import walk
from tdsl.codegen.ir.strides import constant_strides
from tdsl.codegen.passes.pipeline_loops import copy_width
from tdsl.codegen.transforms.extract_lanes import lane_count, lane_store
from tdsl.lang.expr import Load, const, dtype_of
from tdsl.lang.simplify import add

TIR = Any


def copy_tile(
    e: Expressions, s: CopyTile, launch: Launch, maps: Mapping[TensorMapSpec, TIR], barrier: TIR
) -> list[TIR]:
    """The TMA copies of a box, one for each panel if swizzled; coordinates go innermost axis first.

    They complete at the mbarrier at the address `barrier`.
    """
    memory, _ = e.buffers[s.buffer]
    params = {p.name: p for p in launch.params if isinstance(p, BufferParam)}
    swizzle = next(x.swizzle for x in walk(launch.body) if isinstance(x, Alloc) and x.name == s.buffer)
    spec = tensor_map_spec(s, params[s.source], swizzle)
    copies = []
    for first in range(0, s.extents[-1], spec.box[-1]):
        index, start = ((*x[:-1], add(x[-1], const(first), e.facts)) for x in (s.index, s.start))
        to = T.address_of(T.BufferLoad(memory, [e.offset(s.buffer, index)]))
        corner = [e.index(i) for i in reversed(start)]
        name = f"tdsl_tma_load_{len(corner)}d" + (f"_multicast<{s.blocks}>" if s.blocks > 1 else "")
        if s.source in e.policies:
            head, angle, arguments = name.partition("<")
            name, corner = f"{head}_hint{angle}{arguments}", [*corner, e.policies[s.source][1]]
        copies.append(e.statement_call(name, to, T.address_of(maps[spec]), barrier, *corner))
    return copies


def copy_elements(e: Expressions, s: Store) -> list[TIR]:
    """An asynchronous store (cp.async), in pieces as wide as contiguity and alignment allow."""
    (memory, to), size = e.buffers[s.buffer], dtype_of(s.value).bytes
    assert isinstance(s.value, Load)
    source, of = e.buffers[s.value.buffer]
    count, copies = copy_width(s, s.value, constant_strides(to), constant_strides(of), size), []
    for start in range(0, lane_count(s), count):
        one = lane_store(s, start)
        assert isinstance(one.value, Load)
        places = [
            T.address_of(T.BufferLoad(m, [e.offset(name, index)]))
            for m, name, index in (
                (memory, s.buffer, one.index), (source, s.value.buffer, one.value.index)
            )
        ]  # fmt: skip
        if one.value.mask is not None:
            places.append(e.value(one.value.mask))
        name = "tdsl_cp_async"
        if s.value.buffer in e.policies:
            name = "tdsl_cp_async_hint"
            places.insert(2, e.policies[s.value.buffer][1])
        copied = e.statement_call(f"{name}<{count * size}>", *places)
        copies.append(copied if one.mask is None else T.IfThenElse(e.value(one.mask), copied, None))
    return copies
