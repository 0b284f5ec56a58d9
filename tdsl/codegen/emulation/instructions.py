"""Emulates instructions of thread groups (such as mma) by their definitions, on whole tiles."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from math import prod

import numpy as np

from tdsl.codegen.emulation.memory import Array, LockstepThreads, Memory
from tdsl.core.node import transform
from tdsl.lang.definition import Definition
from tdsl.lang.expr import Const, Expr, Read, Var
from tdsl.lang.interp import Evaluator, StoredArrays
from tdsl.machine.instructions.instruction import Instruction

Tile = tuple[Memory, list[Array], tuple[int, ...]]  # memory, first element, axes that the tile spans
_GROUP = Var("group of threads")  # the leading axis of all tiles


def run_instruction(
    instruction: Instruction, operands: Sequence[Tile], active: Array, team: LockstepThreads
) -> None:
    """Run an instruction in the thread groups in `active`, vectorised over the groups."""
    first = np.flatnonzero(active[:: instruction.threads, 0]) * instruction.threads
    # any thread of a group may access any element of its tile, so the group gets a thread number of its own
    number = team.threads + team.number[first] // instruction.threads
    groups = replace(team.select(first), number=number)
    tiles: dict[str, Array] = {}
    names, shapes = instruction.operands(), instruction.shapes()
    d = instruction.meaning.funcs[0].definitions[-1]
    for name, shape, tile in zip(names, shapes, operands, strict=True):
        if name == names[0] and d.combine is None:
            continue
        memory, index = elements(tile, shape, first)
        values = memory.load(index, None, groups)
        tiles[name] = np.broadcast_to(values, (len(first), prod(shape))).reshape(-1, *shape)
    result = _computed(instruction, d, tiles, len(first))
    memory, index = elements(operands[0], shapes[0], first)
    memory.store(index, result.reshape(len(first), -1), None, groups)


def elements(tile: Tile, shape: tuple[int, ...], first: Array) -> tuple[Memory, list[Array]]:
    """A tile's memory for the `first` threads of groups, and its elements' indices, a row for each group."""
    memory, start, axes = tile
    index = [np.broadcast_to(i, (len(i), 1))[first] if len(i) > 1 else i for i in start]
    element_indices = np.indices(shape).reshape(len(shape), -1)
    for axis, i in zip(axes, element_indices, strict=True):
        index[axis] = index[axis] + i[None, :]
    rows = None if memory.row_of is None else memory.row_of[first]
    return replace(memory, row_of=rows, private=False, owners=None), index


def _computed(instruction: Instruction, d: Definition, tiles: dict[str, Array], count: int) -> Array:
    """The output tiles: serial over the points of the ranges, vectorised over free variables and groups."""
    names = instruction.operands()
    shape = instruction.shapes()[0]
    rank = len(d.free)
    variables = {_GROUP.name: np.arange(count).reshape(-1, *[1] * rank)}
    extents = {e.name: n for e, n in zip(d.index, shape, strict=True) if isinstance(e, Var)}
    for n, name in enumerate(d.free):
        variables[name] = np.arange(extents[name]).reshape(1, *[-1 if m == n else 1 for m in range(rank)])
    stored = {name: _stored(tile) for name, tile in tiles.items()}
    order = [0, *(1 + d.free.index(e.name) for e in d.index if isinstance(e, Var))]
    inverse_order = [order.index(n) for n in range(rank + 1)]
    total = np.transpose(tiles[names[0]], inverse_order) if names[0] in tiles else None
    (value,) = (_with_group(v) for v in d.values)
    intervals = [range(_number(lo), _number(hi)) for _, lo, hi in d.ranges]
    for point in itertools.product(*intervals):
        at = {name: np.asarray(p) for (name, _, _), p in zip(d.ranges, point, strict=True)}
        new = Evaluator({**variables, **at}, stored, [])(value)
        if d.combine is None or total is None:
            total = new
        else:
            params = {"a0": total, "b0": np.broadcast_to(new, total.shape)}
            total = Evaluator({}, {}, [], params)(d.combine.exprs[0])
    assert total is not None
    result = np.broadcast_to(total, (count, *(extents[name] for name in d.free)))
    return np.ascontiguousarray(np.transpose(result, order))


def _stored(tile: Array) -> StoredArrays:
    limits = tuple((-np.inf, np.inf) for _ in tile.shape)
    return StoredArrays((tile,), (0,) * tile.ndim, limits)


def _with_group(e: Expr) -> Expr:
    """The expression with the group's index in front of the indices of each read."""

    def read(n: object) -> object:
        return replace(n, index=(_GROUP, *n.index)) if isinstance(n, Read) else n

    return transform(e, read)  # type: ignore[arg-type]  # expressions stay such


def _number(e: Expr | None) -> int:
    assert isinstance(e, Const), "the tile of an instruction is constant"
    return int(e.value)
