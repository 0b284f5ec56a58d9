"""Chains of products in the order that takes the fewest operations, as a search starts from it.

Sums that have other sums as factors of their terms are a tree. Written out it is one sum of a product over
the variables of all of them, and each order in which these are summed is another tree: for matrices, another
way to set brackets. What it costs to sum over a variable depends on which were summed before, not on their
order, so that the best order of a set follows from those of its subsets. It is reached by `reassociate`, one
sum and one below it at a time, until the one that comes last is on top. Sums of constants alone cost nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import combinations
from math import prod

from tdsl.core.node import frozen, post_order
from tdsl.lang.affine import constant_difference, variables
from tdsl.lang.expr import Expr, Param, Read, Var
from tdsl.lang.program import Program
from tdsl.lang.regions import reads_in
from tdsl.lang.simplify import substitute
from tdsl.schedule.bind import bind_state
from tdsl.schedule.constants import constant_names
from tdsl.schedule.inlining import value_at
from tdsl.schedule.properties import operations
from tdsl.schedule.reassociate import elementwise_between, reassociate, sums_in
from tdsl.schedule.state import Illegal, State, initial_state
from tdsl.schedule.sum_factors import factors_of

Step = tuple[str, str]  # a sum, and the one in its terms that is to be summed over last
MOST = 7  # sums of a tree, whose orders are compared
STORED = 16  # what an element that is stored and read again costs, in multiplications
LESS = 0.8  # of the operations, from which another order is worth a look


@frozen
class Reordered:
    """The steps to another order of products, and the part of a program's operations that is left by them."""

    steps: tuple[Step, ...]
    part: float


def fewer_operations(program: Program, sizes: Mapping[str, int]) -> Reordered | None:
    """The best order of the products of a program, where it is clearly better than the order of the program.

    >>> import tdsl as td
    >>> i, j, k, l = td.vars("i j k l")
    >>> a, b = td.Tensor("a", (1000, 8), td.f32), td.Tensor("b", (8, 1000), td.f32)
    >>> c, s, y = td.Tensor("c", (1000, 8), td.f32), td.Func("s"), td.Func("y")
    >>> s[i, j] = td.sum(a[i, k] * b[k, j], axis=k)
    >>> y[i, l] = td.sum(s[i, j] * c[j, l], axis=j)
    >>> found = fewer_operations(td.Schedule(y).program, {})
    >>> found.steps, round(found.part, 3)
    ((('y', 's'),), 0.008)
    """
    first = state = bind_state(initial_state(program), sizes)
    below = _trees(state)
    inside = {name for names in below.values() for name in names}
    steps: list[Step] = []
    for root in [name for name in below if name not in inside]:
        tree = _written_out(state.program, root, below)
        if tree is None or len(tree.groups) > MOST:
            continue
        order = tree.best()
        if tree.cost(order) < tree.cost(tree.now):
            arranged = _arranged(state, root, below, order)
            if arranged is not None:
                state, steps = arranged[0], [*steps, *arranged[1]]
                below = _trees(state)  # other trees may have had sums of this one
    if not steps:
        return None
    before, after = (operations(x, constant_names(x.program)) for x in (first, state))
    if not before or after is None or after > LESS * before:
        return None
    return Reordered(tuple(steps), after / before)


def _trees(state: State) -> dict[str, list[str]]:
    """For each sum those in its terms that it can be exchanged with."""
    trees: dict[str, list[str]] = {}
    for f in state.program.funcs:
        if f.definitions[0].ranges:
            for source in sums_in(state.program, f.name):
                try:
                    reassociate(state, f.name, 0, source=source)
                except Illegal:
                    continue
                trees.setdefault(f.name, []).append(source)
    return trees


@frozen
class _Tree:
    """A tree of sums as one: the variables of each factor, those of each sum, all their extents.

    Factors that are `fixed` depend on constants alone. `now` is the order in which is summed, by the names
    of the sums.
    """

    scopes: tuple[frozenset[str], ...]
    fixed: tuple[bool, ...]
    groups: Mapping[str, frozenset[str]]
    extents: Mapping[str, int]
    now: tuple[str, ...]

    def cost(self, order: tuple[str, ...]) -> float:
        """The multiplications of an order, and what is stored between."""
        return sum(self._cost(name, frozenset(order[:n])) for n, name in enumerate(order))

    def best(self) -> tuple[str, ...]:
        """The order that costs the least; of equal ones that which is next to the order of the program."""
        names = self.now
        best: dict[frozenset[str], tuple[float, tuple[str, ...]]] = {frozenset(): (0.0, ())}
        for count in range(1, len(names) + 1):
            for chosen in combinations(names, count):
                done = frozenset(chosen)
                ways = (
                    (best[done - {last}][0] + self._cost(last, done - {last}), last)
                    for last in reversed(chosen)
                )
                cost, last = min(ways, key=lambda way: way[0])
                best[done] = cost, (*best[done - {last}][1], last)
        return best[frozenset(names)][1]

    def _cost(self, name: str, before: frozenset[str]) -> float:
        """What it costs to sum over the variables of a group when those of others are gone."""
        gone = frozenset[str]().union(*(self.groups[n] for n in before))
        scope, left, fixed = (
            self.groups[name],
            list(zip(self.scopes, self.fixed, strict=True)),
            True,
        )
        while joined := [x for x in left if x[0] & scope & (gone | self.groups[name])]:
            left = [x for x in left if x not in joined]
            scope = scope.union(*(s for s, _ in joined))
            fixed = fixed and all(alone for _, alone in joined)
        if fixed:
            return 0.0
        kept = scope - gone - self.groups[name]
        points = prod(self.extents[v] for v in kept)
        stored = STORED * points if len(before) + 1 < len(self.groups) else 0
        return points * prod(self.extents[v] for v in self.groups[name]) + stored


def _written_out(program: Program, root: str, below: Mapping[str, list[str]]) -> _Tree | None:
    """The tree of a sum; None where a sum is in it twice, or sizes are not known."""
    now = _from_below(root, below)
    inlined = {n for f in now for s in below.get(f, ()) for n in elementwise_between(program, f, s) or ()}
    groups: dict[str, frozenset[str]] = {}
    f = program.func(root)
    extents = dict(zip(f.variables, (_extent(lo, hi, 1) for lo, hi in f.natural), strict=True))
    sums: list[str] = []

    def terms(name: str, at: dict[str, Expr]) -> Expr:
        d = program.func(name).definitions[0]
        names = {n: f"{n} of {name}" for n, _, _ in d.ranges}  # no variable of a program has spaces
        groups[name] = frozenset(names.values())
        extents.update((names[n], _extent(lo, hi, 0)) for n, lo, hi in d.ranges)
        return substitute(d.values[0], at | {a: Var(b) for a, b in names.items()})

    def expand(r: Read) -> Expr | None:
        if r.name in inlined:
            return value_at(program.func(r.name).definitions[0], r)
        if r.name not in now:
            return None
        sums.append(r.name)
        return terms(r.name, dict(zip(program.func(r.name).variables, r.index, strict=True)))

    factors = factors_of(terms(root, {}), expand)
    if factors is None or len(sums) + 1 > len(now) or None in extents.values():
        return None
    numbers = {v: n for v, n in extents.items() if n is not None}
    known = constant_names(program)
    scopes, fixed = zip(*((variables(e), _is_fixed(e, known)) for e, _ in factors), strict=True)
    return _Tree(scopes, fixed, groups, numbers, now)


def _is_fixed(e: Expr, known: set[str]) -> bool:
    """Whether an expression reads nothing but constants."""
    read = {r.name for r in reads_in((e,))}
    return read <= known and not any(isinstance(n, Param) for n in post_order(e))


def _from_below(root: str, below: Mapping[str, list[str]]) -> tuple[str, ...]:
    """The sums of a tree, each after those in its terms."""
    inner = [name for source in below.get(root, ()) for name in _from_below(source, below)]
    return (*dict.fromkeys(inner), root)


def _extent(lo: Expr | None, hi: Expr | None, more: int) -> int | None:
    length = None if lo is None or hi is None else constant_difference(hi, lo)
    return None if length is None else max(length + more, 0)


def _arranged(
    state: State, root: str, below: Mapping[str, list[str]], order: tuple[str, ...]
) -> tuple[State, list[Step]] | None:
    """The program with the sums of a tree in another order, and the steps to it."""
    steps: list[Step] = []
    holds = {name: name for name in order}  # the group that each sum of the tree sums over now

    def arrange(state: State, top: str) -> State:
        above = _above(state.program, top, holds)
        last = max(above, key=lambda name: order.index(holds[name]))
        while last != top:
            known, parent = {f.name for f in state.program.funcs}, above[last]
            state = reassociate(state, parent, 0, source=last)
            new = [f for f in state.program.funcs if f.name not in known and f.definitions[0].ranges]
            steps.append((parent, last))
            holds[new[0].name], holds[parent] = holds[parent], holds.pop(last)
            last = parent
        for source in [n for n in sums_in(state.program, top) if n in holds]:
            state = arrange(state, source)
        return state

    try:
        return arrange(state, root), steps
    except Illegal:  # another factor of a sum prevents it
        return None


def _above(program: Program, top: str, known: Mapping[str, str]) -> dict[str, str]:
    """The sums of a tree, each with the one whose terms contain it; the top with itself."""
    above, new = {top: top}, [top]
    while new:
        name = new.pop()
        for source in sums_in(program, name):
            if source in known and source not in above:
                above[source] = name
                new.append(source)
    return above
