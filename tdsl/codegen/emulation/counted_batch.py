"""Blocks of a GPU kernel whose memory transactions are counted.

A thread accesses at most 16 bytes at a time: a vector as `access_width` says, and of shared memory what
consecutive accesses of a statement, or of the copies of an unrolled one, can be combined to, as the compiler
does. Equal accesses of these are one access; so are those of global memory in consecutive iterations, which
the compiler hoists. Accesses under different conditions are not combined.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from math import prod

import numpy as np

from tdsl.codegen.analysis.access_widths import access_width, is_loaded_whole, is_shifted
from tdsl.codegen.emulation.counted_buffer import CountedBuffer
from tdsl.codegen.emulation.memory import Array, and_masks, constants
from tdsl.codegen.emulation.memory_counts import GLOBAL, Site
from tdsl.codegen.emulation.run import BlockBatch
from tdsl.codegen.ir.loops import (
    AXES,
    LANES,
    SHARED,
    UNROLLED,
    WARP,
    Alloc,
    CopyTile,
    For,
    If,
    InitBarriers,
    Invoke,
    Let,
    Shuffle,
    Stmt,
    Store,
    WarpSpecialize,
    row_major,
)  # fmt: skip
from tdsl.codegen.passes.pipeline_loops import copy_width
from tdsl.core.node import frozen, post_order
from tdsl.cost.sectors import SECTOR, distinct_addresses, sectors, shifted_accesses, wavefronts
from tdsl.errors import Hazard
from tdsl.lang import arithmetic
from tdsl.lang.expr import Expr, Load, lanes_of
from tdsl.machine.instructions.instruction import INSTRUCTIONS

_SECTOR_BITS = 42  # of a number; those of higher value have the block
_WIDEST = 16  # bytes of one access of a thread, at most
_ROWS, _CHUNK = 8, 16  # rows, and bytes of each, of a matrix that tensor instructions read in one wavefront


@dataclass(slots=True)
class Tally:
    """The weighted sums of the transactions of an access."""

    requests: float = 0
    sectors: float = 0
    fetched: float = 0
    useful: float = 0
    wavefronts: float = 0
    least: float = 0


@frozen
class _Kind:
    """What accesses that the compiler combines have in common; `threads` is the mask of active threads."""

    space: str
    kind: str
    array: str
    width: int
    guard: int
    weight: float
    threads: bytes

    @property
    def is_atomic(self) -> bool:
        """True for updates, which are neither combined nor shared."""
        return self.kind not in ("load", "store")


@dataclass(slots=True)
class CountedBatch(BlockBatch):
    """Blocks whose accesses are counted; `weight` is how many accesses of the launch each stands for.

    `pending` has the accesses since the last statement outside of the open loops that are `unrolled`, by what
    they must have in common to be combined. `guard` is the number of the current condition, `guards` that of
    the last one. `loads` are those of the value of a store that are pending. `cached` has the sectors of the
    last execution of each access of an array, and `fetching` those since the last statement. `latest` has the
    weight and fetched sectors with which each access was counted when it was last executed, `executing` those
    since the last statement; `outer_weight` is that of the iteration around the innermost serial loop.
    """

    buffers: dict[str, CountedBuffer] = field(default_factory=dict)
    needed: frozenset[str] = frozenset()
    iterations: int | None = None
    weight: float = 1.0
    tallies: dict[Site, Tally] = field(default_factory=dict)
    place: Stmt | None = None
    unrolled: int = 0
    guard: int = 0
    guards: int = 0
    outer_weight: float = 1.0
    latest: dict[Site, dict[bytes, tuple[float, int]]] = field(default_factory=dict)
    executing: dict[Site, dict[bytes, tuple[float, int]]] = field(default_factory=dict)
    cached: dict[tuple[str, str], dict[Site, Array]] = field(default_factory=dict)
    fetching: dict[tuple[str, str], dict[Site, list[Array]]] = field(default_factory=dict)
    pending: dict[_Kind, dict[bytes, tuple[Site, Array]]] = field(default_factory=dict)
    loads: set[Load] = field(default_factory=set)

    def run(self) -> None:
        """Run the body of the launch."""
        BlockBatch.run(self)
        self.flush()

    def statement(self, s: Stmt, mask: Array | None, bound: frozenset[str]) -> Iterator[Hazard]:
        """Run a statement; threads never wait, since values are not checked."""
        if not self.unrolled:
            self.flush()
        self.place, self.loads = s, set()
        match s:
            case InitBarriers():
                yield from self.statement(s.body, mask, bound)
            case WarpSpecialize(parts):
                for part in parts:
                    yield from self.statement(part, mask, bound)
            case Store() | Shuffle() | CopyTile() | Invoke():
                self.run_immediately(s, mask, bound)
            case If(cond, then, orelse):
                condition = self.value(cond, mask)
                yield from self.guarded(then, condition, mask, bound)
                if orelse is not None:
                    yield from self.guarded(orelse, ~condition, mask, bound)
            case For() | Let() | Alloc():
                yield from BlockBatch.statement(self, s, mask, bound)
            case _:
                yield from self.parts(s, mask, bound)

    def parts(self, s: Stmt, mask: Array | None, bound: frozenset[str]) -> Iterator[Hazard]:
        """Run the parts of a block; nothing of a statement that synchronises, checks or prints."""
        for part in getattr(s, "body", ()):
            yield from self.statement(part, mask, bound)

    def guarded(
        self, s: Stmt, condition: Array, mask: Array | None, bound: frozenset[str]
    ) -> Iterator[Hazard]:
        """Run a statement under a condition: what it accesses is not combined with other accesses."""
        outer, self.guard, self.guards = self.guard, self.guards + 1, self.guards + 1
        yield from self.masked_statement(s, condition, mask, bound)
        self.guard = outer

    def loop(self, s: For, mask: Array | None, bound: frozenset[str]) -> Iterator[Hazard]:
        """Run a loop, a serial one for a sample of its iterations; the one before fills the cache."""
        if s.kind in AXES:
            yield from BlockBatch.loop(self, s, mask, bound)
            return
        lo, extent = self.value(s.lo, mask), self.value(s.extent, mask)
        extents = extent if mask is None else np.broadcast_to(extent, mask.shape)[mask]
        trips = int(extents.max(initial=0))
        is_unrolled = s.kind == UNROLLED
        chosen = window(trips, None if is_unrolled else self.iterations)
        outer, around, self.unrolled = self.weight, self.outer_weight, self.unrolled + is_unrolled
        self.outer_weight = around if is_unrolled else outer
        weight = outer * trips / max(len(chosen), 1)
        for n in range(max(chosen.start - 1, 0), chosen.stop):
            self.scalars[s.name] = lo + n
            self.weight = weight if n >= chosen.start else 0.0
            run = self.masked_statement if is_unrolled else self.guarded
            yield from run(s.body, np.asarray(n < extent), mask, bound)
        if not self.unrolled:
            self.flush()
        self.weight, self.outer_weight = outer, around
        self.unrolled -= is_unrolled

    def alloc(self, s: Alloc, mask: Array | None) -> None:
        """Allocate memory; its values only if indices depend on them."""
        extents, shared = constants(s.extents), s.scope == SHARED
        start, swizzle = 0, None
        if shared:
            start, swizzle = self.launch.memory.starts[s.name], self.launch.memory.swizzles.get(s.name)
        buffer = CountedBuffer(s.name, SHARED if shared else s.scope, extents, s.dtype.bytes, start, swizzle)
        if s.name in self.needed:
            instance = np.arange(self.team.size)
            buffer.row_of = instance // self.team.threads if shared else instance
            buffer.data = np.zeros((int(buffer.row_of[-1]) + 1, prod(extents)), s.dtype.numpy)
        self.buffers[s.name] = buffer

    def store(self, s: Store, mask: Array | None) -> None:
        """Count the accesses of a store and of the loads of its value."""
        if s.mask is not None:
            mask = and_masks(mask, self.value(s.mask, mask))
        if mask is not None and not mask.any():
            return
        target, size = self.buffers[s.buffer], self.buffers[s.buffer].itemsize
        lanes = max(map(lanes_of, (*s.index, s.value)))
        if s.asynchronous and isinstance(s.value, Load):
            to, of = (row_major(self.buffers[b].extents) for b in (s.buffer, s.value.buffer))
            width = copy_width(s, s.value, to, of, size)
        elif s.mask is not None or s.atomic:
            width = 1
        else:
            width = self.width_of(s.buffer, s.index, lanes)
        loads = [n for n in post_order(s.value) if isinstance(n, Load)]
        loaded, self.loads = width, set(loads)
        if width == 1 and s.mask is None and not s.atomic and not s.asynchronous:
            memory = [n for n in loads if self.buffers[n.buffer].space in (GLOBAL, SHARED)]
            loaded = max((self.width_of_load(n, lanes) for n in memory), default=1)
        for n in loads:
            self.count_load(n, [self.value(i, mask) for i in n.index], mask, loaded)
        if target.data is None and target.space not in (GLOBAL, SHARED):
            return
        index = [self.value(i, mask) for i in s.index]
        self.count(target, s.atomic or "store", s.index, index, mask, width, self.guard)
        if target.data is not None:
            self.write(target, index, self.value(s.value, mask), mask, s.atomic)

    def width_of(self, buffer: str, index: tuple[Expr, ...], lanes: int) -> int:
        """The number of elements that one access of a thread covers."""
        b = self.buffers[buffer]
        if b.name in self.launch.fragments:
            return 1
        return access_width(index, row_major(b.extents), lanes, b.itemsize)

    def width_of_load(self, e: Load, lanes: int) -> int:
        """The number of elements of `lanes` that one access loads."""
        b = self.buffers[e.buffer]
        if b.space == GLOBAL and is_shifted(e.index, row_major(b.extents), lanes, b.itemsize):
            return _WIDEST // b.itemsize
        width = self.width_of(e.buffer, e.index, lanes) if lanes_of(e) > 1 else 1
        return width if is_loaded_whole(e.mask, prod(b.extents), width) else 1

    def write(
        self, b: CountedBuffer, index: Sequence[Array], value: Array, mask: Array | None, atomic: str = ""
    ) -> None:
        """Write the values that indices depend on."""
        assert b.data is not None
        at = b.elements(index)
        everywhere = np.ones(self.team.size, bool)[:, None]
        parts = np.broadcast_arrays(at, value, everywhere if mask is None else mask, everywhere)
        at, new, on = parts[0], parts[1], parts[2]
        if atomic:
            arithmetic.BINARY[atomic].at(b.data.reshape(-1), at[on], new[on])  # type: ignore[attr-defined]  # ufuncs
        else:
            b.data.reshape(-1)[at[on]] = new[on]

    def shuffle(self, s: Shuffle, mask: Array | None, using: Array | None) -> None:
        """Count the loads of the value; exchange it if indices depend on it."""
        value = np.broadcast_to(self.value(s.value, using), (self.team.size, 1))
        if self.buffers[s.buffer].data is not None:
            self.write(self.buffers[s.buffer], [], value[np.arange(self.team.size) ^ s.distance], using)

    def copy_tile(self, s: CopyTile, mask: Array | None) -> None:
        """Count the sectors of the box that each tile copy reads."""
        source, rows = self.buffers[s.source], self.rows(mask)
        corners = np.indices(s.extents).reshape(len(s.extents), -1)
        start = [np.broadcast_to(self.value(i, mask), (self.team.size, 1))[rows] for i in s.start]
        index = [lo + n for lo, n in zip(start, corners, strict=True)]
        inside = np.ones((len(rows), corners.shape[1]), bool)
        for i, extent in zip(index, source.extents, strict=True):
            inside &= (i >= 0) & (i < extent)
        tally = self.tally(self.site(source, "copy", s.start, s.extents[-1] * source.itemsize))
        address = np.broadcast_to(source.address(index), inside.shape)
        tally.requests += self.weight * len(rows)
        count = int(sectors(address, inside).sum())
        tally.sectors += self.weight * count
        tally.fetched += self.weight * count
        tally.useful += self.weight * int(inside.sum()) * source.itemsize

    def invoke(self, s: Invoke, mask: Array | None, bound: frozenset[str]) -> None:
        """Count the wavefronts in which an instruction reads tiles of shared memory, 8 rows at a time."""
        instruction = INSTRUCTIONS[s.instruction]
        active = and_masks(mask, self.leaders_outside(bound | {LANES}))
        first = self.rows(active)
        first = first[first % instruction.threads == 0]
        for o, shape in zip(s.operands, instruction.shapes(), strict=True):
            b = self.buffers[o.buffer]
            lane = len(b.extents) - 1
            if b.space != SHARED or lane not in o.axes or not len(first):
                continue
            index = [np.broadcast_to(self.value(i, mask), (self.team.size, 1))[first] for i in o.index]
            for axis, n in zip(o.axes, np.indices(shape).reshape(len(shape), -1), strict=True):
                index[axis] = index[axis] + n
            tile = np.broadcast_to(b.address(index), (len(first), prod(shape))).reshape(-1, *shape)
            tile = np.moveaxis(tile, 1 + o.axes.index(lane), 1).reshape(
                len(first), shape[o.axes.index(lane)], -1
            )
            chunks = tile[:, :: max(_CHUNK // b.itemsize, 1)].reshape(-1)
            if tile.shape[2] % 8:
                continue
            padded = np.zeros(-(-len(chunks) // WARP) * WARP, np.int64)
            padded[: len(chunks)] = chunks
            on = np.arange(len(padded)) < len(chunks)
            served, least = wavefronts(padded.reshape(-1, WARP), on.reshape(-1, WARP), _CHUNK)
            tally = self.tally(self.site(b, s.instruction, o.index, _CHUNK))
            tally.requests += self.weight * len(first)
            tally.wavefronts += self.weight * int(served.sum())
            tally.least += self.weight * int(least.sum())
            tally.useful += self.weight * len(chunks) * _CHUNK

    def rows(self, mask: Array | None) -> Array:
        """The threads in a mask."""
        return np.arange(self.team.size) if mask is None else np.flatnonzero(mask[:, 0])

    def node(self, e: Expr, done: dict[int, Array], mask: Array | None) -> Array:
        """The value of a node; of a load 0 where no index depends on the buffer."""
        if not isinstance(e, Load):
            return BlockBatch.node(self, e, done, mask)
        index = [done[id(i)] for i in e.index]
        if e not in self.loads:
            self.count_load(e, index, mask, 1)
        b = self.buffers[e.buffer]
        if b.data is None or not b.data.size:
            return np.zeros((1, 1), e.dtype.numpy)
        return np.asarray(b.data.reshape(-1)[b.elements(index)])

    def count_load(self, e: Load, index: Sequence[Array], mask: Array | None, width: int) -> None:
        """Count a load; `width` elements at a time if it is that of a vector of so many."""
        b = self.buffers[e.buffer]
        if b.space not in (GLOBAL, SHARED):
            return
        if e.mask is not None:
            mask = and_masks(mask, self.value(e.mask, mask))
        vectors = b.space == GLOBAL and width * b.itemsize == _WIDEST
        if vectors and is_shifted(e.index, row_major(b.extents), width, b.itemsize):
            self.count_shifted(b, e, index, mask, width)
            return
        width = width if self.width_of_load(e, width) == width else 1
        if e.mask is not None:
            self.guards += 1
        self.count(b, "load", e.index, index, mask, width, self.guard if e.mask is None else self.guards)

    def count_shifted(
        self, b: CountedBuffer, e: Load, index: Sequence[Array], mask: Array | None, width: int
    ) -> None:
        """Note the two aligned vectors that have the elements, or these one by one where the array ends."""
        shape, end = (self.team.size, lanes_of(e)), prod(b.extents) * b.itemsize
        on: Array = np.broadcast_to(np.ones((1, 1), bool) if mask is None else mask, shape)
        first = np.broadcast_to(b.address(index), shape)[:, ::width]
        on = np.asarray(on.reshape(self.team.size, -1, width).any(axis=2))
        for size, address, used in shifted_accesses(first, on, b.itemsize, end):
            self.guards += 1
            self.note(b, self.site(b, "load", e.index, size), address, used, self.guards)

    def count(
        self, b: CountedBuffer, kind: str, where: tuple[Expr, ...], index: Sequence[Array],
        mask: Array | None, width: int, guard: int,
    ) -> None:  # fmt: skip
        """Note an access of `width` elements at a time under the condition `guard`."""
        if b.space not in (GLOBAL, SHARED):
            return
        address = b.address(index)
        lanes = max(address.shape[1], 1 if mask is None else mask.shape[1])
        shape = self.team.size, lanes
        address = np.broadcast_to(address, shape)[:, ::width]
        on = np.ones(address.shape, bool)
        if mask is not None:
            on &= np.broadcast_to(mask, shape).reshape(*address.shape, width).any(axis=2)
        self.note(b, self.site(b, kind, where, width * b.itemsize), address, on, guard)

    def note(self, b: CountedBuffer, site: Site, address: Array, on: Array, guard: int) -> None:
        """Note accesses of a site, a column each, by the threads that are `on`."""
        for one, threads in zip(address.T, on.T, strict=True):
            same = _Kind(b.space, site.kind, b.name, site.width, guard, self.weight, threads.tobytes())
            self.pending.setdefault(same, {})[one.tobytes()] = site, one

    def flush(self) -> None:
        """Count the pending accesses, consecutive ones as one."""
        for kind, accesses in self.pending.items():
            on = np.frombuffer(kind.threads, bool)
            if not on.any():
                continue
            sites, addresses = [s for s, _ in accesses.values()], np.stack([a for _, a in accesses.values()])
            first = addresses[:, int(np.argmax(on))]
            order = np.argsort(first, kind="stable")
            sites, addresses = [sites[n] for n in order], addresses[order]
            alone = kind.is_atomic or kind.space == GLOBAL
            for n, count in _combined(addresses[:, on], kind.width, alone=alone):
                self.add(replace(sites[n], width=count * kind.width), kind, addresses[n], on)
        self.pending = {}
        self.latest.update(self.executing)
        self.executing = {}
        for key, of_sites in self.fetching.items():
            self.cached.setdefault(key, {}).update({x: np.concatenate(p) for x, p in of_sites.items()})
        self.fetching = {}

    def add(self, site: Site, kind: _Kind, address: Array, on: Array) -> None:
        """Add up the transactions of an access."""
        warps, active = self.warps(address), self.warps(on)
        tally, weight, fetched = self.tally(site), kind.weight, 0
        if kind.space == GLOBAL:
            fetched = self.fetch(site, address[on], np.flatnonzero(on))
            if not kind.is_atomic:
                weight, fetched = self.hoisted(site, address.tobytes() + kind.threads, weight, fetched)
        tally.requests += weight * int(active.any(axis=1).sum())
        tally.useful += weight * int(distinct_addresses(warps, active).sum()) * site.width
        if kind.space == GLOBAL:
            tally.sectors += weight * int(sectors(warps, active).sum())
            tally.fetched += weight * fetched
        else:
            served, least = wavefronts(warps, active, site.width, atomic=kind.is_atomic)
            tally.wavefronts += weight * int(served.sum())
            tally.least += weight * int(least.sum())

    def hoisted(self, site: Site, accessed: bytes, weight: float, fetched: int) -> tuple[float, int]:
        """The weight and fetched sectors of an access: if repeated, once those of the loop, and then none."""
        before = self.latest.get(site, {}).get(accessed)
        if before is not None:
            counted, fetched = before
            weight = 0.0 if counted else self.outer_weight
            self.executing.setdefault(site, {})[accessed] = counted or weight, fetched
        else:
            self.executing.setdefault(site, {})[accessed] = weight, fetched
        return weight, fetched

    def fetch(self, site: Site, address: Array, threads: Array) -> int:
        """The number of sectors that are not in the caches of the blocks of these threads yet."""
        touched = np.unique(threads // self.team.threads << _SECTOR_BITS | address // SECTOR)
        key = site.array, site.kind
        earlier = [*self.cached.get(key, {}).values()]
        earlier += [part for parts in self.fetching.get(key, {}).values() for part in parts]
        self.fetching.setdefault(key, {}).setdefault(site, []).append(touched)
        new = np.setdiff1d(touched, np.concatenate(earlier), assume_unique=False) if earlier else touched
        return len(new)

    def warps(self, of_threads: Array) -> Array:
        """Values of threads with a row for each warp."""
        by_block = of_threads.reshape(-1, self.team.threads)
        return np.asarray(np.pad(by_block, ((0, 0), (0, -self.team.threads % WARP))).reshape(-1, WARP))

    def site(self, b: CountedBuffer, kind: str, where: tuple[Expr, ...], width: int) -> Site:
        """The place in the code of an access in the current statement."""
        s = self.place
        stage = s.buffer if isinstance(s, Store | Shuffle | CopyTile) else ""
        if isinstance(s, Invoke):
            stage = s.operands[0].buffer
        return Site(b.space, kind, b.name, where, stage, width)

    def tally(self, site: Site) -> Tally:
        """The sums of an access."""
        return self.tallies.setdefault(site, Tally())


def _combined(addresses: Array, width: int, *, alone: bool) -> Iterator[tuple[int, int]]:
    """The accesses of threads (columns), consecutive rows as one: the first row of each, and how many."""
    consecutive = (np.diff(addresses, axis=0) == width).all(axis=1)
    n, rows = 0, len(addresses)
    while n < rows:
        count = 1 if alone else max(_WIDEST // width, 1)
        while count > 1 and (
            n + count > rows
            or not consecutive[n : n + count - 1].all()
            or (addresses[n] % (count * width)).any()
        ):
            count //= 2
        yield n, count
        n += count


def window(count: int, most: int | None) -> range:
    """At most `most` consecutive numbers in the middle of those below `count`."""
    size = count if most is None else min(count, most)
    first = (count - size) // 2
    return range(first, first + size)


def sample(count: int, most: int | None) -> list[int]:
    """At most `most` numbers below `count`, each in the middle of an equal part of them."""
    if most is None or count <= most:
        return list(range(count))
    return [(2 * n + 1) * count // (2 * most) for n in range(most)]
