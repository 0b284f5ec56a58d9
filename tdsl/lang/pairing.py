"""In which order the operands of a product of tensors are multiplied, two at a time.

The cost of a pair is its multiplications, and the elements of what it makes. Loops over the axes of the
result can be shared by all pairs, so that these axes of a part need not be stored. All orders of up to
MOST operands are compared: the cheapest way to multiply a set of operands is found from those of its
subsets. Of more operands, those whose product is cheapest are taken together first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import prod

MOST = 8  # operands of which all orders are compared
STORED = 16  # what an element that is stored and read again costs, in multiplications

Names = frozenset[str]
Pair = tuple[int, int]


def pairs(terms: Sequence[Names], result: Names, sizes: Mapping[str, int]) -> list[Pair]:
    """The positions of the operands that are multiplied, pair by pair; each product takes the first's place.

    >>> n = {"i": 200, "j": 200, "k": 200, "r": 16}
    >>> pairs([frozenset("ijk"), frozenset("jr"), frozenset("kr")], frozenset("ir"), n)
    [(0, 2), (0, 1)]
    """
    left, found = list(terms), list[Pair]()
    while len(left) > MOST:
        chosen = min(combinations(range(len(left)), 2), key=lambda p: _cost(p, left, result, sizes))
        found.append(chosen)
        left[chosen[0]] = _kept(frozenset(chosen), left, result)
        del left[chosen[1]]
    return found + _in_positions(_best(left, result, sizes), len(left))


@dataclass(frozen=True, slots=True)
class _Tree:
    """Operands that are multiplied: one, or the products of two parts."""

    cost: int
    parts: tuple[_Tree, _Tree] | int


def _best(terms: Sequence[Names], result: Names, sizes: Mapping[str, int]) -> _Tree:
    """The cheapest order, from those of all smaller sets of operands."""
    trees = {frozenset({n}): _Tree(0, n) for n in range(len(terms))}
    for count in range(2, len(terms) + 1):
        for chosen in map(frozenset, combinations(range(len(terms)), count)):
            kept = _kept(chosen, terms, result)
            stored = STORED * prod(sizes[n] for n in kept - result)
            best: _Tree | None = None
            for some in _halves(chosen):
                one, other = trees[some], trees[chosen - some]
                names = _kept(some, terms, result) | _kept(chosen - some, terms, result)
                cost = one.cost + other.cost + prod(sizes[n] for n in names) + stored
                if best is None or cost < best.cost:
                    best = _Tree(cost, (one, other))
            assert best is not None
            trees[chosen] = best
    return trees[frozenset(range(len(terms)))]


def _halves(chosen: frozenset[int]) -> list[frozenset[int]]:
    """The parts that hold the first operand; sums over its last axes, by the last operands, come first."""
    first, *rest = sorted(chosen)
    return [
        frozenset({first, *more})
        for count in range(len(rest))
        for more in reversed(list(combinations(rest, count)))
    ]


def _kept(chosen: frozenset[int], terms: Sequence[Names], result: Names) -> Names:
    """The axes of a product of some operands that are not summed over yet."""
    if len(chosen) == 1:
        return terms[min(chosen)]
    others = (t for n, t in enumerate(terms) if n not in chosen)
    return frozenset().union(*(terms[n] for n in chosen)) & result.union(*others)


def _cost(p: Pair, terms: Sequence[Names], result: Names, sizes: Mapping[str, int]) -> int:
    made = _kept(frozenset(p), terms, result)
    every = terms[p[0]] | terms[p[1]]
    return prod(sizes[n] for n in every) + STORED * prod(sizes[n] for n in made)


def _in_positions(tree: _Tree, count: int) -> list[Pair]:
    """The pairs of a tree, inner ones first, by their positions in a list that changes with each."""
    left, found = [frozenset({n}) for n in range(count)], list[Pair]()

    def visit(t: _Tree) -> frozenset[int]:
        if isinstance(t.parts, int):
            return frozenset({t.parts})
        one, other = visit(t.parts[0]), visit(t.parts[1])
        a, b = sorted((left.index(one), left.index(other)))
        found.append((a, b))
        left[a] = one | other
        del left[b]
        return left[a]

    visit(tree)
    return found
