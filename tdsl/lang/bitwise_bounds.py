"""The exact bounds of `&`, `|` and `^` of values between bounds.

    i ^ 8  for 16 <= i <= 23  is between 24 and 31

A butterfly that reads `x[i ^ h]` so reads one block of `x` for a block of `i`. The searches over bits are
those of Warren, Hacker's Delight, section 4-3.
"""

from __future__ import annotations

from collections.abc import Iterator

Range = tuple[int, int]  # smallest and largest value, neither negative


def and_bounds(x: Range, y: Range) -> Range:
    """The smallest and the largest x & y.

    >>> and_bounds((4, 7), (6, 9))
    (0, 7)
    """
    last = (1 << max(x[1], y[1]).bit_length()) - 1
    least, most = or_bounds((last - x[1], last - x[0]), (last - y[1], last - y[0]))
    return last - most, last - least


def or_bounds(x: Range, y: Range) -> Range:
    """The smallest and the largest x | y.

    >>> or_bounds((16, 23), (8, 8))
    (24, 31)
    """
    (a, b), (c, d) = x, y
    least = a | c
    for bit in _bits(b, d):
        if a & bit != c & bit:
            first, second = ((a | bit) & -bit, c) if c & bit else (a, (c | bit) & -bit)
            if first <= b and second <= d:
                least = first | second
                break
    most = b | d
    for bit in _bits(b, d):
        if b & d & bit:
            below = ((b - bit) | (bit - 1), d) if (b - bit) | (bit - 1) >= a else (b, (d - bit) | (bit - 1))
            if below[1] >= c:
                most = below[0] | below[1]
                break
    return least, most


def xor_bounds(x: Range, y: Range) -> Range:
    """The smallest and the largest x ^ y.

    >>> xor_bounds((16, 23), (8, 8))
    (24, 31)
    """
    (a, b), (c, d) = x, y
    for bit in _bits(b, d):
        if c & bit and not a & bit and (a | bit) & -bit <= b:
            a = (a | bit) & -bit
        elif a & bit and not c & bit and (c | bit) & -bit <= d:
            c = (c | bit) & -bit
    least = a ^ c
    (a, b), (c, d) = x, y
    for bit in _bits(b, d):
        if b & d & bit:
            if (b - bit) | (bit - 1) >= a:
                b = (b - bit) | (bit - 1)
            elif (d - bit) | (bit - 1) >= c:
                d = (d - bit) | (bit - 1)
    return least, b ^ d


def _bits(*values: int) -> Iterator[int]:
    """The bits of the largest value, the highest first."""
    return (1 << n for n in reversed(range(max(values).bit_length())))
