"""Chains of row operations on a GPU: softmax, norms, log-sum-exp, argmax, and what else needs whole rows.

    for rows (blocks; short ones side by side on threadIdx.y):
      the row, in the registers of its threads: each holds some vectors of it
      stage by stage:
        reductions: each thread its part, then all threads by shuffles
        element-wise stages: each thread its part

A row is read once and written once, 16 bytes at a time where its length allows that. One that registers
cannot hold is read by each stage. Other outputs that need the same rows are computed with them. So are sums
of columns: a block then has several rows, one after the other, and their sums in its registers, which
another kernel puts together. Few long rows are in parts, each of a block (`row_parts.py`).
"""

from __future__ import annotations

import inspect
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from math import inf, prod
from typing import Any

from tdsl.autoschedule.block_tree.memory import cached_bytes
from tdsl.autoschedule.block_tree.price import Price
from tdsl.autoschedule.block_tree.reductions import price_of_lanes, tree_of_rows
from tdsl.autoschedule.block_tree.row_parts import size_of_part, write_parts
from tdsl.autoschedule.block_tree.write_groups import BlockRows, write_group
from tdsl.autoschedule.block_tree.write_lanes import is_heavy
from tdsl.autoschedule.patterns.row_groups import RowGroup, find_row_group, moves, widens
from tdsl.autoschedule.problem import Operand, Problem
from tdsl.autoschedule.recipes.choices import Unsuited, choose, gpu_of, recipe
from tdsl.cost.sectors import SECTOR, WARP, WIDEST, WORD
from tdsl.errors import counted
from tdsl.lang.expr import Var
from tdsl.lang.operations import arithmetic_of
from tdsl.lang.program import FuncDef
from tdsl.lang.regions import reads_in
from tdsl.machine.model import Machine
from tdsl.schedule.fluent import Stage
from tdsl.schedule.properties import element_bytes, volume

_ACCESSES = 2  # whose time is covered by what blocks fetch, as they also compute and store
_LEAST = 2  # elements of a row that are worth threads
_LONG = 1 << 14  # elements of a row from which on few of them are in parts of several blocks
_BLOCKS = (4 * WARP, 8 * WARP, 2 * WARP, WARP)  # threads of a block that has several rows
_MOST_THREADS = 1024  # of a row
_KEPT = 96  # registers of a thread for what it keeps of a row, if so many threads are enough for it
_HEAVY = 128  # of a row whose threads combine long lists
_LEAST_OF_PART = 4096  # elements
_PART = 0.65  # of the registers of a multiprocessor, which a part may take
_BLOCKS_EACH = 2  # blocks of parts for each multiprocessor
_AGAIN = 1.5  # times the bytes of one pass, where a second kernel has to read the rows from memory again
_WHOLE = {"together", "held", "each"}  # choices for blocks that have whole rows
_TIE = 1.05  # times the lowest price, up to which the first of several shapes is taken


@recipe
def block_rows(stage: Stage, *, machine: Machine | None = None, **choices: Any) -> BlockRows:
    """Schedule a func and what only its rows read: a block, or a part of one, or several, for each row.

    `choices` replace what is chosen: the numbers of `BlockRows`. Float sums are in another order. Returns
    what was chosen. Something reduces rows of several elements along memory, of extents
    that the schedule knows. For several `parts` of a row, the stage is element-wise, and reads reductions of
    its rows over one variable; it has elements along the rows, or one for each row.

    >>> import tdsl as td
    >>> i, j = td.vars("i j")
    >>> x, total, y = td.Tensor("x", (4096, 4096), td.f32), td.Func("total"), td.Func("y")
    >>> total[i] = td.sum(x[i, j], axis=j)
    >>> y[i, j] = x[i, j] / total[i]
    >>> s = td.Schedule(y)
    >>> plan = td.recipes.block_rows(s[y])
    >>> plan.inside, plan.threads, plan.vector, plan.held, plan.parts
    (('total',), 256, 4, ('x',), 1)
    """
    machine = gpu_of(stage, machine)
    parts = choices.get("parts")
    given = parts if type(parts) is int and parts > 1 else None
    if given or (parts is None and _WHOLE.isdisjoint(choices)):
        try:
            with stage.schedule.all_or_nothing():
                return _in_parts(stage, machine, choices, given)
        except Unsuited:
            if given:
                raise
    group = find_row_group(stage, sums=choices.get("each") != 0)
    if group is not None and group.sums and _plan(stage, group, machine) is None:
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
    for name in group.copies:
        copy = stage.schedule.cache_write(name)
        if name == stage.func:
            stage = copy
    if group.copies:
        copied = find_row_group(stage, sums=bool(group.sums))
        assert copied is not None
        group = copied
    group = _with_inlined(stage, group)
    chosen = _plan(stage, group, machine)
    if chosen is None:
        raise Unsuited("no block of the GPU has the registers for its rows")
    plan = choose(chosen, choices)
    write_group(stage, group, plan)
    return plan


def _in_parts(stage: Stage, machine: Machine, choices: Mapping[str, Any], parts: int | None) -> BlockRows:
    """Schedule rows in parts; Unsuited where these are not possible, or not faster than whole rows."""
    group = find_row_group(stage, siblings=False, whole=True)
    if group is None or group.outer or not group.count:
        raise Unsuited("it has no rows of extents that the schedule knows, along memory")
    owner = group.funcs[0]
    reductions = [f for f in group.funcs[1:] if f.definitions[0].ranges]
    single = all(len(f.definitions[0].ranges) == 1 for f in reductions)
    if owner.definitions[0].ranges or len(group.along(owner)) > 1 or not single:
        raise Unsuited("it is no element-wise stage of rows that reductions over one variable go through")
    if not group.along(owner) and not any(_reads_another(group, f) for f in reductions):
        raise Unsuited("its reductions of a row do not read each other")
    if group.copies:
        raise Unsuited(f"{group.copies[0]!r}, which it reads, is an output")
    plan = choose(_plan_of_parts(stage, group, machine, parts), choices)
    write_parts(stage, group, plan, machine)
    return plan


def _reads_another(group: RowGroup, f: FuncDef) -> bool:
    """True for a reduction that needs another of the group, with what only this is computed from."""
    funcs, needed = {g.name: g for g in group.funcs}, [f.name]
    for name in needed:  # grows
        needed += [x for x in funcs[name].definitions[0].sources if x in funcs and x not in needed]
    return any(funcs[name].definitions[0].ranges for name in needed[1:])


@recipe
def rows_together(stage: Stage, *, machine: Machine | None = None) -> BlockRows:
    """As `block_rows`, for a func whose rows other outputs or sums of columns need, too."""
    machine = gpu_of(stage, machine)
    group = find_row_group(stage)
    if group is None or not (group.siblings or group.copies):
        raise Unsuited("nothing else that is open reads its rows")
    if group.count < machine.threads and group.length > _LONG:
        raise Unsuited("its rows are few and long")
    plan: BlockRows = inspect.unwrap(block_rows)(stage, machine=machine, parts=1)
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


def _plan(stage: Stage, group: RowGroup, machine: Machine) -> BlockRows | None:
    """The plan with the lowest price; None if no block has the registers for its sums of columns."""
    vector, p = vector_of_rows(group), problem_of_rows(stage, group)
    kept = () if any(map(is_heavy, group.members)) else kept_in_registers(group)
    shape = shape_of_rows(p, group, machine, vector, kept)
    if shape is None and not group.sums:
        kept = ()  # stages read rows one after the other, of as few rows at a time as possible
        shape = shape_of_rows(p, group, machine, vector, kept, alone=True, least=_MOST_THREADS // 2)
    if shape is None:
        return None
    threads, together, cost = shape
    each = _rows_of_block(group, together, cost.resident, machine)
    inside, siblings = (tuple(f.name for f in funcs) for funcs in (group.funcs[1:], group.siblings))
    return BlockRows(group.rows, inside, threads, together, vector, kept, siblings, each)


def _plan_of_parts(stage: Stage, group: RowGroup, machine: Machine, parts: int | None) -> BlockRows:
    """So many parts of rows, or enough for all multiprocessors; Unsuited if rows are many, or short."""
    length, vector, program = group.length, vector_of_rows(group), stage.schedule.state.program
    if parts is None:
        most = int(_PART * (machine.level("registers").bytes or 0)) // 4  # elements of a block
        count = max(-(-_BLOCKS_EACH * machine.threads // group.count), -(-length // most))
        count = min(count, length // _LEAST_OF_PART)
        inputs = {r.name for f in group.funcs for r in reads_in(f.definitions[0].values)}
        arrays = (x for x in inputs if not program.has_func(x))
        read = group.count * length * sum(element_bytes(program, x) for x in arrays)
        cost = 1.0 if read < cached_bytes(machine) else _AGAIN
        if count < 2 or group.count * cost >= machine.threads:
            raise Unsuited(f"{group.count} rows of {length} elements are enough for blocks of their own")
        equal = (n for n in range(count, 2 * count) if length % n == 0 and length // n % vector == 0)
        parts = next(equal, 0) or -(-length // size_of_part(length, count, vector))
    reduced = (r.name for f, r in group.reads if f.definitions[0].ranges and group.is_of_row(f, r))
    members = {f.name for f in group.funcs}
    kept = tuple(name for name in dict.fromkeys(reduced) if name not in members)
    p = problem_of_rows(stage, group)
    shape = shape_of_rows(p.with_parts(p.summed[-1].name, parts), group, machine, vector, kept, alone=True)
    if shape is None:
        raise Unsuited(f"no block has the registers for a part of {-(-length // parts)} elements")
    inside = tuple(f.name for f in group.funcs[1:])
    return BlockRows(group.rows, inside, shape[0], 1, vector, kept, parts=parts)


def problem_of_rows(stage: Stage, group: RowGroup) -> Problem:
    """The longest func of a row, whose points are terms of one result, with the arithmetic of all funcs."""
    longest = longest_of(group)
    p, names = Problem.described(stage.schedule[longest.name]), group.along(longest)
    work = sum(arithmetic_of(f.definitions[0]) for f in group.members)
    axes = tuple(replace(a, summed=a.summed or a.name in names, extent=max(a.extent, 1)) for a in p.axes)
    p = replace(p, axes=axes, work=max(work, 1))
    if longest.definitions[0].ranges:
        return p
    rows = tuple((v, s) for v, s in p.write.steps if v not in names)
    written = Operand(longest.name, None, (p.write,))
    return replace(p, operands=(*p.operands, written), write=replace(p.write, steps=rows))


def longest_of(group: RowGroup) -> FuncDef:
    """The func that has the most points in a row, of those that sum no columns."""
    along = (f for f in group.members if group.along(f) and not group.reduces_rows(f))
    return max(along, key=group.length_of)


def shape_of_rows(
    p: Problem, group: RowGroup, machine: Machine, vector: int, kept: Collection[str], *,
    alone: bool = False, least: int = 1,
) -> tuple[int, int, Price] | None:  # fmt: skip
    """The threads of a row, at least so many, and the rows of a block that have the lowest price, and it.

    Threads keep what they have of `kept` arrays, and sums of columns, in registers; a row that is `alone` has
    blocks of its own. None if no block has the registers.
    """
    assert machine.gpu is not None, "the machine is a GPU"
    length = prod(a.extent for a in p.summed)
    most = min(1 << (-(-length // vector) - 1).bit_length(), _MOST_THREADS)
    if any(map(is_heavy, group.members)):
        most = min(most, _HEAVY)
    shapes = [x for x in _shapes(most) if x[0] >= min(least, most)]
    if alone or not p.free:
        shapes = [x for x in shapes if x[1] == 1]
    sizes = {r.name: r.dtype.bytes for _, r in group.reads}
    values = [*(sizes[name] for name in kept), *(t.bytes for f in group.sums for t in f.dtypes)]
    words = sum(max(n, WORD) // WORD for n in values)  # of an element of a row
    # what all rows read is loaded to registers, too
    shared = len(_shared(group)) if kept or group.sums else 0
    for limit, more in ((_KEPT, shared), (machine.gpu.registers_per_thread, 0)):
        known: list[tuple[int, int, Price]] = []
        for threads, together in shapes:
            each = -(-length // threads)
            if each * (words + more) <= limit:
                cost = _price(p, group, (threads, vector, together), each * words, machine)
                known += [(threads, together, cost)] if cost.seconds < inf else []
        lowest = min((cost.seconds for _, _, cost in known), default=inf)
        if known:
            return next(x for x in known if x[2].seconds <= _TIE * lowest)
    return None


def _price(
    p: Problem, group: RowGroup, shape: tuple[int, int, int], kept: int, machine: Machine
) -> Price:  # fmt: skip
    """The price of so many threads with so many neighbours each for a row, and rows of a block."""
    threads, vector, together = shape
    reductions = sum(bool(f.definitions[0].ranges) for f in group.members)
    rows = (p.free[-1].name, together) if together > 1 else None
    tree = tree_of_rows(p, (group.along(longest_of(group))[-1], threads, vector), rows)
    cost = price_of_lanes(p, tree, machine, kept=kept, times=reductions)
    size = max((r.dtype.bytes for r in group.far_reads), default=WORD)
    if group.length * size % SECTOR and group.length > threads * vector:  # what a turn reads begins anywhere
        cost = replace(cost, seconds=cost.seconds * (1 + SECTOR / (threads * vector * size)))
    return cost


def _shapes(most: int) -> Iterator[tuple[int, int]]:
    """The threads of a row, powers of two up to `most`, and the rows of a block: several only of a warp.

    Those whose rows need no barrier are first, then those whose threads have the fewest elements.
    """
    for block in _BLOCKS:
        for n in reversed(range(min(most, WARP).bit_length())):
            yield 1 << n, block >> n
    for n in reversed(range(most.bit_length())):
        yield 1 << n, 1


def _rows_of_block(group: RowGroup, together: int, blocks: int, machine: Machine) -> int:
    """How many rows a block has one after the other, where it keeps something for all of them; 0 for one.

    All `blocks` of a multiprocessor are resident at once. With sums of columns, which each block stores,
    there are no more than fetch what memory delivers in the time of some accesses, at least two for each
    multiprocessor.
    """
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


def _shared(group: RowGroup) -> set[str]:
    """The arrays that the group reads along a row and that all rows share, such as the gain of a norm."""
    boxes = {r.name: group.row_boxes[r.name] for r in group.far_reads}
    return {name for name, box in boxes.items() if not moves(box) and volume(box) != 1}


def vector_of_rows(group: RowGroup) -> int:
    """How many neighbours 16 bytes hold of what is read and written, where that divides all rows."""
    members = {f.name for f in group.members}
    widest, width = 1, WIDEST
    for f in group.members:
        names = group.along(f)
        if names and f not in group.funcs[1:] and not group.reduces_rows(f) and not is_heavy(f):
            widest = max(widest, *(t.bytes for t in f.dtypes))
        for r in reads_in(f.definitions[0].values) if names else ():
            if r.name not in members and r.index[-1:] == (Var(names[-1]),):
                widest = max(widest, r.dtype.bytes)
        while names and group.sizes(f)[names[-1]] % width:
            width //= 2
    return min(width, max(WIDEST // widest, 1))


def kept_in_registers(group: RowGroup) -> tuple[str, ...]:
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
