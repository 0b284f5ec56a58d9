"""Registers moved from threads that only ask for tiles to those that use them."""

from __future__ import annotations

from math import prod

from tdsl.codegen.analysis.asynchronous import is_asynchronous
from tdsl.codegen.gpu.launches import Launch
from tdsl.codegen.ir.loops import THREADS, Beside
from tdsl.codegen.ir.statements import walk

_REGISTERS = 65_536  # of a multiprocessor
_UNIT = 8  # registers of a thread that are given together
_MOST = 240  # that a thread is given
_ASKING = 40  # enough for indices of tiles
_GROUP = 128  # threads that change the number of their registers together


def registers_of(launch: Launch, s: Beside) -> tuple[int, int] | None:
    """The registers of each thread that asks for tiles, and of each other; None to leave them as they are.

    The threads of a launch have equally many at first, as many as its bounds leave them.

    >>> from tdsl.codegen.ir.loops import Block
    >>> from tdsl.codegen.gpu.shared_memory import SharedMemory
    >>> launch = Launch("k", (), (1, 1, 1), (128, 1, 3), SharedMemory({}, 0, {}), Block(()))
    >>> share(launch, 2 * 128)
    (40, 232)
    """
    faster = THREADS[: THREADS.index(s.axis)]
    using = s.first * prod(launch.extent(x) for x in faster)
    if not any(map(is_asynchronous, walk(launch.body))):
        return None
    return share(launch, using)


def share(launch: Launch, using: int) -> tuple[int, int] | None:
    """The same where so many threads use tiles."""
    total = prod(launch.block)
    each = _REGISTERS // (total * launch.resident) // _UNIT * _UNIT
    left = each * total - _ASKING * (total - using)
    more = min(_MOST, left // using // _UNIT * _UNIT)
    whole = total % _GROUP == 0 and using % _GROUP == 0
    return (_ASKING, more) if whole and _ASKING < each < more else None
