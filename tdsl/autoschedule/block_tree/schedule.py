"""Schedules a stage on a GPU by the tile tree with the lowest price."""

from __future__ import annotations

from dataclasses import replace
from math import inf

from tdsl.autoschedule.block_tree.price import Price, price
from tdsl.autoschedule.block_tree.problem import Problem
from tdsl.autoschedule.block_tree.search import best_tree
from tdsl.autoschedule.block_tree.tree import BlockTree, Cut
from tdsl.autoschedule.block_tree.write import write_tree
from tdsl.autoschedule.recipes.choices import Unsuited
from tdsl.autoschedule.recipes.elements import Elements, elements
from tdsl.autoschedule.recipes.epilogue import reader_of
from tdsl.autoschedule.recipes.stage_facts import beyond_rows, vector_of
from tdsl.machine.model import Machine, of_nearest
from tdsl.schedule.fluent import Stage

_ENOUGH = 1.15  # times the time of the least bytes, which no tree makes much shorter
_GAIN = 0.97  # of the time of points in their order, from which on a tree is worth it
_TERMS = 64  # of a part of a sum, at least


def schedule_sums(stage: Stage, machine: Machine) -> BlockTree:
    """Schedule sums whose operands several points read, with what alone reads them; the tree.

    Unsuited for other stages. Where blocks are too few for the machine, the terms are in parts.
    """
    p = Problem.of(stage)
    if not p.summed or not p.is_rectangular or not p.has_reuse:
        raise Unsuited("it is no sum whose operands several of its points read")
    reader = reader_of(stage)
    if reader is not None:
        size = stage.schedule.state.program.func(reader.func).dtypes[0].bytes
        p = replace(p, write=replace(p.write, size=size))
    tree, cost = best_tree(p, machine)
    parts = _parts(p, cost, machine)
    if cost.seconds == inf:
        raise Unsuited("no tile of it fits the machine")
    if parts is None:
        write_tree(stage, p, tree, reader)
        return replace(tree, epilogue="" if reader is None else reader.func)
    axis, count = parts
    part, _ = stage.split(axis, nparts=count)
    partial = stage.rfactor(part)
    partial.reorder_storage(part.name, *(a.name for a in p.free))
    divided = Problem.of(partial)
    tree, _ = best_tree(divided, machine)
    write_tree(partial, divided, tree)
    if reader is None:
        elements(stage)
    else:
        elements(reader, vector=1)
        stage.compute_at(reader, reader.loops[-1])
    return replace(tree, parts=count, epilogue="" if reader is None else reader.func)


def _parts(p: Problem, whole: Price, machine: Machine) -> tuple[str, int] | None:
    """The axis and the number of parts of terms that make sums faster, with the kernel that adds these up."""
    if whole.blocks >= machine.threads or whole.seconds == inf:
        return None
    speed = machine.level("L2").bytes_per_second(machine.threads) or inf
    longest = max((a for a in p.summed if a.known), key=lambda a: a.extent, default=None)
    best, chosen, count = whole.seconds, None, 2
    while longest is not None and longest.extent % count == 0 and p.terms >= count * _TERMS:
        _, cost = best_tree(p.with_parts(longest.name, count), machine)
        again = count * p.points * p.write.size / speed + (of_nearest(machine.launch, 1) or 0.0)
        if cost.seconds + again < best:
            best, chosen = cost.seconds + again, (longest.name, count)
        elif chosen is not None:
            break
        if count * whole.blocks > 4 * machine.threads:
            break
        count *= 2
    return chosen


def schedule_points(stage: Stage, machine: Machine) -> BlockTree | Elements:
    """Schedule a stage whose points, or short sums of each, are shared out among threads; what was chosen.

    Points in their order in memory are taken if no tree is faster.
    """
    p = Problem.of(stage)
    if p.is_rectangular and all(a.known for a in p.axes):
        flat = price(p, _in_order(stage, p, machine), machine)
        if beyond_rows(stage, machine.block_threads)[0] > max(vector_of(stage), 1):
            return elements(stage, threads=machine.block_threads)
        least = p.least_bytes() / (machine.level("global").bytes_per_second(machine.threads) or inf)
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
    steps = tuple((a.name, a.extent) for a in p.summed)
    return BlockTree(p.func, tuple(reversed(cuts)), tuple(order), steps, vector=vector)
