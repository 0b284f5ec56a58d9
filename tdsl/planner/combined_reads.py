"""Reads of partial sums by one reduction of a line of ranks: which lines do so, what each rank receives."""

from __future__ import annotations

import math

import numpy as np

from tdsl.communication.rank_boxes import BoxVector, Mask, Numbers


def reductions_of_lines(
    boxes: BoxVector, shape: tuple[int, ...], axes: tuple[int, ...]
) -> tuple[Mask, Numbers]:
    """The ranks that read by one reduction of their line, and the elements that each of these receives.

    A line is the ranks that differ along some axes of a grid of this shape. It reads by an all-reduce if all
    read one box, by a reduce-scatter if their boxes divide a box, as `PartialReads` has it. Boxes are
    contiguous, and each rank has one.
    """
    count = math.prod(shape[n] for n in axes)

    def of_lines(values: Numbers) -> Numbers:
        return np.moveaxis(values.reshape(shape), axes, range(-len(axes), 0)).reshape(-1, count)

    sizes, position = of_lines(boxes.counts()), np.arange(count)
    ends = [(of_lines(vector.ends[0]), of_lines(vector.ends[1])) for vector in boxes.dims]
    same, bounding = np.ones(len(sizes), bool), np.ones(len(sizes), np.int64)
    for lo, hi in ends:
        same &= ((lo == lo[:, :1]) & (hi == hi[:, :1])).all(axis=1)
        bounding *= hi.max(axis=1) - lo.min(axis=1)
    divided = ~same & (sizes.sum(axis=1) == bounding)
    for n in np.flatnonzero(divided):
        divided[n] = not _overlap([(lo[n], hi[n]) for lo, hi in ends])
    whole = sizes[:, :1]
    each = -(-whole // count)
    part = np.minimum((position + 1) * each, whole) - np.minimum(position * each, whole)
    received = np.where(same[:, None], (count - 2) * part + whole, (count - 1) * sizes)
    outer = tuple(n for n in range(len(shape)) if n not in axes)
    moved = tuple(shape[n] for n in (*outer, *axes))

    def of_ranks(values: Numbers) -> Numbers:
        return np.moveaxis(values.reshape(moved), range(-len(axes), 0), axes).reshape(-1)

    member = of_ranks(np.broadcast_to((same | divided)[:, None], sizes.shape)) > 0
    return member, of_ranks(received)


def _overlap(ends: list[tuple[Numbers, Numbers]]) -> bool:
    """True if two of several boxes, which have `ends` in each dimension, share an element."""
    cut = [(lo, hi) for lo, hi in ends if np.any(lo != lo[0]) or np.any(hi != hi[0])]
    if len(cut) == 1:
        order = np.argsort(cut[0][0], kind="stable")
        lo, hi = (x[order] for x in cut[0])
        return bool(np.any(lo[1:] < hi[:-1]))
    for n in range(len(cut[0][0]) - 1):
        shared = (np.maximum(lo[n], lo[n + 1 :]) < np.minimum(hi[n], hi[n + 1 :]) for lo, hi in cut)
        if np.any(np.all(list(shared), axis=0)):
            return True
    return False
