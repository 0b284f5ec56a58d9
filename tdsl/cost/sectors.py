"""Transactions of a warp's access: sectors of global memory, wavefronts of shared memory.

Global memory moves whole sectors of 32 bytes. Shared memory has 32 banks, each of which delivers one word of
4 bytes in a wavefront; half warps access 8 bytes a thread at once, quarter warps 16 bytes.
Threads that read one word share it.

`transactions` is the closed form for affine accesses: thread n of a block has the digits of n in the mixed
radix of the thread axes, fastest first, and accesses the element at the sum of digit * stride. It enumerates
the lanes of each warp, which is exact for any axes, strides and widths. `codegen/emulation/counted_batch.py`
counts the same for the accesses of compiled kernels.
"""

from __future__ import annotations

import functools
from math import gcd, prod
from typing import Any

import numpy as np

from tdsl.core.node import frozen

Array = np.ndarray[Any, Any]

WARP = 32  # threads of a warp
SECTOR, LINE = 32, 128  # bytes; bytes of a line of the first cache
BANKS, WORD = 32, 4  # banks of shared memory, bytes of a word of a bank
WIDEST = 16  # bytes of one access of a thread, at most
SHIFTED = (
    4  # bytes to which 16 bytes are aligned at most, for two aligned vectors to be loaded in their place
)
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
    word = np.where(on, word.reshape(groups, threads * words), _NONE)
    if not atomic:
        word.sort(axis=1)
        on = _is_first(word)
    counts = np.zeros((groups, BANKS), np.int64)
    row, column = np.nonzero(on)
    np.add.at(counts, (row, word[row, column] % BANKS), 1)
    served = counts.max(axis=1)
    least = np.minimum(served, 1)
    return served.reshape(-1, words).sum(axis=1), least.reshape(-1, words).sum(axis=1)


def shifted_accesses(first: Array, active: Array, size: int, end: int) -> list[tuple[int, Array, Array]]:
    """The accesses that load 16 bytes which begin at addresses `first` of an array of `end` bytes.

    Each is the bytes of a thread, its addresses, and who is active: two aligned vectors where both are in the
    array, one where it has all, else elements of `size` bytes.

    >>> first, every = np.asarray([[4, 16, 84]]), np.ones((1, 3), bool)
    >>> [(n, at.tolist(), on.tolist()) for n, at, on in shifted_accesses(first, every, 8, 100)][:2]
    [(16, [[0, 16, 80]], [[True, True, False]]), (16, [[16, 32, 96]], [[True, False, False]])]
    """
    begin = first // WIDEST * WIDEST
    whole = active & (begin >= 0) & (begin + 2 * WIDEST <= end)
    vectors = [(WIDEST, begin, whole), (WIDEST, begin + WIDEST, whole & (begin != first))]
    elements = (first + n for n in range(0, WIDEST, size))
    return vectors + [(size, at, active & ~whole & (at >= 0) & (at < end)) for at in elements]


Axes = tuple[tuple[int, float], ...]
"""Extent and stride in elements of each axis of threads, fastest first; of x[n // 2] the stride is 1/2."""


@frozen
class Transactions:
    """What the warps of a block transfer in an access: `requests`, and the `useful` bytes, of these no twice.

    `sectors`, and the `lines` of 128 bytes that they are in, if the memory is global; `wavefronts` and the
    `least` number of these if it is shared.
    """

    requests: int
    useful: int
    sectors: int
    lines: int
    wavefronts: int
    least: int

    @property
    def sector_efficiency(self) -> float:
        """The part of the bytes of all sectors that is used."""
        return self.useful / (SECTOR * self.sectors) if self.sectors else 1.0

    @property
    def conflict_degree(self) -> float:
        """The wavefronts for each one that is needed without bank conflicts."""
        return self.wavefronts / self.least if self.least else 1.0


@functools.lru_cache(maxsize=1 << 14)
def transactions(axes: Axes, size: int, vector: int = 1, *, offset: int = 0) -> Transactions:
    """The transactions of a block's affine access to `vector` consecutive elements of `size` bytes a thread.

    `offset` is the element of thread 0, in an array that begins at a multiple of 256 bytes. A vector is
    transferred 16 bytes at a time, or less where strides and offset are not aligned to as many; 16 bytes of
    global memory that are aligned to 4 or less are loaded as two aligned vectors.

    >>> transactions(((32, 1),), 4), transactions(((32, 8),), 2, 8).sectors
    (Transactions(requests=1, useful=128, sectors=4, lines=1, wavefronts=1, least=1), 16)

    Rows of 8 threads in a matrix of 1000 columns; columns of a shared tile with 32 columns, and with 33:

    >>> transactions(((8, 1), (4, 1000)), 4).sectors
    4
    >>> [transactions(((32, n),), 4).conflict_degree for n in (32, 33)]
    [32.0, 1.0]
    """
    lanes = [size * offset]
    for extent, stride in axes:
        lanes = [lane + int(n * stride) * size for n in range(extent) for lane in lanes]
    moves = (size * int(s) for n, s in axes if n > 1)
    width = max(gcd(WIDEST, size * vector, size * offset, *moves), size)
    sums = [0] * 6
    for start in range(0, len(lanes), WARP):
        warp, base = lanes[start : start + WARP], lanes[start] // LINE * LINE
        counts = _of_warp(tuple([lane - base for lane in warp]), size * vector, width)
        sums = [total + n for total, n in zip(sums, counts, strict=True)]
    return Transactions(*sums)


@functools.lru_cache(maxsize=1 << 14)
def _of_warp(lanes: tuple[int, ...], size: int, width: int) -> tuple[int, ...]:
    """The counts of a warp whose threads begin at these bytes, in the order of `Transactions`."""
    unit = max(width, WORD)  # of which 128 bytes are served at a time
    threads, banks = WARP * WORD // unit, BANKS * WORD // unit
    served = least = 0
    for start in range(0, size, width):
        for first in range(0, len(lanes), threads):
            words = {(lane + start) // unit for lane in lanes[first : first + threads]}
            used = [word % banks for word in words]
            served += 1 if len(set(used)) == len(used) else max(map(used.count, used))
            least += 1
    shifted = width <= SHIFTED and size % WIDEST == 0
    pieces = list[set[int]]()
    for start in range(0, size, WIDEST if shifted else width):
        places = {lane + start for lane in lanes}
        if not shifted:
            pieces.append(places)
            continue
        pieces.append({x // WIDEST * WIDEST for x in places})
        pieces.append({x // WIDEST * WIDEST + WIDEST for x in places if x % WIDEST})
    useful = (WIDEST if shifted else width) * sum(map(len, pieces))
    moved, lines = (sum(len({x // n for x in piece}) for piece in pieces) for n in (SECTOR, LINE))
    return sum(map(bool, pieces)), useful, moved, lines, served, least


def sectors_per_warp(axes: Axes, size: int, vector: int = 1, *, offset: int = 0) -> float:
    """The mean number of sectors that a warp touches for the elements of all its threads; see `transactions`.

    >>> [sectors_per_warp(((32, stride),), 4) for stride in (0, 1, 2, 8, 100)]
    [1.0, 4.0, 8.0, 32.0, 32.0]
    >>> sectors_per_warp(((32, 1),), 4, offset=1)
    5.0
    """
    warps = -(-prod(n for n, _ in axes) // WARP)
    return transactions(axes, size, vector, offset=offset).sectors / warps


def conflict_degree(axes: Axes, size: int, vector: int = 1, *, offset: int = 0) -> float:
    """The wavefronts of an access to shared memory for each one that is needed; see `transactions`.

    >>> [conflict_degree(((32, stride),), 4) for stride in (0, 1, 2, 3, 32)]
    [1.0, 1.0, 2.0, 1.0, 32.0]
    >>> conflict_degree(((16, 8), (2, 0)), 4, 4), conflict_degree(((16, 4), (2, 0)), 4, 4)
    (2.0, 1.0)
    """
    return transactions(axes, size, vector, offset=offset).conflict_degree


def _distinct(values: Array) -> Array:
    ordered = np.sort(values, axis=1)
    return np.asarray(_is_first(ordered).sum(axis=1))


def _is_first(ordered: Array) -> Array:
    """True for the first of equal values in each sorted row, not for `_NONE`."""
    first = ordered != _NONE
    first[:, 1:] &= ordered[:, 1:] != ordered[:, :-1]
    return np.asarray(first)
