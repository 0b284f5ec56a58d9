"""`gather`: the contribution of a read as values of the adjoint at an element.

Of score[t, h, s] = sum(z[t, 64 * h + e] * k[s, h, e], axis=e), the adjoint of z[t, n] adds

    sum(d_score[t, n // 64, s] * k[s, n // 64, n % 64], axis=s)     if n is one of the 64 * h + e

As a func of h and e, the loop variables that the index was solved for, the sum is one of products of matrices
again, and nothing is summed for other elements (`_point_sum`):

    d_z_sum[t, h, e] = sum(d_score[t, h, s] * k[s, h, e], axis=s)
    d_z[t, n]        = where(..., d_z_sum[t, n // 64, n % 64], 0)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tdsl.lang.affine import variables
from tdsl.lang.expr import TRUE, Binary, Const, Expr, Reduce, Var
from tdsl.lang.gradients.contribution import Boxes, Contribution, value_at
from tdsl.lang.gradients.inverse import Inverse, invert
from tdsl.lang.regions import Interval

Store = Callable[[dict[str, Interval], Expr], Expr]


def gather(
    c: Contribution, elements: Mapping[str, Interval], boxes: Boxes, store: Store | None = None
) -> list[Expr] | None:
    """The values that a contribution adds to the element named by the variables of `elements`.

    None if the index of its target cannot be solved. `boxes` are the boxes of all tensors and funcs;
    `store(variables, value)`, if it is given, defines a func of variables with these ranges, and returns its
    read there.
    """
    c = c.renamed({n: f"{n}'" for n in c.ranges})
    inverses = invert(c.index, elements, c.ranges)
    if inverses is None:
        return None
    sums = [store and _point_sum(c, i, elements, boxes, store) for i in inverses]
    return [s or value_at(c, i, elements, boxes) for s, i in zip(sums, inverses, strict=True)]


def _point_sum(
    c: Contribution, inverse: Inverse, elements: Mapping[str, Interval], boxes: Boxes, store: Store
) -> Expr | None:
    """The value of a contribution at an element, as the read of a func of the variables solved for.

    None if the contribution sums nothing, if what is summed over is in a guard or in the value of a variable
    that is solved for, if these are the elements themselves, or if their ranges are not constant.
    """
    solved, left = inverse.values, inverse.ranges.keys()
    known = (*solved.values(), *inverse.guards)
    if all(isinstance(v, Var) for v in known) or any(variables(e) & left for e in known):
        return None
    used = variables(c.value) | variables(c.where) | variables(c.cond)
    names = sorted((n for n in solved if n in used), key=lambda n: _order(solved[n], [*elements]))
    if not names or not left or not {*names} <= c.ranges.keys():
        return None
    plain = {n: n.rstrip("'") for n in names}
    spans = {plain[n]: c.ranges[n] for n in names}
    if not all(isinstance(end, Const) for ends in spans.values() for end in ends):
        return None  # what is read there may have an extent that equals theirs for some sizes only
    points = Inverse({n: Var(plain[n]) for n in names}, inverse.ranges, ())
    value = value_at(c, points, spans, boxes)
    if not isinstance(value, Reduce):
        return None
    stored = Contribution(c.target, {}, TRUE, TRUE, store(spans, value))
    at = Inverse({plain[n]: solved[n] for n in names}, {}, inverse.guards)
    return value_at(stored, at, elements, boxes)


def _order(value: Expr, elements: list[str]) -> tuple[int, bool]:
    """The axis that a solved variable depends on, and whether it is the last digit of its index."""
    axis = max((elements.index(n) for n in variables(value) if n in elements), default=-1)
    return axis, isinstance(value, Binary) and value.op == "mod"
