"""Transactions of a warp's access: sectors of global memory, wavefronts of shared memory.

Global memory moves whole sectors of 32 bytes. Shared memory has 32 banks, each of which delivers one word of
4 bytes in a wavefront; an access of 8 bytes by a thread is made by half warps, of 16 bytes by quarter warps.
Threads that read one word share it.
"""

from __future__ import annotations

from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

WARP = 32  # threads of a warp
SECTOR = 32  # bytes
BANKS, WORD = 32, 4  # banks of shared memory, bytes of a word of a bank
_NONE = np.iinfo(np.int64).max  # in place of a value of an inactive thread; sorts behind all others


def sectors(addresses: Array, active: Array) -> Array:
    """The number of sectors that each warp (row) touches; addresses in bytes, of accesses within a sector.

    >>> lanes, every = np.arange(32)[None, :], np.ones((1, 32), bool)
    >>> [int(sectors(lanes * stride, every)[0]) for stride in (0, 4, 8, 16, 400)]
    [1, 4, 8, 16, 32]
    """
    return _distinct(np.where(active, addresses // SECTOR, _NONE))


def distinct_addresses(addresses: Array, active: Array) -> Array:
    """The number of different addresses in each row.

    >>> int(distinct_addresses(np.asarray([[0, 4, 4, 8]]), np.asarray([[True, True, True, False]]))[0])
    2
    """
    return _distinct(np.where(active, addresses, _NONE))


def wavefronts(addresses: Array, active: Array, width: int, *, atomic: bool = False) -> tuple[Array, Array]:
    """The wavefronts in which shared memory serves each warp (row), and the least number for these threads.

    `width` is the number of bytes of each thread's access, at most 16. Threads that update one word by an
    `atomic` operation are served one after the other.

    >>> lanes, every = np.arange(32)[None, :], np.ones((1, 32), bool)
    >>> [int(wavefronts(lanes * stride, every, 4)[0][0]) for stride in (0, 4, 8, 128, 132)]
    [1, 1, 2, 32, 1]
    >>> [int(part[0]) for part in wavefronts(lanes * 32, every, 16)]
    [8, 4]
    """
    words = max(width // WORD, 1)
    threads = WARP // words  # served together
    groups = len(addresses) * words
    on = np.repeat(active.reshape(groups, threads), words, axis=1)
    word = addresses.reshape(groups, threads, 1) // WORD + np.arange(words)
    word = np.where(on, word.reshape(groups, -1), _NONE)
    if not atomic:
        word.sort(axis=1)
        on = _is_first(word)
    counts = np.zeros((groups, BANKS), np.int64)
    row, column = np.nonzero(on)
    np.add.at(counts, (row, word[row, column] % BANKS), 1)
    served = counts.max(axis=1)
    least = np.minimum(served, 1)
    return served.reshape(-1, words).sum(axis=1), least.reshape(-1, words).sum(axis=1)


def _distinct(values: Array) -> Array:
    ordered = np.sort(values, axis=1)
    return np.asarray(_is_first(ordered).sum(axis=1))


def _is_first(ordered: Array) -> Array:
    """True for the first of equal values in each sorted row, not for `_NONE`."""
    first = ordered != _NONE
    first[:, 1:] &= ordered[:, 1:] != ordered[:, :-1]
    return np.asarray(first)
