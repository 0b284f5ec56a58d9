"""Where a generator gets its decisions from: a seed, or hypothesis, which can shrink them."""

import random
from collections.abc import Sequence
from typing import Any, TypeVar

from hypothesis import strategies as st

T = TypeVar("T")


class Choices:
    """Decisions; the first of several possibilities is the simplest, for shrinking."""

    def integer(self, lo: int, hi: int) -> int:
        raise AssertionError

    def pick(self, items: Sequence[T]) -> T:
        return items[self.integer(0, len(items) - 1)]

    def chance(self, percent: int) -> bool:
        """False is the simpler answer."""
        return self.integer(0, 99) >= 100 - percent

    def weighted(self, items: dict[T, int]) -> T:
        """One of the keys, as often as its weight says."""
        at = self.integer(0, sum(items.values()) - 1)
        for item, weight in items.items():
            at -= weight
            if at < 0:
                return item
        raise AssertionError("weights are positive")


class Seeded(Choices):
    """The same decisions for the same seed."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def integer(self, lo: int, hi: int) -> int:
        return self.random.randint(lo, hi)


class Drawn(Choices):
    """Decisions drawn from hypothesis: a failing program shrinks to a small one."""

    def __init__(self, data: Any) -> None:
        self.data = data

    def integer(self, lo: int, hi: int) -> int:
        return int(self.data.draw(st.integers(lo, hi)))
