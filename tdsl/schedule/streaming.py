"""Where stores past the caches pay: for large results that take little work."""

from __future__ import annotations

from math import prod

from tdsl.lang.bounds import upper
from tdsl.lang.program import FuncDef
from tdsl.lang.regions import Box, reads_in
from tdsl.lang.simplify import subtract
from tdsl.schedule.facts import cost, volume
from tdsl.schedule.machine import Machine
from tdsl.schedule.nest import State

LARGE = 0.5  # of the last cache: a larger result will not be there when it is read
MOST_WORK = 6  # operations for a byte of it: with more, memory is not what is waited for


def pays_to_stream(
    state: State, name: str, boxes: dict[str, Box], work: float, machine: Machine
) -> bool:
    """True for an output that is written once and larger than a cache; `work` is that of a point.

    An ordinary store first reads the line of the cache that it changes; a streaming one does not.
    """
    f = state.program.func(name)
    if name not in state.program.outputs or name not in boxes:
        return False
    if len(f.definitions) > 1 or f.definitions[0].init is not None:
        return False
    if any(True for _ in state.consumers(name)):
        return False
    points, size = volume(boxes[name]), sum(t.bytes for t in f.dtypes)
    large = LARGE * machine.last_bytes
    return points is not None and points * size >= large and is_bound_by_memory(f, work)


def is_bound_by_memory(f: FuncDef, work: float) -> bool:
    """True where the `work` for a point of a func takes less time than writing it to memory."""
    return work <= MOST_WORK * sum(t.bytes for t in f.dtypes)


def work_of_a_point(f: FuncDef) -> float:
    """Operations and reads for a point of all definitions together, with the terms of their reductions."""
    total = 0.0
    for d in f.definitions:
        terms = prod(max(upper(subtract(hi, lo)) or 1, 1) for _, lo, hi in d.ranges if lo and hi)
        total += (cost(d) + len(list(reads_in(d.values)))) * terms
    return total
