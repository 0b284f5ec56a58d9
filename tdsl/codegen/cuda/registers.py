"""Register reallocation (setmaxnreg) from producer threads, which issue tile copies, to consumer threads."""

from __future__ import annotations

from math import prod

from tdsl.codegen.analysis.asynchronous import is_asynchronous
from tdsl.codegen.gpu.launches import Launch
from tdsl.codegen.ir.loops import THREADS, WarpSpecialize
from tdsl.codegen.ir.statements import walk

_UNIT = 8  # granularity of setmaxnreg, in registers of a thread
_MAX_CONSUMER = 240  # registers of a consumer thread, at most
_PRODUCER = 40  # registers of a producer thread, enough for indices of tiles
_GROUP = 128  # threads of a warp group, which execute setmaxnreg together


def registers_of_parts(launch: Launch, s: WarpSpecialize, registers: int) -> tuple[int, int] | None:
    """The registers of each producer and each consumer thread; None to leave the allocation unchanged.

    `registers` are those of a multiprocessor. At the start of a launch all threads have equally many, the
    most that its launch bounds allow.

    >>> from tdsl.codegen.ir.loops import Block
    >>> from tdsl.codegen.gpu.shared_memory import SharedMemory
    >>> launch = Launch("k", (), (1, 1, 1), (128, 1, 3), SharedMemory({}, 0, {}), Block(()))
    >>> register_split(launch, 2 * 128, 65536)
    (40, 232)
    """
    faster = THREADS[: THREADS.index(s.axis)]
    consumers = s.first * prod(launch.extent(x) for x in faster)
    if not any(map(is_asynchronous, walk(launch.body))):
        return None
    return register_split(launch, consumers, registers)


def register_split(launch: Launch, consumers: int, registers: int) -> tuple[int, int] | None:
    """The registers of each producer and each consumer thread if so many threads are consumers, or None."""
    total = prod(launch.block)
    per_thread = registers // (total * launch.resident) // _UNIT * _UNIT
    remaining = per_thread * total - _PRODUCER * (total - consumers)
    consumer = min(_MAX_CONSUMER, remaining // consumers // _UNIT * _UNIT)
    is_aligned = total % _GROUP == 0 and consumers % _GROUP == 0
    return (_PRODUCER, consumer) if is_aligned and _PRODUCER < per_thread < consumer else None
