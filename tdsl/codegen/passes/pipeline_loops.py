"""A pass that turns pipelined loops into serial ones that prefetch tiles some iterations ahead."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from functools import partial
from math import copysign, prod

from tdsl.codegen.analysis.access_widths import access_width, is_shifted
from tdsl.codegen.analysis.asynchronous import is_asynchronous
from tdsl.codegen.ir.fresh_names import FreshNames, bind_loaded_bounds
from tdsl.codegen.ir.loops import (
    BLOCKS,
    CLUSTER,
    HEAP,
    PIPELINED,
    SERIAL,
    SHARED,
    THREADS,
    UNROLLED,
    Alloc,
    ArriveBarrier,
    Barrier,
    BufferParam,
    Commit,
    CopyTile,
    For,
    If,
    InitBarriers,
    Kernel,
    Let,
    Stmt,
    Store,
    Wait,
    WaitBarrier,
)  # fmt: skip
from tdsl.codegen.ir.statements import (
    exprs_of,
    inputs_of,
    map_exprs,
    map_parts,
    outputs_of,
    parts_of,
    rebuilt,
    scalars_of,
    sequence,
    stored_in,
    walk,
)  # fmt: skip
from tdsl.codegen.ir.strides import constant_strides, dense_strides
from tdsl.codegen.passes.simplify_loops import simplify_loops
from tdsl.codegen.transforms.buffer_slots import index_by_slot
from tdsl.codegen.transforms.overlap_mma import overlap_mma
from tdsl.codegen.transforms.producer_warps import (
    Producer,
    iteration_count,
    multicast_share,
    round_loops,
    specialize_warps,
)
from tdsl.codegen.transforms.register_loads import split_loads
from tdsl.errors import ScheduleError
from tdsl.lang.expr import (
    ONE,
    ZERO,
    Binary,
    Broadcast,
    Const,
    Expr,
    Load,
    Select,
    Var,
    const,
    lanes_of,
)  # fmt: skip
from tdsl.lang.simplify import add, simplify, substitute, subtract
from tdsl.lang.types import DType

_COPIED_BYTES = (4, 8, 16)  # sizes of asynchronous copies to shared memory (cp.async)


def pipeline_loops(kernel: Kernel) -> Kernel:
    """Prefetch the tiles of pipelined loops `stages` - 1 iterations ahead, into rings of `stages` slots.

    The statements that fill a tile read nothing that the loop writes. If they copy global memory unchanged,
    4, 8 or 16 bytes at a time, the copies are asynchronous: each iteration waits for its own tile, issues the
    copies of a later one, and computes in the meantime. Raises ScheduleError if no tile can be prefetched.

    >>> from tdsl.codegen.ir.loops import Block
    >>> from tdsl.codegen.ir.show import show
    >>> from tdsl.lang.types import f32
    >>> n, t = Var("n"), Var("t")
    >>> copy = Store("tile", (t,), Load("a", (n, t), f32))
    >>> use = Store("b", (n, t), Load("tile", (Binary("sub", const(31), t),), f32))
    >>> body = Block(tuple(For("t", ZERO, const(32), "threadIdx.x", s) for s in (copy, use)))
    >>> tile = Alloc("tile", f32, (const(32),), SHARED, body)
    >>> loop = For("n", ZERO, const(9), PIPELINED, tile, stages=3)
    >>> a, b = (BufferParam(x, f32, (const(9), const(32)), (32, 1), x == "b") for x in "ab")
    >>> print(show(pipeline_loops(Kernel("k", (a, b), loop)).body))
    tile = alloc(f32, [3, 32])  # shared
    for n_ahead in range(0, 2):  # unrolled
      for t_1 in range(0, 32):  # threadIdx.x
        tile[n_ahead, t_1] = a[n_ahead, t_1]  # asynchronous
      commit()
    for n in range(0, 9):
      wait(1)
      barrier()
      if n + 2 < 9:
        for t_2 in range(0, 32):  # threadIdx.x
          tile[(n + 2) % 3, t_2] = a[n + 2, t_2]  # asynchronous
      commit()
      for t in range(0, 32):  # threadIdx.x
        b[n, t] = tile[n % 3, t * -1 + 31]
    """
    if not any(isinstance(s, For) and s.kind == PIPELINED for s in walk(kernel.body)):
        return kernel
    pipelines = _Pipelines(FreshNames(kernel))
    for p in kernel.params:
        if isinstance(p, BufferParam):
            pipelines.add_buffer(p.name, p.dtype, p.extents, is_global=True)
    body = pipelines.statement(kernel.body)
    return simplify_loops(dataclasses.replace(kernel, body=body))


@dataclass(slots=True)
class _Pipelines:
    """`buffers`: element type and strides of each buffer; `global_buffers`: those in global memory."""

    fresh: FreshNames
    buffers: dict[str, tuple[DType, tuple[int, ...]]] = field(default_factory=dict)
    global_buffers: set[str] = field(default_factory=set)
    enclosing: tuple[Stmt, ...] = ()  # enclosing statements, inside of the loops over blocks
    cluster: For | None = None  # the loop over the blocks of a cluster
    producers: list[Producer] = field(default_factory=list)

    def add_buffer(
        self, name: str, dtype: DType, extents: tuple[Expr, ...], *, is_global: bool = False
    ) -> None:
        self.buffers[name] = dtype, constant_strides(dense_strides(extents))
        if is_global:
            self.global_buffers.add(name)

    def statement(self, s: Stmt) -> Stmt:
        if isinstance(s, Alloc):
            self.add_buffer(s.name, s.dtype, s.extents, is_global=s.scope == HEAP)
        around, in_blocks = self.enclosing, isinstance(s, For) and s.kind in BLOCKS
        if isinstance(s, For) and s.kind == CLUSTER:
            self.cluster = s
        if in_blocks:
            self.enclosing = ()
        elif isinstance(s, For | Let | If):
            self.enclosing = (*around, s)
        s = map_parts(s, self.statement)
        self.enclosing = around
        if isinstance(s, For) and s.kind == PIPELINED:
            return bind_loaded_bounds(s, self.fresh, self.pipeline)
        if isinstance(s, For) and in_blocks and self.producers:
            producers, self.producers = self.producers, []
            return rebuilt(s, body=specialize_warps(s.body, producers, self.fresh))
        return s

    def varying(self) -> set[str]:
        """The variables of enclosing loops whose values differ between the threads of a block."""
        varying: set[str] = set()
        for x in self.enclosing:
            if isinstance(x, For) and (
                x.kind in THREADS or varying & (scalars_of(x.lo) | scalars_of(x.extent))
            ):
                varying.add(x.name)
        return varying

    def check_uniform(self, s: For) -> None:
        """Raise ScheduleError if the number of iterations of a pipelined loop differs between threads."""
        if self.varying() & scalars_of(s.extent):
            raise ScheduleError(
                f"loop {s.name!r} is pipelined, but how often it runs differs from thread to thread",
                loc=next((x.loc for x in walk(s) if isinstance(x, Alloc)), s.loc),
                label="scheduled here",
                hint="pipeline a loop with one number of iterations for all threads of the block",
            )

    def pipeline(self, s: For) -> Stmt:
        if s.extent == ONE and not any(isinstance(x, CopyTile) for x in walk(s)):
            return rebuilt(s, kind=SERIAL, stages=0)
        self.check_uniform(s)
        head, parts = _split_head(s.body)
        tiles = {a.name: a for a in head if isinstance(a, Alloc) and a.scope == SHARED}
        lets = [x for x in head if isinstance(x, Let)]
        fetches = _prefetchable(parts, tiles.keys(), lets)
        if not fetches:
            raise ScheduleError(
                f"no tile that loop {s.name!r} fills in shared memory can be prefetched: each depends on the "
                "iteration before",
                loc=next((t.loc for t in tiles.values()), s.loc),
                label="scheduled here",
                hint="leave the loop serial, or fetch what it reads from memory with cache_read",
            )
        rings = {name for p in fetches for name in outputs_of(p)}
        copies = rings - {name for p in fetches for name in inputs_of(p)}
        for name in rings:
            extents = (const(s.stages), *tiles[name].extents)
            self.add_buffer(name, tiles[name].dtype, extents)
        if s.producer_warps:
            return self.with_producer_warp(s, head, fetches, [p for p in parts if p not in fetches])
        boxes = sum(isinstance(x, CopyTile) for p in fetches for x in walk(p))
        full = self.fresh.name(f"{s.name}_copied") if boxes else ""
        fixed = stored_in(s.body)
        distance, stages, last = const(s.stages - 1), const(s.stages), add(s.lo, s.extent)

        def fetch(n: Expr, slot: Expr) -> Stmt:
            copied = self.fresh.copy(_with_lets(lets, sequence(fetches)), {s.name: n})
            copied = self.make_asynchronous(
                index_by_slot(copied, rings, slot), copies, self.global_buffers - fixed
            )
            copied = self.expect_bytes(copied, full, slot)
            return If(simplify(Binary("lt", n, last)), copied)

        first = Var(self.fresh.name(f"{s.name}_ahead"))
        before = fetch(add(s.lo, first), first)
        count = subtract(Var(s.name), s.lo)
        later = fetch(add(Var(s.name), distance), Binary("mod", add(count, distance), stages))
        rest = [p for p in parts if p not in fetches]
        consumer = index_by_slot(_with_lets(lets, sequence(rest)), rings, Binary("mod", count, stages))
        for a in reversed(head):
            if isinstance(a, Alloc) and a.name not in rings:
                consumer = rebuilt(a, body=consumer)
        wait: list[Stmt] = []
        commit: list[Stmt] = []
        if any(isinstance(x, Store) and x.asynchronous for x in walk(later)):
            commit, wait = [Commit()], [Wait(s.stages - 2)]
        if boxes:
            wait.append(WaitBarrier(full, Binary("mod", count, stages), _parity(count, stages)))
        if wait:  # after the barrier, no thread reads the slot that is filled next
            wait.append(Barrier())
        prologue = For(first.name, ZERO, distance, UNROLLED, sequence([before, *commit]))
        split = split_loads(later, self.global_buffers - fixed, self.fresh)
        if split is None:
            body = sequence([*wait, later, *commit, consumer])
        else:
            body = split.allocated(sequence([*wait, split.loads, *commit, consumer, split.stores]))
        whole = sequence([prologue, rebuilt(s, kind=SERIAL, stages=0, body=body)])
        if boxes:
            whole = InitBarriers(full, s.stages, boxes, whole)
        for name, a in reversed(tiles.items()):
            if name in rings:
                whole = rebuilt(a, extents=(stages, *a.extents), body=whole)
        return whole

    def with_producer_warp(
        self, s: For, head: list[Let | Alloc], fetches: list[Stmt], rest: list[Stmt]
    ) -> Stmt:
        """The loop of the consumer threads; the loop of the producer warp is appended to `producers`."""
        lets = [x for x in head if isinstance(x, Let)]
        rings = {name for p in fetches for name in outputs_of(p)}
        full, empty = (self.fresh.name(f"{s.name}_{x}") for x in ("copied", "used"))
        count, stages = iteration_count([*round_loops(self.enclosing), s]), const(s.stages)
        slot, parity = Binary("mod", count, stages), _parity(count, stages)
        boxes = [x for p in fetches for x in walk(index_by_slot(p, rings, slot)) if isinstance(x, CopyTile)]
        shared = [multicast_share(x, self.cluster, lets) for x in boxes]
        copies = sequence(
            self.expect_bytes(x, full, slot, whole=prod(box.extents))
            for x, box in zip(shared, boxes, strict=True)
        )
        blocks = max(x.blocks for x in shared)
        before = WaitBarrier(empty, slot, subtract(ONE, parity))
        loop = rebuilt(s, kind=SERIAL, stages=0, producer_warps=False, overlap_mma=False)
        tiles = [a for a in head if isinstance(a, Alloc)]
        memory = [rebuilt(a, extents=(stages, *a.extents)) for a in tiles if a.name in rings]
        copy_loop = rebuilt(loop, body=sequence([before, _with_lets(lets, copies)]))
        consumer = index_by_slot(_with_lets(lets, sequence(rest)), rings, slot)
        for a in reversed(tiles):
            if a.name not in rings:
                consumer = rebuilt(a, body=consumer)
        producer = Producer(
            s, copy_loop, tuple(memory), full, empty, s.stages, len(boxes), self.enclosing, blocks
        )
        self.producers.append(producer)
        wait, release = (
            WaitBarrier(full, slot, parity),
            ArriveBarrier(empty, slot, per_warp=True, blocks=blocks),
        )
        if s.overlap_mma:
            iteration_memory = [a for a in tiles if a.name not in rings]
            uses = [index_by_slot(_with_lets(lets, p), rings, slot) for p in rest]
            overlapped = overlap_mma(loop, wait, iteration_memory, uses, release, self.fresh)
            if overlapped is None:
                raise ScheduleError(
                    f"no MMA of loop {s.name!r} reads tiles only, so none can be issued early",
                    loc=next((a.loc for a in tiles), s.loc),
                    label="scheduled here",
                    hint="leave overlap_mma out",
                )
            return overlapped
        if not is_asynchronous(consumer):
            return rebuilt(loop, body=sequence([wait, consumer, release]))
        # an instruction that is pending into the next iteration frees its slot only there
        previous = {s.name: subtract(Var(s.name), ONE)}
        last = If(
            Binary("lt", s.lo, Var(s.name)),
            map_exprs(release, partial(substitute, values=previous)),
        )
        end = {s.name: subtract(add(s.lo, s.extent), ONE)}
        final = If(Binary("lt", ZERO, s.extent), map_exprs(release, partial(substitute, values=end)))
        return sequence([rebuilt(loop, body=sequence([wait, consumer, last])), final])

    def make_asynchronous(self, s: Stmt, copies: set[str], sources: set[str]) -> Stmt:
        """`s` with its copies from `sources` to `copies` asynchronous where a GPU can do so."""
        if isinstance(s, Store) and s.buffer in copies:
            load = _as_masked_load(s.value)
            if load is not None and load.buffer in sources and self.is_async_width(s, load):
                return rebuilt(s, value=load, asynchronous=True)
        return map_parts(s, lambda part: self.make_asynchronous(part, copies, sources))

    def expect_bytes(self, s: Stmt, mbarriers: str, slot: Expr, whole: int = 0) -> Stmt:
        """`s` with an arrival before each copy of a tile that tells the mbarrier how many bytes to expect.

        Where a condition of the whole block leaves a copy out, the arrival expects no bytes. `whole` is the
        number of elements of the tile if other blocks of the cluster copy parts of it, or 0.
        """
        if isinstance(s, If) and s.orelse is None and not self.varying() & scalars_of(s.cond):
            boxes = sum(isinstance(x, CopyTile) for x in walk(s))
            none = sequence([ArriveBarrier(mbarriers, slot)] * boxes) if boxes else None
            return rebuilt(s, then=self.expect_bytes(s.then, mbarriers, slot, whole), orelse=none)
        if isinstance(s, CopyTile):
            count = (whole or prod(s.extents)) * self.buffers[s.buffer][0].bytes
            return sequence(
                [ArriveBarrier(mbarriers, slot, count), rebuilt(s, mbarriers=mbarriers, slot=slot)]
            )
        return map_parts(s, lambda part: self.expect_bytes(part, mbarriers, slot))

    def is_async_width(self, s: Store, load: Load) -> bool:
        """True if the access width of the copy is one that a GPU copies asynchronously."""
        lanes = max(map(lanes_of, s.index), default=1)
        dtype, strides = self.buffers[s.buffer]
        of = self.buffers[load.buffer][1]
        if is_shifted(load.index, of, lanes, dtype.bytes) and not is_shifted(
            s.index, strides, lanes, dtype.bytes
        ):
            return False  # two vectors in registers have it
        count = copy_width(s, load, strides, of, dtype.bytes)
        if count == 1 and access_width(load.index, of, lanes, dtype.bytes) * dtype.bytes == _COPIED_BYTES[-1]:
            return False  # a vector in registers has it, whose elements are stored one by one
        return not s.atomic and count * dtype.bytes in _COPIED_BYTES and lanes % count == 0


def copy_width(s: Store, load: Load, to: tuple[int, ...], of: tuple[int, ...], size: int) -> int:
    """The number of elements of `size` bytes that one instruction copies; `to` and `of` are the strides."""
    lanes = max(map(lanes_of, s.index), default=1)
    if any(m is not None and not isinstance(m, Broadcast) for m in (s.mask, load.mask)):
        return 1
    return min(access_width(s.index, to, lanes, size), access_width(load.index, of, lanes, size))


def _split_head(s: Stmt) -> tuple[list[Let | Alloc], tuple[Stmt, ...]]:
    """The lets and allocations at the head of a loop's body, and the statements nested in them."""
    head: list[Let | Alloc] = []
    while isinstance(s, Let | Alloc):
        head.append(s)
        s = s.body
    return head, (parts_of(s) if not isinstance(s, For | If) else (s,))


def _prefetchable(parts: Sequence[Stmt], tiles: Collection[str], lets: list[Let]) -> list[Stmt]:
    """The statements that fill tiles from buffers that the loop does not write; all of a tile, or none."""
    written = {name for p in parts for name in outputs_of(p)}
    groups: dict[str, frozenset[str]] = {}  # for each tile, those filled by the same statements
    for p in parts:
        together = outputs_of(p).union(*(groups.get(name, ()) for name in outputs_of(p)))
        groups |= dict.fromkeys(together, together)
    dependent: set[str] = set()
    for p in parts:
        filled = outputs_of(p)
        waits = any(isinstance(x, Barrier | Commit | Wait | InitBarriers) for x in walk(p))
        together = groups[min(filled)] if filled else frozenset()
        if waits or not filled <= set(tiles) or inputs_of(_with_lets(lets, p)) & written - together:
            dependent |= together
    return [p for p in parts if outputs_of(p) and dependent.isdisjoint(outputs_of(p))]


def _parity(count: Expr, stages: Expr) -> Expr:
    """The parity of the mbarrier phase in which iteration `count` fills its slot, 0 at first."""
    return Binary("mod", Binary("floordiv", count, stages), const(2))


def _with_lets(lets: list[Let], s: Stmt) -> Stmt:
    """`s` nested in those of `lets` that it uses."""
    used = {name for x in walk(s) for e in exprs_of(x) for name in scalars_of(e)}
    for let in reversed(lets):
        if let.name in used:
            s = rebuilt(let, body=s)
            used |= scalars_of(let.value)
    return s


def _as_masked_load(value: Expr) -> Load | None:
    """`value` as a load, masked if it is a select between a load and 0; None for any other value."""
    match value:
        case Load():
            return value
        case Select(cond, Load(mask=None) as load, no) if _is_zero(no):
            return dataclasses.replace(load, mask=cond)
        case _:
            return None


def _is_zero(e: Expr) -> bool:
    match e:
        case Broadcast(x):
            return _is_zero(x)
        case Const(value):
            return value == 0 and copysign(1, value) > 0
        case _:
            return False
