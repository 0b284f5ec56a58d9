"""The execution of a `Route` on arrays: all-to-alls, which the caller performs, and the copies between them.

A rank with an index outside of the tensor sends this one in place of numbers of rows, below 0, so that all
ranks of the route raise an error, and none waits for rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from tdsl.codegen.runtime.arrays import Array
from tdsl.communication.steps import Route
from tdsl.core.node import frozen
from tdsl.core.source import Loc
from tdsl.distribute.route_rows import exchanged_rows
from tdsl.errors import IndexBoundError
from tdsl.placement.ownership import element_count, index_within, stored_shape
from tdsl.placement.spans import PeriodicSpan, Span

Arrays = tuple[Array, ...]
SpanParts = tuple[int, int, int, int, int]


@frozen
class AllToAll:
    """The arrays that a rank sends to each other one of a route, and memory for what it receives from it.

    No rank sends or receives more than `bound` bytes.
    """

    tag: int
    sends: tuple[tuple[int, Array], ...]
    receives: tuple[tuple[int, Array], ...]
    bound: int


def span_parts(span: Span) -> SpanParts:
    """A span as `route_rows` describes it.

    >>> from tdsl.placement.spans import block_cyclic
    >>> span_parts((3, 7)), span_parts(block_cyclic((0, 10), 2, 6, 0))
    ((3, 7, 4, 4, 3), (0, 8, 2, 6, 0))
    """
    lo, hi = span
    if isinstance(span, PeriodicSpan):
        return lo, hi, span.block, span.period, span.start
    return lo, hi, max(hi - lo, 1), max(hi - lo, 1), lo


def block_parts(step: Route, reader: int) -> list[tuple[SpanParts, ...] | None]:
    """The description of the block of each member; None where a reader needs no part of its rows."""
    parts = []
    for owner in range(len(step.ranks)):
        block = None if step.shared_rows(reader, owner) is None else step.key_block(owner)
        parts.append(None if block is None else tuple(map(span_parts, block)))
    return parts


def row_part(step: Route, reader: int, owner: int, *, of_block: bool) -> tuple[object, ...]:
    """The index of what both have of a row, in a row of the owner's block or of the reader's box; else ()."""
    shared, box = step.shared_rows(reader, owner), step.boxes[reader]
    block = step.blocks[owner]
    if shared is None or box is None or block is None:
        return ()
    row = tuple(s for a, s in enumerate(block) if a not in step.axes) if of_block else box[step.index_dims :]
    index = index_within(shared, row)
    return index[1:] if index and index[0] is Ellipsis else index


def fetch_rows(
    step: Route, rank: int, keys: Array | None, block: Arrays, target: Arrays | None,
    dtypes: Sequence[np.dtype[np.generic]], loc: Loc | None,
) -> Iterator[AllToAll]:  # fmt: skip
    """Store in `target` the rows of the key of each element of `keys`; yields what ranks send each other.

    `block` is this rank's block of the tensor, () for none. IndexBoundError if a rank of the route has a key
    that is none.
    """
    me, members = step.ranks.index(rank), range(len(step.ranks))
    count, shared = step.index_count(me), [step.shared_rows(me, n) for n in members]
    targets = [
        np.empty(0, t) if target is None else target[n].reshape(count, *target[n].shape[step.index_dims :])
        for n, t in enumerate(dtypes)
    ]
    exchanges = exchanged_rows(
        np.empty(0, np.int64) if keys is None else keys.reshape(-1),
        step.whole, block_parts(step, me), step.axes, block, targets,
        [row_part(step, n, me, of_block=True) for n in members],
        [row_part(step, me, n, of_block=False) for n in members],
        [() if s is None else stored_shape(s) for s in shared],
        lambda n, key: _outside(step, step.ranks[n], key, loc),
    )  # fmt: skip
    counts, size = [step.index_count(n) for n in members], sum(t.itemsize for t in dtypes)
    rows = sum(element_count(box) for box in step.boxes if box is not None)
    # several members may own parts of one row: each of them receives its offset
    bounds = (8 * len(members), 8 * max(sum(counts), max(counts) * len(members)), size * rows)
    for phase, (sends, receives) in enumerate(exchanges):
        receives[me][...] = sends[me]
        if len(members) > 1:
            out, into = (
                tuple((step.ranks[n], a) for n, a in enumerate(arrays) if n != me)
                for arrays in (sends, receives)
            )
            yield AllToAll(step.tag + phase, out, into, bounds[phase])


def outside_text(step: Route) -> str:
    """What an error of an index says after the index: the axes, and the range of valid indices."""
    where = " x ".join(f"[{lo}, {hi})" for lo, hi in step.whole)
    axes = f"axis {step.axes[0]}" if len(step.axes) == 1 else f"axes {', '.join(map(str, step.axes))}"
    return f"in {axes}, outside of {where}"


def _outside(step: Route, rank: int, key: int | None, loc: Loc | None) -> IndexBoundError:
    """The error of an index that is outside of a tensor, on the rank that has it or on another one."""
    at = "" if key is None or len(step.axes) > 1 else f" at {key + step.whole[0][0]}"
    lo, hi = step.whole[0]
    return IndexBoundError(
        f"rank {rank} reads {step.tensor!r}{at} {outside_text(step)}",
        loc=loc,
        label="this access",
        hint=f"limit the index: td.clip(index, {lo}, {hi - 1})"
        if lo < hi
        else f"{step.tensor!r} has no elements: read it at no index",
    )
