"""What no plan can go below: lower bounds of communication, where they are known."""

from __future__ import annotations

import math

from tdsl.distribute.stages import Stage
from tdsl.lang.expr import Var
from tdsl.lang.regions import reads_in


def product_bound(m: int, n: int, k: int, ranks: int) -> float:
    """Elements that the busiest rank receives at least for a product of matrices.

    Al Daas, Ballard, Grigori, Kumar, Rouse (2022): however much memory there is, if the matrices are evenly
    shared out before and after.

    >>> product_bound(1024, 1024, 1024, 8), product_bound(2048, 512, 256, 4)
    (393216.0, 98304.0)
    """
    a, b, c = sorted((m, n, k), reverse=True)
    if not c:
        return 0.0
    if ranks * b <= a:
        return (1 - 1 / ranks) * b * c
    if ranks * c * c <= a * b:
        return 2 * math.sqrt(a * b * c * c / ranks) - (a * c + b * c) / ranks
    faces = 3 * round(math.cbrt(a * b * c / ranks) ** 2, 6)
    return faces - (a * b + a * c + b * c) / ranks


def bound_of(stage: Stage, ranks: int) -> float | None:
    """The bound of a stage that is a product of two matrices; None for any other."""
    d = stage.definition
    touched: dict[str, set[str]] = {}
    for r in reads_in(d.values):
        names = {e.name for e in r.index if isinstance(e, Var)}
        if len(names) != len(r.index) or touched.setdefault(r.name, names) != names:
            return None
    if len(d.free) != 2 or len(d.ranges) != 1 or stage.inside:
        return None
    (i, j), k = d.free, d.ranges[0][0]
    if sorted(map(sorted, touched.values())) != sorted(map(sorted, ({i, k}, {k, j}))):
        return None
    m, n, depth = (hi - lo for lo, hi in (stage.bounds[x] for x in (i, j, k)))
    return product_bound(m, n, depth, ranks)
