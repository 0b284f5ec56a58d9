"""Bytes that move between levels of memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import gcd, prod

from tdsl.core.node import frozen

Bytes = dict[str, "Moved"]


@frozen
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
    for length, most in zip(reversed(shape), reversed(whole), strict=True):
        run *= max(length, 1)
        if length < most:
            break
    return prod(shape) * size / run * (-(-run // granule) * granule)


def bytes_in_lines(
    first: Sequence[int], shape: Sequence[int], whole: Sequence[int], size: int, line: int
) -> float:
    """The bytes of the lines that a box of elements touches, in the mean of all rows where it may be.

    Where in a row it begins, its `first` element says. Rows whose bytes are no multiple of a line begin
    within lines.

    >>> bytes_in_lines((0, 16), (4, 16), (8, 64), 4, 64), bytes_in_lines((0, 16), (4, 16), (8, 56), 4, 64)
    (256.0, 384.0)
    """
    run, begin, step, stride, broken = size, 0, 0, size, False
    for lo, length, most in reversed([*zip(first, shape, whole, strict=True)]):
        if broken and (lo or length > 1):
            step = gcd(step, stride)
        elif not broken:
            run *= max(length, 1)
            begin, broken = lo * stride, length < most
        stride *= max(most, 1)
    step = gcd(step, line)
    places = [at % line for at in range(begin, begin + line, step)]
    lines = sum(-(-(at + run) // line) for at in places) / len(places)
    return prod(shape) * size / run * lines * line
