"""Bytes that move between levels of memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

Bytes = dict[str, "Moved"]


@dataclass(frozen=True, slots=True)
class Moved:
    """The bytes of a tensor or func that a level of memory gets from further out, and gives there."""

    read: float = 0.0
    written: float = 0.0

    def __add__(self, other: Moved) -> Moved:
        return Moved(self.read + other.read, self.written + other.written)

    def times(self, n: float) -> Moved:
        """So many times as much."""
        return Moved(n * self.read, n * self.written)

    @property
    def total(self) -> float:
        """Both together."""
        return self.read + self.written


def total(moved: Mapping[str, Moved]) -> float:
    """All bytes together."""
    return sum(m.total for m in moved.values())


def add_up(moved: Bytes, more: Mapping[str, Moved], times: float = 1.0) -> None:
    """Add to what has moved, by name, so many times something else."""
    for name, m in more.items():
        moved[name] = moved.get(name, Moved()) + m.times(times)


def bytes_in_runs(shape: Sequence[int], whole: Sequence[int], size: int, granule: int) -> float:
    """The bytes of a box of elements of some size, each contiguous run of them rounded up to a granule.

    >>> bytes_in_runs((4, 3), (8, 8), 4, 64), bytes_in_runs((4, 8), (8, 8), 4, 64)
    (256.0, 128.0)
    """
    run = size
    for own, most in zip(reversed(shape), reversed(whole), strict=True):
        run *= max(own, 1)
        if own < most:
            break
    return prod(shape) * size / run * (-(-run // granule) * granule)
