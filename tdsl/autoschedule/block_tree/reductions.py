"""Schedules a reduction on a GPU by a tile tree with lanes: threads of a block that share terms of a result.

Threads along neighbouring terms combine their values by shuffles, lines of threads along neighbouring results
by shared memory. Where results are few, several blocks reduce parts of the terms, and another kernel combines
what they give. All are cuts of one tree: the price chooses.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from math import ceil, inf, log2

from tdsl.autoschedule.block_tree.memory import merge_seconds
from tdsl.autoschedule.block_tree.price import Price, price
from tdsl.autoschedule.block_tree.tree import BlockTree, Cut, Shared
from tdsl.autoschedule.block_tree.write_lanes import MERGING, write_columns, write_rows
from tdsl.autoschedule.problem import Problem
from tdsl.autoschedule.recipes.choices import Unsuited
from tdsl.cost.sectors import LINE, WARP
from tdsl.machine.model import Machine
from tdsl.schedule.fluent import Stage

_SHUFFLE = 30  # clocks in which threads combine values by a shuffle
_LINE = 8  # clocks in which they combine values with those of one more line
_STEP = 2  # vectors of a thread in a part, at least
_MOST = 1024  # threads of a block
_COLUMNS = (1, 2, 4, 8, 16, 32)  # threads along neighbouring results; a warp has some lines of these


def schedule_lanes(
    stage: Stage, machine: Machine, *, parts: int | None = None, threads: int | None = None
) -> BlockTree:
    """Schedule a reduction by lanes, in `parts` of its terms or as many as are fastest; the tree."""
    p = Problem.of(stage, reduction=True)
    tree, _ = best_lanes(p, machine, parts=parts, threads=threads, columns=not stage.definition)
    return write_lanes(stage, p, tree, machine)


def write_lanes(stage: Stage, p: Problem, t: BlockTree, machine: Machine) -> BlockTree:
    """Write a tree with lanes as directives of its stage, and that of the kernel which combines parts."""
    if t.order[0][0] == p.lane:
        merged = write_columns(stage, t)
    else:
        merged = write_rows(stage, t)
    if merged is not None:
        again = Problem.of(merged, reduction=True)
        tree, _ = best_lanes(again, machine, parts=1)
        write_lanes(merged, again, tree, machine)
    return t


def best_lanes(
    p: Problem, machine: Machine, *, parts: int | None = None, threads: int | None = None,
    columns: bool = True,
) -> tuple[BlockTree, Price]:  # fmt: skip
    """The tree with lanes that has the lowest price, and its price; Unsuited where the machine can run none.

    Threads are along neighbouring results only in trees with `columns`.
    """
    best: tuple[BlockTree, Price] | None = None
    for tree in _trees(p, machine, threads):
        if tree.cuts and not columns:
            continue
        for count in _parts(p, tree, machine) if parts is None else (parts,):
            candidate = replace(tree, parts=count)
            cost = price_of_lanes(p, candidate, machine)
            if best is None or cost.seconds < best[1].seconds:
                best = candidate, cost
    if best is None or best[1].seconds == inf:
        raise Unsuited("no threads of a block can share its terms")
    return best


def _trees(p: Problem, machine: Machine, threads: int | None) -> Iterator[BlockTree]:
    """Trees of one part: threads along terms, and lines of threads along neighbouring results.

    Threads are along terms if these are neighbours in memory, or if results are not.
    """
    term, most = p.summed[-1], threads or machine.block_threads
    reads = [r for x in p.operands for r in x.reads]
    rows = [r.width(p.lane, p.axis(p.lane).extent) for r in reads if p.lane and r.step(p.lane) == 1]
    if not rows or p.points == 1 or any(r.step(term.name) == 1 for r in reads if p.lane and r.uses(p.lane)):
        along = [r.width(term.name, term.extent) for r in reads if r.uses(term.name)]
        width = min(along, default=1) if term.known else 1
        counts = (most,) if threads else (most, WARP, 2 * WARP, 4 * WARP, 4 * most)
        for count in dict.fromkeys(n for n in counts if n <= _MOST):
            yield _tree(p, (), (term.name, count, width))
    if not rows or p.lane is None or not p.axis(p.lane).known:
        return
    lane = p.axis(p.lane)
    vector = min([p.write.width(p.lane, lane.extent), *rows])
    for columns, each in product(_COLUMNS, dict.fromkeys((vector, 1))):
        # memory and its caches transfer lines
        if columns * each * p.write.size >= LINE or columns * each >= lane.extent:
            yield _tree(p, (Cut(p.lane, columns, each),), (term.name, most // columns, 1))


def _tree(p: Problem, cuts: tuple[Cut, ...], lanes: tuple[str, int, int]) -> BlockTree:
    axis, count, each = lanes
    order = (*((c.axis, c.threads) for c in cuts), (axis, count))
    lane, vector = (cuts[0].axis, cuts[0].each) if cuts else (axis, each)
    contiguous = (x for x in p.operands if vector > 1 and all(r.step(lane) == 1 for r in x.reads))
    loaded = tuple(Shared(x.array, x.along, vector, ()) for x in contiguous)
    vector = vector if cuts else 1
    return BlockTree(p.func, cuts, order, vector=vector, registers=loaded, lanes=(Cut(axis, count, each),))


def tree_of_rows(p: Problem, lanes: tuple[str, int, int], rows: tuple[str, int] | None = None) -> BlockTree:
    """The tree of a row: its terms, threads and their neighbours; with the axis and the number of rows."""
    tree = _tree(p, (), lanes)
    return tree if rows is None else replace(tree, cuts=(Cut(*rows),), order=(*tree.order, rows))


def _parts(p: Problem, t: BlockTree, machine: Machine) -> list[int]:
    """Numbers of parts: so many that all blocks run at once, and fractions of these, with terms for each."""
    if not all(a.known for a in p.summed):
        return [1] if p.free else [0]
    (lanes,) = t.lanes
    alone = price_of_lanes(p, t, machine)
    most = min(machine.threads * alone.resident // max(alone.blocks, 1), p.terms // (_STEP * lanes.size))
    most = max(most, 1)
    if t.cuts:  # of columns, parts that often divide them
        most = 1 << (most.bit_length() - 1)
    return [*dict.fromkeys(most >> n for n in range(most.bit_length()))]


def price_of_lanes(p: Problem, t: BlockTree, machine: Machine, *, kept: int = 0, times: int = 1) -> Price:
    """The price of a tree with lanes, with the steps in which threads combine values and with the merge.

    Threads keep `kept` registers of a row, and combine values so many `times`.
    """
    assert machine.gpu is not None, "the machine is a GPU"
    (lanes,), whole = t.lanes, p
    parts = t.parts or machine.threads
    if parts > 1:
        p = p.with_parts(max(p.summed, key=lambda a: a.extent).name, parts)
    left, cuts, order, steps = lanes.threads, [*t.cuts], [], []
    others = tuple(x for x in t.order if x[0] != lanes.axis)
    by_shuffles = t.order[0][0] == lanes.axis
    for a in reversed(p.summed):
        each = lanes.each if a.name == lanes.axis else 1
        count = min(left, 1 << (max(-(-a.extent // each), 1) - 1).bit_length())
        left //= count
        p = p.with_lanes(a.name, count, each)
        cuts.append(Cut(f"{a.name}_lane", count))
        order.append((f"{a.name}_lane", count))
        steps += [(a.name, 1), (f"{a.name}_each", each)]
    cuts[-1] = replace(cuts[-1], threads=cuts[-1].threads * left)  # without terms
    order[-1] = (order[-1][0], cuts[-1].threads)
    ordered = (*order, *others) if by_shuffles else (*others, *order)
    cost = price(p, replace(t, cuts=tuple(cuts), order=ordered, steps=tuple(steps)), machine, kept=kept)
    if cost.seconds == inf:
        return cost
    exchange = _SHUFFLE * log2(lanes.threads) if by_shuffles else _LINE * lanes.threads
    waves = ceil(cost.blocks / machine.threads / cost.resident)
    seconds = cost.seconds + waves * times * exchange / machine.gpu.clock
    if parts > 1:
        threads = MERGING if by_shuffles else lanes.threads
        seconds += merge_seconds(parts, whole.points * whole.write.size, machine, threads)
    return replace(cost, seconds=seconds)
