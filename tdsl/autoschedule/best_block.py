"""Blocks for argmax and argmin of many contiguous terms, which the directive `in_blocks` computes in steps.

A reduction of values alone runs at memory bandwidth; a reduction of (value, index) pairs is several times
slower: vectors of values and of indices differ in width, and each step waits for the previous comparison.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from math import isqrt, prod

from tdsl.autoschedule.patterns.rows import vectors_of
from tdsl.lang.definition import Definition
from tdsl.machine.model import Machine
from tdsl.schedule.fluent import BaseSchedule
from tdsl.schedule.in_blocks import is_in_order, is_plain_arg_reduction
from tdsl.schedule.properties import extents, root_boxes, unplaced_at_root
from tdsl.schedule.state import Root

MIN_BLOCK_TERMS = 64  # terms of a block: a few vectors
MIN_BLOCKS = 4  # blocks of a split variable
MIN_TERMS = 512  # terms; shorter reductions are left as they are


def block_arg_reductions(schedule: BaseSchedule, machine: Machine, hosts: Collection[str] = ()) -> None:
    """Compute argmax and argmin of many contiguous terms by blocks.

    Funcs with directives, and `hosts`, at whose loops other funcs are placed, are unchanged.
    """
    state = schedule.state
    plans = [(name, plan) for name, plan in state.plans if name not in hosts]
    open_ = [n for n, plan in plans if not plan.scheduled and plan.place in (None, Root())]
    candidates = [name for name in open_ if is_plain_arg_reduction(state, state.program.func(name))]
    if not candidates:
        return
    boxes = root_boxes(unplaced_at_root(state))
    for name in candidates:
        f = state.program.func(name)
        if name in boxes:
            sizes = extents(f, f.definitions[0], boxes[name])
            vectors = vectors_of(f, 0, sizes, machine.vector_bytes, whole=True)
            blocks = _blocks(f.definitions[0], sizes)
            if blocks is not None and vectors is not None and vectors[0] == f.definitions[0].ranges[-1][0]:
                loop, factor = blocks
                schedule[name].in_blocks(loop, factor)


def _blocks(d: Definition, sizes: Mapping[str, int | None]) -> tuple[str, int | None] | None:
    """The outermost loop inside a block, and the terms of it where these are not all; None without blocks."""
    terms = [(name, sizes[name] or 0) for name, _, _ in d.ranges]
    if prod(n for _, n in terms) < MIN_TERMS or not is_in_order(d.values[1], dict(terms)):
        return None
    inner = len(terms)
    while inner and prod(n for _, n in terms[inner:]) < MIN_BLOCK_TERMS:
        inner -= 1
    if prod(n for _, n in terms[:inner]) < prod(n for _, n in terms[inner:]) // MIN_BLOCK_TERMS:
        last, extent = terms[-1]
        size = _block_size(extent)
        return (last, size) if size else None
    return terms[inner][0], None


def _block_size(extent: int) -> int:
    """The divisor of `extent` closest to its root, a multiple of vectors if possible; 0 without a divisor."""
    largest = min(max(isqrt(extent), 4 * MIN_BLOCK_TERMS), extent // MIN_BLOCKS)
    divisors = [n for n in range(MIN_BLOCK_TERMS, largest + 1) if extent % n == 0]
    return max(divisors, key=lambda n: (min(n & -n, MIN_BLOCK_TERMS), -abs(n - isqrt(extent))), default=0)
