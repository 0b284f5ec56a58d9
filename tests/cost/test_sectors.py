"""The closed form of transactions is what is counted in compiled kernels, and in sets of addresses."""

import itertools
from math import prod

import numpy as np
import pytest

import tdsl as td
from tdsl.cost.sectors import Transactions, conflict_degree, sectors_per_warp, transactions

i, j, k = td.vars("i j k")


def by_sets(axes, size, vector, offset):
    """The sectors, lines and useful bytes of a block, a warp after the other, from their definition."""
    digits = itertools.product(*(range(n) for n, _ in reversed(axes)))
    first = [offset + sum(d * s for d, (_, s) in zip(reversed(x), axes, strict=True)) for x in digits]
    touched = lines = useful = 0
    for warp in range(0, len(first), 32):
        every = {
            size * (e + n) + b for e in first[warp : warp + 32] for n in range(vector) for b in range(size)
        }
        touched += len({b // 32 for b in every})
        lines += len({b // 128 for b in every})
        useful += len(every)
    return touched, lines, useful


@pytest.mark.parametrize("seed", range(60))
def test_scalar_accesses_touch_the_sectors_of_their_bytes(seed):
    rng = np.random.default_rng(seed)
    axes = tuple(
        (int(rng.integers(1, 40)), int(rng.choice([0, 1, 2, 3, 8, 33, 100])))
        for _ in range(int(rng.integers(1, 4)))
    )
    size, offset = int(rng.choice([1, 2, 4, 8])), int(rng.integers(0, 9))
    got = transactions(axes, size, offset=offset)
    assert (got.sectors, got.lines, got.useful) == by_sets(axes, size, 1, offset)
    assert got.requests == -(-prod(n for n, _ in axes) // 32)


def compiled(axes, dtype, vector, offset):
    """A kernel of a block whose threads along x and y load vectors at these strides."""
    (nx, sx), (ny, sy) = axes
    extent = offset + nx * sx + ny * sy + vector + 32  # vectors that begin anywhere end in the array
    a, f = td.Tensor("a", (extent,), dtype), td.Func("f", shape=(ny, nx, vector))
    f[i, j, k] = a[i * sy + j * sx + k + offset]
    s = td.Schedule(f)
    s[f].bind(i, "threadIdx.y").bind(j, "threadIdx.x").vectorize(k)
    return td.compile(s, target="cuda")


@pytest.mark.parametrize("seed", range(40))
def test_the_closed_form_is_what_is_counted(seed):
    rng = np.random.default_rng(100 + seed)
    dtype = (td.i8, td.f16, td.f32, td.f64)[seed % 4]
    vector = int(rng.choice([2, 4, 8]))
    steps = [1, 3, vector, 2 * vector, 5 * vector, 33]
    axes = tuple((int(rng.integers(1, 24)), int(rng.choice(steps))) for _ in range(2))
    offset = int(rng.choice([0, 0, 1, vector]))
    counts = td.count_memory(compiled(axes, dtype, vector, offset))
    loads = [a for a in counts.accesses if a.site.kind == "load"]
    got = [sum(getattr(a, name) for a in loads) for name in ("requests", "useful", "sectors")]
    want = transactions(axes, dtype.bytes, vector, offset=offset)
    assert got == [want.requests, want.useful, want.sectors]


@pytest.mark.parametrize("dtype", [td.f16, td.f32, td.f64], ids=str)
@pytest.mark.parametrize("pitch", [32, 33, 34, 36, 40, 48, 63])
def test_the_conflicts_of_columns_are_those_that_are_counted(pitch, dtype):
    a, f = td.Tensor("a", (32, 32), dtype), td.Func("f")
    f[i, j] = a[j, i]
    s = td.Schedule(f)
    io, jo, ii, ji = s[f].tile((i, j), (32, 32))
    s[f].bind(io, "blockIdx.y").bind(jo, "blockIdx.x").bind(ii, "threadIdx.y").bind(ji, "threadIdx.x")
    s.cache_read(a, f, at=ji, scope="shared").cooperate().align_storage(1, pitch)
    counts = td.count_memory(td.compile(s, target="cuda"))
    (load,) = (x for x in counts.accesses if (x.site.kind, x.site.array) == ("load", "a_cache"))
    want = transactions(((32, pitch), (32, 1)), dtype.bytes)
    assert (load.wavefronts, load.least) == (want.wavefronts, want.least)


def test_a_thread_alone_needs_a_sector():
    assert transactions(((1, 5),), 4) == Transactions(1, 4, 1, 1, 1, 1)
    assert sectors_per_warp((), 8, offset=3) == conflict_degree((), 8) == 1
    assert transactions(((0, 1),), 4) == Transactions(0, 0, 0, 0, 0, 0)


def test_wide_vectors_use_halves_of_sectors_where_threads_have_whole_ones():
    assert transactions(((32, 8),), 4, 8).sector_efficiency == 0.5
    assert transactions(((32, 4),), 4, 4).sector_efficiency == 1
