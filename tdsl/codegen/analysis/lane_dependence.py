"""Dependence analysis of a loop: may its iterations run in lockstep, statement by statement?"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from tdsl.codegen.analysis.disjoint_indices import DisjointIndices
from tdsl.codegen.analysis.facts import facts_inside, facts_where
from tdsl.codegen.ir.loops import Alloc, For, If, Let, Stmt, Store
from tdsl.codegen.ir.statements import exprs_of, loads_of, rebuilt, stored_in, walk
from tdsl.core.node import frozen, post_order
from tdsl.lang.affine import as_sum
from tdsl.lang.bounds import NO_FACTS, Facts
from tdsl.lang.expr import Expr, Load, Var, dtype_of
from tdsl.lang.simplify import substitute
from tdsl.lang.types import i64

Index = tuple[Expr, ...]


def lanes_are_independent(loop: For, facts: Facts) -> bool:
    """True if it is proved that no iteration accesses an element that another one writes.

    Memory allocated in the loop is private to each iteration. See `DisjointIndices` for the proof.

    >>> from tdsl.lang.bounds import NO_FACTS
    >>> from tdsl.lang.expr import ONE, ZERO, Binary, const
    >>> from tdsl.lang.types import i64
    >>> i = Var("i")
    >>> def alone(value):
    ...     loop = For("i", ZERO, const(8), "vectorized", Store("a", (i,), value))
    ...     return lanes_are_independent(loop, NO_FACTS)
    >>> alone(Load("a", (i,), i64)), alone(Load("a", (Binary("add", i, ONE),), i64))
    (True, False)
    """
    private = {s.name for s in walk(loop.body) if isinstance(s, Alloc)}
    written = stored_in(loop.body) - private
    if not written:
        return True
    pair = _IterationPair.create(loop, facts, written)
    stores: dict[str, dict[Index, None]] = {}
    touched: dict[str, dict[Index, None]] = {}
    for buffer, index, is_store in _accesses(loop.body, written):
        if any(loads_of(i) & written for i in index):
            return False
        touched.setdefault(buffer, {})[index] = None
        if is_store:
            stores.setdefault(buffer, {})[index] = None
    return all(
        pair.are_disjoint(store, other)
        for buffer, indices in stores.items()
        for store in indices
        for other in touched[buffer]
    )


def has_distinct_elements(loop: For, store: Store) -> bool:
    """True if it is proved that a store in a loop, perhaps in loops inside it, writes no element twice.

    >>> from tdsl.lang.expr import ZERO, Binary, const
    >>> i, j, k = Var("i"), Var("j"), Var("k")
    >>> def alone(*index):
    ...     store = Store("a", index, ZERO)
    ...     loop = For("i", ZERO, const(8), "parallel", For("j", ZERO, const(4), "serial", store))
    ...     return has_distinct_elements(loop, store)
    >>> alone(i, j), alone(Binary("add", Binary("mul", i, const(4)), j)), alone(j)
    (True, True, False)
    """
    around = {s.name for s in walk(loop) if isinstance(s, For) and any(x is store for x in walk(s))}
    return _IterationPair.create(loop, NO_FACTS, frozenset({store.buffer})).are_disjoint(
        store.index, store.index, around
    )


def _accesses(s: Stmt, buffers: frozenset[str]) -> Iterator[tuple[str, Index, bool]]:
    """The buffer and index of each load and store of `buffers`, with True for a store."""
    for inner in walk(s):
        if isinstance(inner, Store) and inner.buffer in buffers:
            yield inner.buffer, inner.index, True
        for e in exprs_of(inner):
            if loads_of(e) & buffers:
                for n in post_order(e):
                    if isinstance(n, Load) and n.buffer in buffers:
                        yield n.buffer, n.index, False


@frozen
class _IterationPair:
    """Two iterations of a loop; the variables of the second one are renamed, and lets are expanded."""

    loop: str
    facts: Facts
    twins: dict[str, Expr]
    lets: dict[str, Expr]

    @staticmethod
    def create(loop: For, facts: Facts, written: frozenset[str]) -> _IterationPair:
        bound = [loop, *(s for s in walk(loop.body) if isinstance(s, For | Let))]
        twins: dict[str, Expr] = {s.name: Var(f"{s.name}'") for s in bound}
        meanings: dict[str, set[tuple[Expr, ...]]] = {}
        for s in bound:
            meanings.setdefault(s.name, set()).add(exprs_of(s))
        lets: dict[str, Expr] = {}
        for s in bound:
            if len(meanings[s.name]) > 1:
                continue  # statements beside each other bind the name to different values
            if isinstance(s, For):
                lo, extent = substitute(s.lo, lets), substitute(s.extent, lets)
                facts = facts_inside(facts, rebuilt(s, lo=lo, extent=extent))
                if s.name in facts.ranges:
                    lo, hi = facts.ranges[s.name]
                    facts = facts.with_range(f"{s.name}'", substitute(lo, twins), substitute(hi, twins))
            elif dtype_of(s.value) == i64 and not loads_of(s.value) & written:
                lets[s.name] = substitute(s.value, lets)
        body: Stmt = loop.body
        while isinstance(body, If) and body.orelse is None:
            facts = facts_where(facts, substitute(body.cond, lets))
            facts = facts_where(facts, substitute(substitute(body.cond, lets), twins))
            body = body.then
        return _IterationPair(loop.name, facts, twins, lets)

    def are_disjoint(self, a: Index, b: Index, loops: Iterable[str] = ()) -> bool:
        """True if two different iterations, of some `loops`, are proved never to have equal indices."""
        first = (as_sum(substitute(i, self.lets)) for i in a)
        other = (as_sum(substitute(substitute(i, self.lets), self.twins)) for i in b)
        differences = [x.plus(y, -1) for x, y in zip(first, other, strict=True)]
        return DisjointIndices(differences, self.facts, self.twins, {*loops} or {self.loop}).is_proved()
