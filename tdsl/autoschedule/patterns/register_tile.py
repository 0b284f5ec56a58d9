"""The rows and vectors of sums that a product keeps in registers."""

from __future__ import annotations

ROWS_IN_SET = 6  # tile rows that fit a cache set
CROWDED = 1.03  # cost factor for taller tiles
MOST_ROWS = 8  # tile rows
EVEN = 0.01  # slowdown accepted for tiles without tails, per dimension
MOST_VECTORS = 4  # vectors of a tile


def tile_shape(rows: int, columns: int, lanes: int, registers: int) -> tuple[int, int]:
    """(rows, vectors) of a register tile: the least time for all tiles, tails included.

    Of about equal shapes one without tails has less code.

    >>> tile_shape(512, 1024, 16, 32), tile_shape(1000, 1000, 16, 32), tile_shape(28, 64, 8, 16)
    ((4, 4), (5, 3), (4, 2))
    """
    best, shape = 0.0, (1, 1)
    for r in range(1, min(rows, MOST_ROWS) + 1):
        for v in range(1, MOST_VECTORS + 1):
            if r * v + v + 1 > registers or (v > 1 and (v - 1) * lanes >= columns):
                continue
            over, beyond = divmod(rows, r), divmod(-(-columns // lanes), v)
            time = sum(
                n * m * _cycles(height, across)
                for n, height in ((over[0], r), (1, over[1]))
                for m, across in ((beyond[0], v), (1, beyond[1]))
            )
            time *= 1 + EVEN * (bool(over[1]) + bool(beyond[1]))
            if not best or time <= best:  # on ties more rows: broadcasts hit nearer caches
                best, shape = time, (r, v)
    return shape


def _cycles(rows: int, vectors: int) -> float:
    """Estimated cycles per k step: 2 FMAs or loads per cycle, FMA latency 4."""
    if not rows or not vectors:
        return 0.0
    loads = rows + vectors
    crowded = CROWDED if rows > ROWS_IN_SET else 1
    return crowded * (max(rows * vectors, loads, 8) / 2 + loads / 64)
