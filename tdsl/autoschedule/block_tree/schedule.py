"""Schedules a stage on a GPU by the tile tree with the lowest price."""

from __future__ import annotations

from dataclasses import replace
from math import inf

from tdsl.autoschedule.block_tree.memory import memory_seconds, merge_seconds
from tdsl.autoschedule.block_tree.price import Price, price
from tdsl.autoschedule.block_tree.reductions import best_lanes, write_lanes
from tdsl.autoschedule.block_tree.search import best_tree
from tdsl.autoschedule.block_tree.tree import BlockTree, Cut
from tdsl.autoschedule.block_tree.write import write_tree
from tdsl.autoschedule.problem import Problem
from tdsl.autoschedule.recipes.choices import Unsuited
from tdsl.autoschedule.recipes.elements import Elements, elements
from tdsl.autoschedule.recipes.epilogue import reader_of
from tdsl.autoschedule.recipes.partial_sums import add_parts, in_parts
from tdsl.autoschedule.recipes.stage_facts import beyond_rows, definition_of, vector_of
from tdsl.machine.model import Machine, of_nearest
from tdsl.schedule.fluent import Stage

_ENOUGH = 1.15  # times the time of the least bytes, which no tree makes much shorter
_GAIN = 0.97  # of the time of points in their order, from which on a tree is worth it
_UNROLLED = 4  # terms of a loop of which the compiler makes one piece of code,
_WHOLE = 16  # or all of them, if there are no more
_TERMS = 64  # of a part of a sum, at least


def schedule_sums(stage: Stage, machine: Machine) -> BlockTree:
    """Schedule sums whose operands several points read, with what alone reads them; the tree.

    Unsuited for other stages.
    """
    p = Problem.of(stage)
    if not p.has_reuse(2):
        raise Unsuited("it is no sum whose operands several of its points read")
    return tile_sums(stage, p, machine)


def tile_sums(stage: Stage, p: Problem, machine: Machine, parts: int | None = None) -> BlockTree:
    """Schedule the sums of a problem, with what alone reads them; the tree.

    The terms are in `parts`, without a number in as many as make them faster.
    """
    if not p.summed or not p.is_rectangular:
        raise Unsuited("it is no sum of all terms at all points")
    reader = reader_of(stage)
    if reader is not None:
        size = stage.schedule.state.program.func(reader.func).dtypes[0].bytes
        p = replace(p, write=replace(p.write, size=size))
    tree, cost = best_tree(p, machine)
    if cost.seconds == inf:
        raise Unsuited("no tile of it fits the machine")
    axis, count = _parts(p, cost, machine) if parts is None else (_longest(p, parts), parts)
    if count == 1:
        write_tree(stage, p, tree, reader)
        return replace(tree, epilogue="" if reader is None else reader.func)
    partial, _, _ = in_parts(stage, axis, nparts=count)
    divided = Problem.of(partial)
    tree, _ = best_tree(divided, machine)
    write_tree(partial, divided, tree)
    add_parts(stage, reader)
    return replace(tree, parts=count, epilogue="" if reader is None else reader.func)


def _longest(p: Problem, parts: int) -> str:
    """The longest summed axis whose extent is known; Unsuited if it cannot be in equal parts."""
    longest = max(p.summed, key=lambda a: (a.known, a.extent))
    if parts > 1 and (not longest.known or longest.extent % parts):
        terms = f"the {longest.extent} terms" if longest.known else "the terms, which a call tells,"
        reason = f"{terms} of {longest.name!r} are not {parts} equal parts"
        raise Unsuited(reason, "give parts that divide them, or leave parts out")
    return longest.name


def _parts(p: Problem, whole: Price, machine: Machine) -> tuple[str, int]:
    """The axis and the number of parts of terms that make sums faster, with the kernel that adds these up."""
    longest = p.axis(_longest(p, 1))
    best, chosen, count = whole.seconds, 1, 2
    while (
        whole.blocks < machine.threads
        and longest.known
        and longest.extent % count == 0
        and p.terms >= count * _TERMS
    ):
        _, cost = best_tree(p.with_parts(longest.name, count), machine)
        again = merge_seconds(count, p.points * p.write.size, machine)
        if cost.seconds + again < best:
            best, chosen = cost.seconds + again, count
        elif chosen > 1:
            break
        if count * whole.blocks > 4 * machine.threads:
            break
        count *= 2
    return longest.name, chosen


def schedule_points(stage: Stage, machine: Machine) -> BlockTree | Elements:
    """Schedule a stage whose points, or terms of each, are shared out among threads; what was chosen.

    Points in their order in memory are taken if no tree is faster.
    """
    p = Problem.of(stage, reduction=bool(definition_of(stage).ranges))
    flat = price(p, _in_order(stage, p, machine), machine) if p.free else Price(inf)
    if p.summed:
        lanes, cost = best_lanes(p, machine)
        if cost.seconds < _GAIN * flat.seconds:
            return write_lanes(stage, p, lanes, machine)
    p = Problem.of(stage)
    if p.is_rectangular and all(a.known for a in p.axes):
        if beyond_rows(stage, machine.block_threads)[0] > max(vector_of(stage), 1):
            return elements(stage, threads=machine.block_threads)
        least = memory_seconds(p.least_bytes(), machine.threads, machine)
        if flat.seconds > _ENOUGH * (least + (of_nearest(machine.launch, 1) or 0.0)):
            tree, cost = best_tree(p, machine)
            if cost.seconds < _GAIN * flat.seconds:
                write_tree(stage, p, tree, reader_of(stage) if p.summed else None)
                return tree
    return elements(stage, threads=machine.block_threads)


def _in_order(stage: Stage, p: Problem, machine: Machine) -> BlockTree:
    """The tree that is nearest to points in the order of loops, with neighbours of one thread."""
    vector, left, cuts, order = max(vector_of(stage), 1), machine.block_threads, list[Cut](), []
    for n, a in enumerate(reversed(p.free)):
        each = vector if n == 0 else 1
        threads = min(-(-a.extent // each), left)
        left = -(-left // threads)
        cuts.append(Cut(a.name, threads, each))
        order.append((a.name, threads))
    steps = [(a.name, 1) for a in p.summed[:-1]]
    steps += [(a.name, a.extent if a.extent <= _WHOLE else _UNROLLED) for a in p.summed[-1:]]
    return BlockTree(p.func, tuple(reversed(cuts)), tuple(order), tuple(steps), vector=vector)
