"""Narrowing of reductions: a result that is constant along a variable is stored without that dimension.

    m[i, e], s[i, e] = (max, sum) over o        m is constant along e if its terms are:

    for i:                                      for i:
      for o:                                      for o:
        for e:                                      for e:
          m[i, e], s[i, e] = ...                      s[i, e] = ... with m[i]
                                                    m[i] = ...

The narrowed value is updated last, since the other values of the step read its old value.
"""

from __future__ import annotations

from tdsl.core.node import frozen, post_order
from tdsl.lang.affine import variables
from tdsl.lang.definition import Definition
from tdsl.lang.expr import Param
from tdsl.lang.program import FuncDef
from tdsl.lang.regions import reads_in
from tdsl.schedule.state import (
    FRAGMENT,
    LANES,
    SERIAL,
    UNROLLED,
    VECTORIZED,
    At,
    State,
    WithStage,
    is_reduction,
    levels_of,
    roots_of,
)  # fmt: skip

_IN_ORDER = (SERIAL, UNROLLED, VECTORIZED)


@frozen
class NarrowedComponents:
    """The `components` of a func that are constant `along` variables, whose loops are at `depth` or inner."""

    components: tuple[int, ...]
    along: frozenset[str]
    depth: int


def find_narrowed(state: State, f: FuncDef) -> NarrowedComponents | None:
    """The components of a reduction that can be narrowed; None if there are none or its loops forbid it."""
    d, plan = f.definitions[0], state.plan(f.name)
    if len(f.definitions) > 1 or len(d.values) < 2 or d.init is None or d.combine is None:
        return None
    fixed = plan.specializations or plan.atomic or plan.distributed or plan.fold
    if f.name in state.program.outputs or fixed or isinstance(plan.place, WithStage):
        return None
    used = _variables_of_values(d)
    fewest = min(used, key=len)
    components = tuple(n for n, variables_ in enumerate(used) if variables_ == fewest)
    along = frozenset(d.free) - fewest
    nest = plan.nests[0]
    reduced = [n for n, x in enumerate(nest.names()) if is_reduction(f, 0, nest, x)]
    if not along or len(components) == len(used) or not reduced:
        return None
    depth = max(reduced) + 1
    for n, x in enumerate(nest.loops):
        roots = roots_of(nest, x.name)
        if not roots & along:
            continue
        replicated = x.kind == LANES and plan.scope == FRAGMENT
        if n < depth or (not replicated and (x.kind not in _IN_ORDER or not roots <= along)):
            return None
    inner = set(nest.names()[depth:])
    reads = {r.name for n in components for r in reads_in((d.values[n],))}
    for name, other in state.plans:
        placed = any(x.func == f.name and x.loop in inner for x in levels_of(other))
        before = isinstance(other.place, At) and other.store is None and name not in reads
        if placed and not before:
            return None
    return NarrowedComponents(components, along, depth)


def _variables_of_values(d: Definition) -> tuple[frozenset[str], ...]:
    """The free variables that each value depends on."""
    assert d.init is not None and d.combine is not None
    free = frozenset(d.free)
    common = variables(d.where) & free
    terms = [variables(e) & free for e in d.values]
    used = [common | variables_ | (variables(e) & free) for variables_, e in zip(terms, d.init, strict=True)]
    while True:
        new = []
        for variables_, e in zip(used, d.combine.exprs, strict=True):
            for n in post_order(e):
                if isinstance(n, Param) and n.name[1:].isdigit():
                    variables_ = variables_ | (used if n.name[0] == "a" else terms)[int(n.name[1:])]
            new.append(variables_)
        if new == used:
            return tuple(used)
        used = new
