"""`Layout`: which thread holds an element of a fragment, and in which of its registers.

A layout is a weighted sum of digits of the element's index. For the 16 x 8 accumulators of `mma.sync`,

    lane = i % 8 * 4 + j // 2            register = i // 8 * 2 + j % 2

i has the digits i % 8 (for the lane) and i // 8 (for the register), j has j % 2 (for the register) and j // 2
(for the lane). The map is invertible: it also gives the element for a lane and a register.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np

from tdsl.core.node import frozen
from tdsl.lang.bounds import NO_FACTS, Facts
from tdsl.lang.expr import ZERO, Binary, Expr, const
from tdsl.lang.simplify import add, multiply, simplify

Array = np.ndarray[Any, Any]


@frozen
class Digit:
    """A digit of the index of `axis`: index // step % radix * weight is a term of the lane or register."""

    axis: int
    step: int
    radix: int
    weight: int
    in_lane: bool


@frozen
class Layout:
    """The distribution of the elements of a tile over registers of `threads` threads.

    Without `copies` each element is in one register of one thread. `copies` are digits of the lane, as pairs
    of weight and radix: each element is replicated in all lanes that differ only in these digits.
    """

    shape: tuple[int, ...]
    threads: int
    digits: tuple[Digit, ...]
    copies: tuple[tuple[int, int], ...] = ()

    @property
    def count(self) -> int:
        """The number of elements of the tile that each thread holds."""
        return prod(self.shape) * self.copy_count // self.threads

    @property
    def copy_count(self) -> int:
        """The number of threads that hold a copy of each element."""
        return prod(radix for _, radix in self.copies)

    def distances(self) -> tuple[int, ...]:
        """The bits in which lanes with copies of the same elements differ: powers of two, largest first."""
        bits = (weight << n for weight, radix in self.copies for n in range(radix.bit_length() - 1))
        return tuple(sorted(bits, reverse=True))

    def copy(self, lane: Expr) -> Expr:
        """The part of a lane's number in the digits of copies; 0 for the lanes with the first copy."""
        total: Expr = ZERO
        for weight, radix in self.copies:
            total = add(total, multiply(_digit(lane, weight, radix), const(weight)))
        return total

    def copy_of(self, lane: Array) -> Array:
        """The number of the copy that each lane holds, from 0 on."""
        number, weight = np.zeros_like(lane), 1
        for step, radix in self.copies:
            number, weight = number + lane // step % radix * weight, weight * radix
        return number

    def owned_by(self, extents: tuple[int, ...]) -> Array:
        """A matrix of bools: True if the thread (row) holds the element (column) of an array of tiles."""
        lane = np.arange(self.threads)
        first = lane - sum((lane // step % radix * step for step, radix in self.copies), lane * 0)
        return np.asarray(first[:, None] == self.places(extents)[0].ravel())

    def along(self, axes: Sequence[int | None], rank: int) -> Layout:
        """The layout of a tensor of `rank` axes, such as row sums, aligned with this layout.

        `axes` has for each axis of the tile the axis of the tensor, or None for a reduced axis. Lane digits
        of reduced axes become copies; register digits of reduced axes are dropped.

        >>> acc = layout_of((16, 8), 32, lambda i, j: (i % 8 * 4 + j // 2, i // 8 * 2 + j % 2))
        >>> rows = acc.along((0, None), 1)
        >>> rows.shape, rows.count, rows.copies
        ((16,), 2, ((1, 4),))
        """
        shape, digits, weight = [1] * rank, [], 1
        copies = list(self.copies)
        for d in sorted(self.digits, key=lambda d: d.weight):
            axis = axes[d.axis]
            if axis is None:
                copies += [(d.weight, d.radix)] if d.in_lane else []
                continue
            shape[axis] = max(shape[axis], d.step * d.radix)
            digits.append(replace(d, axis=axis) if d.in_lane else replace(d, axis=axis, weight=weight))
            weight *= 1 if d.in_lane else d.radix
        return Layout(tuple(shape), self.threads, tuple(digits), tuple(copies))

    def lane(self, index: Sequence[Expr], facts: Facts = NO_FACTS) -> Expr:
        """The lane that holds an element."""
        return self._sum(index, facts, in_lane=True)

    def register(self, index: Sequence[Expr], facts: Facts = NO_FACTS) -> Expr:
        """The register of its lane that holds an element."""
        return self._sum(index, facts, in_lane=False)

    def tile(self, axis: int, i: Expr, facts: Facts = NO_FACTS) -> Expr:
        """The number of the tile along an axis that contains an index of an array of tiles."""
        last = max((d for d in self.digits if d.axis == axis), key=lambda d: d.step, default=None)
        if last is None:
            return i
        outer = simplify(_digit(i, last.step, None), facts)
        return simplify(_digit(outer, last.radix, None), facts)

    def _sum(self, index: Sequence[Expr], facts: Facts, *, in_lane: bool) -> Expr:
        total: Expr = ZERO
        for d in self.digits:
            if d.in_lane == in_lane:
                part = simplify(_digit(index[d.axis], d.step, d.radix), facts)
                total = add(total, multiply(part, const(d.weight)))
        return simplify(total, facts)

    def element(self, lane: Expr, register: Expr, facts: Facts = NO_FACTS) -> tuple[Expr, ...]:
        """The index of the element in a register of a lane: the inverse of `lane` and `register`."""
        index: list[Expr] = [ZERO] * len(self.shape)
        for d in self.digits:
            most = self.threads if d.in_lane else self.count
            top = d.weight * d.radix == most
            part = _digit(lane if d.in_lane else register, d.weight, None if top else d.radix)
            index[d.axis] = add(index[d.axis], multiply(part, const(d.step)))
        return tuple(simplify(e, facts) for e in index)

    def places(self, extents: tuple[int, ...]) -> tuple[Array, Array]:
        """The lane and the register of each element of an array of tiles; tiles are numbered row-major.

        >>> lanes, registers = layout_of((2, 4), 4, lambda i, j: (j, i)).places((2, 8))
        >>> lanes.tolist()
        [[0, 1, 2, 3, 0, 1, 2, 3], [0, 1, 2, 3, 0, 1, 2, 3]]
        >>> registers.tolist()
        [[0, 0, 0, 0, 2, 2, 2, 2], [1, 1, 1, 1, 3, 3, 3, 3]]
        """
        index = np.indices(extents)
        lane, register = np.zeros(extents, np.int64), np.zeros(extents, np.int64)
        for d in self.digits:
            digit = index[d.axis] % self.shape[d.axis] // d.step % d.radix * d.weight
            if d.in_lane:
                lane += digit
            else:
                register += digit
        tile = np.zeros(extents, np.int64)
        for axis, (extent, tile_extent) in enumerate(zip(extents, self.shape, strict=True)):
            tile = tile * (extent // tile_extent) + index[axis] // tile_extent
        return lane, register + tile * self.count


def _digit(e: Expr, step: int, radix: int | None) -> Expr:
    if step > 1:
        e = Binary("floordiv", e, const(step))
    return e if radix is None else Binary("mod", e, const(radix))


def layout_of(shape: tuple[int, ...], threads: int, rule: Callable[..., Any]) -> Layout | None:
    """The layout for a rule, a function from the index of an element to (lane, register).

    None if the rule is not a weighted sum of digits, or not one-to-one.

    >>> acc = layout_of((16, 8), 32, lambda i, j: (i % 8 * 4 + j // 2, i // 8 * 2 + j % 2))
    >>> from tdsl.lang.expr import Var
    >>> from tdsl.lang.show import show_expr
    >>> show_expr(acc.lane((Var("i"), Var("j")))), show_expr(acc.register((Var("i"), Var("j"))))
    ('i % 8 * 4 + j // 2 % 4', 'i // 8 % 2 * 2 + j % 2')
    >>> [show_expr(e) for e in acc.element(Var("t"), Var("r"))]
    ['t // 4 + r // 2 * 8', 'r % 2 + t % 4 * 2']
    >>> layout_of((16, 8), 32, lambda i, j: (i, j))
    """
    index = np.indices(shape)
    lane, register = (np.broadcast_to(x, shape) for x in rule(*index))
    all_digits: list[Digit] = []
    for axis, extent in enumerate(shape):
        line = tuple(slice(None) if a == axis else 0 for a in range(len(shape)))
        all_digits += _digits(axis, extent, lane[line], register[line])
    layout = Layout(shape, threads, tuple(all_digits))
    count = prod(shape) // threads
    lanes, registers = layout.places(shape)
    once = np.unique(lanes * count + registers).size == prod(shape) == threads * count
    fits = bool((lanes == lane).all() and (registers == register).all())
    return layout if once and fits and lanes.max() < threads and registers.max() < count else None


def _digits(axis: int, extent: int, lane: Array, register: Array) -> Iterator[Digit]:
    """The digits along one axis, lowest first, from the factors of its extent; adjacent digits are merged."""
    step = 1
    while step < extent:
        radix, rest = 1, extent // step
        weights = int(lane[step]), int(register[step])
        while rest > 1:
            factor = next(p for p in range(2, rest + 1) if rest % p == 0)
            at = step * radix
            if radix > 1 and (lane[at], register[at]) != (weights[0] * radix, weights[1] * radix):
                break
            radix, rest = radix * factor, rest // factor
        in_lane = weights[0] != 0
        yield Digit(axis, step, radix, weights[0] if in_lane else weights[1], in_lane)
        step *= radix


def points_of(threads: int, rank: int, rule: Callable[[Array], Any]) -> tuple[Digit, ...]:
    """The index of the element that each lane's pointer refers to, as digits of the lane: `step` and `radix`
    select a digit of the lane, `weight` is its factor in the index along `axis`.

    >>> for d in points_of(32, 2, lambda lane: (lane % 16, lane // 16 * 8)):
    ...     print(d)
    Digit(axis=0, step=1, radix=16, weight=1, in_lane=True)
    Digit(axis=1, step=16, radix=2, weight=8, in_lane=True)
    """
    lane, none = np.arange(threads), np.zeros(threads, np.int64)
    all_digits: list[Digit] = []
    for axis, index in enumerate(rule(lane)):
        line = np.broadcast_to(index, threads)
        digits = [d for d in _digits(0, threads, line, none) if d.weight]
        digits = [replace(d, axis=axis) for d in digits]
        values = sum((lane // d.step % d.radix * d.weight for d in digits), none)
        assert (values == line).all(), "points are sums of digits of the lane"
        all_digits += digits
    assert all(d.axis < rank for d in all_digits), "an index for each axis"
    return tuple(all_digits)


def point(digits: Sequence[Digit], start: Sequence[Expr], lane: Expr) -> tuple[Expr, ...]:
    """The index of the element that the pointer of `lane` refers to, in a tile that begins at `start`."""
    index = list(start)
    for d in digits:
        part = _digit(lane, d.step, d.radix)
        index[d.axis] = add(index[d.axis], multiply(part, const(d.weight)))
    return tuple(index)
