"""Where stores past the caches pay: for large results that take little work."""

from __future__ import annotations

from tdsl.lang.program import FuncDef
from tdsl.lang.regions import Box
from tdsl.machine.model import Machine
from tdsl.schedule.properties import volume
from tdsl.schedule.state import State

LARGE = 0.5  # of the last cache: a larger result will not be there when it is read
# Of the last cache: where all arrays are larger, most of them are gone in the next call.
STAYS = 1.25
# Operations for a byte: with fewer, a result that stays in the cache is best kept there.
LEAST_WORK = 2
MOST_WORK = 6  # the same: with more, memory is not what is waited for


def pays_to_stream(
    state: State, name: str, boxes: dict[str, Box], work: float, machine: Machine,
    most: float = MOST_WORK,
) -> bool:  # fmt: skip
    """True for an output that is written once and larger than a cache; `work` is that of a point.

    An ordinary store first reads the line of the cache that it changes; a streaming one does not. Where
    all arrays of the kernel stay in the last cache together the line is there, and only stores to memory
    beside enough work are not waited for.
    """
    f = state.program.func(name)
    if name not in state.program.outputs or name not in boxes:
        return False
    if len(f.definitions) > 1 or f.definitions[0].init is not None:
        return False
    if any(True for _ in state.consumers(name)):
        return False
    points, size = volume(boxes[name]), sum(t.bytes for t in f.dtypes)
    if points is None or points * size < LARGE * machine.llc_bytes or work > most * size:
        return False
    stays = _bytes_of_arrays(state, boxes) <= STAYS * machine.llc_bytes
    return not stays or work >= LEAST_WORK * size


def is_bound_by_memory(f: FuncDef, work: float) -> bool:
    """True where the `work` for a point of a func takes less time than writing it to memory."""
    return work <= MOST_WORK * sum(t.bytes for t in f.dtypes)


def _bytes_of_arrays(state: State, boxes: dict[str, Box]) -> int:
    """The bytes of the inputs and outputs that are touched; those of unknown extent are left out."""
    program = state.program
    sizes = {x.name: x.dtype.bytes for x in program.inputs}
    sizes |= {n: sum(t.bytes for t in program.func(n).dtypes) for n in program.outputs}
    return sum(n * (volume(boxes[name]) or 0) for name, n in sizes.items() if name in boxes)
