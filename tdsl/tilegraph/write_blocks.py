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

from collections.abc import Collection, Iterable
from dataclasses import replace
from math import gcd, prod

from tdsl.autoschedule.block_tree.write_lanes import reduce_by_threads
from tdsl.autoschedule.recipes.epilogue import in_vectors
from tdsl.autoschedule.recipes.grid import fused, on_threads
from tdsl.autoschedule.recipes.operands import is_for_tensor_cores
from tdsl.autoschedule.recipes.pipelining import pipeline_loads
from tdsl.autoschedule.recipes.stage_facts import definition_of, load_width, separate_operands, vector_of
from tdsl.core.node import frozen
from tdsl.cost.sectors import WIDEST
from tdsl.lang.affine import variables
from tdsl.lang.definition import Definition
from tdsl.lang.expr import Var
from tdsl.lang.program import FuncDef
from tdsl.lang.regions import reads_in
from tdsl.machine.model import Machine
from tdsl.schedule.bind import bind_state
from tdsl.schedule.fluent import BaseSchedule, Stage
from tdsl.schedule.inlining import inline_funcs
from tdsl.schedule.naming import LoopLike
from tdsl.schedule.properties import extent, extents, shape_of
from tdsl.schedule.state import REGISTER, ROUND_UP, SHARED, SWIZZLES, AfterProducer, At, Inline
from tdsl.tilegraph.levels import Part
from tdsl.tilegraph.tiling import Shape
from tdsl.tilegraph.write_products import (
    LANES,
    WarpLoops,
    WarpTiles,
    find_warp_tiles,
    write_warp_tiles,
)  # fmt: skip

TERMS = 16  # of a step, of which a block fetches the operands
UNROLLED = 512  # operations of a thread without a loop


@frozen
class _Block:
    """A block that is being written: the tile of `owner`, inside its loop `at` over blocks."""

    schedule: BaseSchedule
    part: Part
    machine: Machine
    owner: Stage
    at: str

    def sizes(self, name: str) -> dict[str, int]:
        """The extents of the variables of a member, those of its terms as well, in a tile."""
        return _sizes(self.schedule, self.part, name)


def _sizes(schedule: BaseSchedule, part: Part, name: str) -> dict[str, int]:
    f = bind_state(schedule.state, schedule.sizes).program.func(name)
    known = extents(f, f.definitions[0], part.tile[name])
    return {v: n or 1 for v, n in known.items()}


def write_blocks(schedule: BaseSchedule, part: Part, machine: Machine) -> None:
    """Write a group of several funcs as one kernel."""
    last = next(p for p in part.parts if p.owner == part.owner)
    product, thread = _leading(schedule, part, last, machine), None
    owner = schedule[part.owner if product is None else product.func]
    free = definition_of(owner).free
    shape = dict(zip(free, part.shape, strict=True))
    sizes = dict(zip(free, shape_of(part.boxes[owner.func]), strict=True))
    outer, inner = list[str](), dict[str, str]()
    several = [v for v, n in shape.items() if n < sizes[v]] or [*shape][:1]
    for v, n in shape.items():
        inner[v] = v
        if v in several:
            block_loop, rest = owner.split(v, n)
            outer.append(block_loop.name)
            inner[v] = rest.name
    ranges = [v for v, _, _ in definition_of(owner).ranges]
    owner.reorder(*outer, *inner.values(), *ranges)
    at = fused(owner, outer)
    owner.bind(at, "blockIdx.x")
    block = _Block(schedule, part, machine, owner, at)
    if product is not None:
        sides = [product.left.along, product.right.along]
        rows, columns = (owner.split(inner[v], shape[v]) for v in sides)  # as many as is known
        others = [x for v, x in inner.items() if v not in sides]
        reader = None if owner.func == part.owner else schedule[part.owner]
        place = WarpLoops(rows[1].name, columns[1].name, (at, *others, rows[0].name, columns[0].name))
        write_warp_tiles(owner, product, place, part.members, reader)
    else:
        last = _even(last, shape.values())
        thread = _share_out(owner, last.shape, shape, inner, machine)
        _fill(block, last, thread, inner)
    for p in reversed(part.parts):
        if p.owner != part.owner:
            _member(block, p)
    _fetch_for_several(block, last, thread)
    pipeline_loads(owner, machine.level("shared").bytes or 0)


def _leading(schedule: BaseSchedule, part: Part, last: Part, machine: Machine) -> WarpTiles | None:
    """The product by tensor cores whose loops are those of the block: the owner, or what the owner ends.

    The owner has its number of points in whole tiles, and reads the product there alone.
    """
    product = _product(schedule, part, last, machine)
    whole, f = shape_of(part.boxes[part.owner]), _as_read(schedule, part.owner)
    if product is None or any(most % n for most, n in zip(whole, part.shape, strict=True)):
        return None
    index = {r.index for r in f.definitions[0].reads if r.name == product.func}
    is_owner = product.func == part.owner
    return product if is_owner or index == {tuple(map(Var, f.variables))} else None


def _member(block: _Block, p: Part) -> None:
    """A member in shared memory, with those that it has in registers."""
    stage, d = block.schedule[p.owner], definition_of(block.schedule[p.owner])
    sizes = block.sizes(p.owner)
    points, terms = (prod(sizes[v] for v in names) for names in (d.free, [v for v, _, _ in d.ranges]))
    if d.init is None and len(p.members) == 1:
        p = replace(p, shape=tuple(1 for _ in p.shape))  # neighbours on neighbouring threads
    if len(p.members) == 1 and 2 * points <= block.machine.block_threads and terms >= LANES:
        stage.compute_at(block.owner, block.at).set_scope(SHARED)
        _reduce_in_warps(stage, block.machine)
        return
    product = _product(block.schedule, block.part, p, block.machine)
    if product is not None:
        _by_warps(block, p, product)
        return
    stage.compute_at(block.owner, block.at)
    p, inner = _even(p, (sizes[v] for v in d.free)), {v: v for v in d.free}
    thread = _share_out(stage, p.shape, sizes, inner, block.machine)
    out = _fill(block, p, thread, inner).set_scope(SHARED)
    for written in {stage.func: stage, out.func: out}.values():
        _bound(written)


def _product(schedule: BaseSchedule, part: Part, p: Part, machine: Machine) -> WarpTiles | None:
    """The tiles of a part's product on tensor cores, with its epilogue; None if they cannot compute it."""
    program = schedule.state.program
    names = [n for n in p.members if is_for_tensor_cores(program.func(n))]
    if len(names) != 1 or len(p.members) > 2 or "mma" not in machine.features:
        return None
    (name,) = names
    if name != p.owner and name not in {r.name for r in _as_read(schedule, p.owner).definitions[0].reads}:
        return None
    warps = machine.block_threads // LANES
    return find_warp_tiles(schedule[name], _sizes(schedule, part, name), warps)


def _as_read(schedule: BaseSchedule, name: str) -> FuncDef:
    """A func with what it reads through inlined ones."""
    return inline_funcs(schedule.state).program.func(name)


def _by_warps(block: _Block, p: Part, tiles: WarpTiles) -> None:
    """Schedule a member that is a product, and its epilogue, on tensor cores."""
    stage, sizes = block.schedule[tiles.func], block.sizes(tiles.func)
    stage.compute_at(block.owner, block.at)
    reader = None if p.owner == tiles.func else block.schedule[p.owner]
    sides = [tiles.left.along, tiles.right.along]
    outer, inner = zip(*(stage.split(v, sizes[v]) for v in sides), strict=True)
    others = [v for v in definition_of(stage).free if v not in sides]
    place = WarpLoops(inner[0].name, inner[1].name, (*others, *(x.name for x in outer)))
    out = write_warp_tiles(stage, tiles, place, block.part.members, reader).set_scope(SHARED)
    f = block.schedule.state.program.func(out.func)
    row = f.dtypes[0].bytes * (extent(block.part.tile[p.owner], -1) or 1)
    wide = [n for n in SWIZZLES if row % n == 0]
    if wide:
        out.swizzle(max(wide))
    for written in {stage.func: stage, out.func: out}.values():
        _bound(written)


def _bound(stage: Stage) -> None:
    """Extents that are the same in each block, at edges as well."""
    for v in definition_of(stage).free:
        stage.bound_extent(v)


def _even(p: Part, sizes: Iterable[int]) -> Part:
    """The part with tiles of threads that divide the tile of the block, where others are not much larger."""
    shape = tuple(
        max((n for n in range(-(-each // 2), each + 1) if size % n == 0), default=each)
        for each, size in zip(p.shape, sizes, strict=True)
    )
    return replace(p, shape=shape)


def _reduce_in_warps(stage: Stage, machine: Machine) -> None:
    """A warp for each result."""
    d = definition_of(stage)
    if d.free:
        _, warp = stage.split(fused(stage, list(d.free)), machine.block_threads // LANES)
        stage.bind(warp, "threadIdx.y")
    reduce_by_threads(stage, [v for v, _, _ in d.ranges], LANES, 1)
    _bound(stage)


def _share_out(
    stage: Stage, tile: Shape, sizes: dict[str, int], inner: dict[str, str], machine: Machine
) -> str:
    """Tiles of a stage for threads; the loop over these, and in `inner` those inside a thread's tile."""
    counted = list[str]()
    several = [v for v, n in zip(inner, tile, strict=True) if n < sizes[v]] or [*inner][:1]
    for v, each in zip(inner, tile, strict=True):
        if v in several:
            count, rest = stage.split(inner[v], each)
            counted.append(count.name)
            inner[v] = rest.name
    ranges = [v for v, _, _ in definition_of(stage).ranges]
    stage.reorder(*counted, *ranges, *inner.values())
    return on_threads(stage, counted, machine.block_threads, line=LANES)[1]


def _fill(block: _Block, p: Part, thread: LoopLike, inner: dict[str, str]) -> Stage:
    """Schedule the tile of a thread: sums in registers, copies of their operands in steps, the epilogue.

    Returns the stage whose values are the result.
    """
    stage, schedule = block.schedule[p.owner], block.schedule
    definition = definition_of(stage)
    others = [name for name in p.members if name != p.owner]
    out = stage
    if definition.init is not None:
        out = schedule.cache_write(stage, at=thread, scope=REGISTER)
        _sum(block, p, stage, (stage, thread), inner, prod(p.shape))
        in_vectors(out, gcd(vector_of(out), p.shape[-1]))
    else:
        in_vectors(stage, gcd(vector_of(stage), p.shape[-1]), first=len(stage.loops) - len(inner))
    for name in reversed(others):
        member = schedule[name]
        member.compute_at(stage, thread).set_scope(REGISTER)
        d = definition_of(member)
        sizes = [extent(p.tile[name], axis) or 1 for axis in range(len(d.free))]
        if d.init is not None:
            _sum(block, p, member, (stage, thread), {v: v for v in d.free}, prod(sizes))
        else:
            for v in d.free:
                member.unroll(v)
    return out


def _sum(
    block: _Block, p: Part, stage: Stage, place: tuple[Stage, LoopLike], inner: dict[str, str],
    points: int,
) -> None:  # fmt: skip
    """A reduction to so many points in the registers of a thread, which is at a place.

    What threads share of its operands comes in steps along the longest range. Members of the part are in
    registers, whose indices are constant: there are no loops over their terms.
    """
    d, sizes = definition_of(stage), block.sizes(stage.func)
    term, *windows = sorted((v for v, _, _ in d.ranges), key=lambda v: -sizes[v])
    here = {n for r in d.reads for n in _members_in(block, r.name) if n in p.members}
    step_loop, in_registers = term, bool(here)
    step = max((n for n in range(TERMS // 2, TERMS + 1) if sizes[term] % n == 0), default=TERMS)
    if in_registers or sizes[term] <= TERMS:
        step = sizes[term]
    if sizes[term] > step:
        far, rest = stage.split(term, step)
        place, step_loop = (stage, far), rest.name
        stage.reorder(far, *windows, step_loop, *inner.values())
    else:
        stage.reorder(*windows, step_loop, *inner.values())
    for source, along in _shared_reads(block, d, here):
        vector = load_width(stage, source, along)
        copy = block.schedule.cache_read(source, stage, scope=SHARED, along=along)
        copy.compute_at(*place)
        _bound(copy)
        copy.cooperate(vector)
    for x in inner.values():
        stage.unroll(x)
    if sizes[term] % step:
        return  # tests of the last terms are for a loop
    for x, n in ((step_loop, step), *((v, sizes[v]) for v in reversed(windows))):
        points *= n
        if in_registers or points <= UNROLLED:
            stage.unroll(x)


def _members_in(block: _Block, source: str) -> set[str]:
    """The members that a thread reads for a value of `source`: itself, or those that it reads if inlined."""
    state = block.schedule.state
    if source in block.part.members:
        return {source}
    if not state.program.has_func(source) or not isinstance(state.plan(source).place, Inline):
        return set()
    return {
        n for d in state.program.func(source).definitions for r in d.reads for n in _members_in(block, r.name)
    }


def _shared_reads(block: _Block, d: Definition, registers: Collection[str]) -> list[tuple[str, str | None]]:
    """What several threads read of arrays that no other member reads; see `separate_operands`.

    What is computed of members in `registers` is not copied, since these are values of one thread.
    """
    shared = []
    for r in reads_in(d.values):
        used = variables(r)
        inside = r.name in block.part.members or len(_readers(block, r.name)) > 1
        inside = inside or not _members_in(block, r.name).isdisjoint(registers)
        if r.index and not inside and not used >= {*d.free}:
            shared.append(r)
    return separate_operands(shared, d.free)


def _readers(block: _Block, source: str) -> list[str]:
    program = block.schedule.state.program
    return [
        n
        for n in block.part.members
        if any(r.name == source for r in reads_in(program.func(n).definitions[0].values))
    ]


def _is_window(block: _Block, source: str) -> bool:
    """True if an element-wise member reads several elements of an array for each of its points."""
    program = block.schedule.state.program
    definitions = (program.func(n).definitions[0] for n in block.part.members)
    points = (d for d in definitions if not d.ranges)
    return any(len({r.index for r in reads_in(d.values) if r.name == source}) > 1 for d in points)


def _fetch_for_several(block: _Block, last: Part, thread: LoopLike | None) -> None:
    """What members read several times of an array, in shared memory for as long as the block runs.

    If only points in the registers of a thread read it, each thread loads the window of its points once.
    """
    state = block.schedule.state
    reads = [r for n in block.part.members for r in state.program.func(n).definitions[0].reads]
    far = {r.name for r in reads if r.index} - {*block.part.members}
    placed = {n for n, plan in state.plans if isinstance(plan.place, AfterProducer | At | Inline)}
    for source in sorted(far - placed):
        readers = _readers(block, source)
        if thread is not None and _is_window(block, source) and {*readers} <= {*last.members}:
            copy = block.schedule.cache_read(
                source, block.owner, at=thread, scope=SHARED, inside=True, filled=True
            )
            _load_window(block, copy.cooperate(), last.shape[-1], thread)
        elif len(readers) > 1:
            copy = block.schedule.cache_read(source, block.owner, at=block.at, scope=SHARED, inside=True)
            on_threads(copy, definition_of(copy).free, block.machine.block_threads, line=LANES)
            _bound(copy)


def _load_window(block: _Block, copy: Stage, neighbours: int, thread: LoopLike) -> None:
    """Load the window that a thread's points read of a copy to registers as vectors."""
    f = block.schedule.state.program.func(copy.func)
    width = gcd(WIDEST // f.dtypes[0].bytes, neighbours)
    if width == 1:
        return
    copy.align_storage(len(f.variables) - 1, width)
    window = block.schedule.cache_read(copy.func, block.owner, at=thread, scope=REGISTER, inside=True)
    in_vectors(window, width, tail=ROUND_UP)
