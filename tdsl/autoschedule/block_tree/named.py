"""Recipes that schedule stages by tile trees: any one func, transposes, products and convolutions."""

from __future__ import annotations

from tdsl.autoschedule.block_tree.reductions import schedule_lanes
from tdsl.autoschedule.block_tree.schedule import schedule_points, schedule_sums, tile_sums
from tdsl.autoschedule.block_tree.search import best_tree
from tdsl.autoschedule.block_tree.tree import BlockTree
from tdsl.autoschedule.block_tree.write import write_tree
from tdsl.autoschedule.problem import Operand, Problem
from tdsl.autoschedule.recipes.choices import Unsuited, gpu_of, if_suited, recipe, refused
from tdsl.autoschedule.recipes.elements import Elements
from tdsl.machine.model import Machine
from tdsl.schedule.fluent import Stage


@recipe
def block_tree(stage: Stage, *, machine: Machine | None = None) -> BlockTree | Elements:
    """Schedule one func by the tile tree with the lowest price: points, windows, or sums that share operands.

    An element-wise stage that alone reads sums is computed from them in registers. Returns the tree, or the
    blocks of points in their order in memory where no tree is faster.

    >>> import tdsl as td
    >>> i, j, a, f = *td.vars("i j"), td.Tensor("a", (1002, 1024), td.f32), td.Func("f")
    >>> f[i, j] = (a[i, j] + a[i + 1, j] + a[i + 2, j]) / 3
    >>> s = td.Schedule(f.with_shape(1000, 1024))
    >>> td.recipes.block_tree(s[f]).vector
    4
    """
    machine = gpu_of(stage, machine)
    sums = if_suited(schedule_sums, stage, machine=machine)
    return schedule_points(stage, machine) if sums is None else sums


@recipe
def block_sums(stage: Stage, *, machine: Machine | None = None, parts: int | None = None) -> BlockTree:
    """Reduce the terms of each element by threads of a block, by a tile tree with lanes; returns the tree.

    Threads are along neighbouring terms, or in lines along neighbouring results (columns). One is reduced
    in one pass with the reductions of it that it reads (`online`). The terms are in `parts`, by default in as
    many as are fastest; another kernel combines what parts give. Floats are combined in another order, which
    must not matter.

    >>> import tdsl as td
    >>> i, k, a, f = *td.vars("i k"), td.Tensor("a", (1000, 5000), td.f32), td.Func("f")
    >>> f[i] = td.sum(a[i, k], axis=k)
    >>> s = td.Schedule(f, target="cuda:sm_80")
    >>> td.recipes.block_sums(s[f]).lanes
    (Cut(axis='k', threads=128, each=4),)
    """
    _check_parts(parts)
    machine = gpu_of(stage, machine)
    return schedule_lanes(stage, machine, parts=parts)


def _check_parts(parts: object) -> None:
    """ScheduleError unless `parts` is a positive int or None."""
    if parts is not None and not (type(parts) is int and parts >= 1):
        raise refused(f"parts must be a number of 1 or more, not {parts!r}", "leave parts out")


@recipe
def block_transpose(stage: Stage, *, machine: Machine | None = None) -> BlockTree:
    """Schedule an element-wise stage that reads along another dimension than it writes, by a tile tree.

    Squares are turned in registers, or in shared memory where rows are not aligned. Returns the tree.

    >>> import tdsl as td
    >>> i, j, a, f = *td.vars("i j"), td.Tensor("a", (1000, 500), td.f32), td.Func("f")
    >>> f[i, j] = a[j, i] * 2
    >>> s = td.Schedule(f)
    >>> print(td.recipes.block_transpose(s[f]))
    f: i:64x2 j:2x4 | a(132)
    """
    p = Problem.of(stage)
    if p.summed or not p.is_rectangular or not any(_is_turned(p, x) for x in p.operands):
        raise Unsuited("it does not read an array along another variable than it writes, element by element")
    tree, _ = best_tree(p, gpu_of(stage, machine))
    write_tree(stage, p, tree)
    return tree


def _is_turned(p: Problem, x: Operand) -> bool:
    """True if an operand has neighbours along another axis than the result."""
    others = [a.name for a in p.free if a.name != p.lane]
    return p.lane is not None and any(
        abs(r.step(p.lane)) > 1 and any(r.step(v) == 1 for v in others) for r in x.reads
    )


@recipe
def block_conv(stage: Stage, *, machine: Machine | None = None) -> BlockTree:
    """Schedule a sum over a window of products with filters, by a tile tree; any number of dimensions.

    An element-wise stage that alone reads the sums is computed from them in registers. Returns the tree.

    >>> import tdsl as td
    >>> n, o, c, y, x, p, q = td.vars("n o c y x p q")
    >>> a, w = td.Tensor("a", (8, 32, 66, 66), td.f32), td.Tensor("w", (64, 32, 3, 3), td.f32)
    >>> f = td.Func("f")
    >>> f[n, o, y, x] = td.sum(a[n, c, y + p, x + q] * w[o, c, p, q], axis=(c, p, q))
    >>> s = td.Schedule(f)
    >>> [copy.array for copy in td.recipes.block_conv(s[f]).shared]
    ['a', 'w']
    """
    p = Problem.of(stage)
    windows = [x for x in p.operands if any(len(dim) > 1 for r in x.reads for dim in r.dims)]
    if not p.summed or not windows or len(windows) == len(p.operands):
        raise Unsuited("it is no sum over a window of filters times what moves with a point")
    return schedule_sums(stage, gpu_of(stage, machine))


@recipe
def block_tiles(stage: Stage, *, machine: Machine | None = None, parts: int | None = None) -> BlockTree:
    """Schedule a sum of products, of which several points read the same elements, by a tile tree.

    These are products of matrices in any order, batches of them, and contractions of tensors. An element-wise
    stage that alone reads the sums is computed from them in registers. The terms are in `parts` of equal
    size, each summed by blocks of its own and then added up in their order (split-K); by default in as many
    as a short time takes, 1 where the result has enough tiles for the machine. Returns the tree.

    >>> import tdsl as td
    >>> i, j, k = td.vars("i j k")
    >>> a, b, c = td.Tensor("a", (256, 64), td.f32), td.Tensor("b", (64, 256), td.f32), td.Func("c")
    >>> c[i, j] = td.sum(a[i, k] * b[k, j], axis=k)
    >>> s = td.Schedule(c)
    >>> td.recipes.block_tiles(s[c], parts=2).parts
    2
    """
    _check_parts(parts)
    p = Problem.of(stage)
    if not p.has_reuse(1):
        raise Unsuited("it is no sum whose operands several of its points read")
    return tile_sums(stage, p, gpu_of(stage, machine), parts)
