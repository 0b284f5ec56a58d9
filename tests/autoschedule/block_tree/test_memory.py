"""The bytes that blocks read of memory are those that a count block by block gives."""

from itertools import product

import pytest

from tdsl.autoschedule.block_tree.memory import bytes_read, memory_seconds, merge_seconds
from tdsl.machine.devices import describe_gpu

LARGE, SMALL = 1 << 30, 1 << 10  # bytes of what a block reads: of operands beyond the L2 cache, and inside
AMPERE = describe_gpu("sm_80")


def counted(grid, count, group, bytes_of):
    """The bytes of operands of rows and columns that `count` blocks at a time read, in groups of rows."""
    down, across = grid
    order = [(g * group + r, c) for g, c, r in product(range(down // group), range(across), range(group))]
    turns = [order[n : n + count] for n in range(0, len(order), count)]
    return sum(size * len({block[n] for block in turn}) for turn in turns for n, size in enumerate(bytes_of))


@pytest.mark.parametrize(
    "grid, count, sizes",
    [((8, 16), 16, (LARGE, LARGE)), ((16, 64), 64, (LARGE, LARGE)), ((32, 32), 128, (LARGE, 8 * LARGE))],
)
def test_operands_beyond_the_cache_are_read_again(grid, count, sizes):
    boxes = [lambda at, n=n, size=size: at[n] * size for n, size in enumerate(sizes)]
    read, group = bytes_read(boxes, grid, count, AMPERE)
    least = min(counted(grid, count, g, sizes) for g in (1, 2, 4, 8, 16) if grid[0] % g == 0)
    assert read == least == counted(grid, count, group, sizes)


def test_operands_that_stay_in_the_cache_are_read_once():
    rows, columns = (lambda at: at[0] * LARGE), (lambda at: at[1] * SMALL)
    read, _ = bytes_read([rows, columns], (64, 8), 8, AMPERE)
    assert read == 64 * LARGE + 8 * SMALL
    assert bytes_read([columns], (64, 8), 8, AMPERE) == (8 * SMALL, 1)


def test_batches_and_single_axes_have_orders():
    along = [lambda at: at[-1] * LARGE]
    assert bytes_read(along, (7,), 3, AMPERE) == (7 * LARGE, 1)
    of_batches, _ = bytes_read(along, (5, 7, 11), 7 * 11, AMPERE)
    assert of_batches == 5 * 11 * LARGE


def test_blocks_at_a_time_go_over_several_planes():
    shared = [lambda at: at[1] * at[2] * LARGE]
    assert bytes_read(shared, (13, 4, 2), 104, AMPERE)[0] == 8 * LARGE
    assert bytes_read(shared, (12, 4, 2), 32, AMPERE)[0] == 3 * 8 * LARGE


def test_half_of_the_multiprocessors_draw_all_of_the_memory():
    whole = memory_seconds(1e9, AMPERE.threads, AMPERE)
    assert memory_seconds(1e9, AMPERE.threads // 2, AMPERE) == whole
    assert memory_seconds(1e9, AMPERE.threads // 4, AMPERE) == pytest.approx(2 * whole)
    assert 0 < merge_seconds(2, 1e6, AMPERE) < merge_seconds(64, 1e6, AMPERE)
    assert merge_seconds(64, 1e3, AMPERE, threads=64) < merge_seconds(64, 1e3, AMPERE)
