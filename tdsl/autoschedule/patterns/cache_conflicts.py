"""Conflict misses of rows in few sets of a cache: inputs are copied first, storage of funcs is padded."""

from __future__ import annotations

from collections.abc import Sequence
from math import gcd, prod

from tdsl.lang.expr import Const, Read, Var
from tdsl.lang.program import Program
from tdsl.machine.model import PAGE_BYTES

LINE = 64  # bytes
WAYS = 8  # rows that a set of it holds
ROWS = 16  # of a result, from which such rows are copied


def has_cache_conflicts(program: Program, moving: Read, term: str, element: int) -> bool:
    """True if the stride of the terms of an input is a multiple of a page.

    >>> import tdsl as td
    >>> i, k, j = td.vars("i k j")
    >>> f, g = td.Func("f"), td.Func("g")
    >>> a, b = td.Tensor("a", (8, 1024), td.f32), td.Tensor("b", (8, 1000), td.f32)
    >>> f[j], g[j] = td.sum(a[k, j], axis=k), td.sum(b[k, j], axis=k)
    >>> def crowded(f):
    ...     program = td.Schedule(f).program
    ...     (moving,) = (program.funcs[0].definitions[0].values)
    ...     return has_cache_conflicts(program, moving, "k", 4)
    >>> crowded(f), crowded(g)
    (True, False)
    """
    shape = next((t.shape for t in program.inputs if t.name == moving.name), ())
    axis = next((n for n, e in enumerate(moving.index) if e == Var(term)), len(shape))
    after = [int(e.value) for e in shape[axis + 1 :] if isinstance(e, Const)]
    known = len(after) == len(shape) - axis - 1 > 0
    return known and element * prod(after) % PAGE_BYTES == 0


def conflict_free_extent(shape: Sequence[int], axis: int, element: int) -> tuple[int, int] | None:
    """A dimension, and a padded extent for it, with which rows along an axis spread over enough cache sets.

    None where these are not: where the sets of a cache into which they fall hold all of them. The extent is
    the one that takes the least memory, a line or a row more.

    >>> conflict_free_extent((32, 4, 256), 0, 4), conflict_free_extent((128, 32, 32), 0, 4)
    ((2, 272), (1, 33))
    >>> conflict_free_extent((8, 4, 256), 0, 4), conflict_free_extent((32, 4, 272), 0, 4)
    (None, None)
    """
    if not _in_few_sets(shape, axis, element):
        return None
    candidates = []
    for n in range(axis + 1, len(shape)):
        more = shape[n] + (LINE // element if n == len(shape) - 1 else 1)
        longer = (*shape[:n], more, *shape[n + 1 :])
        if not _in_few_sets(longer, axis, element):
            candidates.append((prod(longer), n, more))
    return min(candidates)[1:] if candidates else None


def _in_few_sets(shape: Sequence[int], axis: int, element: int) -> bool:
    stride = gcd(element * prod(shape[axis + 1 :]), PAGE_BYTES)
    return stride > LINE and shape[axis] > WAYS * PAGE_BYTES // stride
