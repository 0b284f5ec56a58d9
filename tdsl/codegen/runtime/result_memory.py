"""A memory pool for the results of calls: the memory of a dead result is reused for a later one.

The C library returns the memory of large arrays to the system and requests it again, so each call would
fault on every page of its result. A result of `LARGE` bytes and more is allocated in a block that outlives
it. The base of the result, and so of every view of it, is a lease: every owner of a reference to the memory,
be it an array, a memoryview, a DLPack capsule or the frame of an exception, keeps the lease alive, and the
lease returns the block to the pool when it is destroyed. A block that is still referenced is not pooled.

The pool is a list whose methods are atomic: neither threads, nor forks, nor a lease that is destroyed in the
middle of a function of this file need a lock.
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

DEFAULT_MIB = 256  # MiB of blocks in the pool, at most
_MOST_BLOCKS = 32  # blocks in the pool, at most: a call may look at each
_LARGEST_RATIO = 1.25  # bytes of a reused block for each byte of its result, at most

_pool: list[_Block] = []  # the pool, with the block used last at the end
_limit = 0  # bytes of blocks in the pool, at most


class _Block(np.ndarray[Any, Any]):
    """A block of memory that is reused for one result after another."""

    __slots__ = ("capacity", "start")
    start: int  # offset of the first byte at a multiple of ALIGN
    capacity: int  # bytes from `start` on
    __eq__ = object.__eq__  # list.remove compares blocks by identity
    __hash__ = object.__hash__  # type: ignore[assignment]  # ndarray has none


class _Lease(np.ndarray[Any, Any]):
    """The part of a block that a result uses; its destructor returns the block to the pool."""

    __slots__ = ()

    def __del__(
        self,
        count_references: Callable[[object], int] = sys.getrefcount,
        is_finalizing: Callable[[], bool] = sys.is_finalizing,
    ) -> None:
        if is_finalizing():  # the functions of this module may be gone
            return
        if isinstance(self.base, _Block) and count_references(self.base) == 2:  # self.base and the argument
            _return_to_pool(self.base)


def new_output(shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
    """An uninitialised array for a result; from `LARGE` bytes on it begins at a multiple of `ALIGN` bytes."""
    size = math.prod(shape) * dtype.itemsize
    if size < LARGE:
        return np.empty(shape, dtype)
    block = _pooled_block(size)
    if block is None:
        block = _new_block(size)
    return np.ndarray(shape, dtype, _Lease((size,), np.uint8, block, block.start))


def _pooled_block(size: int) -> _Block | None:
    """A block of about this size, removed from the pool; None if the pool has none."""
    for block in reversed(_pool):
        if size <= block.capacity <= _LARGEST_RATIO * size:
            try:
                _pool.remove(block)
            except ValueError:  # another thread has taken it
                continue
            return block
    return None


def _new_block(size: int) -> _Block:
    _set_limit()
    try:
        block = _Block((size + ALIGN,), np.uint8)
    except MemoryError:
        _pool.clear()
        block = _Block((size + ALIGN,), np.uint8)
    block.start = -block.ctypes.data % ALIGN
    block.capacity = block.nbytes - block.start
    return block


def _return_to_pool(block: _Block) -> None:
    if block.capacity <= _limit:
        _pool.append(block)
        _trim()


def _trim() -> None:
    """Free the least recently used blocks until the pool is within its limits."""
    while len(_pool) > _MOST_BLOCKS or sum([b.capacity for b in _pool]) > _limit:
        try:
            _pool.pop(0)
        except IndexError:  # another thread has emptied the list
            return


def _set_limit() -> None:
    """Set the size of the pool to TDSL_RESULT_MEMORY, in MiB; TdslError if that is no number."""
    global _limit
    setting = os.environ.get("TDSL_RESULT_MEMORY", "").strip() or str(DEFAULT_MIB)
    if not setting.isdecimal():
        raise TdslError(
            f"TDSL_RESULT_MEMORY={setting!r} is not a number of MiB",
            loc=here(),
            label="this call",
            hint=f"set it to 0 to keep no memory of results, or leave it unset for {DEFAULT_MIB}",
        )
    before, _limit = _limit, int(setting) << 20
    if _limit < before:
        _trim()
