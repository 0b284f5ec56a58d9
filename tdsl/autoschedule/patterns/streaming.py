"""When non-temporal stores pay: for large results with little work per point."""

from __future__ import annotations

from tdsl.lang.program import FuncDef
from tdsl.lang.regions import Box
from tdsl.machine.model import Machine
from tdsl.schedule.properties import volume
from tdsl.schedule.state import State

LARGE = 0.5  # of the LLC; a larger result is evicted before it is read
STAYS = 1.25  # of the LLC; if all arrays are larger together, most are evicted before the next call
LEAST_WORK = 2  # operations per byte; with fewer, a result that stays in the LLC is stored there
MOST_WORK = 6  # operations per byte; with more, the kernel is compute-bound


def pays_to_stream(
    state: State, name: str, boxes: dict[str, Box], work: float, machine: Machine,
    most: float = MOST_WORK,
) -> bool:  # fmt: skip
    """True for an output written once and larger than LARGE of the LLC; `work` is in operations per point.

    An ordinary store first reads the cache line that it changes; a streaming store does not. If all arrays
    of the kernel fit the LLC together the line is a hit, so streaming pays only if work hides the stores.
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
    """True if `work`, operations per point, takes less time than writing the point to memory."""
    return work <= MOST_WORK * sum(t.bytes for t in f.dtypes)


def _bytes_of_arrays(state: State, boxes: dict[str, Box]) -> int:
    """The bytes of the inputs and outputs that are accessed; arrays of unknown extent count 0."""
    program = state.program
    sizes = {x.name: x.dtype.bytes for x in program.inputs}
    sizes |= {n: sum(t.bytes for t in program.func(n).dtypes) for n in program.outputs}
    return sum(n * (volume(boxes[name]) or 0) for name, n in sizes.items() if name in boxes)
