"""Updates on the blocks and threads of a GPU: histograms, scattered sums, and pointwise updates of a part.

    for parts of the ranges (blocks):
      copies of the func in shared memory, of the neutral element, one for each of some lanes of a warp
      for points of a part (threads): the copy of the thread's lane is updated atomically
      for elements (threads): the copies are merged by shuffles
      for elements (threads): the func is updated atomically

Copies of 32 lanes have one bank each, so that equal and unequal keys cause no conflicts. Without room for a
copy, threads update the func in global memory. Iterations that carry no dependence are shared out like
points, and need no atomics.
"""

from __future__ import annotations

from copy import copy
from math import prod
from typing import Any

from tdsl.autoschedule.block_tree.reductions import schedule_lanes
from tdsl.autoschedule.block_tree.tree import BlockTree
from tdsl.autoschedule.recipes.block_scan import BlockScan, block_scan
from tdsl.autoschedule.recipes.choices import Unsuited, choose, gpu_of, if_suited, recipe, refused
from tdsl.autoschedule.recipes.elements import Elements
from tdsl.autoschedule.recipes.grid import fused, on_threads, share_points
from tdsl.autoschedule.recipes.stage_facts import definition_of, sizes_of, vector_of
from tdsl.core.node import frozen
from tdsl.cost.sectors import WIDEST
from tdsl.errors import ScheduleError
from tdsl.lang.affine import has_data, variables
from tdsl.lang.definition import Definition
from tdsl.lang.expr import Var
from tdsl.lang.regions import reads_in
from tdsl.machine.model import Machine
from tdsl.schedule.atomics import KINDS
from tdsl.schedule.dependence import is_independent
from tdsl.schedule.fluent import Stage
from tdsl.schedule.launch import MAX_BLOCKS
from tdsl.schedule.properties import has_effects, root_boxes, unplaced_at_root, volume
from tdsl.schedule.state import is_ordered

_WARP = 32
_MOST_THREADS = 1024
_MOST_LINES = MAX_BLOCKS["blockIdx.y"]
_LANES = (32, 16, 8, 4, 2, 1)  # neighbouring threads with copies of their own
_PAYS = 4  # updates of an element of a block's copy that pay for its initial value and its merge


@frozen
class BlockUpdates:
    """Blocks of `threads` threads, each with `vector` neighbours of a range.

    With `copies`, so many blocks have copies of the func in shared memory, one for each of `lanes` threads
    that are neighbours; with 0 none has one.
    """

    threads: int
    vector: int
    copies: int
    lanes: int = 1


@recipe
def block_updates(stage: Stage, *, machine: Machine | None = None, **choices: Any) -> BlockUpdates:
    """Update elements that data choose, atomically; the order of float sums then differs from run to run.

    `choices` replace what is chosen: the numbers of `BlockUpdates`. Returns what was chosen. The update must
    be a sum, product, smallest or largest value, or `any` or `all`.

    >>> import tdsl as td
    >>> i, r = td.vars("i"), td.range("r", 0, 1 << 20)
    >>> x, count = td.Tensor("x", (1 << 20,), td.u8), td.Func("count", shape=256)
    >>> count[i] = td.cast(0, td.i32)
    >>> count[x[r]] += 1
    >>> s = td.Schedule(count, target="cuda:sm_80")
    >>> td.recipes.block_updates(s[count].update(0))
    BlockUpdates(threads=256, vector=16, copies=256, lanes=4)
    """
    f, d = stage.schedule.state.program.func(stage.func), definition_of(stage)
    ordered = is_ordered(f, stage.definition) or d.combine is None or d.combine.kind not in KINDS
    if not stage.definition or ordered or has_effects(d) or not d.ranges:
        raise Unsuited("it is no update of which points may run in any order")
    if len(f.dtypes) > 1:
        raise Unsuited("its elements are several values, which no atomic update changes together")
    machine = gpu_of(stage, machine)
    plan = choose(_plan(stage, d, machine), choices)
    if plan.lanes < 1 or plan.threads % plan.lanes:
        raise refused(
            f"{plan.threads} threads are no multiple of lanes={plan.lanes}",
            "choose lanes= as a power of two up to 32",
        )
    _write(stage, d, plan)
    return plan


def _plan(stage: Stage, d: Definition, machine: Machine) -> BlockUpdates:
    sizes, threads = sizes_of(stage), machine.block_threads
    last = sizes.get(d.ranges[-1][0]) or WIDEST
    vector = min(_vector(d), 1 << (last.bit_length() - 1))  # a copy of less has no room for more
    rows = prod(sizes.get(v) or 1 for v in d.free)
    terms = prod(sizes.get(v) or 0 for v, _, _ in d.ranges)
    table = _elements(stage) // rows
    if not table or machine.gpu is None or len(_rows(stage, d)) < len(d.free):
        return BlockUpdates(threads, vector, 0)
    size = table * stage.schedule.state.program.func(stage.func).dtypes[0].bytes
    plans = (_copies(machine, size, rows, terms, vector, lanes) for lanes in _LANES)
    paying = (x for x in plans if x and x.copies and terms >= _PAYS * x.copies * table * x.lanes)
    return next(paying, BlockUpdates(threads, vector, 0))


def _copies(
    machine: Machine, size: int, rows: int, terms: int, vector: int, lanes: int
) -> BlockUpdates | None:
    """The plan with copies for so many lanes, of `size` bytes each; None where too few threads have room."""
    gpu = machine.gpu
    if gpu is None or size * lanes > (machine.level("shared").bytes or 0):
        return None
    threads, most = machine.block_threads, gpu.warps * _WARP
    resident = gpu.shared // (size * lanes + gpu.shared_reserved)
    while threads * max(resident, 1) < most and threads < min(_MOST_THREADS, most):
        threads *= 2
    if lanes > 1 and threads * resident < most // 2:
        return None
    copies = machine.threads * max(min(resident, most // threads), 1)
    return BlockUpdates(threads, vector, min(-(-copies // rows), terms // (threads * vector)), lanes)


def _rows(stage: Stage, d: Definition) -> list[str]:
    """The dimensions of a func that a variable of the update numbers; data choose elements of such a row."""
    names = stage.schedule.state.program.func(stage.func).variables
    return [v for v, e in zip(names, d.index, strict=True) if isinstance(e, Var) and e.name in d.free]


def _elements(stage: Stage) -> int:
    """The elements of a func; 0 where they are not known."""
    state = unplaced_at_root(stage.schedule.state)
    return volume(root_boxes(state).get(stage.func, ())) or 0


def _vector(d: Definition) -> int:
    """How many elements along the last range 16 bytes hold of what is read along it."""
    along = [r for r in reads_in((*d.values, *d.index)) if r.index[-1:] == (Var(d.ranges[-1][0]),)]
    return WIDEST // max((r.dtype.bytes for r in along), default=WIDEST)


def _sources(d: Definition) -> list[str]:
    """What an update reads along its last range, at one index each."""
    reads = {r.name: {x.index for x in reads_in((*d.values, *d.index, d.where)) if x.name == r.name}
             for r in reads_in((*d.values, *d.index))}  # fmt: skip
    last = Var(d.ranges[-1][0])
    return [n for n, of in reads.items() if len(of) == 1 and _is_along(next(iter(of)), last)]


def _is_along(index: tuple[Any, ...], last: Var) -> bool:
    return index[-1:] == (last,) and not any(has_data(e) or last.name in variables(e) for e in index[:-1])


def _write(stage: Stage, d: Definition, plan: BlockUpdates) -> None:
    rows, names = [v for v in d.free if v in d.variables], [v for v, _, _ in d.ranges]
    lanes = None
    if plan.vector > 1:
        outer, lane = stage.split(names[-1], plan.vector)
        names, lanes = [*names[:-1], outer.name], lane.name
    whole, of_data = fused(stage, names), _rows(stage, d)
    if plan.copies:
        sizes = sizes_of(stage)
        count = -(-prod(sizes[v] or 1 for v, _, _ in d.ranges) // plan.vector)
        each = -(-count // (plan.copies * plan.threads)) * plan.threads
        block, _ = stage.split(whole, each)
        merge = updates = stage.rfactor(block)
        whole = next(x.name for x in updates.loops if x.name not in (*rows, block.name, lanes))
        outer, thread = updates.split(whole, plan.threads)
        threads = [thread.name]
        if plan.lanes > 1:
            threads = [x.name for x in updates.split(thread, plan.lanes)]
            updates = merge.rfactor(threads[-1])
            updates.reorder(outer, *threads, *([lanes] if lanes else []))
        _share_copies(stage, (merge, updates), block.name, of_data, plan)
    else:
        updates = stage
        outer, thread = updates.split(whole, plan.threads)
        threads = [thread.name]
    updates.atomic()
    for x, axis in zip(reversed(threads), "xy", strict=False):
        updates.bind(x, f"threadIdx.{axis}")
    if not plan.copies:
        updates.bind(outer, "blockIdx.x")
        if rows:
            updates.bind(fused(updates, rows), "blockIdx.y")
    if lanes is not None:
        for name in _sources(d):
            copy = stage.schedule.cache_read(name, updates, at=threads[-1], scope="register", filled=True)
            copy.vectorize(copy.loops[-1], plan.vector)
        updates.unroll(lanes)


def _share_copies(
    stage: Stage, partial: tuple[Stage, Stage], block: str, rows: list[str], plan: BlockUpdates
) -> None:
    """The merge of copies on blocks, which compute them; their first values and the merge on threads.

    `partial` are the merge of a block's copies and their updates, one stage where a block has one copy.
    """
    stage.atomic()
    merge, updates = partial
    dims = [x.name for x in stage.loops if x.name not in (block, *rows)]
    stage.reorder(*rows, block, *dims)
    stage.bind(block, "blockIdx.x")
    if rows:
        stage.bind(fused(stage, rows), "blockIdx.y")
    line = plan.lanes if plan.lanes > 1 else 0
    on_threads(stage, dims, plan.threads, line=line)
    merge.compute_at(stage, block)
    on_threads(Stage(stage.schedule, merge.func, 0), dims, plan.threads, line=line)
    if updates is merge:
        return
    updates.compute_at(stage, block)
    (lane,) = {x.name for x in merge.loops}.difference(dims, rows, [block])
    for copies in (merge, Stage(stage.schedule, updates.func, 0)):
        _, y = copies.split(fused(copies, dims), plan.threads // plan.lanes)
        copies.bind(y, "threadIdx.y").bind(lane, "threadIdx.x")


def with_updates(stage: Stage, machine: Machine) -> Elements | BlockTree | BlockUpdates | BlockScan | None:
    """Schedule all definitions of a func with updates; what was chosen, or None for one of one point."""
    f = stage.schedule.state.program.func(stage.func)
    scan = if_suited(block_scan, stage.update(0), machine=machine)
    if scan is not None:
        return scan
    width = vector_of(stage)
    plan: Elements | BlockTree | BlockUpdates | None = None
    if share_points(stage, f.definitions[0].free, machine.block_threads, width):
        plan = Elements(machine.block_threads, width)
    for n in range(1, len(f.definitions)):
        plan = share_update(stage.update(n - 1), machine) or plan
    return plan


def share_update(stage: Stage, machine: Machine) -> Elements | BlockTree | BlockUpdates | None:
    """Share an update out among threads: its points, iterations without a dependence, or atomic updates."""
    d, threads = definition_of(stage), machine.block_threads
    sizes = sizes_of(stage)
    names = [x.name for x in stage.loops]
    free = [v for v in names if v in d.free]
    others = [v for v in names if v not in free and _is_independent_outside(stage, v)]
    # only loops of one kind can be one
    free = max(free, others, key=lambda vs: (prod(sizes.get(v) or 1 for v in vs), len(vs)))
    points = prod(sizes.get(v) or 1 for v in free)
    terms = prod(sizes.get(v) or 1 for v in names if v not in free)
    if terms > 1 and points < machine.threads * threads:
        sums = if_suited(schedule_lanes, stage, machine=machine)
        plan = sums or if_suited(block_updates, stage, machine=machine)
        if plan is not None:
            return plan
    points_of = [v for v in free if v in d.free]
    groups = sorted(
        ([v for v in free if v not in points_of], points_of),
        key=lambda group: prod(sizes.get(v) or 1 for v in group) if group else 0,
    )
    (fewer, more), rest = groups, [v for v in names if v not in free]
    if not more:
        return None
    stage.reorder(*more, *fewer, *rest)
    share_points(stage, more, threads, 1)
    if fewer and prod(sizes.get(v) or 1 for v in fewer) <= _MOST_LINES:
        stage.bind(fused(stage, fewer), "blockIdx.y")
    return Elements(threads, 1)


def _is_independent_outside(stage: Stage, v: str) -> bool:
    """True if iterations of a loop of an update have no dependence as the outermost loop."""
    if not is_independent(stage.schedule.state, stage.func, stage.definition, v):
        return False
    scratch = Stage(copy(stage.schedule), stage.func, stage.definition)
    try:
        scratch.reorder(v, *(x.name for x in stage.loops if x.name != v))
    except ScheduleError:
        return False
    return is_independent(scratch.schedule.state, stage.func, stage.definition, v)


def order_of_updates(stage: Stage) -> tuple[str, ...]:
    """What a reader of the schedule has to know of the order of a func's atomic updates."""
    f, plan = stage.schedule.state.program.func(stage.func), stage.schedule.state.plan(stage.func)
    combiners = [d.combine for n, d in enumerate(f.definitions) if n in plan.atomic]
    rounded = any(c is not None and c.kind in ("sum", "prod") for c in combiners) and f.dtypes[0].is_float
    return ("floats are added atomically, in an order that differs from run to run",) if rounded else ()
