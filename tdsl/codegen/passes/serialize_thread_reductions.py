"""A pass that serialises loops over threads that combine partial results where shuffles cannot."""

from __future__ import annotations

import dataclasses

from tdsl.codegen.analysis.launch_axes import covers_axis, launch_extents, map_kernels
from tdsl.codegen.ir.loops import SERIAL, THREADS, WARP, For, Kernel, Stmt
from tdsl.codegen.ir.statements import map_parts, rebuilt
from tdsl.codegen.transforms.partial_results import partial_loads
from tdsl.lang.expr import ZERO, Const

_MAX_THREADS = WARP * WARP  # threads; one warp reduces the results of at most WARP warps


def serialize_thread_reductions(kernel: Kernel) -> Kernel:
    """Make serial each loop that combines partial results of threads and cannot do so by shuffles.

    The loops left to threads run on all threads of threadIdx.x, whose number is a power of 2, at most 1024.

    >>> from tdsl.codegen.ir.loops import Store
    >>> from tdsl.codegen.ir.show import show
    >>> from tdsl.lang.expr import Binary, Load, Var, const
    >>> from tdsl.lang.types import i64
    >>> total, part = Load("s", (ZERO,), i64), Load("p", (Var("t"),), i64)
    >>> body = Store("s", (ZERO,), Binary("add", total, part))
    >>> loop = For("t", ZERO, const(24), "threadIdx.x", body, (("s", "p"),))
    >>> print(show(serialize_thread_reductions(Kernel("k", (), loop)).body))
    for t in range(0, 24):
      s[0] = s[0] + p[t]
    """
    return dataclasses.replace(kernel, body=map_kernels(kernel.body, _serialize_in_kernel))


def _serialize_in_kernel(body: Stmt) -> Stmt:
    return _serialize(body, launch_extents(body))


def _serialize(s: Stmt, extents: dict[str, int]) -> Stmt:
    s = map_parts(s, lambda part: _serialize(part, extents))
    if isinstance(s, For) and s.kind in THREADS and s.merges and not _can_shuffle(s, extents):
        return rebuilt(s, kind=SERIAL, merges=())
    return s


def _can_shuffle(s: For, extents: dict[str, int]) -> bool:
    if s.kind != "threadIdx.x" or s.lo != ZERO or not isinstance(s.extent, Const):
        return False
    count = int(s.extent.value)
    fits = 1 < count <= _MAX_THREADS and count & (count - 1) == 0 and covers_axis(s, extents)
    return fits and len(partial_loads(s.body, s.merges, s.name)) == len(s.merges)
