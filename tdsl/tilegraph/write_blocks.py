"""Nested tiles as directives for a GPU: tiles of a block in shared memory, tiles of a thread in registers.

for tiles of the owner (blocks):
  what several members read, fetched together
  for each member, in shared memory:
    for tiles of it (threads):
      for steps along the terms: what threads share of the operands, fetched together
        the tile of the thread, in registers, with the members that end in it
  the owner's tile, in the same way, to memory
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod

from tdsl.lang.affine import variables
from tdsl.lang.definition import Definition
from tdsl.lang.regions import reads_in
from tdsl.schedule.cost.machine import Machine
from tdsl.schedule.facts import extent, extents
from tdsl.schedule.fluent import Schedule
from tdsl.schedule.naming import Loop
from tdsl.schedule.nest import REGISTER, SHARED
from tdsl.schedule.recipes.block_rows import fused, reduce_by_threads
from tdsl.schedule.recipes.elements import definition_of, fetched, vector_of
from tdsl.schedule.recipes.epilogue import write_neighbours
from tdsl.schedule.stage import Stage
from tdsl.tilegraph.levels import Part

WARP = 32
TERMS = 16  # of a step, of which a block fetches the operands
UNROLLED = 512  # operations of a thread without a loop


@dataclass(frozen=True, slots=True)
class _Block:
    """A block that is being written: the tile of its owner, inside the loop `at` over blocks."""

    schedule: Schedule
    part: Part
    machine: Machine
    at: str

    @property
    def own(self) -> Stage:
        return self.schedule[self.part.owner]

    def sizes(self, name: str) -> dict[str, int]:
        """The extents of the variables of a member, those of its terms as well, in a tile."""
        f = self.schedule.state.program.func(name)
        found = extents(f, f.definitions[0], self.part.tile[name])
        return {v: n or 1 for v, n in found.items()}


def write_blocks(schedule: Schedule, part: Part, machine: Machine) -> None:
    """Write a group of several funcs as one kernel."""
    own, f = schedule[part.owner], schedule.state.program.func(part.owner)
    outer, inner = list[str](), dict[str, str]()
    whole = [extent(part.boxes[part.owner], axis) or 1 for axis in range(len(f.variables))]
    several = [axis for axis, n in enumerate(part.shape) if n < whole[axis]] or [0]
    for axis, v in enumerate(f.variables):
        inner[v] = v
        if axis in several:
            block, rest = own.split(v, part.shape[axis])
            outer.append(block.name)
            inner[v] = rest.name
    ranges = [v for v, _, _ in f.definitions[0].ranges]
    own.reorder(*outer, *inner.values(), *ranges)
    at = fused(own, outer)
    own.bind(at, "blockIdx.x")
    last = next(p for p in part.parts if p.owner == part.owner)
    shape = dict(zip(f.variables, part.shape, strict=True))
    thread = _share_out(own, last, shape, inner, machine)
    block_ = _Block(schedule, part, machine, at)
    _fill(block_, last, thread, inner)
    for p in reversed(part.parts):
        if p.owner != part.owner:
            _member(block_, p)


def _member(block: _Block, p: Part) -> None:
    """A member in shared memory, with those that it has in registers."""
    stage, d = block.schedule[p.owner], definition_of(block.schedule[p.owner])
    stage.compute_at(block.own, block.at)
    sizes = block.sizes(p.owner)
    points, terms = (
        prod(sizes[v] for v in names) for names in (d.free, [v for v, _, _ in d.ranges])
    )
    if d.init is None and len(p.members) == 1:
        p = replace(p, shape=tuple(1 for _ in p.shape))  # neighbours on neighbouring threads
    if len(p.members) == 1 and 2 * points <= block.machine.block_threads and terms >= WARP:
        _reduce_in_warps(stage, d, block.machine)
        return
    inner = {v: v for v in d.free}
    thread = _share_out(stage, p, sizes, inner, block.machine)
    out = _fill(block, p, thread, inner).set_scope(SHARED)
    for made in {stage.func: stage, out.func: out}.values():
        _bound(made)


def _bound(stage: Stage) -> None:
    """Extents that are the same in each block, at edges as well."""
    for v in definition_of(stage).free:
        stage.bound_extent(v)


def _reduce_in_warps(stage: Stage, d: Definition, machine: Machine) -> None:
    """A warp for each result."""
    if d.free:
        _, warp = stage.split(fused(stage, list(d.free)), machine.block_threads // WARP)
        stage.bind(warp, "threadIdx.y")
    reduce_by_threads(stage, [v for v, _, _ in d.ranges], WARP, 1)


def _share_out(
    stage: Stage, p: Part, sizes: dict[str, int], inner: dict[str, str], machine: Machine
) -> Loop:
    """Tiles of a stage for threads; the loop over these, and in `inner` those of a thread's own tile."""
    counted = list[str]()
    several = [v for v, n in zip(inner, p.shape, strict=True) if n < sizes[v]] or [*inner][:1]
    for v, each in zip(inner, p.shape, strict=True):
        if v in several:
            count, rest = stage.split(inner[v], each)
            counted.append(count.name)
            inner[v] = rest.name
    ranges = [v for v, _, _ in definition_of(stage).ranges]
    stage.reorder(*counted, *ranges, *inner.values())
    rest, lane = stage.split(fused(stage, counted), WARP)
    _, warp = stage.split(rest, machine.block_threads // WARP)
    stage.bind(warp, "threadIdx.y").bind(lane, "threadIdx.x")
    return lane


def _fill(block: _Block, p: Part, thread: Loop, inner: dict[str, str]) -> Stage:
    """The tile of a thread: sums in registers, what they read in steps, and what is made of them.

    Returns the stage whose values are the result.
    """
    stage, schedule = block.schedule[p.owner], block.schedule
    own = definition_of(stage)
    others = [name for name in p.members if name != p.owner]
    out = stage
    if own.init is not None:
        out = schedule.cache_write(stage, at=thread, scope=REGISTER)
        _sum(block, stage, (stage, thread), inner, prod(p.shape))
        write_neighbours(out, p.shape[-1], vector_of(out))
    else:
        for loop in inner.values():
            stage.unroll(loop)
    for name in reversed(others):
        member = schedule[name]
        member.compute_at(stage, thread).set_scope(REGISTER)
        d = definition_of(member)
        sizes = [extent(p.tile[name], axis) or 1 for axis in range(len(d.free))]
        _bound(member)
        if d.init is not None:
            _sum(block, member, (stage, thread), {v: v for v in d.free}, prod(sizes))
        else:
            for v in d.free:
                member.unroll(v)
    return out


def _sum(
    block: _Block, stage: Stage, place: tuple[Stage, Loop], inner: dict[str, str], points: int
) -> None:
    """A reduction to so many points in the registers of a thread, which is at a place.

    What threads share of its operands comes in steps along the longest range.
    """
    d, sizes = definition_of(stage), block.sizes(stage.func)
    term, *windows = sorted((v for v, _, _ in d.ranges), key=lambda v: -sizes[v])
    near = term
    if sizes[term] > TERMS:
        far, rest = stage.split(term, TERMS)
        place, near = (stage, far), rest.name
        stage.reorder(far, *windows, near, *inner.values())
    else:
        stage.reorder(*windows, near, *inner.values())
    for source in _shared_reads(block, d):
        vector = fetched(stage, source)
        copy = block.schedule.cache_read(source, stage, scope=SHARED).compute_at(*place)
        _bound(copy)
        copy.cooperate(vector)
    for x in inner.values():
        stage.unroll(x)
    for x, n in ((near, min(sizes[term], TERMS)), *((v, sizes[v]) for v in reversed(windows))):
        points *= n
        if points <= UNROLLED:
            stage.unroll(x)


def _shared_reads(block: _Block, d: Definition) -> list[str]:
    """What several threads read of arrays that no other member reads."""
    found = dict[str, None]()
    for r in reads_in(d.values):
        used = {v for e in r.index for v in variables(e)}
        inside = r.name in block.part.members or len(_readers(block, r.name)) > 1
        if r.index and not inside and not used >= {*d.free}:
            found[r.name] = None
    return [*found]


def _readers(block: _Block, source: str) -> list[str]:
    program = block.schedule.state.program
    return [
        n
        for n in block.part.members
        if any(r.name == source for r in reads_in(program.func(n).definitions[0].values))
    ]
