"""When non-temporal stores pay: for large results with little work per point."""

from __future__ import annotations

from tdsl.lang.program import FuncDef
from tdsl.lang.regions import Box
from tdsl.machine.model import Machine
from tdsl.schedule.properties import element_bytes, shape_of, volume
from tdsl.schedule.state import State

LARGE = 0.5  # of the LLC, unless measured; a larger result is evicted before it is read
STAYS = 1.25  # of the LLC; if all arrays are larger together, most are evicted before the next call
LEAST_WORK = 2  # operations per byte; with fewer, a result that stays in the LLC is stored there
ALIGNED = 16  # bytes; the address of a streaming store is a multiple of it
LONG = 1 << 14  # bytes of a row
MOST_WORK = 8  # operations per byte; with more, the kernel is compute-bound


def pays_to_stream(
    state: State, name: str, boxes: dict[str, Box], work: float, machine: Machine,
    most: float = MOST_WORK,
) -> bool:  # fmt: skip
    """True for an output written once that `is_large`; `work` is in operations per point.

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
    if points is None or not is_large(points * size, machine) or work > most * size:
        return False
    if not _fills_lines(shape_of(boxes[name])[-1:], max(t.bytes for t in f.dtypes)):
        return False
    stays = _bytes_of_arrays(state, boxes) <= STAYS * machine.llc_bytes
    return not stays or work >= LEAST_WORK * size


def is_large(size: float, machine: Machine) -> bool:
    """True if a result of so many bytes is written faster by non-temporal stores."""
    least = machine.non_temporal_from
    return size >= (LARGE * machine.llc_bytes if least is None else least)


def _fills_lines(row: tuple[int, ...], size: int) -> bool:
    """True if rows are aligned for streaming stores, or so long that a line shared by two does not matter.

    The end of a row that is not aligned is stored through the cache, which flushes a line half written.

    >>> _fills_lines((44,), 8), _fills_lines((45,), 8), _fills_lines((4097,), 4)
    (True, False, True)
    """
    return all(n * size % ALIGNED == 0 or n * size >= LONG for n in row)


def is_bound_by_memory(f: FuncDef, work: float) -> bool:
    """True if `work`, operations per point, takes less time than writing the point to memory."""
    return work <= MOST_WORK * sum(t.bytes for t in f.dtypes)


def _bytes_of_arrays(state: State, boxes: dict[str, Box]) -> int:
    """The bytes of the inputs and outputs that are accessed; arrays of unknown extent count 0."""
    program = state.program
    names = dict.fromkeys((*(x.name for x in program.inputs), *program.outputs))
    return sum(element_bytes(program, n) * (volume(boxes[n]) or 0) for n in names if n in boxes)
