"""Lower bounds of the communication volume of a plan, known for matrix products."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

from tdsl.autoschedule.recipes.strategies import product_bound
from tdsl.communication.stages import Stage
from tdsl.communication.steps import PlacedTensor
from tdsl.lang.expr import Var
from tdsl.lang.regions import reads_in


def lower_bound_of(
    stages: Sequence[Stage], tensors: Sequence[PlacedTensor], ranks: int
) -> Callable[[float], float] | None:
    """A lower bound of bytes received, by bytes of memory; None unless the only stage is a matrix product."""
    if len(stages) != 1:
        return None
    bound, size = _product_bound(stages[0], ranks), min((h.bytes for h in tensors), default=1)
    return None if bound is None else lambda memory: size * bound(memory / size)


def _product_bound(stage: Stage, ranks: int) -> Callable[[float], float] | None:
    """The lower bound in elements, by memory in elements; None unless `stage` is a matrix product."""
    d = stage.definition
    loops_of_tensor: dict[str, set[str]] = {}
    for r in reads_in(d.values):
        names = {e.name for e in r.index if isinstance(e, Var)}
        if len(names) != len(r.index) or loops_of_tensor.setdefault(r.name, names) != names:
            return None
    if len(d.free) != 2 or len(d.ranges) != 1 or stage.task_funcs:
        return None
    (i, j), k = d.free, d.ranges[0][0]
    if sorted(map(sorted, loops_of_tensor.values())) != sorted(map(sorted, ({i, k}, {k, j}))):
        return None
    m, n, depth = (hi - lo for lo, hi in (stage.bounds[x] for x in (i, j, k)))
    return functools.partial(product_bound, m, n, depth, ranks)
