"""`Price` and `PriceRow`: what a tensor costs a stage, for one placement of it and for all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tdsl.communication.rank_boxes import Numbers

Kinds = NDArray[np.str_]
NO_KIND = np.dtype("U16")  # "" of an array of kinds


@dataclass(frozen=True, slots=True)
class Price:
    """What a tensor costs a stage: seconds and bytes of the busiest rank, bytes of its buffers, a kind."""

    seconds: float
    bytes: int
    buffer: int
    kind: str


@dataclass(frozen=True, slots=True)
class PriceRow:
    """The prices of a tensor for a strategy, in arrays over placements; illegal: infinite seconds."""

    seconds: NDArray[np.float64]
    bytes: Numbers
    buffers: Numbers
    kinds: Kinds

    @staticmethod
    def of(prices: Mapping[int, Price], count: int) -> PriceRow:
        """The row of `count` placements of which some have a price, by number."""
        row = PriceRow(
            np.full(count, np.inf),
            np.zeros(count, np.int64),
            np.zeros(count, np.int64),
            np.zeros(count, NO_KIND),
        )
        return row.replaced(prices)

    def replaced(self, prices: Mapping[int, Price]) -> PriceRow:
        """The row with other prices of some placements, by number."""
        if not prices:
            return self
        seconds, received, buffers = self.seconds.copy(), self.bytes.copy(), self.buffers.copy()
        kinds = self.kinds.copy()
        for n, price in prices.items():
            seconds[n], received[n], buffers[n] = price.seconds, price.bytes, price.buffer
            kinds[n] = price.kind
        return PriceRow(seconds, received, buffers, kinds)

    def or_else(self, other: PriceRow) -> PriceRow:
        """The row with the prices of another one where this one is illegal."""
        illegal = np.isinf(self.seconds)
        return PriceRow(
            np.where(illegal, other.seconds, self.seconds), np.where(illegal, other.bytes, self.bytes),
            np.where(illegal, other.buffers, self.buffers), np.where(illegal, other.kinds, self.kinds),
        )  # fmt: skip

    def price(self, n: int) -> Price:
        """The price of a placement, by number."""
        return Price(float(self.seconds[n]), int(self.bytes[n]), int(self.buffers[n]), str(self.kinds[n]))

    def taken(self, numbers: Sequence[int]) -> PriceRow:
        """The row of the placements of some numbers."""
        at = list(numbers)
        return PriceRow(self.seconds[at], self.bytes[at], self.buffers[at], self.kinds[at])

    def without(self, forbidden: frozenset[str]) -> PriceRow:
        """The row in which communication of forbidden kinds is illegal."""
        if not forbidden:
            return self
        wrong = np.flatnonzero(np.isin(self.kinds, list(forbidden)))
        return self.replaced({int(n): Price(np.inf, 0, 0, "") for n in wrong})
