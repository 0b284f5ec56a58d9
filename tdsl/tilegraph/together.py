"""Horizontal fusion: funcs that do not need each other and read the same, in one nest.

    for blocks of rows (threads):
      the rows of a block of one func
      the same rows of the next                 what both read is near since the first

What they read is larger than any cache, so that it would come from memory again for each of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tdsl.lang.affine import variables
from tdsl.lang.program import FuncDef
from tdsl.lang.regions import Box, reads_in
from tdsl.schedule.cost.machine import Machine
from tdsl.schedule.facts import extent, has_effects, rest_at_root, root_boxes, volume
from tdsl.schedule.fluent import Schedule
from tdsl.schedule.legality import depends
from tdsl.schedule.nest import Root, State
from tdsl.schedule.patterns.streaming import pays_to_stream, work_of_a_point
from tdsl.schedule.recipes.rows import write_vectors
from tdsl.schedule.tree import levels_of

FULL = 0.5  # of the cache next to the first, that the rows of a block fill
EACH = 8  # blocks for each thread at least


@dataclass(frozen=True, slots=True)
class Together:
    """Funcs whose loops over some variables run together, `rows` at a time, because of a `source`."""

    source: str
    rows: int
    funcs: tuple[str, ...]
    along: tuple[str, ...]


def find_together(state: State, by_recipes: State, machine: Machine) -> list[Together]:
    """The funcs of a state for known sizes that can share loops; `by_recipes` has their default places.

    These are funcs at the root, in whose loops nothing of the program is computed, with loops over as many
    rows of something larger than all caches.
    """
    hosts = {x.func for n, p in by_recipes.plans for x in levels_of(p) if state.program.has_func(n)}
    alone = {n for n, p in by_recipes.plans if isinstance(p.place, Root)} - hosts
    if len(alone) < 2:
        return []
    boxes = root_boxes(rest_at_root(state))
    found: dict[tuple[str, int, int], list[tuple[str, str]]] = {}
    for f in state.program.funcs:
        if f.name not in alone or f.name not in boxes or not _is_plain(f):
            continue
        for source, axis, v in _rows(f):
            rows = extent(boxes[f.name], f.variables.index(v))
            if rows and _bytes(state, source, boxes) > machine.last_bytes:
                found.setdefault((source, axis, rows), []).append((f.name, v))
    made, taken = list[Together](), set[str]()
    for (source, _, rows), members in found.items():
        kept = _independent(state, [m for m in members if m[0] not in taken])
        if len(kept) > 1:
            names, along = zip(*kept, strict=True)
            each = max(int(FULL * machine.near_bytes * rows / _bytes(state, source, boxes)), 1)
            each = min(each, max(rows // (EACH * machine.threads), 1))
            made.append(Together(source, each, names, along))
            taken |= {*names}
    return made


def _is_plain(f: FuncDef) -> bool:
    return len(f.definitions) == 1 and not has_effects(f.definitions[0])


def _rows(f: FuncDef) -> Iterator[tuple[str, int, str]]:
    """(what is read, its axis, the variable) where all that a func reads of it moves along the axis alone."""
    d = f.definitions[0]
    for source in dict.fromkeys(r.name for r in d.reads):
        reads = [r for r in reads_in(d.expressions()) if r.name == source]
        for v in d.free:
            axes = {n for r in reads for n, e in enumerate(r.index) if v in variables(e)}
            if len(axes) == 1 and all(v in variables(r.index[n]) for r in reads for n in axes):
                yield source, axes.pop(), v


def _independent(state: State, members: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """The first of some funcs, and those after it that need none of them."""
    kept: list[tuple[str, str]] = []
    for name, v in members:
        others = [other for other, _ in kept]
        if name not in others and not any(
            depends(state, name, x) or depends(state, x, name) for x in others
        ):
            kept.append((name, v))
    return kept


def _bytes(state: State, name: str, boxes: dict[str, Box]) -> int:
    program = state.program
    types = program.func(name).dtypes if program.has_func(name) else (program.input(name).dtype,)
    return (volume(boxes[name]) or 0) * sum(t.bytes for t in types) if name in boxes else 0


def write_together(schedule: Schedule, plan: Together, machine: Machine) -> None:
    """Write shared loops as directives; the sizes of the schedule are known."""
    state, first = schedule.state, schedule[plan.funcs[0]]
    boxes, block = root_boxes(rest_at_root(state)), None
    for name, v in zip(plan.funcs, plan.along, strict=True):
        stage, f = schedule[name], state.program.func(name)
        stage.compute_root()
        stage.reorder(v, *(x for x in f.definitions[0].variables if x != v))
        write_vectors(stage, f, 0, boxes[name], machine)
        if pays_to_stream(state, name, boxes, work_of_a_point(f), machine):
            stage.stream_stores()
        outer, _ = stage.split(v, plan.rows)
        if block is None:
            block = outer
            stage.parallel(block)
        else:
            stage.compute_with(first, block)
