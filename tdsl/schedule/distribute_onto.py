"""`distribute(onto=...)`: the loops and grid by which each rank computes the elements of its own block.

A block-cyclic dimension, "i/64" over 4 ranks, is split twice: i = (turn * 4 + rank) * 64 + i_i. The loop over
ranks is distributed, and each turn, which is one block, is communicated by itself:

    split i by 256, aligned, and the inner loop by 64; distribute ranks; reorder, turns outermost
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

from tdsl.core.node import frozen
from tdsl.core.source import here
from tdsl.errors import ScheduleError, did_you_mean
from tdsl.lang.expr import Expr, Var
from tdsl.placement.grid import Axes
from tdsl.placement.notation import Blocks, Copies, Fixed, Partial
from tdsl.schedule.state import ALIGN, GUARD, Illegal, State

AxisEntries = tuple[str | int, ...]  # what `distribute` takes for each axis


@frozen
class Dealt:
    """A variable whose blocks of `size` the coordinates of an axis compute in turn."""

    variable: str
    size: int


def axis_entries(loops: Any, names: tuple[str, ...], loop_name: Callable[[Any], str]) -> AxisEntries:
    """The entries of `distribute`: loops by name, "*", "partial", or coordinates; `names` has all loops."""

    def entry(x: Any) -> str | int:
        if isinstance(x, str) and x in ("*", "partial") and x not in names:
            return x
        is_coordinate = hasattr(x, "__index__") and not isinstance(x, bool)
        return operator.index(x) if is_coordinate else loop_name(x)

    return tuple(map(entry, loops if isinstance(loops, list | tuple) else (loops,)))


def loops_of_blocks(
    state: State, func: str, definition: int, tensor: str, *, alone: bool
) -> tuple[tuple[str | int | Dealt, ...], tuple[Axes, ...]]:
    """The loops and the grid by which a definition is distributed like the blocks of a tensor.

    Raises ScheduleError if there are none, or unless `alone`: loops or a grid were given, too.
    """
    try:
        if not alone:
            raise Illegal("loops or a grid are given, and a tensor that says them", "give onto= alone")
        loops = loops_onto(state, func, definition, tensor)
    except Illegal as reason:
        raise ScheduleError(
            f"distribute of {func!r}: {reason.reason}",
            loc=here(),
            label="this directive",
            hint=reason.hint,
        ) from None
    assert state.grid is not None
    return loops, state.grid.levels


def loops_onto(state: State, func: str, definition: int, tensor: str) -> tuple[str | int | Dealt, ...]:
    """For each axis of the grid, the variable of a definition that indexes the tensor dimension it divides.

    Where the tensor has copies, the func is computed by every coordinate; where one coordinate has it, by
    that one; where there are partial results of another tensor, from these.

    Raises Illegal for a dimension that is not indexed by a single variable, and along an axis where the func
    itself is partial: which part each coordinate computes is not known.
    """
    placed = dict(state.placed)
    if tensor not in placed:
        raise Illegal(
            f"{tensor!r} has no place on a grid",
            f"place it first. {did_you_mean(tensor, placed)}" if placed else "place it first",
        )
    placement = placed[tensor]
    loops: list[str | int | Dealt] = []
    for axis, entry in enumerate(placement.entries):
        if isinstance(entry, Copies):
            loops.append("*")
            continue
        if isinstance(entry, Fixed):
            loops.append(entry.coordinate)
            continue
        if isinstance(entry, Partial) and tensor != func:
            loops.append("partial")
            continue
        if not isinstance(entry, Blocks):
            assert state.grid is not None
            raise Illegal(
                f"axis {state.grid.names[axis]!r} has no block of {tensor!r}: {placement}",
                "name the loops yourself: distribute(loops, grid)",
            )
        if list(placement.axes_of(entry.dim)) != sorted(placement.axes_of(entry.dim)):
            raise Illegal(
                f"the blocks of {tensor!r} are cut along a later axis first: {placement}",
                "loops are cut in the order of the axes: place it without primes",
            )
        variable = _variable(state, func, definition, tensor, entry.dim)
        loops.append(variable if entry.size is None else Dealt(variable, entry.size))
    return tuple(loops)


def deal_out(
    owned: Sequence[str | int | Dealt],
    ranks: Sequence[int],
    split: Callable[[str, int, str], tuple[str, ...]],
) -> tuple[AxisEntries, list[str]]:
    """Split what is dealt out to ranks; returns the entries of `distribute`, and the loops over turns.

    `split` splits a loop by a factor with a tail, and returns the names of the outer and of the inner loop.
    """
    entries: list[str | int] = []
    turns: list[str] = []
    for x, count in zip(owned, ranks, strict=True):
        if isinstance(x, Dealt):
            turn, blocks = split(x.variable, x.size * count, ALIGN)
            rank, _ = split(blocks, x.size, GUARD)
            turns.append(turn)
            entries.append(rank)
        else:
            entries.append(x)
    return tuple(entries), turns


def placed_tensors(state: State, func: str) -> tuple[str, ...]:
    """A func and the tensors with a placement that it reads, directly or in funcs that have none."""
    placed, names, tensors = dict(state.placed), {func}, dict.fromkeys((func,))
    for f in reversed(state.program.funcs):
        if f.name not in names:
            continue
        for name in (r.name for d in f.definitions for r in d.reads):
            if name in placed:
                tensors[name] = None
            else:
                names.add(name)
    return tuple(tensors)


def _variable(state: State, func: str, definition: int, tensor: str, dim: int) -> str:
    """The variable that is the only index of a dimension of a tensor in a definition."""
    d = state.program.func(func).definitions[definition]
    indices = {d.index[dim]} if tensor == func else set[Expr]()
    indices |= {r.index[dim] for r in d.reads if r.name == tensor}
    match list(indices):
        case [Var(name)]:
            return name
        case []:
            raise Illegal(f"{func!r} does not read {tensor!r}", "name a tensor that it reads, or itself")
        case _:
            raise Illegal(
                f"no variable alone is the index of dimension {dim} of {tensor!r} in {func!r}",
                "name the loops yourself: distribute(loops, grid)",
            )
