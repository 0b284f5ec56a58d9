"""Proofs about single elements: an access is in bounds, a load is not of the element that a store writes."""

from __future__ import annotations

from collections.abc import Mapping

from tdsl.codegen.analysis.disjoint_indices import DisjointIndices
from tdsl.codegen.ir.loops import Store
from tdsl.lang.affine import as_sum
from tdsl.lang.bounds import Facts, at_most
from tdsl.lang.expr import ONE, ZERO, Expr, Load
from tdsl.lang.simplify import add

Arrays = Mapping[str, tuple[Expr, ...]]
"""The extents of arguments and of memory around."""


def is_in_bounds(buffer: str, index: tuple[Expr, ...], arrays: Arrays, facts: Facts) -> bool:
    """True if an element is certainly one of an argument or of memory allocated around.

    >>> from tdsl.lang.bounds import NO_FACTS
    >>> from tdsl.lang.expr import Var, const
    >>> facts = NO_FACTS.with_range("i", ZERO, const(7))
    >>> [is_in_bounds("a", (Var("i"),), {"a": (const(n),)}, facts) for n in (7, 8)]
    [False, True]
    """
    return buffer in arrays and all(
        at_most(ZERO, i, facts) and at_most(add(i, ONE), extent, facts)
        for i, extent in zip(index, arrays[buffer], strict=True)
    )


def is_other_element(load: Load, s: Store, facts: Facts) -> bool:
    """True if a load is certainly not of the element that a store writes, where both have these facts.

    >>> from tdsl.lang.bounds import NO_FACTS
    >>> from tdsl.lang.expr import Var, const
    >>> from tdsl.lang.types import f32
    >>> store = Store("a", (Var("i"),), ZERO)
    >>> facts = NO_FACTS.with_range("i", ONE, const(7))
    >>> [is_other_element(Load("a", (const(n),), f32), store, facts) for n in (0, 1)]
    [True, False]
    """
    pairs = zip(load.index, s.index, strict=True)
    return DisjointIndices([as_sum(a).plus(as_sum(b), -1) for a, b in pairs], facts, {}, {""}).is_proved()
