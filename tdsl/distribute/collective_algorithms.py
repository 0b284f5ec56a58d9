"""Algorithms of collectives, as data: the messages of each, how many follow each other, and their bytes.

ring                    each rank passes parts on to the next one
tree                    a binomial tree, of which each message has all bytes
doubling                all-reduce: pairs of ranks at distances 1, 2, 4, ... exchange all bytes
halving and doubling    pairs at distances 1, 2, 4, ... exchange halves, quarters, ...; back in reverse order
scatter and all-gather  a broadcast; reduce-scatter and gather is its mirror image
in-switch               the switch that joins the ranks combines or copies what goes through it

Thakur, Rabenseifner, Gropp: Optimization of Collective Communication Operations in MPICH, 2005. Graham et
al.: Scalable Hierarchical Aggregation Protocol (SHArP), 2016. Links are full-duplex: a rank sends a message
and receives one at the same time. All-reduces by pairs of p ranks, where p is no power of two, begin and end
with messages between the ranks beyond the next smaller power and their partners.
"""

from __future__ import annotations

from collections.abc import Callable

from tdsl.core.node import frozen

Edge = tuple[int, int, float]  # source, target, bytes; through the switch if both are one rank


@frozen
class Collective:
    """A collective: its kind and its members in order.

    `size` has the bytes of the whole, `most` those that a member receives at most by the plan. `root` is the
    rank that sends or receives all in a broadcast or a reduction to one rank.
    """

    kind: str
    ranks: tuple[int, ...]
    size: float
    most: float
    root: int = -1

    @property
    def from_root(self) -> tuple[int, ...]:
        """The members in order, those before the root last."""
        at = self.ranks.index(self.root)
        return self.ranks[at:] + self.ranks[:at]


@frozen
class Rounds:
    """How an algorithm performs a collective.

    `hops` messages follow each other on the longest way; a member sends or receives at most `bytes` one after
    the other; `edges` are all messages.
    """

    algorithm: str
    hops: int
    bytes: float
    edges: tuple[Edge, ...]


Algorithm = Callable[[Collective], Rounds | None]  # None for a number of ranks that it does not serve


def _log2(count: int) -> int:
    return max(count - 1, 0).bit_length()


def ring(c: Collective) -> Rounds:
    """In p - 1 steps, twice for an all-reduce; all send as much as the member that receives the most."""
    steps = (len(c.ranks) - 1) * (2 if c.kind == "all-reduce" else 1)
    edges = tuple((a, b, c.most) for a, b in zip(c.ranks, (*c.ranks[1:], c.ranks[0]), strict=True))
    return Rounds("ring", steps, c.most, edges)


def tree(c: Collective) -> Rounds:
    """Whole messages from the root along a binomial tree, or to it."""
    order = c.from_root
    down = [(order[n & (n - 1)], order[n]) for n in range(1, len(order))]
    edges = tuple((a, b, c.size) if c.kind == "broadcast" else (b, a, c.size) for a, b in down)
    hops = _log2(len(order))
    return Rounds("tree", hops, c.size * hops, edges)


def _pairs(ranks: tuple[int, ...], distance: int) -> list[tuple[int, int]]:
    return [(r, ranks[n ^ distance]) for n, r in enumerate(ranks)]


def _folded(c: Collective) -> tuple[tuple[int, ...], list[Edge]]:
    """A power of two of members, and the messages by which the others leave their part and get the result."""
    power = 1 << (len(c.ranks).bit_length() - 1)
    beyond = len(c.ranks) - power
    pairs = [(c.ranks[2 * n], c.ranks[2 * n + 1]) for n in range(beyond)]
    kept = (*(a for a, _ in pairs), *c.ranks[2 * beyond :])
    return kept, [(x, y, c.size) for a, b in pairs for x, y in ((b, a), (a, b))]


def doubling(c: Collective) -> Rounds:
    """All bytes in each of log2 p rounds: the fewest messages."""
    ranks, edges = _folded(c)
    rounds, more = _log2(len(ranks)), 2 if edges else 0
    for k in range(rounds):
        edges += [(a, b, c.size) for a, b in _pairs(ranks, 1 << k)]
    return Rounds("doubling", rounds + more, c.size * (rounds + more), tuple(edges))


def halving(c: Collective) -> Rounds | None:
    """As few bytes as a ring in log2 p rounds, twice for an all-reduce; those at distance 1 send the most."""
    count, twice = len(c.ranks), c.kind == "all-reduce"
    ranks, edges = _folded(c) if twice else (c.ranks, [])
    rounds, more = _log2(len(ranks)), 2 if edges else 0
    if 1 << rounds != len(ranks):
        return None
    whole = c.size if twice or count == 1 else c.most * count / (count - 1)
    each = [(2 if twice else 1) * whole / (2 << k) for k in range(rounds)]
    for k, size in enumerate(each):
        edges += [(a, b, size) for a, b in _pairs(ranks, 1 << k)]
    name = "halving and doubling" if twice else "halving" if c.kind == "reduce-scatter" else "doubling"
    hops = rounds * (2 if twice else 1) + more
    return Rounds(name, hops, sum(each) + more * c.size, tuple(edges))


def scattered(c: Collective) -> Rounds:
    """A broadcast by parts along a binomial tree, and a ring that gathers them; backwards for a reduction."""
    order, down = c.from_root, c.kind == "broadcast"
    count, edges = len(order), list[Edge]()
    for n in range(1, count):
        under = min(n & -n, count - n) * c.size / count  # parts of the subtree at n
        a, b = order[n & (n - 1)], order[n]
        edges.append((a, b, under) if down else (b, a, under))
    once = c.size * (count - 1) / count
    edges += [(a, b, once) for a, b in zip(order, (*order[1:], order[0]), strict=True)]
    name = "scatter and all-gather" if down else "reduce-scatter and gather"
    return Rounds(name, _log2(count) + count - 1, 2 * once, tuple(edges))


def in_switch(c: Collective) -> Rounds:
    """Each member sends its bytes to the switch once, and receives its result from it once."""
    size = c.most if c.kind == "all-gather" else c.size
    hops = 1 if c.kind in ("broadcast", "all-gather") else 2
    return Rounds("in-switch", hops, size, tuple((r, r, size) for r in c.ranks))


ALGORITHMS: dict[str, tuple[Algorithm, ...]] = {
    "broadcast": (tree, scattered), "reduce": (tree, scattered),
    "all-gather": (ring, halving), "reduce-scatter": (ring, halving),
    "all-reduce": (ring, halving, doubling),
}  # fmt: skip
NAMES = (
    "ring", "tree", "doubling", "halving", "halving and doubling", "scatter and all-gather",
    "reduce-scatter and gather", "in-switch",
)  # fmt: skip


def rounds_of(c: Collective, *, switch: bool, only: str | None = None) -> list[Rounds]:
    """What each algorithm of a collective does; with `only` the algorithm of that name, if it is one of them.

    `switch` says that the switch which joins the members combines and copies.
    """
    algorithms = (*ALGORITHMS[c.kind], *((in_switch,) if switch else ()))
    rounds = [r for r in (algorithm(c) for algorithm in algorithms) if r is not None]
    return [r for r in rounds if r.algorithm == only] or rounds
