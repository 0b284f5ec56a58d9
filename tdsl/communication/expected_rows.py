"""Expected numbers of rows that ranks receive by a `Route`, whose indices are known when it runs only.

Indices are taken as independent and uniform over the rows that they may select. Of K rows R indices then
select K (1 - (1 - 1 / K)^R) different ones, as many of each rank as it owns of the K.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tdsl.communication.steps import Route
from tdsl.placement.ownership import element_count, intersection

Matrix = NDArray[np.float64]


def distinct_rows(rows: int, indices: int) -> float:
    """The expected number of different rows that so many uniform indices select.

    >>> distinct_rows(10, 1), round(distinct_rows(10, 10), 3), distinct_rows(0, 5)
    (1.0, 6.513, 0.0)
    """
    if rows <= 1 or indices <= 1:
        return float(min(rows, indices))
    return -rows * math.expm1(indices * math.log1p(-1 / rows))


def expected_rows(step: Route) -> tuple[Matrix, Matrix]:
    """The rows that each member (first axis) is expected to read of each owner, and the elements of one."""
    return _expected(step.index_dims, step.axes, step.blocks, step.boxes, step.spans)


@functools.lru_cache(maxsize=64)
def _expected(
    index_dims: int, axes: tuple[int, ...], blocks: Any, boxes: Any, spans: Any
) -> tuple[Matrix, Matrix]:  # fmt: skip
    step = Route("", "", "", "", (), 0, index_dims, axes, (), blocks, boxes, spans)
    count = len(step.boxes)
    rows, elements = np.zeros((count, count)), np.zeros((count, count))
    known: dict[object, tuple[Matrix, Matrix]] = {}
    owners = range(count)
    for reader, (box, selected) in enumerate(zip(step.boxes, step.spans, strict=True)):
        if box is None:
            continue
        key = (step.index_count(reader), box[step.index_dims :], selected)
        if key not in known:
            parts = [step.shared_rows(reader, owner) for owner in owners]
            sizes = np.array([0 if part is None else element_count(part) for part in parts], float)
            fraction = distinct_rows(element_count(selected), key[0]) / max(element_count(selected), 1)
            blocks_of = [step.key_block(owner) for owner in owners]
            shared = [None if b is None else intersection(b, selected) for b in blocks_of]
            owned = np.array([0 if s is None else element_count(s) for s in shared], float)
            known[key] = np.where(sizes > 0, fraction * owned, 0), sizes
        rows[reader], elements[reader] = known[key]
    return rows, elements


def expected_elements(step: Route, member: int) -> tuple[tuple[int, int], ...]:
    """What a member sends and receives by each all-to-all of a route: counts, offsets, elements of rows.

    Offsets and rows are expected numbers, rounded.
    """
    rows, elements = expected_rows(step)
    counts, n = len(rows) - 1, member
    others = np.arange(len(rows)) != n
    return (
        (counts, counts),
        (_rounded(rows[n, others]), _rounded(rows[others, n])),
        (_rounded((rows[:, n] * elements[:, n])[others]), _rounded((rows[n] * elements[n])[others])),
    )


def rounded_levels(values: Matrix, levels: NDArray[np.int64], count: int) -> list[int]:
    """The sums of the values of each of `count` levels, such that they add up to the rounded sum of all.

    >>> rounded_levels(np.array([0.4, 0.4, 0.4]), np.array([0, 1, 1]), 2)
    [0, 1]
    """
    ends = [_rounded(values[(levels >= 0) & (levels <= level)]) for level in range(count)]
    return [end - before for before, end in zip([0, *ends], ends, strict=False)]


def _rounded(values: Matrix) -> int:
    return round(float(values.sum()))
