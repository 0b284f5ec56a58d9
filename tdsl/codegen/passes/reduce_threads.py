"""A pass that turns loops over threads that combine partial results into trees of warp shuffles."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from tdsl.codegen.ir.fresh_names import FreshNames
from tdsl.codegen.ir.loops import (
    REGISTER,
    SHARED,
    THREADS,
    WARP,
    Alloc,
    For,
    If,
    Kernel,
    Shuffle,
    Stmt,
    Store,
)  # fmt: skip
from tdsl.codegen.ir.statements import exprs_of, map_parts, rebuilt, sequence, walk
from tdsl.codegen.transforms.extract_lanes import lane_statement
from tdsl.codegen.transforms.partial_results import combine_results
from tdsl.core.node import frozen, post_order
from tdsl.lang.expr import ZERO, Binary, Const, Expr, Load, Var, const, lanes_of
from tdsl.lang.simplify import add, simplify

_ThreadAxes = tuple[tuple[Expr, Expr], ...]  # for each thread axis around: thread number and count


def reduce_threads(kernel: Kernel) -> Kernel:
    """Reduce partial results of threads by shuffles, first within each warp, then over the warps of a block.

    Results in registers are then in every thread; others are written by thread 0. Memory must have the scopes
    of a GPU (`place_memory`), and loops with `merges` must be those that `serialize_thread_reductions`
    leaves.

    >>> from tdsl.codegen.ir.show import show
    >>> from tdsl.lang.types import f32
    >>> total, part = Load("s", (ZERO,), f32), Load("p", (Var("t"),), f32)
    >>> body = Store("s", (ZERO,), Binary("add", total, part))
    >>> loop = For("t", ZERO, const(4), "threadIdx.x", body, (("s", "p"),))
    >>> print(show(reduce_threads(Kernel("k", (), loop)).body))
    for t in range(0, 4):  # threadIdx.x
      p_own = alloc(f32, [])  # register
      p_other = alloc(f32, [])  # register
      p_own[()] = p[t]
      p_other[()] = shuffle(p_own[()], 2)
      p_own[()] = p_own[()] + p_other[()]
      p_other[()] = shuffle(p_own[()], 1)
      p_own[()] = p_own[()] + p_other[()]
      if t == 0:
        s[0] = s[0] + p_own[()]
    """
    scopes = {s.name: s.scope for s in walk(kernel.body) if isinstance(s, Alloc)}
    return dataclasses.replace(kernel, body=_reduce(kernel.body, scopes, FreshNames(kernel), ()))


def _reduce(s: Stmt, scopes: Mapping[str, str], fresh: FreshNames, axes: _ThreadAxes) -> Stmt:
    if isinstance(s, For) and s.kind in THREADS:
        if s.merges:
            return sequence([_reduction(x, scopes, fresh, axes) for x in _split_lanes(s, fresh)])
        axes = (*axes, (simplify(Binary("sub", Var(s.name), s.lo)), s.extent))
    return map_parts(s, lambda part: _reduce(part, scopes, fresh, axes))


def _split_lanes(s: For, fresh: FreshNames) -> list[For]:
    """The loop, once for each lane if its results are vectors, as shuffles exchange scalars."""
    count = max(lanes_of(n) for x in walk(s.body) for n in exprs_of(x))
    if count == 1:
        return [s]
    return [rebuilt(s, body=fresh.copy(lane_statement(s.body, n))) for n in range(count)]


def _reduction(s: For, scopes: Mapping[str, str], fresh: FreshNames, axes: _ThreadAxes) -> Stmt:
    assert isinstance(s.extent, Const), "the loops that stay have a constant extent"
    lanes: dict[str, Load] = {}
    for result, name in s.merges:
        loads = (n for x in walk(s.body) for n in post_order(*exprs_of(x)) if isinstance(n, Load))
        lanes[result] = next(n for n in loads if n.buffer == name)
    names = {t: (fresh.name(f"{x.buffer}_own"), fresh.name(f"{x.buffer}_other")) for t, x in lanes.items()}
    tree = _ReductionTree(s, lanes, names, fresh)
    count = int(s.extent.value)
    steps: list[Stmt] = [Store(partial, (), lanes[t]) for t, (partial, _) in names.items()]
    steps += tree.shuffles(min(count, WARP), min(count, WARP))
    if count > WARP:
        steps.append(tree.through_shared(count // WARP, axes))
    last = tree.combine({}, 0, {})
    if any(scopes.get(t) != REGISTER for t in lanes):
        last = If(Binary("eq", Var(s.name), ZERO), last)
    body: Stmt = sequence((*steps, last))
    for t, pair in names.items():
        for memory in reversed(pair):
            body = Alloc(memory, lanes[t].dtype, (), REGISTER, body)
    return rebuilt(s, body=body, merges=())


@frozen
class _ReductionTree:
    """The reduction of a loop; `names`: the registers of a thread's partial result and of a received one."""

    loop: For
    lanes: Mapping[str, Load]
    names: Mapping[str, tuple[str, str]]
    fresh: FreshNames

    def loads(self, which: int) -> dict[str, Load]:
        return {t: Load(self.names[t][which], (), x.dtype) for t, x in self.lanes.items()}

    def combine(self, low: Mapping[str, Load], which: int, into: Mapping[str, Store]) -> Stmt:
        return combine_results(self.loop.body, self.fresh, self.lanes, low, self.loads(which), into)

    def shuffles(self, count: int, width: int) -> list[Stmt]:
        """Butterfly shuffles that reduce each `count` threads to all of them; `width` threads take part."""
        steps: list[Stmt] = []
        into = {t: Store(name, (), ZERO) for t, (name, _) in self.names.items()}
        partials = self.loads(0)
        distance = count // 2
        while distance:
            steps += [Shuffle(other, partials[t], distance, width) for t, (_, other) in self.names.items()]
            steps.append(self.combine(partials, 1, into))
            distance //= 2
        return steps

    def through_shared(self, warps: int, axes: _ThreadAxes) -> Stmt:
        """The reduction over the warps of a row of threads, in shared memory; `axes` numbers the rows."""
        thread = Var(self.loop.name)
        row: Expr = ZERO
        rows = 1
        for number, extent in axes:
            assert isinstance(extent, Const)
            row = add(simplify(Binary("mul", row, extent)), number)
            rows *= int(extent.value)
        scratch = {t: self.fresh.name(f"{x.buffer}_warps") for t, x in self.lanes.items()}
        partials = self.loads(0)
        at = row, Binary("floordiv", thread, const(WARP))
        first = Binary("eq", Binary("mod", thread, const(WARP)), ZERO)
        stores = sequence([Store(scratch[t], at, partials[t]) for t in scratch])
        index = row, Binary("mod", thread, const(warps))
        loads = [Store(self.names[t][0], (), Load(scratch[t], index, partials[t].dtype)) for t in scratch]
        body = sequence((If(first, stores), *loads, *self.shuffles(warps, WARP)))
        for t, name in scratch.items():
            body = Alloc(name, partials[t].dtype, (const(rows), const(warps)), SHARED, body)
        return body
