"""What the schedule of a stage knows of its definition: extents, operands, widths of their accesses."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from math import prod

from tdsl.autoschedule.recipes.choices import Unsuited
from tdsl.autoschedule.recipes.conv import known
from tdsl.core.node import post_order
from tdsl.cost.sectors import WIDEST
from tdsl.lang.affine import as_sum, has_data, variables
from tdsl.lang.bounds import upper
from tdsl.lang.definition import Definition
from tdsl.lang.expr import TRUE, ZERO, Read, Select, Var
from tdsl.lang.regions import Box, reads_in
from tdsl.schedule.fluent import BaseSchedule, Stage
from tdsl.schedule.gathering import uses_variable
from tdsl.schedule.properties import extent, extents, has_effects
from tdsl.schedule.state import REGISTER, State


@contextmanager
def added_funcs(schedule: BaseSchedule) -> Iterator[list[str]]:
    """The names of the funcs that directives of a `with` block add, in the order of the program; after it."""
    before, added = schedule.state.by_name, list[str]()
    yield added
    added += [f.name for f in schedule.state.program.funcs if f.name not in before]


def definition_of(stage: Stage) -> Definition:
    """The definition that a stage schedules."""
    return stage.schedule.state.program.func(stage.func).definitions[stage.definition]


def sizes_of(stage: Stage) -> dict[str, int | None]:
    """The extent of each variable of a definition that the schedule knows."""
    state, boxes = known(stage.schedule)
    f = state.program.func(stage.func)
    return extents(f, f.definitions[stage.definition], boxes[f.name]) if f.name in boxes else {}


def known_sizes(stage: Stage, *needed: str) -> dict[str, int]:
    """The extents of variables of a definition; Unsuited where the schedule does not know one that is needed.

    Without names all are.
    """
    sizes = sizes_of(stage)
    unknown = [v for v in needed or definition_of(stage).variables if sizes.get(v) is None]
    if unknown:
        raise Unsuited(
            f"the schedule does not know how far {', '.join(unknown)} goes",
            "td.Schedule(f, sizes={...}) tells it",
        )
    return {v: n for v, n in sizes.items() if n is not None}


def shape_of_source(stage: Stage, name: str) -> list[int | None]:
    """The extents of an array or stored func, as the schedule of a stage knows them."""
    return _shape_of(*known(stage.schedule), name)


def _shape_of(state: State, boxes: Mapping[str, Box], name: str) -> list[int | None]:
    """The extents of an array or of a stored func; none of one that begins elsewhere than at 0."""
    if not state.program.has_func(name):
        return [upper(n) for n in state.program.input(name).shape]
    box = boxes.get(name, ())
    begins = all(lo == ZERO for lo, _ in box)
    return [extent(box, a) if begins else None for a in range(len(box))]


def vector_of(stage: Stage) -> int:
    """How many neighbours 16 bytes hold, where the last dimension has a multiple of so many."""
    d = definition_of(stage)
    if d.ranges or not d.index or has_effects(d):
        return 1
    last = d.index[-1]
    if not isinstance(last, Var) or last.name != d.free[-1]:
        return 1
    return even_width(_most(stage, d), sizes_of(stage).get(last.name))


def beyond_rows(stage: Stage, threads: int) -> tuple[int, int]:
    """How many neighbours 16 bytes hold, and in how many loops, where rows of what is large have no gaps.

    What is read at another index than that of the point, such as a bias, must not move with all variables: a
    thread loads it element by element.
    """
    d, (state, boxes), sizes = definition_of(stage), known(stage.schedule), sizes_of(stage)
    shape = [n for v in d.free if (n := sizes.get(v)) is not None]
    plain = not d.ranges and d.where == TRUE and not has_effects(d) and len(shape) == len(d.free)
    if not plain or len(shape) < 2 or not shape[-1] or d.index != tuple(map(Var, d.free)):
        return 1, 1
    moving = {v for v, n in sizes.items() if n != 1}
    for r in d.reads:
        if r.index == d.index:
            if _shape_of(state, boxes, r.name)[1:] != shape[1:]:
                return 1, 1
        elif any(map(has_data, r.index)) or moving <= variables(r):
            return 1, 1
    if any(isinstance(n, Select) for n in post_order(*d.values)):
        return 1, 1
    last, width = shape[-1], even_width(_most(stage, d), prod(shape[-2:]))
    # a row that divides what a block has is counted from the block on: neighbours are no longer seen as such
    return (width, 2) if last == 1 or threads * width % last else (1, 1)


def _most(stage: Stage, d: Definition) -> int:
    """How many of the widest elements that `d` stores, or reads along its last variable, 16 bytes hold.

    What it reads from registers of a thread does not count.
    """
    state = stage.schedule.state
    kept = {name for name, plan in state.plans if plan.scope == REGISTER}
    moving = [r.dtype for r in reads_in(d.values) if d.free[-1] in variables(r) and r.name not in kept]
    return WIDEST // max(t.bytes for t in (*state.program.func(stage.func).dtypes, *moving))


def load_width(stage: Stage, source: str, along: str | None = None) -> int:
    """How many elements of an operand 16 bytes hold, where its last index has a multiple of so many.

    With a variable `along` which it is read, of that alone.
    """
    sizes, width = sizes_of(stage), WIDEST
    for r in reads_in(definition_of(stage).values):
        if r.name == source and uses_variable(r, along):
            last = as_sum(r.index[-1])
            units = [a.name for a, c in last.terms.items() if c == 1 and isinstance(a, Var)]
            steps = [last.constant, *(c for c in last.terms.values() if c != 1)]
            for step in (*steps, *(sizes.get(v) for v in units), *[None] * (len(units) != 1)):
                width = min(width, even_width(WIDEST // r.dtype.bytes, step))
    return width


def even_width(most: int, extent: int | None) -> int:
    """The largest power of two up to `most` that divides an extent; 1 where that is not known."""
    width = max(most, 1)
    while width > 1 and (extent is None or extent % width):
        width //= 2
    return width


def separate_operands(reads: Iterable[Read], free: Collection[str]) -> list[tuple[str, str | None]]:
    """The operands to copy: an array, and the variable along which a separate copy has it, None for all.

    Reads of one array that move with different free variables are different operands, such as those of
    `x[k, i] * x[k, j]`: one box around both would have all that is between them.
    """
    moving: dict[str, dict[frozenset[str], None]] = {}
    for r in reads:
        used = variables(r)
        moving.setdefault(r.name, {})[frozenset(used.intersection(free))] = None
    operands: list[tuple[str, str | None]] = []
    for name, sets in moving.items():
        axes = [sorted(s.difference(*(t for t in sets if t != s))) for s in sets]
        operands += [(name, v[0]) for v in axes] if len(axes) > 1 and all(axes) else [(name, None)]
    return operands
