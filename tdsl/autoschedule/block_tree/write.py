"""Writes a tile tree of a GPU as directives of the schedule language."""

from __future__ import annotations

from math import gcd

from tdsl.autoschedule.block_tree.price import (
    UNROLLED,
    has_tail,
    shared_load,
    unrolled_terms,
    whole_vectors,
    window_axes,
    window_of,
)
from tdsl.autoschedule.block_tree.tree import BlockTree, Shared
from tdsl.autoschedule.problem import Problem
from tdsl.autoschedule.recipes.epilogue import following, in_vectors
from tdsl.autoschedule.recipes.grid import fused, on_grid
from tdsl.autoschedule.recipes.stage_facts import vector_of
from tdsl.schedule.fluent import Stage
from tdsl.schedule.naming import Loop
from tdsl.schedule.state import REGISTER, ROUND_UP, SHARED, SHIFT

_MOST_ON_Z = 64  # threads on threadIdx.z


def write_tree(stage: Stage, p: Problem, t: BlockTree, reader: Stage | None = None) -> None:
    """Write a tree as directives of its stage, with the epilogue `reader`, which alone reads its sums.

    >>> import tdsl as td
    >>> from tdsl.autoschedule.block_tree.tree import Cut, Shared
    >>> i, j, x, t = *td.vars("i j"), td.Tensor("x", (512, 512), td.f32), td.Func("t")
    >>> t[j, i] = x[i, j]
    >>> s, cuts = td.Schedule(t), (Cut("j", 16, 4), Cut("i", 16, 4))
    >>> copy = Shared("x", None, 4, (0, 1), 68)
    >>> write_tree(s[t], Problem.of(s[t]), BlockTree("t", cuts, (("i", 16), ("j", 16)), (), (copy,), 4))
    >>> [str(loop.name) for loop in s[t].loops]
    ['j_o', 'i_o', 'j_i_o', 'i_i_o', 'j_i_i', 'i_i_i']
    """
    blocks, threads, points = _tiles(stage, p, t)
    outer, inner = _steps(stage, p, t)
    unrolled, _ = unrolled_terms(t)
    stage.reorder(*blocks, *threads, *outer, *(x for _, x in inner), *(x for _, x in points))
    on_grid(stage, blocks, group=t.group)
    _bind_threads(stage, threads, [n for _, n in reversed(t.order)])
    place = stage.loop_name((outer or threads or blocks)[-1])
    if p.summed or (t.shared and has_tail(p, t)):
        at = stage.loop_name((threads or blocks)[-1])
        if reader is not None:
            out = following(stage, at, REGISTER, reader)
        else:
            out = stage.schedule.cache_write(stage.func, at=at, scope=REGISTER)
        names = [x.name for x in out.loops]
        lane = p.lane if reader is None and p.lane in names else names[-1]
        if lane != names[-1]:
            out.reorder(*(v for v in names if v != lane), lane)
        each = t.cut(p.lane or names[-1]).each if reader is None else t.cut(p.free[-1].name).each
        in_vectors(out, gcd(t.vector if reader is None else vector_of(out), each))
    for s in t.shared:
        padded = next(x.padded for x in p.operands if (x.array, x.along) == (s.array, s.along))
        copy = stage.schedule.cache_read(
            s.array, stage.func, at=place, scope=SHARED, filled=not padded,
            padded=padded, along=s.along, pack=packed(s),
        )  # fmt: skip
        lay_out(s, copy)
        if s.window:
            _load_window(stage, p, t, s, copy, [(None, place), *inner])
    for s in t.registers:
        copy = stage.schedule.cache_read(s.array, stage.func, at=place, scope=REGISTER, along=s.along)
        in_vectors(copy, s.vector)
    if outer and t.stages > 1:
        stage.pipeline(outer[-1], t.stages)
    _unroll(stage, p, t, points, [x for v, x in inner if v in unrolled])


def packed(s: Shared) -> dict[int, int] | None:
    """The dimension of a copy whose indices are in groups, and how many are in each."""
    if s.group:
        return {s.order[-1]: s.group}
    if s.lanes:
        return {len(s.order) - 1: s.lanes}
    return {s.padded: s.run} if s.run and s.padded is not None else None


def lay_out(s: Shared, copy: Stage) -> None:
    """Order the dimensions of a copy in memory with padding, and the elements that threads copy together.

    The positions in groups of a dimension are the last dimension, and the last loop, of a copy.
    """
    rank = len(s.order)
    *loops, inner = copy.loops
    if s.lanes:
        turned = s.order[-1]
        copy.reorder(*loops[:turned], loops[-1], *loops[turned:-1], inner)
    elif s.run:
        before = rank - 1 if s.rows == 1 or s.padded is None else s.padded + 1
        copy.reorder(*loops[:before], inner, *loops[before:])
    grouped = rank - 1 if s.lanes else s.padded if s.run else None
    if grouped is not None:
        at = s.order.index(grouped) + 1
        copy.reorder_storage(*s.order[:at], rank, *s.order[at:])
    elif s.order != tuple(sorted(s.order)):
        copy.reorder_storage(*s.order)
    if s.row:
        dim = s.order[-1] if s.padded is None else s.padded
        copy.align_storage(rank if s.group or s.run else dim, s.row)
    copy.cooperate(s.vector, rows=s.rows)


def _load_window(
    stage: Stage, p: Problem, t: BlockTree, s: Shared, copy: Stage, loops: list[tuple[str | None, str]]
) -> None:  # fmt: skip
    """Load what a thread reads of a copy to registers, in the innermost of `loops` outside of its windows."""
    operand = next(x for x in p.operands if (x.array, x.along) == (s.array, s.along))
    windows = window_axes(operand, t)
    first = next((n for n, (v, _) in enumerate(loops) if v in windows), len(loops))
    window = stage.schedule.cache_read(copy.func, stage.func, at=loops[first - 1][1], scope=REGISTER)
    unrolled, _ = unrolled_terms(t)
    vector, *_ = shared_load(
        operand, operand.reads[0], t, s, unrolled, box=whole_vectors(p.tile_of(operand, t.sizes), s)
    )
    is_whole = window_of(operand, t, unrolled)[-1] % vector == 0  # else the copy has more than the last point
    in_vectors(window, vector, tail=SHIFT if is_whole else ROUND_UP)


def _tiles(stage: Stage, p: Problem, t: BlockTree) -> tuple[list[str], list[str], list[tuple[str, str]]]:
    """The loops over blocks, over threads, slowest first, and over the values of a thread, by axis."""
    blocks, points, parts = list[str](), list[tuple[str, str]](), dict[str, list[str]]()
    for cut in t.cuts:
        name = cut.axis
        if cut.size == 1:
            blocks.append(name)
            continue
        outer, name = (x.name for x in stage.split(name, cut.size))  # so that loops inside have known extents
        blocks.append(outer)
        if cut.threads == 1:
            points.append((cut.axis, name))
            continue
        if cut.each > 1:
            name, point = (x.name for x in stage.split(name, cut.each))
            points.append((cut.axis, point))
        counts = [count for v, count in t.order if v == cut.axis]
        parts[cut.axis] = []
        for count in counts[:-1]:
            name, part = (x.name for x in stage.split(name, count))
            parts[cut.axis].append(part)
        parts[cut.axis].append(name)
    threads = [parts[v].pop(0) for v, _ in t.order if v in parts]
    points.sort(key=lambda x: x[0] == p.lane)
    return blocks, threads[::-1], points


def _steps(stage: Stage, p: Problem, t: BlockTree) -> tuple[list[str], list[tuple[str, str]]]:
    """The loops over steps, and those over the terms of a step, by axis."""
    outer, inner = list[str](), list[tuple[str, str]]()
    for v, size in t.steps:
        if size < p.axis(v).extent or not p.axis(v).known:
            step, rest = (x.name for x in stage.split(v, size))
            outer.append(step)
            inner.append((v, rest))
        else:
            inner.append((v, v))
    return outer, inner


def _bind_threads(stage: Stage, threads: list[str], counts: list[int]) -> None:
    """Bind the loops of threads, slowest first, to three axes; slower ones become one, in the list, too."""
    while len(threads) > len("xyz") or (len(threads) == len("xyz") and counts[0] > _MOST_ON_Z):
        threads[:2], counts[:2] = [fused(stage, threads[:2])], [counts[0] * counts[1]]
    for x, axis in zip(reversed(threads), "xyz", strict=False):
        stage.bind(x, f"threadIdx.{axis}")


def _unroll(stage: Stage, p: Problem, t: BlockTree, points: list[tuple[str, str]], terms: list[str]) -> None:
    """Unroll the terms and points of a thread; neighbours of a result without sums are a vector."""
    count = 1
    for v, x in reversed(points):
        each = t.cut(v).each
        if not p.summed and v == p.lane and t.vector > 1:
            loop: str | Loop = x
            if each > t.vector:
                outer, loop = stage.split(x, t.vector)
                stage.unroll(outer)
            stage.vectorize(loop)
        elif count * each <= UNROLLED:
            stage.unroll(x)
        count *= each
    for x in terms:
        stage.unroll(x)
