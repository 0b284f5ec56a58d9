"""How a product of matrices is shared out to ranks: grids, steps, what they move, and which are best.

All figures are elements and those of one rank: m, n and k are the extents of C[m, n] += A[m, k] * B[k, n].
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from tdsl.core.node import frozen

Triple = tuple[int, int, int]  # of m, n and k
PUBLISHED_LEAST = 200  # elements of a rank along each dimension, by default of the library COSMA


@frozen
class Strategy:
    """Ranks along m, n and k, and in how many steps each rank goes along them; k innermost."""

    ranks: Triple
    steps: Triple = (1, 1, 1)

    def inside(self, other: Strategy) -> Strategy:
        """This one, and in each of its parts another."""
        pm, pn, pk = (a * b for a, b in zip(self.ranks, other.ranks, strict=True))
        sm, sn, sk = (a * b for a, b in zip(self.steps, other.steps, strict=True))
        return Strategy((pm, pn, pk), (sm, sn, sk))

    def received(self, m: int, n: int, k: int) -> float:
        """Elements that a rank receives on average: the volume of the schedule if everything divides evenly.

        A closed form, since a search on 4,096 ranks compares 16,000 grids.
        """
        (pm, pn, pk), (sm, sn, _) = self.ranks, self.steps
        return (
            (1 - 1 / pn) * m * k / (pm * pk) * sn
            + (1 - 1 / pm) * k * n / (pk * pn) * sm
            + (1 - 1 / pk) * m * n / (pm * pn)
        )

    def memory(self, m: int, n: int, k: int) -> int:
        """Elements that a rank holds: its share of the matrices, and the parts of them in a step."""
        (pm, pn, pk), (sm, sn, sk) = self.ranks, self.steps
        bm, bn, bk = -(-m // pm), -(-n // pn), -(-k // pk)
        share = bm * -(-bk // pn) + -(-bk // pm) * bn + -(-bm // pk) * bn
        cm, cn, ck = -(-bm // sm), -(-bn // sn), -(-bk // sk)
        return share + cm * ck + ck * cn + 2 * cm * cn


def product_bound(m: int, n: int, k: int, ranks: int, memory: float = math.inf) -> float:
    """Elements that the busiest rank receives at least for a product of matrices.

    Al Daas, Ballard, Grigori, Kumar, Rouse (2022): however much memory there is, if the matrices are evenly
    shared out before and after. Kwasniewski et al. (2019): 2 m n k / sqrt(S) for S elements of memory, shared
    out to the ranks, of which those that a rank has at the start and at the end need not move.

    >>> product_bound(1024, 1024, 1024, 8), product_bound(2048, 512, 256, 4)
    (393216.0, 98304.0)
    >>> [round(product_bound(4096, 4096, 4096, 4096, memory)) for memory in (15_000, 60_000, 1_000_000)]
    [243971, 184320, 184320]
    """
    least = _bound_of_faces(m, n, k, ranks)
    if math.isfinite(memory) and memory > 0:
        return max(least, 2 * m * n * k / (ranks * math.sqrt(memory)) - 2 * memory)
    return least


def _bound_of_faces(m: int, n: int, k: int, ranks: int) -> float:
    """The bound for any memory: a rank that multiplies its part of m n k needs faces of a block of it."""
    a, b, c = sorted((m, n, k), reverse=True)
    if not c:
        return 0.0
    if ranks * b <= a:
        return (1 - 1 / ranks) * b * c
    if ranks * c * c <= a * b:
        return 2 * math.sqrt(a * b * c * c / ranks) - (a * c + b * c) / ranks
    faces = 3 * round(math.cbrt(a * b * c / ranks) ** 2, 6)
    return faces - (a * b + a * c + b * c) / ranks


def best_strategy(m: int, n: int, k: int, ranks: int, memory: int | None = None) -> Strategy | None:
    """The best strategy of at most `ranks` ranks, more than half of them at work; None: too little memory.

    What a rank receives and what it computes count alike: each in parts of what they would be if all
    ranks shared the work out evenly and received what the lower bound says.

    >>> best_strategy(1024, 1024, 1024, 65)
    Strategy(ranks=(4, 4, 4), steps=(1, 1, 1))
    >>> best_strategy(100, 100, 100, 8, 10000).steps
    (1, 1, 5)
    """
    best: tuple[float, int, Triple] | None = None
    chosen = None
    for at_least, grid in _grids(m, n, k, ranks):
        if best is not None and at_least > best[0]:
            break
        s = _within(Strategy(grid), m, n, k, memory)
        if s is None:
            continue
        cost = at_least + _parts(s.received(m, n, k) - Strategy(grid).received(m, n, k), m, n, k, ranks)
        key = (cost, s.memory(m, n, k), grid)
        if best is None or key < best:
            best, chosen = key, s
    return chosen


def _parts(received: float, m: int, n: int, k: int, ranks: int) -> float:
    """Received elements in parts of the least."""
    return received / max(product_bound(m, n, k, ranks), 1.0)


def _grids(m: int, n: int, k: int, ranks: int) -> Iterator[tuple[float, Triple]]:
    """Grids with what they cost at least, cheapest first.

    For given ranks along m and n the cost is linear in the reciprocal of those along k, so that the most
    and the fewest are enough.
    """
    if not m or not n or not k:
        yield 0.0, (1, 1, 1)
        return
    rows = np.arange(1, min(ranks, m) + 1)
    counts = np.minimum(ranks // rows, n)
    pm = np.repeat(rows, counts)
    pn = np.arange(1, len(pm) + 1) - np.repeat(np.cumsum(counts) - counts, counts)
    most = np.minimum(ranks // (pm * pn), k)
    fewest = ranks // 2 // (pm * pn) + 1
    pm, pn = np.tile(pm, 2), np.tile(pn, 2)
    pk = np.concatenate((most, np.minimum(fewest, most)))
    bm, bn, bk = (-(-extent // parts) for extent, parts in ((m, pm), (n, pn), (k, pk)))
    full = (bm * (pm - 1) < m) & (bn * (pn - 1) < n) & (bk * (pk - 1) < k)  # no rank without a part
    if (most_work := full & (2 * pm * pn * pk > ranks)).any():
        full = most_work
    received = (1 - 1 / pn) * m * k / (pm * pk) + (1 - 1 / pm) * k * n / (pk * pn)
    received += (1 - 1 / pk) * m * n / (pm * pn)
    cost = received / max(product_bound(m, n, k, ranks), 1.0) + ranks / (pm * pn * pk)
    order = np.lexsort((pk, pn, pm, cost))
    for at in order[full[order]]:
        yield float(cost[at]), (int(pm[at]), int(pn[at]), int(pk[at]))


def _within(s: Strategy, m: int, n: int, k: int, memory: int | None) -> Strategy | None:
    """A strategy with as many steps as the memory asks for, moving as little as they allow.

    Steps along k move nothing more, so with as many of them as there are the memory left is that for columns
    of A, rows of B and a block of C: a fixed number of steps along m gives the fewest along n.
    """
    if memory is None or s.memory(m, n, k) <= memory:
        return s
    bm, bn, bk = (-(-x // p) for x, p in zip((m, n, k), s.ranks, strict=True))
    thin = replace(s, steps=(max(bm, 1), max(bn, 1), max(bk, 1)))
    free = memory - thin.memory(m, n, k) + 4  # of which a step of one element along each takes 4
    best: tuple[float, Triple] | None = None
    for cm in sorted({-(-bm // step) for step in range(1, bm + 1)} if free >= 4 else (), reverse=True):
        cn = min((free - cm) // (1 + 2 * cm), bn)
        if cn < 1:
            continue
        steps = (-(-bm // cm), -(-bn // cn), max(bk, 1))
        moved = replace(s, steps=steps).received(m, n, k)
        if best is None or (moved, steps) < best:
            best = moved, steps
    if best is None:
        return None
    sm, sn, sk = best[1]
    enough, few = sk, 0
    while enough - few > 1:
        middle = (enough + few) // 2
        fits = replace(s, steps=(sm, sn, middle)).memory(m, n, k) <= memory
        enough, few = (middle, few) if fits else (enough, middle)
    return replace(s, steps=(sm, sn, enough))


@frozen
class Published:
    """A strategy as the library COSMA makes it: its splits in order, and the memory that it counts."""

    strategy: Strategy
    splits: str
    memory: int

    def received(self, m: int, n: int, k: int) -> float:
        """Elements that a rank of the library receives: it reduces the result in every step along k."""
        (pm, pn, pk), (_, _, sk) = self.strategy.ranks, self.strategy.steps
        return self.strategy.received(m, n, k) + (sk - 1) * (1 - 1 / pk) * m * n / (pm * pn)


def published_strategy(
    m: int, n: int, k: int, ranks: int, memory: int | None = None, least: int = PUBLISHED_LEAST
) -> Published | None:
    """What the library COSMA chooses (Kwasniewski et al. 2019); None where the memory is too little.

    The grid is the one of divisors of `ranks` whose blocks are nearest to cubes, of no less than `least`
    along each dimension. While memory is missing, the largest extent is halved into two steps.

    >>> published_strategy(4096, 4096, 4096, 16, 5_000_000).splits
    'sm4,sn2,sk2,pn2,pk4,pn2'
    """
    extents, steps = [m, n, k], [1, 1, 1]
    while True:
        grid = _nearest_to_cubes(extents, ranks, least)
        size = _published_memory((m, n, k), extents, grid, ranks)
        if memory is None or size <= memory:
            break
        longest = extents.index(max(extents))
        if extents[longest] < 2 * least:
            return None
        extents[longest] //= 2
        steps[longest] *= 2
    splits = [f"s{x}{count}" for x, count in zip("mnk", steps, strict=True) if count > 1]
    sm, sn, sk = steps
    return Published(Strategy(grid, (sm, sn, sk)), ",".join(splits + _splits(extents, grid)), size)


def _nearest_to_cubes(extents: list[int], ranks: int, least: int) -> Triple:
    """Most ranks first; then blocks whose edges differ least from that of a cube."""
    m, n, k = extents
    caps = [max(min(a, b, a // least), 1) for a, b in ((m, n), (n, k), (k, n))]
    ranks = min(ranks, math.prod(caps))
    edge = math.cbrt(m * n * k / ranks)
    options: list[tuple[int, int, int, Triple]] = []
    for pm in (d for d in _divisors(ranks) if d <= caps[0]):
        for pn in (d for d in _divisors(ranks // pm) if d <= caps[1]):
            pk = min(ranks // pm // pn, caps[2])
            off = sum(abs(x // p - edge) for x, p in ((m, pm), (n, pn), (k, pk)))
            options.append((-pm * pn * pk, int(off), len(options), (pm, pn, pk)))
    return min(options)[-1]


def _divisors(number: int) -> list[int]:
    small = [d for d in range(1, math.isqrt(number) + 1) if not number % d]
    return small + [number // d for d in reversed(small) if d * d < number]


def _splits(extents: list[int], grid: Triple) -> list[str]:
    """The largest extent is split by its next primes until it is the largest no more, and so on."""
    extents, left = list(extents), [_primes(p) for p in grid]
    splits: list[tuple[int, int]] = []
    while any(left):
        sizes = [x if primes else 1 for x, primes in zip(extents, left, strict=True)]
        longest = sizes.index(max(sizes))
        others = max(x for n, x in enumerate(extents) if n != longest)
        parts = left[longest].pop(0)
        while left[longest] and extents[longest] // parts >= others:
            parts *= left[longest].pop(0)
        extents[longest] //= parts
        if splits and splits[-1][0] == longest:
            parts *= splits.pop()[1]
        splits.append((longest, parts))
    return [f"p{'mnk'[dim]}{parts}" for dim, parts in splits]


def _primes(number: int) -> list[int]:
    primes, prime = [], 2
    while number > 1:
        while not number % prime:
            primes.append(prime)
            number //= prime
        prime += 1
    return primes


def _published_memory(whole: Triple, extents: list[int], grid: Triple, ranks: int) -> int:
    """Shares of the matrices, and what all-gathers and reductions make of them, the longest extent first."""
    m, n, k = whole
    total = sum(-(-size // ranks) for size in (m * k, k * n, m * n))
    left = list(extents)
    for dim in sorted(range(3), key=lambda d: -extents[d]):
        if grid[dim] > 1:
            face = math.prod(left[:dim] + left[dim + 1 :])
            total += -(-face * grid[dim] // ranks)
        left[dim] //= grid[dim]
        ranks //= grid[dim]
    return total


def halved_strategy(m: int, n: int, k: int, ranks: int, memory: int | None = None) -> Strategy | None:
    """What CARMA chooses: the largest extent is halved, over two halves of the ranks while there are any.

    Demmel, Eliahu, Fox, Kamil, Lipshitz, Schwartz, Spillinger (2013): where memory is missing, the two halves
    are done one after the other instead. Of `ranks` the largest power of two is used; None where the
    memory is too little.

    >>> halved_strategy(1024, 1024, 65536, 8), halved_strategy(1024, 1024, 1024, 8)
    (Strategy(ranks=(1, 1, 8), steps=(1, 1, 1)), Strategy(ranks=(2, 2, 2), steps=(1, 1, 1)))
    """
    steps = [1, 1, 1]
    while True:
        left = [-(-x // s) for x, s in zip((m, n, k), steps, strict=True)]
        grid = [1, 1, 1]
        for _ in range(ranks.bit_length() - 1):
            blocks = [-(-x // p) for x, p in zip(left, grid, strict=True)]
            grid[blocks.index(max(blocks))] *= 2
        (pm, pn, pk), (sm, sn, sk) = grid, steps
        strategy = Strategy((pm, pn, pk), (sm, sn, sk))
        if memory is None or strategy.memory(m, n, k) <= memory:
            return strategy
        if max(left) < 2:
            return None
        steps[left.index(max(left))] *= 2
