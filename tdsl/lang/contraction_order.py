"""The contraction order of an einsum: which operands are multiplied first, two at a time.

A pair costs its multiplications, plus STORED for each element of its intermediate result. Loops over the
axes of the final result can be fused over all pairs, so these axes do not count as storage. Up to MOST
operands the order is optimal, by dynamic programming over subsets of the operands. With more operands, the
cheapest pair is contracted first (greedily) until MOST are left.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations
from math import prod

from tdsl.core.node import frozen

MAX_OPTIMAL = 8  # the number of operands up to which the order is optimal
STORAGE_COST = 16  # the cost of storing and reading an element of an intermediate, in multiplications

Names = frozenset[str]
Pair = tuple[int, int]


def contraction_order(terms: Sequence[Names], result: Names, sizes: Mapping[str, int]) -> list[Pair]:
    """The contraction order: the positions of each pair's operands; a product replaces the first of the two.

    >>> n = {"i": 200, "j": 200, "k": 200, "r": 16}
    >>> contraction_order([frozenset("ijk"), frozenset("jr"), frozenset("kr")], frozenset("ir"), n)
    [(0, 2), (0, 1)]
    """
    left, order = list(terms), list[Pair]()
    while len(left) > MAX_OPTIMAL:
        chosen = min(combinations(range(len(left)), 2), key=lambda p: _cost(p, left, result, sizes))
        order.append(chosen)
        left[chosen[0]] = _product_axes(frozenset(chosen), left, result)
        del left[chosen[1]]
    return order + _tree_pairs(_optimal_tree(left, result, sizes), len(left))


@frozen
class _Tree:
    """A contraction tree: the position of one operand, or two subtrees whose products are multiplied."""

    cost: int
    parts: tuple[_Tree, _Tree] | int


def _optimal_tree(terms: Sequence[Names], result: Names, sizes: Mapping[str, int]) -> _Tree:
    """The contraction tree of least cost, by dynamic programming over subsets of the operands."""
    trees = {frozenset({n}): _Tree(0, n) for n in range(len(terms))}
    for count in range(2, len(terms) + 1):
        for chosen in map(frozenset, combinations(range(len(terms)), count)):
            kept = _product_axes(chosen, terms, result)
            stored = STORAGE_COST * prod(sizes[n] for n in kept - result)
            best: _Tree | None = None
            for some in _halves(chosen):
                one, other = trees[some], trees[chosen - some]
                names = _product_axes(some, terms, result) | _product_axes(chosen - some, terms, result)
                cost = one.cost + other.cost + prod(sizes[n] for n in names) + stored
                if best is None or cost < best.cost:
                    best = _Tree(cost, (one, other))
            assert best is not None
            trees[chosen] = best
    return trees[frozenset(range(len(terms)))]


def _halves(chosen: frozenset[int]) -> list[frozenset[int]]:
    """The proper subsets with the first operand; of equal size, those with later operands come first."""
    first, *rest = sorted(chosen)
    return [
        frozenset({first, *more})
        for count in range(len(rest))
        for more in reversed(list(combinations(rest, count)))
    ]


def _product_axes(chosen: frozenset[int], terms: Sequence[Names], result: Names) -> Names:
    """The axes of the product of the operands `chosen`: those that other operands or the result need."""
    if len(chosen) == 1:
        return terms[min(chosen)]
    others = (t for n, t in enumerate(terms) if n not in chosen)
    return frozenset().union(*(terms[n] for n in chosen)) & result.union(*others)


def _cost(p: Pair, terms: Sequence[Names], result: Names, sizes: Mapping[str, int]) -> int:
    kept = _product_axes(frozenset(p), terms, result)
    axes = terms[p[0]] | terms[p[1]]
    return prod(sizes[n] for n in axes) + STORAGE_COST * prod(sizes[n] for n in kept)


def _tree_pairs(tree: _Tree, count: int) -> list[Pair]:
    """The pairs of a tree, inner ones first, as positions in the list of operands left at that step."""
    left, order = [frozenset({n}) for n in range(count)], list[Pair]()

    def visit(t: _Tree) -> frozenset[int]:
        if isinstance(t.parts, int):
            return frozenset({t.parts})
        one, other = visit(t.parts[0]), visit(t.parts[1])
        a, b = sorted((left.index(one), left.index(other)))
        order.append((a, b))
        left[a] = one | other
        del left[b]
        return left[a]

    visit(tree)
    return order
