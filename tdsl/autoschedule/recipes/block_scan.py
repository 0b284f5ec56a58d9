"""Scans on a GPU, such as running sums along rows and across them (`schedule/scans.py`).

    for rows (blocks):
  the row, in the registers of its threads, some vectors each
  for pieces of the row that all threads share, with what the pieces before give:
    each thread what its vector gives; scans of these, in shared memory, by doubling
    each thread its vector

what alone reads the scan, element by element, is computed in its kernel

rows too long for a block, or too few, and columns: parts are reduced, the results scanned by kernels of their
own, and a block or a thread scans each part (reduce-then-scan, Merrill and Garland 2016)
"""

from __future__ import annotations

from typing import Any

from tdsl.autoschedule.block_tree.reductions import schedule_lanes
from tdsl.autoschedule.block_tree.write_lanes import reduce_by_threads, share_row
from tdsl.autoschedule.recipes.choices import Unsuited, choose, gpu_of, recipe
from tdsl.autoschedule.recipes.epilogue import following, in_vectors, reader_of
from tdsl.autoschedule.recipes.grid import fused, on_threads, share_points
from tdsl.autoschedule.recipes.stage_facts import added_funcs, definition_of
from tdsl.core.node import frozen
from tdsl.cost.sectors import WARP, WIDEST
from tdsl.lang.affine import variables
from tdsl.lang.program import FuncDef
from tdsl.lang.regions import reads_in
from tdsl.machine.model import Machine
from tdsl.schedule.bind import bind_state
from tdsl.schedule.fluent import BaseSchedule, Stage
from tdsl.schedule.properties import volume
from tdsl.schedule.scans import Scan, scan_of
from tdsl.schedule.state import GUARD, REGISTER, ROUND_UP, SHARED

_MOST_THREADS = 512
_MOST_PIECES = 8  # of a row in the registers of its threads
_ROWS = 32  # that a thread scans across memory


@frozen
class BlockScan:
    """A block has `threads` threads, with `vector` neighbours each, for each of `pieces` of a row.

    Where parts of rows are reduced first, a part has `part` elements; 0 where a block scans whole rows.
    """

    threads: int
    vector: int
    pieces: int
    part: int


@recipe
def block_scan(stage: Stage, *, machine: Machine | None = None, **choices: Any) -> BlockScan:
    """Schedule an update that is a scan, such as f[r] += f[r - 1]; floats are combined in another order.

    `choices` replace what is chosen: the numbers of `BlockScan`. Returns what was chosen. New stages at the
    root are left to the default schedule.

    >>> import tdsl as td
    >>> i, r = td.vars("i"), td.range("r", 1, 5000)
    >>> x, total = td.Tensor("x", (5000,), td.f32), td.Func("total", shape=5000)
    >>> total[i] = x[i]
    >>> total[r] += total[r - 1]
    >>> s = td.Schedule(total, target="cuda:sm_80")
    >>> td.recipes.block_scan(s[total].update(0))
    BlockScan(threads=512, vector=4, pieces=1, part=2048)
    """
    f = bind_state(stage.schedule.state, stage.schedule.sizes).program.func(stage.func)
    scan = scan_of(f)
    if isinstance(scan, str):
        raise Unsuited(f"it is no scan: it {scan}")
    machine = gpu_of(stage, machine)
    plan = choose(_plan(f, scan, machine), choices)
    if scan.length <= plan.vector:
        _scan_short(stage)
    elif scan.axis == len(f.variables) - 1:
        _scan_along(stage, scan, plan, machine)
    else:
        _scan_across(stage, scan, plan)
    return plan


def _plan(f: FuncDef, scan: Scan, machine: Machine) -> BlockScan:
    rows = volume(tuple(b for n, b in enumerate(f.natural) if n != scan.axis)) or 0
    widest = max([f.dtypes[0].bytes, *(r.dtype.bytes for r in _reads_along(f, f.variables[-1]))])
    vector = max(WIDEST // widest, 2)
    if scan.axis < len(f.variables) - 1:
        if scan.length <= _ROWS:
            raise Unsuited(f"it has {scan.length} elements, which is one thread's work")
        return BlockScan(machine.block_threads, vector, 1, _ROWS)
    threads = min(max(_power(-(-scan.length // vector)), WARP), _MOST_THREADS)
    pieces = -(-scan.length // (threads * vector))
    if pieces > 1 and (pieces > _MOST_PIECES or 2 * rows < machine.threads):
        even = (n for n in range(threads, threads // 2, -1) if scan.length % (n * vector) == 0)
        threads = next(even, threads)
        return BlockScan(threads, vector, 1, threads * vector)
    return BlockScan(threads, vector, pieces, 0)


def _power(n: int) -> int:
    """The least power of 2 that is as large."""
    return 1 << max(n - 1, 0).bit_length()


def _reads_along(f: FuncDef, variable: str) -> list[Any]:
    """What the first definition reads along a variable."""
    return [r for r in reads_in(f.definitions[0].values) if r.index and variable in variables(r.index[-1])]


def _scan_short(stage: Stage) -> None:
    """Combine the few elements before each element where it is computed."""
    schedule, func = stage.schedule, stage.func
    with added_funcs(schedule) as added:
        owner = stage.double(_scanned(stage))
    for name in added:
        schedule[name].inline()
    share_points(Stage(schedule, func, 0), [x.name for x in owner.loops], _MOST_THREADS, 1)


def _scanned(stage: Stage) -> str:
    """The range of a scan."""
    ((name, _, _),) = stage.schedule.state.program.func(stage.func).definitions[1].ranges
    return name


def _scan_along(stage: Stage, scan: Scan, plan: BlockScan, machine: Machine) -> None:
    """Scan along memory: pieces of `threads` vectors, which a block has one after the other, or one of."""
    schedule, func = stage.schedule, stage.func
    owner, inner, piece = Stage(schedule, func, 0), func, plan.threads * plan.vector
    is_odd = scan.length % plan.vector > 0
    with added_funcs(schedule) as added:
        if piece < scan.length:
            stage.in_blocks(_scanned(stage), piece)
            inner = f"{func}_local"
        if plan.pieces > 1:
            _double(schedule, f"{func}_upto")
    of_pieces = [name for name in added if name != inner]
    if plan.part:
        schedule_lanes(schedule[of_pieces[0]], machine, parts=1)
        _inline_one(schedule, of_pieces[1])
    total, upto, local = (f"{inner}_{x}" for x in ("total", "upto", "local"))
    with added_funcs(schedule) as added:
        update = Stage(schedule, inner, 1)
        update.in_blocks(_scanned(update), plan.vector)
        _double(schedule, upto)
    steps = [name for name in added if name not in (total, local)]
    if inner != func:
        schedule[inner].inline()
    sources = [r.name for r in reads_in(schedule.state.program.func(total).definitions[0].values)]
    names = [x.name for x in owner.loops]
    across: list[str] = []
    if piece < scan.length:
        block, rest = (x.name for x in owner.split(names.pop(), piece))
        across = [block]
    else:
        rest = names.pop()
    thread, lanes = (x.name for x in owner.split(rest, plan.vector))
    if plan.pieces > 1:
        row = fused(owner, names) if names else ""
        at, piece_at = row, across[0]
        owner.unroll(piece_at)
    else:
        at = piece_at = row = fused(owner, [*names, *across]) if names or across else ""
    if not row:  # one row of one block
        row, thread = (x.name for x in owner.split(thread, plan.threads))
        at = piece_at = row
    owner.bind(row, "blockIdx.x").bind(thread, "threadIdx.x")
    schedule[local].compute_at(owner, thread)
    for d in (schedule[local], *([Stage(schedule, local, 1)])):
        d.unroll(d.loops[-1])
    for name in (total, *steps):
        schedule[name].compute_at(owner, piece_at)
    for name in of_pieces if plan.pieces > 1 else ():
        schedule[name].compute_at(owner, at)
    for name in dict.fromkeys(sources):
        copy = schedule.cache_read(name, owner, at=at, inside=True, filled=is_odd)
        size = schedule.state.program.func(copy.func).dtypes[0].bytes
        width, tail = (max(WIDEST // size, 1), ROUND_UP) if is_odd else (plan.vector, GUARD)
        share_row(copy, [copy.loops[-1].name], plan.threads, width, unrolled=True, tail=tail)
    for name in (total, *steps):
        reduced = schedule.state.program.func(name).definitions[0].ranges
        places = [x.name for x in schedule[name].loops][: -1 if reduced else None]
        schedule[name].bind(places[-1], "threadIdx.x")
    if plan.pieces > 1:
        sums = schedule[of_pieces[0]]
        number, within = (x.name for x in sums.loops[-2:])
        sums.unroll(number)
        reduce_by_threads(sums, [within], plan.threads, plan.vector, unrolled=True)
    reader = _reader(owner, piece_at if is_odd else thread)
    if is_odd:  # neighbours are stored by neighbouring threads
        if reader is None:
            out = schedule.cache_write(func, at=piece_at, scope=SHARED)
        else:
            out = following(owner, piece_at, SHARED, reader)
        out.bind(out.split(out.loops[-1], plan.threads)[1], "threadIdx.x")
    elif reader is not None:
        in_vectors(following(owner, thread, REGISTER, reader), plan.vector)
    owner.vectorize(lanes)


def _reader(owner: Stage, at: str) -> Stage | None:
    """The only reader of a scan, if each of its elements is computed from the one at its place alone."""
    reader = reader_of(owner, at)
    d = None if reader is None else definition_of(reader)
    if d is None or d.ranges or any(r.index != d.index for r in d.reads if r.name == owner.func):
        return None
    return reader


def _double(schedule: BaseSchedule, func: str) -> None:
    """Scan what blocks give by doubling, where that is more than one value."""
    if len(schedule.state.program.func(func).definitions) > 1:
        update = Stage(schedule, func, 1)
        update.double(_scanned(update))


def _inline_one(schedule: BaseSchedule, upto: str) -> None:
    """Read what the first of two parts gives where it is stored."""
    if len(schedule.state.program.func(upto).definitions) == 1:
        schedule[upto].inline()


def _scan_across(stage: Stage, scan: Scan, plan: BlockScan) -> None:
    """Scan across memory: parts of rows, by a thread for each of neighbouring columns."""
    schedule, func = stage.schedule, stage.func
    owner, local = Stage(schedule, func, 0), f"{func}_local"
    names = [x.name for x in owner.loops]
    place = names[scan.axis]
    stage.in_blocks(_scanned(stage), plan.part)
    _sum_parts_across(schedule[f"{func}_total"], plan)
    _inline_one(schedule, f"{func}_upto")
    block, within = (x.name for x in owner.split(place, plan.part))
    outer, lanes = (x.name for x in owner.split(names[-1], plan.vector))
    others = [*(v for v in names[:-1] if v != place), block, outer]
    owner.reorder(*others, within, lanes)
    _, thread = on_threads(owner, others, plan.threads, blocks=True)
    schedule[local].compute_at(owner, thread)
    owner.unroll(within).vectorize(lanes)
    for d in (schedule[local], Stage(schedule, local, 1)):
        moving = [x.name for x in d.loops if x.name != names[-1]]
        d.reorder(*moving, names[-1]).vectorize(names[-1], plan.vector)
        step = "within" if d.definition == 0 else "later"
        d.unroll(next(v for v in moving if v.startswith(step)))


def _sum_parts_across(total: Stage, plan: BlockScan) -> None:
    """What parts of rows give, a thread for neighbouring columns of each."""
    *names, last, within = (x.name for x in total.loops)
    outer, lanes = (x.name for x in total.split(last, plan.vector))
    total.reorder(*names, outer, within, lanes)
    _, thread = on_threads(total, [*names, outer], plan.threads, blocks=True)
    copy = total.schedule.cache_write(total, at=thread)
    total.vectorize(lanes)
    copy.vectorize(copy.loops[-1], plan.vector)
