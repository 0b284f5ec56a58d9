"""Chains of row operations on a GPU: softmax, norms, log-sum-exp, argmax, and what else needs whole rows.

    for rows (blocks; short ones side by side on threadIdx.y):
      the row, in the registers of its threads: each holds some vectors of it
      stage by stage:
        reductions: each thread its part, then all threads by shuffles
        element-wise stages: each thread its part

A row is read once and written once, 16 bytes at a time where its length allows that. One that registers
cannot hold is read by each stage. Other outputs that need the same rows are computed with them. So are sums
of columns: a block then has several rows, one after the other, and their sums in its registers, which
another kernel puts together.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from tdsl.autoschedule.patterns.row_groups import RowGroup, find_row_group, moves
from tdsl.autoschedule.recipes.choices import Unsuited, choose, gpu_of, recipe
from tdsl.core.node import frozen, post_order
from tdsl.errors import counted
from tdsl.lang.affine import variables
from tdsl.lang.expr import Var
from tdsl.lang.operations import arithmetic_of
from tdsl.lang.program import FuncDef
from tdsl.lang.regions import reads_in
from tdsl.machine.model import Machine
from tdsl.schedule.fluent import BaseSchedule, Stage
from tdsl.schedule.properties import volume
from tdsl.schedule.state import SHARED

ACCESS = 16  # bytes that a thread can load or store at once
WARP = 32
_MOST_THREADS = 1024
_OTHER_AXES = ("blockIdx.y", "blockIdx.z")  # axes of blocks other than the first
_LONG_CODE = 64  # distinct operations of a combiner that is not worth copies for lanes
_EACH = 16  # elements of a long row that a thread should have
_SHORT = 1024  # elements of a row that one warp can do
_TOGETHER = 128  # threads of a block with several rows
_HELD = 0.75  # of the registers of a multiprocessor, 4 bytes for each element of a row that stays in them
_OWN = 40  # registers of a thread without those for elements
_ACCESSES = 2  # whose time is covered by what blocks fetch, as they also compute and store
_LEAST = 2  # elements of a row that are worth threads
_WARPS = 8  # of a block whose rows read the same


@frozen
class BlockRows:
    """The variables that count the rows of a func, and the funcs that are computed `inside` of these.

    `threads`, a power of two up to 1024, share a row, `vector` neighbours at a time; a block has `together`
    rows. What several stages read is `held` in registers. Other stages of the same rows are computed
    with it (`siblings`), sums of columns of `each` rows that follow each other; 0 for one row in a block.
    """

    rows: tuple[str, ...]
    inside: tuple[str, ...]
    threads: int = field(metadata={"among": [1 << n for n in range(11)]})
    together: int
    vector: int
    held: tuple[str, ...]
    siblings: tuple[str, ...] = ()
    each: int = 0


@recipe
def block_rows(stage: Stage, *, machine: Machine | None = None, **choices: Any) -> BlockRows:
    """Schedule a func and what only its rows read: a block, or a part of one, for each row.

    `choices` replace what is chosen: the numbers of `BlockRows`. Float sums are in another order. Returns
    what was chosen. Something reduces rows of several elements along memory, of extents
    that the schedule knows.

    >>> import tdsl as td
    >>> i, j = td.vars("i j")
    >>> x, total, y = td.Tensor("x", (64, 4096), td.f32), td.Func("total"), td.Func("y")
    >>> total[i] = td.sum(x[i, j], axis=j)
    >>> y[i, j] = x[i, j] / total[i]
    >>> s = td.Schedule(y)
    >>> plan = td.recipes.block_rows(s[y])
    >>> plan.inside, plan.threads, plan.vector, plan.held
    (('total',), 256, 4, ('x',))
    """
    machine = gpu_of(stage, machine)
    group = find_row_group(stage, sums=choices.get("each") != 0)
    if group is not None and not _fits(group, machine):
        group = find_row_group(stage, sums=False)
    if group is None:
        raise Unsuited(
            "it has no rows, of extents that the schedule knows, that a reduction goes through along memory",
            "td.Schedule(f, sizes={...}) tells extents; td.recipes.block_sums reduces across memory",
        )
    if group.length < _LEAST:
        raise Unsuited(
            f"its rows have {counted(group.length, 'element')}, which is one thread's work",
            "td.recipes.elements has a thread for each row",
        )
    if group.length < WARP and _reads_only_shared(group):
        raise Unsuited(
            f"rows of {group.length} elements are of few values, which many of them read",
            "td.recipes.elements has a thread for each row",
        )
    for name in group.copies:
        copy = stage.schedule.cache_write(name)
        if name == stage.func:
            stage = copy
    if group.copies:
        copied = find_row_group(stage, sums=bool(group.sums))
        assert copied is not None
        group = copied
    group = _with_inlined(stage, group)
    plan = choose(_plan(group, machine), choices)
    _Writer(stage, group, plan).write()
    return plan


@recipe
def rows_together(stage: Stage, *, machine: Machine | None = None) -> BlockRows:
    """As `block_rows`, for a func whose rows other outputs or sums of columns need, too."""
    machine = gpu_of(stage, machine)
    group = find_row_group(stage)
    if group is None or not (group.siblings or group.copies):
        raise Unsuited("nothing else that is open reads its rows")
    if group.count < machine.threads and group.length > _MOST_THREADS * _EACH:
        raise Unsuited("its rows are few and long")
    plan: BlockRows = inspect.unwrap(block_rows)(stage, machine=machine)
    if not plan.siblings and not group.copies:
        raise Unsuited("its rows and sums of columns do not fit into registers together")
    return plan


def _with_inlined(stage: Stage, group: RowGroup) -> RowGroup:
    """The group without funcs of one operation, which are inlined; as it is where no rows would be left."""
    try:
        with stage.schedule.all_or_nothing():
            for f in group.funcs[1:]:
                if group.along(f) and not f.definitions[0].ranges and arithmetic_of(f.definitions[0]) <= 1:
                    stage.schedule[f.name].inline()
            inlined = find_row_group(stage, sums=bool(group.sums))
            if inlined is None:
                raise Unsuited("what would be inlined has its rows")
            return inlined
    except Unsuited:
        return group


def _plan(group: RowGroup, machine: Machine) -> BlockRows:
    """The numbers for the length of a row."""
    threads, together, vector = _threads(group, machine)
    kept, sums = _kept(group), _summed(group)
    registers = 4 * group.length * together  # bytes for each array of a row
    if any(map(is_heavy, group.members)) or registers * (len(kept) + sums) > row_capacity(machine):
        kept = ()
    each = _rows_of_block(group, threads, together, len(kept) + sums, machine)
    inside, siblings = (tuple(f.name for f in funcs) for funcs in (group.funcs[1:], group.siblings))
    return BlockRows(group.rows, inside, threads, together, vector, kept, siblings, each)


def _threads(group: RowGroup, machine: Machine) -> tuple[int, int, int]:
    """The threads of a row, the rows of a block, and the neighbours that a thread makes at once."""
    vector, length = vector_of_rows(group), group.length
    if length <= _SHORT:
        most = max(_power(length // _EACH), WARP) if group.sums else WARP
        threads = min(_power(-(-length // vector)), most)
        return threads, max(_TOGETHER // threads, 1), vector
    if _reads_shared_vector(group) and group.count >= 2 * _WARPS * machine.threads:
        return WARP, _WARPS, vector
    most = _TOGETHER if any(map(is_heavy, group.members)) else _MOST_THREADS
    return min(threads_of_row(length), most), 1, vector


def threads_of_row(length: int) -> int:
    """The threads of a block for a long row."""
    return min(max(_power(-(-length // _EACH)), _TOGETHER), _MOST_THREADS)


def row_capacity(machine: Machine) -> int:
    """The bytes of registers that the rows of a block may take."""
    return int(_HELD * (machine.level("registers").bytes or 0))


def _summed(group: RowGroup) -> int:
    """The values of a column that the sums of columns have."""
    return sum(len(f.dtypes) for f in group.sums)


def _fits(group: RowGroup, machine: Machine) -> bool:
    """True if registers hold what stages share of a row, and the sums of columns."""
    threads, together, _ = _threads(group, machine)
    values = len(_kept(group)) + _summed(group)
    return not group.sums or _resident(group, threads, together, values, machine) > 0


def _resident(group: RowGroup, threads: int, together: int, held: int, machine: Machine) -> int:
    """The blocks whose registers a multiprocessor has, with as many values as threads keep of a row."""
    if machine.gpu is None:
        return 0
    per_thread = _OWN + -(-group.length // threads) * held
    enough = per_thread <= machine.gpu.registers_per_thread
    return machine.gpu.registers // (per_thread * threads * together) if enough else 0


def _rows_of_block(group: RowGroup, threads: int, together: int, held: int, machine: Machine) -> int:
    """How many rows a block has one after the other, where it keeps something for all of them; 0 for one.

    All blocks are resident at once. With sums of columns, which each block stores, there are no more than
    fetch what memory delivers in the time of some accesses, at least two for each multiprocessor.
    """
    blocks = max(_resident(group, threads, together, held, machine), 1)
    if machine.gpu is None or not (group.sums or (_shared(group) and together == 1 < blocks)):
        return 0
    if group.sums:
        moving = {r.name: r.dtype.bytes for r in group.far_reads if moves(group.row_boxes[r.name])}
        fetched = together * sum(n * (volume(group.row_boxes[name]) or 1) for name, n in moving.items())
        speed = machine.level("global").bytes_per_second(machine.threads) or 0.0
        needed = int(_ACCESSES * machine.gpu.latency * speed)
        blocks = min(blocks, max(2, -(-needed // (fetched * machine.threads))))
    each = -(-group.count // (machine.threads * blocks * together))
    return each if group.sums or each > 1 else 0


def _shared(group: RowGroup) -> bool:
    """True if the group reads along a row what all rows share, such as the gain of a norm."""
    boxes = [group.row_boxes[r.name] for r in group.far_reads]
    return any(not moves(box) and volume(box) != 1 for box in boxes)


def _reads_shared_vector(group: RowGroup) -> bool:
    """True for a lone sum that reads what all rows share, such as x of `a[i, k] * x[k]`."""
    (f, *others), names = group.members, {*group.rows}
    along = {v for v, _, _ in f.definitions[0].ranges}
    used = map(variables, reads_in(f.definitions[0].values))
    return not others and any(u & along and not u & names for u in used)


def _reads_only_shared(group: RowGroup) -> bool:
    """True for a lone sum whose operands several rows share, such as `a[i, k] * b[j, k]`."""
    (f, *others), rows = group.members, {*group.rows}
    return not others and not any(rows <= variables(r) for r in reads_in(f.definitions[0].values))


def _power(n: int) -> int:
    """The least power of 2 that is as large."""
    return 1 << max(n - 1, 0).bit_length()


def vector_of_rows(group: RowGroup) -> int:
    """How many neighbours 16 bytes hold of what is read and written, where that divides all rows."""
    members = {f.name for f in group.members}
    widest, width = 1, ACCESS
    for f in group.members:
        names = group.along(f)
        if names and f not in group.funcs[1:] and not group.reduces_rows(f) and not is_heavy(f):
            widest = max(widest, *(t.bytes for t in f.dtypes))
        for r in reads_in(f.definitions[0].values) if names else ():
            if r.name not in members and r.index[-1:] == (Var(names[-1]),):
                widest = max(widest, r.dtype.bytes)
        while names and group.sizes(f)[names[-1]] % width:
            width //= 2
    return min(width, max(ACCESS // widest, 1))


def _kept(group: RowGroup) -> tuple[str, ...]:
    """What stays in the registers of threads: sources of several funcs, and element-wise funcs inside.

    Sums of a wider type than their source, whose vectors have fewer lanes, read it of registers, too.
    """
    names = {f.name for f in group.members}
    readers: dict[str, dict[str, int]] = {}
    for f, r in group.reads:
        wider = bool(f.definitions[0].ranges) and widens(f, r.name)
        readers.setdefault(r.name, {})[f.name] = 1 + wider
    elsewhere = {r.name for f, r in group.reads if not group.is_of_row(f, r)}
    sources = (n for n, times in readers.items() if n not in {*names, *elsewhere} and sum(times.values()) > 1)
    inside = (f for f in group.funcs[1:] if not f.definitions[0].ranges and group.along(f))
    return (
        *(n for n in sources if moves(group.row_boxes[n])),
        *(f.name for f in inside if f.name not in elsewhere),
    )


def widens(f: FuncDef, source: str) -> bool:
    """True for a func of wider elements than those it reads of an array."""
    read = [r.dtype.bytes for r in reads_in(f.definitions[0].values) if r.name == source]
    return any(n < max(t.bytes for t in f.dtypes) for n in read)


@dataclass(slots=True)
class _Writer:
    """Writes a plan as directives."""

    owner: Stage
    group: RowGroup
    plan: BlockRows

    def write(self) -> None:
        schedule, plan, owner, group = self.owner.schedule, self.plan, self.owner, self.group
        outer = plan.rows[: group.outer]
        for v, axis in zip(outer, _OTHER_AXES, strict=False):
            owner.bind(v, axis)
        at = self.open_rows(owner, plan.rows[group.outer :])
        row, axes = at[-1], ("threadIdx.y", "blockIdx.x")[plan.together == 1 :]
        for loop, axis in zip(reversed(at[: -1 if plan.each else None]), axes, strict=False):
            owner.bind(loop, axis)
        first, *rest = group.funcs
        if first.definitions[0].ranges:
            schedule.cache_write(owner, at=row)
        stages = [(owner, first), *((self.sibling(f, row), f) for f in group.siblings)]
        for f in rest:
            if f.definitions[0].ranges or not group.along(f) or f.name in plan.held:
                schedule[f.name].compute_at(owner, row)
                stages.append((schedule[f.name], f))
            else:
                schedule[f.name].inline()
        for name in plan.held:
            if name not in plan.inside:
                copy = schedule.cache_read(name, owner, at=row, inside=True)
                box = group.row_boxes[name]
                self.share(
                    copy, [x.name for x, ends in zip(copy.loops, box, strict=True) if volume((ends,)) != 1]
                )
        for stage, f in stages:
            names = group.along(f)
            if f.definitions[0].ranges and not group.reduces_rows(f):
                stage.reorder(*[x.name for x in stage.loops if x.name not in names], *names)
                reduce_by_threads(stage, names, plan.threads, plan.vector, unrolled=bool(plan.held))
            elif names:
                self.share(stage, names)
        for f in group.sums:
            merged = schedule[f.name]
            (part,) = (v for v, _, _ in schedule.state.program.func(f.name).definitions[0].ranges)
            reduce_by_lines(merged, list(f.definitions[0].free), part, WARP, _WARPS)

    def open_rows(self, stage: Stage, rows: Sequence[str]) -> list[str]:
        """Open the loops over rows, which go around the others; their names, outermost first."""
        names = [x.name for x in stage.loops]
        first = names[: names.index(rows[0])] if self.group.outer else []
        stage.reorder(*first, *rows, *(x for x in names if x not in (*first, *rows)))
        loops = [fused(stage, list(rows))]
        if self.plan.each:
            loops[-1:] = [x.name for x in stage.split(loops[-1], self.plan.each)]
        if self.plan.together > 1:
            loops[:1] = [x.name for x in stage.split(loops[0], self.plan.together)]
        return loops

    def sibling(self, f: FuncDef, row: str) -> Stage:
        """The stage that computes another func, or its sums of rows that follow each other, with the rows."""
        stage, rows = self.owner.schedule[f.name], self.group.row_of[f.name]
        if self.group.reduces_rows(f):
            part, _ = stage.split(fused(stage, list(rows)), self.plan.each)
            partial = stage.rfactor(part)
            inner = [x.name for x in partial.loops if x.name not in (part.name, *f.definitions[0].free)]
            partial.reorder_storage(part.name, *f.definitions[0].free)
            partial.reorder(part.name, *inner, *f.definitions[0].free)
            if self.plan.together > 1:
                partial.split(part, self.plan.together)
            stage = partial
        else:
            self.open_rows(stage, rows)
        return stage.compute_with(self.owner, row)

    def share(self, stage: Stage, names: list[str]) -> None:
        """The points of a row for its threads."""
        share_row(stage, names, self.plan.threads, self.plan.vector, unrolled=bool(self.plan.held))


def share_row(stage: Stage, names: list[str], threads: int, vector: int, *, unrolled: bool = False) -> None:
    """Share the points of a row out among threads, `vector` neighbours at a time."""
    others, lanes = [x.name for x in stage.loops if x.name not in names], None
    stage.reorder(*others, *names)
    if vector > 1:
        outer, lanes = stage.split(names[-1], vector)
        names = [*names[:-1], outer.name]
    outer, thread = stage.split(fused(stage, names), threads)
    stage.bind(thread, "threadIdx.x")
    if lanes is not None:
        stage.vectorize(lanes)
    if unrolled:
        stage.unroll(outer)


def reduce_by_threads(
    stage: Stage, names: list[str], threads: int, vector: int, *, unrolled: bool = False,
    lanes: str | None = None,
) -> Stage:  # fmt: skip
    """A part of a reduction over `names` for each thread, in `vector` lanes, and the results of all.

    `lanes` names the loop over lanes, if there is one already. Returns the stage of the parts.
    """
    schedule = stage.schedule
    if vector > 1 and lanes is None:
        outer, lane = stage.split(names[-1], vector)
        names, lanes = [*names[:-1], outer.name], lane.name
    outer, thread = stage.split(fused(stage, names), threads)
    before = _names(schedule)
    stage.bind(thread, "threadIdx.x")
    parts = schedule[next(name for name in _names(schedule) if name not in before)]
    if unrolled:
        parts.unroll(outer.name)
    if lanes is not None and is_heavy(parts.schedule.state.program.func(parts.func)):
        _load_once(parts, vector)
        parts.unroll(lanes)
    elif lanes is not None:
        before = _names(schedule)
        parts.vectorize(lanes)
        if len(schedule.state.program.func(parts.func).dtypes) > 1:
            _load_once(schedule[next(name for name in _names(schedule) if name not in before)], vector)
    return parts


def is_heavy(f: FuncDef) -> bool:
    """True for a reduction whose combiner is long code, such as that of sorted lists: one result a thread."""
    combine = f.definitions[0].combine
    return combine is not None and len({*post_order(*combine.exprs)}) > _LONG_CODE


def _names(schedule: BaseSchedule) -> list[str]:
    return [f.name for f in schedule.state.program.funcs]


def _load_once(terms: Stage, count: int) -> None:
    """Registers for the vectors from which several values of a term are computed."""
    for name in _sources_along(terms, terms.loops[-1].name):
        copy = terms.schedule.cache_read(name, terms, at=terms.loops[-2], scope="register")
        copy.vectorize(copy.loops[-1], count)


def _sources_along(stage: Stage, loop: str) -> list[str]:
    values = stage.schedule.state.program.func(stage.func).definitions[0].values
    return [*dict.fromkeys(r.name for r in reads_in(values) if loop in variables(r.index[-1]))]


def reduce_by_lines(
    stage: Stage, free: Sequence[str], term: str, columns: int, lines: int, vector: int = 1
) -> Stage:
    """Reduce across rows: a block has `columns` threads for neighbours, `vector` each, and `lines` of these.

    A thread reduces every few terms; the first line puts together what all lines have, by shared memory.
    Returns the stage of the lines, whose last loops are those over terms and neighbours.
    """
    *outer, last = free
    stage.reorder(*outer, last, term)
    block, column = (x.name for x in stage.split(last, columns * vector))
    each = ""
    if vector > 1:
        column, each = (x.name for x in stage.split(column, vector))
    copy, last_of_copy = stage.schedule.cache_write(stage, at=column), last
    _, line = stage.split(term, lines)
    parts = stage.rfactor(line)
    parts.reorder_storage(line.name, *free)
    stage.bind(fused(stage, [*outer, block]), "blockIdx.x").bind(column, "threadIdx.x")
    parts.compute_at(stage, column).set_scope(SHARED)
    parts.reorder(line.name, last, *(x.name for x in parts.loops if x.name not in (line.name, last)))
    if vector > 1:
        last, lanes = (x.name for x in parts.split(last, vector))
        parts.reorder(*(x.name for x in parts.loops if x.name != lanes), lanes)
        parts.vectorize(lanes)
        stage.vectorize(each)
        copy.vectorize(copy.split(last_of_copy, vector)[1])
    parts.bind(line.name, "threadIdx.y").bind(last, "threadIdx.x")
    return parts


def fused(stage: Stage, loops: list[str]) -> str:
    """One loop of some that follow each other."""
    whole = loops[0]
    for x in loops[1:]:
        whole = stage.fuse(whole, x).name
    return whole
