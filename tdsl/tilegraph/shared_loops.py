"""Horizontal fusion: funcs that do not need each other and read the same, in one nest.

    for blocks of rows (threads):
      the rows of a block of one func
            the same rows of the next                 what both read is in the cache since the first

What they read is larger than any cache, so that it would come from memory again for each of them.
"""

from __future__ import annotations

from tdsl.autoschedule.patterns.rows import vectors_of
from tdsl.autoschedule.patterns.streaming import pays_to_stream
from tdsl.autoschedule.recipes.rows import write_vectors
from tdsl.core.node import frozen
from tdsl.lang.affine import variables
from tdsl.lang.program import FuncDef
from tdsl.lang.regions import Box, reads_in
from tdsl.machine.model import Machine
from tdsl.schedule.fluent import BaseSchedule
from tdsl.schedule.legality import depends_on
from tdsl.schedule.properties import (
    element_bytes,
    extent,
    extents,
    has_effects,
    root_boxes,
    unplaced_at_root,
    volume,
    work_per_point,
)
from tdsl.schedule.state import Root, State, levels_of

FULL = 0.5  # fraction of the second cache that the rows of a block fill
EACH = 8  # blocks for each thread at least


@frozen
class SharedLoops:
    """Funcs whose loops over rows run together, so many `rows` at a time, because of a `source`."""

    source: str
    rows: int
    funcs: tuple[str, ...]


def find_shared_loops(state: State, by_recipes: State, machine: Machine) -> list[SharedLoops]:
    """The funcs of a state for known sizes that can share loops; `by_recipes` has their default places.

    These are funcs at the root, in whose loops nothing of the program is computed, with loops over as many
    rows of something larger than all caches.
    """
    hosts = {x.func for n, p in by_recipes.plans for x in levels_of(p) if state.program.has_func(n)}
    alone = {n for n, p in by_recipes.plans if isinstance(p.place, Root)} - hosts
    if len(alone) < 2:
        return []
    boxes = root_boxes(unplaced_at_root(state))
    by_source: dict[tuple[str, int], list[str]] = {}
    for f in state.program.funcs:
        if f.name not in alone or f.name not in boxes or not _is_plain(f):
            continue
        if f.definitions[0].ranges and _vectors(f, boxes[f.name], machine):
            continue  # its sums are side by side, and its terms outside of them
        rows = extent(boxes[f.name], 0)
        for source in _read_by_rows(f):
            if rows and _bytes(state, source, boxes) > machine.llc_bytes:
                by_source.setdefault((source, rows), []).append(f.name)
    plans, assigned = list[SharedLoops](), set[str]()
    for (source, rows), members in by_source.items():
        kept = _independent(state, [n for n in members if n not in assigned])
        if len(kept) > 1:
            each = max(int(FULL * machine.l2_share * rows / _bytes(state, source, boxes)), 1)
            each = min(each, max(rows // (EACH * machine.threads), 1))
            plans.append(SharedLoops(source, each, tuple(kept)))
            assigned |= {*kept}
    return plans


def _is_plain(f: FuncDef) -> bool:
    return bool(f.variables) and len(f.definitions) == 1 and not has_effects(f.definitions[0])


def _vectors(f: FuncDef, box: Box, machine: Machine) -> int | None:
    """The lanes of vectors along the rows; None where they are along something else."""
    vectors = vectors_of(f, 0, extents(f, f.definitions[0], box), machine.vector_bytes)
    return vectors[1] if vectors is not None and vectors[0] == f.variables[0] else None


def _read_by_rows(f: FuncDef) -> list[str]:
    """What a func reads only at rows that move with its own, those of the first dimension."""
    reads, row = list(reads_in(f.definitions[0].expressions())), f.variables[0]
    moved = {(r.name, r.index[:1] != () and row in variables(r.index[0])) for r in reads}
    return sorted({name for name, moves in moved if moves and (name, False) not in moved})


def _independent(state: State, members: list[str]) -> list[str]:
    """The first of some funcs, and those after it that do not depend on each other."""
    kept: list[str] = []
    for name in members:
        if not any(depends_on(state, name, x) or depends_on(state, x, name) for x in kept):
            kept.append(name)
    return kept


def _bytes(state: State, name: str, boxes: dict[str, Box]) -> int:
    return (volume(boxes[name]) or 0) * element_bytes(state.program, name) if name in boxes else 0


def write_shared_loops(schedule: BaseSchedule, plan: SharedLoops, machine: Machine) -> None:
    """Write shared loops as directives; the sizes of the schedule are known."""
    state, first = schedule.state, schedule[plan.funcs[0]]
    boxes, block = root_boxes(unplaced_at_root(state)), None
    for name in plan.funcs:
        stage, f = schedule[name], state.program.func(name)
        stage.compute_root()
        lanes = _vectors(f, boxes[name], machine)
        if lanes is None:
            write_vectors(stage, f, 0, boxes[name], machine)
        outer, inner = stage.split(f.variables[0], plan.rows)
        if lanes is not None:
            stage.vectorize(inner, lanes)
        if pays_to_stream(state, name, boxes, work_per_point(f), machine):
            stage.stream_stores()
        if block is None:
            block = outer
            stage.parallel(block)
        else:
            stage.compute_with(first, block)
