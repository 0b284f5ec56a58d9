"""The innermost tile that directives cut of a definition, inside of which the default chooses a tile tree.

Loops are outside of the tile if a func is computed in them, if directives fix them, if they are over tiles of
a free variable that are cut again, or if directives order them outside of such loops. The other serial loops
are the tile; loops by hand in vectors, or unrolled, are in its registers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import prod

from tdsl.autoschedule.open_stages import first_open, may_be_filled
from tdsl.autoschedule.problem import Problem
from tdsl.core.node import frozen
from tdsl.lang.definition import Definition
from tdsl.schedule.loops import iterations_of
from tdsl.schedule.state import (
    PARALLEL,
    SERIAL,
    UNROLLED,
    VECTORIZED,
    Fuse,
    Loop,
    Nest,
    Rename,
    Rotate,
    Split,
    State,
    is_ordered_outside,
    roots_of,
)  # fmt: skip
from tdsl.tilegraph.kernels import NO_LIMITS, Limits


@frozen
class GivenTile:
    """An operation on a tile, and its loops, by axis.

    `outer` are the loops outside of the tile, outermost first, each with its axis. `loops` are the loops over
    an axis in the tile, `registers` those in registers, `threads` the axes whose loops in the tile are
    parallel; `extents` those of all axes outside of the tile, too.
    """

    op: Problem
    extents: Mapping[str, int]
    outer: tuple[tuple[str, str], ...]
    loops: Mapping[str, tuple[str, ...]]
    registers: Mapping[str, tuple[str, ...]]
    threads: tuple[str, ...] = ()
    limits: Limits = NO_LIMITS

    @staticmethod
    def without_directives(op: Problem) -> GivenTile:
        """The tile of a definition without directives: all of it, with a loop over each axis."""
        return GivenTile(
            op, {a.name: a.extent for a in op.axes}, (), {a.name: (a.name,) for a in op.axes}, {}
        )

    @staticmethod
    def of(state: State, op: Problem) -> GivenTile | None:
        """The innermost tile of a definition; None if it has loops of another kind, or none that are open.

        >>> import tdsl as td
        >>> from tdsl.schedule.properties import root_boxes, unplaced_at_root
        >>> i, j, x, t = *td.vars("i j"), td.Tensor("x", (512, 512), td.f32), td.Func("t")
        >>> t[j, i] = x[i, j]
        >>> s = td.Schedule(t)
        >>> _ = s[t].split(i, 64)
        >>> state = unplaced_at_root(s.state)
        >>> op = Problem.in_state(state, state.program.func("t"), root_boxes(state))
        >>> tile = GivenTile.of(state, op)
        >>> tile.outer, tile.loops
        ((('i', 'i_o'),), {'j': ('j',), 'i': ('i_i',)})
        """
        nest = state.plan(op.func).nests[0]
        kinds = {x.kind for x in nest.loops}
        derived = any(isinstance(r, Fuse | Rotate) for r in nest.relations)
        if (
            derived
            or not kinds <= {SERIAL, PARALLEL, UNROLLED, VECTORIZED}
            or not may_be_filled(state, op.func)
        ):
            return None
        axis_of = {x.name: next(iter(roots_of(nest, x.name))) for x in nest.loops}
        steps = _steps(nest, op.definition)
        sizes = {a.name: a.extent for a in op.axes}
        count = {x: iterations_of(state, op.func, 0, x, sizes) or 1 for x in nest.names()}
        chains: dict[str, list[Loop]] = {a.name: [] for a in op.axes}
        for x in sorted(nest.loops, key=lambda x: -steps[x.name]):
            chains[axis_of[x.name]].append(x)
        registers = {v: tuple(x.name for x in loops if _in_registers(x)) for v, loops in chains.items()}
        if any(
            v not in op.definition.free and any(x.kind == VECTORIZED for x in c) for v, c in chains.items()
        ):
            return None
        if any(
            tuple(x.name for x in c[len(c) - len(registers[v]) :]) != registers[v] for v, c in chains.items()
        ):
            return None  # loops inside of unrolled ones
        outer = _outer(state, op, nest, chains)
        inside = {
            v: tuple(x.name for x in c if x.name not in outer and not _in_registers(x))
            for v, c in chains.items()
        }
        if not any(inside.values()):
            return None
        in_tile = {v: prod(count[x] for x in (*inside[v], *registers[v])) for v in chains}
        axes = tuple(replace(a, extent=min(in_tile[a.name], a.extent)) for a in op.axes)
        lanes = [(v, count[x.name]) for v, c in chains.items() for x in c if x.kind == VECTORIZED]
        if len(lanes) > 1:
            return None
        lane, of_lane = lanes[0] if lanes else ("", 0)
        limits = Limits(
            tuple((v, prod(count[x] for x in names)) for v, names in registers.items() if names),
            lane,
            of_lane,
            frozenset(v for v, names in inside.items() if len(names) > 1 or (v in axis_of and not names)),
            tuple(
                (v, w)
                for v, w in ((v, w) for v in inside for w in inside if v != w and inside[v] and inside[w])
                if any(is_ordered_outside(nest, x, y) for x in inside[v] for y in inside[w])
            ),
        )
        threads = tuple(v for v, names in inside.items() if any(nest.kind(x) == PARALLEL for x in names))
        around = tuple((axis_of[x], x) for x in nest.names() if x in outer)
        return GivenTile(replace(op, axes=axes), sizes, around, inside, registers, threads, limits)


def _in_registers(x: Loop) -> bool:
    return x.kind in (UNROLLED, VECTORIZED)


def _outer(state: State, op: Problem, nest: Nest, chains: Mapping[str, list[Loop]]) -> set[str]:
    """The loops outside of the tile."""
    outer = {*nest.names()[: first_open(state, op.func, 0)]}
    outer |= {x.name for x in nest.loops if x.fixed and not _in_registers(x)}
    summed = {a.name for a in op.summed}
    for v, chain in chains.items():
        loops = [x.name for x in chain if not _in_registers(x)]
        if v not in summed:
            outer |= {*loops[:-1]}
        elif len(loops) > 1:
            others = {x.name for w, c in chains.items() if w != v for x in c} - outer
            outer |= {x for x in loops[:-1] if any(is_ordered_outside(nest, x, y) for y in others)}
    while True:
        more = {x for x in nest.names() if any(is_ordered_outside(nest, x, y) for y in outer)} - outer
        if not more:
            return outer
        outer |= more


def _steps(nest: Nest, d: Definition) -> dict[str, int]:
    """An order of the loops over a variable: the larger, the more of its values an iteration goes through."""
    depth = dict.fromkeys(d.variables, 0)
    for r in nest.relations:
        match r:
            case Split(parent, outer, inner):
                depth |= {x: 2 * n for x, n in depth.items()}
                depth[outer], depth[inner] = depth[parent] + 1, depth[parent]
            case Rename(old, new):
                depth[new] = depth[old]
            case _:
                pass
    return depth
