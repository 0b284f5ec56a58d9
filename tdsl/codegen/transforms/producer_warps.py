"""Warp specialisation: a producer warp that issues the copies of tiles, concurrent with their consumers."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from math import prod

from tdsl.codegen.analysis.launch_axes import covers_axis, launch_extents
from tdsl.codegen.ir.fresh_names import FreshNames
from tdsl.codegen.ir.loops import (
    AXES,
    THREADS,
    Alloc,
    CopyTile,
    For,
    If,
    InitBarriers,
    Let,
    Stmt,
    WarpSpecialize,
)  # fmt: skip
from tdsl.codegen.ir.statements import exprs_of, rebuilt, scalars_of, walk
from tdsl.core.node import frozen
from tdsl.errors import ScheduleError
from tdsl.lang.expr import ONE, ZERO, Binary, Const, Expr, Var, const
from tdsl.lang.simplify import add, conjunction, simplify, subtract

_WARP = 32  # threads
_ROWS = 8  # rows of a tile after which its swizzle repeats


@frozen
class Producer:
    """The loop `copy_loop` that issues the copies of tiles of a pipelined `loop` into the rings `memory`.

    `full` and `empty` name the mbarriers of the `stages` slots, `copies` is the number of tiles per slot.
    `enclosing` are the loops, lets and conditions around the pipelined loop, inside of those over blocks; its
    rounds are the loops among them bound to no axis. Each tile is copied to `blocks` blocks of a cluster.
    """

    loop: For
    copy_loop: Stmt
    memory: tuple[Alloc, ...]
    full: str
    empty: str
    stages: int
    copies: int
    enclosing: tuple[Stmt, ...]
    blocks: int = 1


def specialize_warps(body: Stmt, producers: list[Producer], fresh: FreshNames) -> Stmt:
    """The body of a block with one more warp, the producer, whose first thread issues the copies of tiles.

    The producer fills a slot of the ring after all consumers have arrived at its `empty` mbarrier; the
    consumers read the slot after the phase of its `full` mbarrier has completed. If the pipelined loop runs
    in rounds, tiles of the next round are prefetched as soon as slots are free. Raises ScheduleError if the
    consumers are not all threads of the block, or if the number of iterations differs between rounds.

    >>> from tdsl.codegen.ir.loops import ArriveBarrier, Kernel, Store
    >>> from tdsl.codegen.ir.show import show
    >>> use = For("x", ZERO, const(32), "threadIdx.x", Store("b", (Var("x"),), Var("x")))
    >>> p = Producer(use, ArriveBarrier("full", ZERO, 8), (), "full", "empty", 2, 1, (use,))
    >>> print(show(specialize_warps(use, [p], FreshNames(Kernel("k", (), use)))))
    full = mbarriers(2, arrivals=1)
    empty = mbarriers(2, arrivals=1)
    warps:
      for asking_y in range(0, 2):  # threadIdx.y
        for asking_x in range(0, 32):  # threadIdx.x
          if (asking_x == 0) & (asking_y == 1):
            arrive(full[0], 8 bytes)
    warps:
      for using_y in range(0, 2):  # threadIdx.y
        if using_y < 1:
          for x in range(0, 32):  # threadIdx.x
            b[x] = x
    """
    if len(producers) > 1:
        raise _error(
            producers[1],
            "a block has another loop with them",
            "leave producer_warps out of one of them",
        )
    (p,) = producers
    extents = launch_extents(body)
    axis_loops = [s for s in p.enclosing if isinstance(s, For) and s.kind in AXES]
    rounds = round_loops(p.enclosing)
    copy_loop = p.copy_loop
    for s in reversed(p.enclosing):
        if s in rounds or (isinstance(s, Let) and s.name in _names_in(copy_loop)):
            copy_loop = rebuilt(s, body=copy_loop)
    round_names = {s.name for s in rounds}
    conditional: list[Stmt] = [s for s in p.enclosing if isinstance(s, If)]
    conditional += [s for s in (*rounds, p.loop) if round_names & scalars_of(s.extent)]
    bound_axes = {s.kind for s in axis_loops}
    used_axes = [x for x in THREADS if extents[x] > 1]
    # the warp is added on the slowest axis: rows keep their length, unbound code still runs on all threads
    slowest = [x for x in reversed(THREADS[1:]) if x in used_axes and x in bound_axes]
    axis = next((x for x in (*slowest, *THREADS[1:]) if x not in used_axes or x in bound_axes), "")
    if conditional or not axis or not all(covers_axis(s, extents) for s in axis_loops):
        raise _error(
            p,
            "its consumers must be all threads of a block, with as many iterations each time",
            "put it outside of other loops, and bind loops around it to threadIdx.y",
        )
    if {s.name for s in axis_loops} & _names_in(copy_loop):
        raise _error(p, "tiles differ between threads", "cache_read at a loop around the threads")
    count = prod(extents[x] for x in used_axes)
    unit = prod(extents[x] for x in used_axes if x < axis)
    if count % _WARP or (unit < _WARP and _WARP % unit):
        raise _error(p, f"{count} threads are no whole warps", f"bind a multiple of {_WARP} threads")
    more = max(1, _WARP // unit)
    if axis not in used_axes:
        name = fresh.name(f"using_{axis[-1]}")
        body = For(name, ZERO, const(1 + more), axis, If(Binary("lt", Var(name), ONE), body))
    producer_code = _producer_code(fresh.copy(copy_loop), axis, extents, more, fresh)
    whole: Stmt = WarpSpecialize((producer_code, body), axis, extents[axis])
    whole = InitBarriers(p.empty, p.stages, count // _WARP * p.blocks, whole, p.blocks)
    whole = InitBarriers(p.full, p.stages, p.copies, whole, p.blocks)
    for a in reversed(p.memory):
        whole = rebuilt(a, body=whole)
    return whole


def _producer_code(copy_loop: Stmt, axis: str, extents: dict[str, int], more: int, fresh: FreshNames) -> Stmt:
    """`copy_loop` run by thread `extents[axis]` of `axis`, 0 of the others; `more` threads are added."""
    loops = []
    tests: list[Expr] = []
    for x in THREADS:
        if extents[x] > 1 or x == axis:
            name = fresh.name(f"asking_{x[-1]}")
            first = const(extents[x]) if x == axis else ZERO
            loops.append((name, x, extents[x] + (more if x == axis else 0)))
            tests.append(Binary("eq", Var(name), first))
    body: Stmt = If(conjunction(tests), copy_loop)
    return functools.reduce(lambda s, loop: For(loop[0], ZERO, const(loop[2]), loop[1], s), loops, body)


def multicast_share(s: CopyTile, cluster: For | None, lets: Sequence[Let]) -> CopyTile:
    """A multicast copy of a block's share of a tile if all blocks of the cluster copy the tile; else `s`.

    >>> from tdsl.codegen.ir.loops import CLUSTER, Block
    >>> from tdsl.codegen.ir.show import show
    >>> r = For("r", ZERO, const(2), CLUSTER, Block(()))
    >>> print(show(multicast_share(CopyTile("t", (ZERO, ZERO), "a", (Var("i"), ZERO), (64, 32)), r, ())))
    copy_tile(t[r * 32:, 0:], a[r * 32 + i:r * 32 + i + 32, 0:32], to 2 blocks)
    """
    if cluster is None or not isinstance(cluster.extent, Const):
        return s
    count = int(cluster.extent.value)
    block_names = {cluster.name, *(x.name for x in lets)}
    rows = [n for n, e in enumerate(s.extents[:-1]) if e % (_ROWS * count) == 0]
    if count == 1 or not rows or any(block_names & scalars_of(e) for e in s.start):
        return s
    axis, part = rows[0], s.extents[rows[0]] // count
    first = simplify(Binary("mul", subtract(Var(cluster.name), cluster.lo), const(part)))
    index, start, extents = list(s.index), list(s.start), list(s.extents)
    index[axis - len(extents)] = add(index[axis - len(extents)], first)
    start[axis] = add(start[axis], first)
    extents[axis] = part
    return rebuilt(s, index=tuple(index), start=tuple(start), extents=tuple(extents), blocks=count)


def round_loops(enclosing: Iterable[Stmt]) -> list[For]:
    """The loops of `enclosing` bound to no axis, all of whose iterations each thread runs."""
    return [s for s in enclosing if isinstance(s, For) and s.kind not in AXES]


def iteration_count(loops: Iterable[For]) -> Expr:
    """The number of iterations of the innermost loop that precede the current one, in all rounds.

    >>> from tdsl.codegen.ir.loops import SERIAL, Block
    >>> from tdsl.lang.show import show_expr
    >>> loops = (For(x, ZERO, const(n), SERIAL, Block(())) for x, n in (("r", 3), ("k", 8)))
    >>> show_expr(iteration_count(loops))
    'r * 8 + k'
    """
    count: Expr = ZERO
    for s in loops:
        count = add(simplify(Binary("mul", count, s.extent)), subtract(Var(s.name), s.lo))
    return count


def _names_in(s: Stmt) -> set[str]:
    return {name for x in walk(s) for e in exprs_of(x) for name in scalars_of(e)}


def _error(p: Producer, what: str, hint: str) -> ScheduleError:
    return ScheduleError(
        f"loop {p.loop.name!r} cannot have producer warps: {what}",
        loc=next((a.loc for a in p.memory), p.loop.loc),
        label="scheduled here",
        hint=hint,
    )
