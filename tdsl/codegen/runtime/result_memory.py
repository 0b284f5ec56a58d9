"""Memory for the results of calls, kept when nothing refers to a result any more.

The C library gives the memory of large arrays back to the system and asks for it again, so each call would
fault for every page of its result. A result of `LARGE` bytes and more is allocated in a block that outlives
it. The base of the result, and so of every view of it, is a lease: whatever can reach the memory, be it
an array, a memoryview, a DLPack capsule or the frame of an exception, keeps the lease alive, and the end of
the lease gives the block back. A block that something else refers to then is not kept.

Blocks are kept in a list whose methods are atomic: neither threads, nor forks, nor a lease that ends in the
middle of a function here need a lock.
"""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from tdsl.codegen.runtime.signature import ALIGN, LARGE
from tdsl.core.source import here
from tdsl.errors import TdslError

DEFAULT = 256  # MiB of blocks that are kept
_COUNT = 32  # blocks that are kept, at most: a call may look at each
_SPARE = 1.25  # bytes of a block for each byte of its result, at most

_kept: list[_Block] = []  # the one used last at the end
_limit = 0  # bytes of these


class _Block(np.ndarray[Any, Any]):
    """Memory that is used for one result after another."""

    __slots__ = ("capacity", "start")
    start: int  # offset of the first byte at a multiple of ALIGN
    capacity: int  # bytes from `start` on
    __eq__ = object.__eq__  # the list finds the block itself
    __hash__ = object.__hash__  # type: ignore[assignment]  # of arrays None


class _Lease(np.ndarray[Any, Any]):
    """The part of a block that a result uses, as long as anything refers to it."""

    __slots__ = ()

    def __del__(
        self,
        references: Callable[[object], int] = sys.getrefcount,
        ending: Callable[[], bool] = sys.is_finalizing,
    ) -> None:
        if ending():  # the functions of this module may be gone
            return
        if (
            isinstance(self.base, _Block) and references(self.base) == 2
        ):  # this one and the argument
            _keep(self.base)


def new_output(shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
    """An array of unknown values for a result; from `LARGE` bytes on it begins at a multiple of `ALIGN`."""
    size = math.prod(shape) * dtype.itemsize
    if size < LARGE:
        return np.empty(shape, dtype)
    block = _kept_block(size)
    if block is None:
        block = _new_block(size)
    return np.ndarray(shape, dtype, _Lease((size,), np.uint8, block, block.start))


def _kept_block(size: int) -> _Block | None:
    """A block that was kept and has about this size, which is kept no more."""
    for block in reversed(_kept):
        if size <= block.capacity <= _SPARE * size:
            try:
                _kept.remove(block)
            except ValueError:  # another thread has taken it
                continue
            return block
    return None


def _new_block(size: int) -> _Block:
    _set_limit()
    try:
        block = _Block((size + ALIGN,), np.uint8)
    except MemoryError:
        _kept.clear()
        block = _Block((size + ALIGN,), np.uint8)
    block.start = -block.ctypes.data % ALIGN
    block.capacity = block.nbytes - block.start
    return block


def _keep(block: _Block) -> None:
    if block.capacity <= _limit:
        _kept.append(block)
        _trim()


def _trim() -> None:
    """Free the blocks that were used the longest time ago, until the others are within the limits."""
    while len(_kept) > _COUNT or sum([b.capacity for b in _kept]) > _limit:
        try:
            _kept.pop(0)
        except IndexError:  # another thread was faster
            return


def _set_limit() -> None:
    """Keep as much as TDSL_RESULT_MEMORY says; a TdslError where that is no number."""
    global _limit
    asked = os.environ.get("TDSL_RESULT_MEMORY", "").strip() or str(DEFAULT)
    if not asked.isdecimal():
        raise TdslError(
            f"TDSL_RESULT_MEMORY={asked!r} is not a number of MiB",
            loc=here(),
            label="this call",
            hint=f"set it to 0 to keep no memory of results, or leave it unset for {DEFAULT}",
        )
    before, _limit = _limit, int(asked) << 20
    if _limit < before:
        _trim()
