"""The most elements that gathers read: as many rows as there are indices."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

from tdsl.lang.affine import has_data, variables
from tdsl.lang.bounds import NO_FACTS, upper
from tdsl.lang.definition import Definition
from tdsl.lang.expr import ZERO, Expr, const
from tdsl.lang.program import Program
from tdsl.lang.regions import Box, Interval, box_of
from tdsl.schedule.properties import extent, volume


def gathered_points(d: Definition, name: str, ranges: Mapping[str, Interval]) -> int | None:
    """How many points of an array a definition gathers, with indices from data; None without such a read.

    Each iteration may gather others: those over the variables of the data make as many different rows at
    most.

    >>> import tdsl as td
    >>> from tdsl.lang.expr import ZERO, const
    >>> i, j = td.vars("i j")
    >>> x, at, f = td.Tensor("x", (9999, 64), td.f32), td.Tensor("at", (9,), td.i32), td.Func("f")
    >>> f[i, j] = x[at[i], j]
    >>> d = td.Schedule(f).program.func("f").definitions[0]
    >>> ranges = {"i": (ZERO, const(7)), "j": (ZERO, const(31))}
    >>> gathered_points(d, "x", ranges), gathered_points(d, "at", ranges)
    (256, None)
    """
    indices = dict.fromkeys(r.index for r in d.reads if r.name == name)
    if not any(map(has_data, (e for index in indices for e in index))):
        return None
    counts = [_points(index, d, ranges) for index in indices]
    return None if None in counts else sum(n or 0 for n in counts)


def _points(index: tuple[Expr, ...], d: Definition, ranges: Mapping[str, Interval]) -> int | None:
    chosen = [e for e in index if has_data(e)]
    counts = {v: volume((ranges[v],)) for e in chosen for v in variables(e)}
    plain = volume(box_of([e for e in index if not has_data(e)], ranges, NO_FACTS, d.where))
    if plain is None or None in counts.values():
        return None
    return prod(n or 0 for n in counts.values()) * plain


def within_inputs(program: Program, boxes: Mapping[str, Box]) -> dict[str, Box]:
    """Boxes that have no more of an input than there is: data may be any number, but no index outside."""
    clipped = dict(boxes)
    for t in program.inputs:
        sizes = [upper(n) for n in t.shape]
        if t.name in boxes:
            clipped[t.name] = tuple(
                (ZERO, const(n - 1)) if n is not None and _is_more(boxes[t.name], a, n) else old
                for a, (n, old) in enumerate(zip(sizes, boxes[t.name], strict=True))
            )
    return clipped


def _is_more(box: Box, axis: int, n: int) -> bool:
    length = extent(box, axis)
    return length is None or length > n
