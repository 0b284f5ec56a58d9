"""Two schedules with the same order of sums add the same terms in the same order."""

import numpy as np
import pytest

import tdsl as td
from tdsl.tilegraph.sum_order import sum_orders


def _sum() -> tuple[td.Func, td.Schedule]:
    i, k, a, f = *td.vars("i k"), td.Tensor("a", (8, 1024), td.f32), td.Func("f")
    f[i] = td.sum(a[i, k], axis=k)
    return f, td.Schedule(f)


def _plain() -> td.Schedule:
    return _sum()[1]


def _blocks() -> td.Schedule:
    f, s = _sum()
    block, _ = s[f].split("k", 256)
    s[f].split(block, 2)
    return s


def _blocks_inside() -> td.Schedule:
    f, s = _sum()
    block, term = s[f].split("k", 16)
    s[f].reorder("i", term, block)
    return s


def _blocks_inside_a_block() -> td.Schedule:
    f, s = _sum()
    outer, rest = s[f].split("k", 256)
    middle, term = s[f].split(rest, 16)
    s[f].reorder("i", outer, term, middle)
    return s


def _lanes() -> td.Schedule:
    f, s = _sum()
    s[f].vectorize("k", 8)
    return s


def _long_blocks_inside() -> td.Schedule:
    f, s = _sum()
    block, term = s[f].split("k", 64)
    s[f].reorder("i", term, block)
    return s


SCHEDULES = (_plain, _blocks, _blocks_inside, _blocks_inside_a_block, _lanes, _long_blocks_inside)


@pytest.mark.parametrize("first", SCHEDULES)
@pytest.mark.parametrize("second", SCHEDULES)
def test_the_same_order_has_the_same_bits_and_another_order_others(first, second, rng):
    one, other = first(), second()
    a = rng.random((8, 1024), np.float32)
    for s in (one, other):
        s["f"].pin()
    same_bits = np.array_equal(td.compile(one)(a), td.compile(other)(a))
    assert (sum_orders(one.state) == sum_orders(other.state)) == same_bits
