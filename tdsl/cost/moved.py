"""Bytes that move between levels of memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import gcd, prod

from tdsl.core.node import frozen

MovedByName = dict[str, "Moved"]  # by tensor or func


@frozen
class Moved:
    """The bytes of a tensor or func that a memory level reads from the next outer level, and writes to it."""

    read: float = 0.0
    written: float = 0.0

    def __add__(self, other: Moved) -> Moved:
        return Moved(self.read + other.read, self.written + other.written)

    def times(self, n: float) -> Moved:
        """The bytes multiplied by `n`."""
        return Moved(n * self.read, n * self.written)

    @property
    def total(self) -> float:
        """The bytes read plus the bytes written."""
        return self.read + self.written


def total(moved: Mapping[str, Moved]) -> float:
    """The bytes of all tensors and funcs, read and written."""
    return sum(m.total for m in moved.values())


def add_up(moved: MovedByName, more: Mapping[str, Moved], times: float = 1.0) -> None:
    """Add `more`, scaled by `times`, to `moved`, name by name."""
    for name, m in more.items():
        moved[name] = moved.get(name, Moved()) + m.times(times)


def bytes_in_runs(shape: Sequence[int], tensor_shape: Sequence[int], size: int, granule: int) -> float:
    """The bytes of a box in a tensor, each contiguous run rounded up to `granule` bytes.

    `shape` is the shape of the box, `size` the bytes of an element.

    >>> bytes_in_runs((4, 3), (8, 8), 4, 64), bytes_in_runs((4, 8), (8, 8), 4, 64)
    (256.0, 128.0)
    """
    run = size
    for length, most in zip(reversed(shape), reversed(tensor_shape), strict=True):
        run *= max(length, 1)
        if length < most:
            break
    return prod(shape) * size / run * (-(-run // granule) * granule)


def bytes_in_lines(
    first: Sequence[int], shape: Sequence[int], tensor_shape: Sequence[int], size: int, line: int
) -> float:
    """The bytes of the cache lines that a box touches, averaged over the rows where it may be.

    `first` gives its offset in a row. If the bytes of a row are no multiple of `line`, rows begin within
    lines.

    >>> bytes_in_lines((0, 16), (4, 16), (8, 64), 4, 64), bytes_in_lines((0, 16), (4, 16), (8, 56), 4, 64)
    (256.0, 384.0)
    """
    run, begin, step, stride, broken = size, 0, 0, size, False
    for lo, length, most in reversed([*zip(first, shape, tensor_shape, strict=True)]):
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
