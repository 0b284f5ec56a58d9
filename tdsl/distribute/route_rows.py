"""The local work of a `Route`: which rows a rank asks of each owner, and where those that it receives belong.

These functions use NumPy only: modules that are emitted contain their text. A span of a block is described by
(lo, hi, length of a part, distance of parts, start of a part), which covers contiguous and block-cyclic ones.
Parts of rows are tuples of slices or of index arrays as those of `np.ix_`.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable
from typing import Any

import numpy as np


def requested_rows(keys: Any, whole: Any, blocks: Any) -> Any:
    """The offsets of the different rows that a rank needs in each block, and how its keys refer to them.

    `keys` are row-major offsets in the box `whole`; a block has the description of each span, or is None.
    Returns offsets and numbers of rows for each block, and the number of the row of each key.

    >>> low, high = ((0, 5, 5, 5, 0),), ((5, 9, 4, 4, 5),)
    >>> offsets, members, numbers = requested_rows(np.array([7, 1, 7]), ((0, 9),), [low, high])
    >>> [x.tolist() for x in offsets], [x.tolist() for x in members], numbers.tolist()
    ([[1], [2]], [[0], [1]], [1, 0, 1])
    """
    rows, numbers = np.unique(keys, return_inverse=True)
    shape = tuple(hi - lo for lo, hi in whole)
    at = np.unravel_index(rows, shape) if rows.size else (rows,) * len(shape)
    offsets, members = [], []
    for block in blocks:
        inside, offset = np.full(rows.shape, block is not None), np.zeros(rows.shape, np.int64)
        for index, (first, _), (lo, hi, size, period, start) in zip(at, whole, block or (), strict=False):
            place = index + (first - start)
            inside &= (index + first >= lo) & (index + first < hi) & (place % period < size)
            before = (lo - start) // period * size + min((lo - start) % period, size)
            behind = (hi - start) // period * size + min((hi - start) % period, size)
            offset = offset * (behind - before) + place // period * size + place % period - before
        members.append(np.flatnonzero(inside))
        offsets.append(offset[inside])
    return offsets, members, numbers.reshape(-1)


def selected_rows(block: Any, axes: Any, offsets: Any, part: Any) -> Any:
    """The parts of the rows of a block at some offsets, which count its elements in the dimensions `axes`.

    >>> selected_rows(np.arange(12).reshape(3, 4), (0,), np.array([2, 0]), (slice(1, 3),))
    array([[ 9, 10],
           [ 1,  2]])
    """
    rows = np.moveaxis(block, axes, range(len(axes)))
    shape = rows.shape[: len(axes)]
    taken = (
        rows[np.unravel_index(offsets, shape)]
        if offsets.size
        else rows.reshape(-1, *rows.shape[len(axes) :])[:0]
    )
    return np.ascontiguousarray(taken[(slice(None), *part)])


def place_rows(target: Any, rows: Any, members: Any, numbers: Any, part: Any) -> None:
    """Store the parts of rows of one owner in `target`, which has a row for each key.

    `members` are the numbers of these rows among all different ones, `numbers` that of each key's row.
    """
    places = np.full(int(numbers.max(initial=-1)) + 1, -1)
    places[members] = np.arange(len(members))
    keys = np.flatnonzero(places[numbers] >= 0)
    values = rows[places[numbers[keys]]]
    if part and not isinstance(part[0], slice):
        keys = keys.reshape(-1, *(1 for _ in part))
    target[(keys, *part)] = values


def exchanged_rows(
    keys: Any, whole: Any, owners: Any, axes: Any, blocks: Any, targets: Any, given: Any, taken: Any,
    shapes: Any, fault: Any,
) -> Any:  # fmt: skip
    """Store the rows of `keys` in each of `targets`; yields the arrays to send to each rank, and to receive.

    `owners` are the descriptions of the blocks of all ranks, `blocks` the arrays of that of this rank, () for
    none. `given` is the part of a row that each rank receives of this one, `taken` where its part belongs in
    a row of this rank, `shapes` the shape of that. The caller performs three all-to-alls: of numbers of rows,
    of their offsets, of the bytes of rows. If a key of a rank is none of `whole`, all ranks raise
    `fault(n, key)` for the number n of the rank, and the key if it is not far below 0.
    """
    count = int(np.prod([hi - lo for lo, hi in whole]))
    least, wrong = -max(count, 1), keys[(keys < 0) | (keys >= count)]
    offsets, members, numbers = requested_rows(keys if not wrong.size else keys[:0], whole, owners)
    counts = np.array([len(o) for o in offsets], np.int64)
    if wrong.size:  # from `least` for those below 0, below it for those behind the last row
        counts[:] = -1 - wrong[0] if wrong[0] >= 0 else max(wrong[0], least)
    requested = np.empty_like(counts)
    yield np.split(counts, len(counts)), np.split(requested, len(requested))
    if requested.min() < 0:
        code = int(requested.min())
        raise fault(int(requested.argmin()), None if code == least else code if code > least else -1 - code)
    selected = [np.empty(n, np.int64) for n in requested]
    yield offsets, selected
    sends = []
    for at, part in zip(selected, given, strict=True):
        rows = (
            [selected_rows(b, axes, at, part).reshape(-1).view(np.uint8) for b in blocks] if len(at) else []
        )
        sends.append(np.concatenate([np.empty(0, np.uint8), *rows]))
    sizes = [[int(c * np.prod(s)) * t.itemsize for t in targets] for c, s in zip(counts, shapes, strict=True)]
    receives = [np.empty(sum(n), np.uint8) for n in sizes]
    yield sends, receives
    for m in np.flatnonzero(counts):
        for target, part in zip(targets, np.split(receives[m], np.cumsum(sizes[m])[:-1]), strict=True):
            rows = part.view(target.dtype).reshape(counts[m], *shapes[m])
            place_rows(target, rows, members[m], numbers, taken[m])


def all_to_all(group: Any, exchanges: Any) -> Any:
    """Perform exchanges among the ranks of an MPI communicator: arrays to send to and receive from each."""
    for sends, receives in exchanges:
        packed = np.concatenate([a.view(np.uint8) for a in sends])
        sizes = [a.nbytes for a in receives]
        received = np.empty(sum(sizes), np.uint8)
        group.Alltoallv((packed, [a.nbytes for a in sends]), (received, sizes))
        for array, part in zip(receives, np.split(received, np.cumsum(sizes)[:-1]), strict=True):
            array.view(np.uint8)[...] = part


def function_text(function: Callable[..., Any]) -> str:
    """The source of a function of this module without docstring and annotations."""
    (tree,) = ast.parse(inspect.getsource(function)).body
    assert isinstance(tree, ast.FunctionDef)
    tree.returns, tree.body = None, tree.body[1:]
    for argument in tree.args.args:
        argument.annotation = None
    return ast.unparse(tree)
