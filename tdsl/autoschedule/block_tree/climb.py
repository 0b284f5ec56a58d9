"""The search by steps for whatever has a price: of the tree of a block, or of tiles of tensor cores."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import product
from typing import TypeVar

Choice = TypeVar("Choice")
Place = tuple[int, ...]


def climb(
    seed: Choice, price: Callable[[Choice], float], moves: Callable[[Choice], Iterable[Choice]],
    gain: float = 0.995,
) -> Choice:  # fmt: skip
    """The choice from which no move lowers the price to less than `gain` times, step by step from a seed.

    >>> climb(0, lambda n: (n - 7) ** 2, lambda n: (n - 1, n + 1))
    7
    """
    current, cost = seed, price(seed)
    while True:
        following = min(moves(current), key=price, default=current)
        if price(following) >= gain * cost:
            return current
        current, cost = following, price(following)


def lattice_moves(sizes: Place, at: Place, *, several: bool = False) -> Iterator[Place]:
    """The places of a lattice that differ in one number; if `several`, also by 1 in each of two.

    >>> list(lattice_moves((3, 2), (0, 0), several=True))
    [(1, 0), (2, 0), (0, 1), (1, 1)]
    """
    for n, size in enumerate(sizes):
        yield from ((*at[:n], x, *at[n + 1 :]) for x in range(size) if x != at[n])
        for k, one, other in product(range(n), (-1, 1), (-1, 1)) if several else ():
            x, y = at[k] + one, at[n] + other
            if 0 <= x < sizes[k] and 0 <= y < size:
                yield (*at[:k], x, *at[k + 1 : n], y, *at[n + 1 :])
