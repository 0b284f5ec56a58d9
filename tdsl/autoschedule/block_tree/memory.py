"""What blocks ask of memory: the bytes that they read again, by their order, and the merge of parts of sums.

Blocks run some at a time. What these read of an operand comes from memory once; the next ones find only
operands in the L2 cache that stay there whole.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import ceil, inf, prod

from tdsl.machine.model import Machine, of_nearest

Grid = tuple[int, ...]  # blocks along each axis, the last one fastest
Box = Callable[[Grid], float]  # the bytes of an operand that so many neighbouring blocks read

_GROUPS = (1, 2, 4, 8, 16)  # rows of blocks that follow each other
_DRAWN = 2  # times its share of the memory's bytes a second, which a multiprocessor can have alone
_AT_ONCE = 4  # loads of a thread under way


def cached_bytes(machine: Machine) -> float:
    """The bytes of the L2 cache for operands that are read again; streamed data takes the rest."""
    return (machine.level("L2").bytes or 0) / 2


def bytes_read(boxes: Sequence[Box], grid: Grid, count: int, machine: Machine) -> tuple[float, int]:
    """The bytes that blocks read of memory, `count` at a time, in the order for which these are the fewest.

    The order is in how many rows neighbours follow each other, a power of two that divides the rows; of
    equals the one in which blocks at a time are nearest to a square.

    >>> from tdsl.machine.devices import describe_gpu
    >>> rows, columns = (lambda at: at[0] << 22), (lambda at: at[1] << 22)
    >>> bytes_read([rows, columns], (128, 128), 132, describe_gpu("sm_90a"))
    (12216795864, 16)
    """
    *outer, down, across = (1, 1, *grid)[-max(len(grid), 2) :]
    plane = (*(1 for _ in outer), down, across)[-len(grid) :]
    again, room, once = list[Box](), cached_bytes(machine), 0.0
    for box in sorted(boxes, key=lambda box: box(plane)):
        room -= box(plane)
        if room < 0:
            again.append(box)
        else:
            once += box(grid)
    orders = list[tuple[float, int, int]]()
    for group in _GROUPS if again and count < down * across else (1,):
        if down % group == 0:
            columns = min(across, ceil(count / group))
            rows = min(down, ceil(count / columns))
            planes, left = list[int](), ceil(count / (rows * columns))
            for n in reversed(outer):
                planes.insert(0, min(n, left))
                left = ceil(left / planes[0])
            at = (*planes, rows, columns)[-len(grid) :]
            read = prod(grid) / prod(at) * sum(box(at) for box in again)
            orders.append((round(once + read), max(rows, columns), group))
    read, _, group = min(orders)
    return read, group


def memory_seconds(moved: float, blocks: int, machine: Machine) -> float:
    """The time in which so many blocks read and write so many bytes of memory."""
    speed = machine.level("global").bytes_per_second(machine.threads) or inf
    return moved / speed / min(1.0, _DRAWN * blocks / machine.threads)


def merge_seconds(parts: int, moved: float, machine: Machine, threads: int = 1) -> float:
    """The time of the kernel that merges parts of so many bytes each, those of a result by some threads."""
    assert machine.gpu is not None, "the machine is a GPU"
    level = machine.level("L2" if parts * moved <= cached_bytes(machine) else "global")
    turns = 1 + ceil(parts / (threads * _AT_ONCE)) / 2
    seconds = parts * moved / (level.bytes_per_second(machine.threads) or inf) + turns * machine.gpu.latency
    return seconds + (of_nearest(machine.launch, 1) or 0.0)
