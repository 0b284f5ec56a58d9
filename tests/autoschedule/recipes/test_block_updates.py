"""Updates on GPUs: points that data choose, parts of a func, reductions into elements that exist."""

import numpy as np
import pytest

import tdsl as td

i, j = td.vars("i j")


def check(out: td.Func, expected: np.ndarray, *arrays: np.ndarray) -> td.Compiled:
    compiled: td.Compiled = td.compile(out, target="cuda:sm_89")
    np.testing.assert_allclose(td.emulate(compiled)(*arrays), expected, rtol=1e-4)
    return compiled


def threads(compiled: td.Compiled) -> list[int]:
    return [int(np.prod(x.grid)) * int(np.prod(x.block)) for x in compiled.launch.kernels]


def histogram(keys: td.Tensor, size: int, dtype: td.DType, *ranges: int) -> td.Func:
    out = td.Func("out", shape=size)
    at = tuple(td.range(f"r{n}", 0, extent) for n, extent in enumerate(ranges))
    out[i] = td.cast(0, dtype)
    out[td.clip(keys[at], 0, size - 1)] += td.cast(1, dtype)
    return out


@pytest.mark.parametrize(
    "shape, size, key, dtype",
    [
        ((0,), 16, td.i32, td.i32), ((1,), 16, td.i32, td.i32), ((3000,), 256, td.u8, td.i32),
        ((100_003,), 256, td.i32, td.i64), ((65_537,), 100, td.i64, td.f32),
        ((70_001,), 3000, td.i32, td.i32),
        ((4096,), 1 << 16, td.i32, td.f64), ((33, 77), 10, td.i32, td.i64), ((500, 64), 300, td.u16, td.i16),
    ],
)  # fmt: skip
def test_histograms_of_any_size_and_type(rng, shape, size, key, dtype):
    keys = rng.integers(0, min(size, 256), shape).astype(key.numpy)
    out = histogram(td.Tensor("keys", shape, key), size, dtype, *shape)
    compiled = check(out, np.bincount(keys.ravel(), minlength=size), keys)
    assert all(n > 1 for n in threads(compiled))


def test_each_block_has_a_copy_where_it_fits_and_pays(rng):
    def copies(n: int, size: int) -> int:
        out = histogram(td.Tensor("keys", (n,), td.i32), size, td.i32, n)
        s = td.Schedule(out, target="cuda:sm_89")
        return td.recipes.block_updates(s[out].update(0)).copies

    assert copies(1 << 24, 256) > 142
    assert copies(1 << 24, 20_000) == 142
    assert copies(1 << 24, 1 << 20) == copies(1 << 12, 1 << 12) == 0


@pytest.mark.parametrize("lanes", [1, 4, 32])
@pytest.mark.parametrize("dtype", [td.i32, td.i64, td.f32, td.u8])
def test_copies_for_each_lane_of_a_warp_have_no_conflicts(rng, lanes, dtype):
    """Two histograms of pairs of keys, in blocks whose last ones have few of them."""
    n, x = 3001, td.Tensor("x", (2, 2, 3001), td.u8)
    out, r, b = td.Func("out", shape=(2, 5, 7)), td.range("r", 0, n), td.vars("b")
    i, j = td.vars("i j")
    out[b, i, j] = td.cast(1, dtype)
    out[b, td.clip(x[b, 0, r], 0, 4), td.clip(x[b, 1, r], 0, 6)] += td.cast(1, dtype)
    s = td.Schedule(out, target="cuda:sm_89")
    plan = td.recipes.block_updates(s[out].update(0), threads=64, copies=5, lanes=lanes)
    assert plan.lanes == lanes
    keys = np.stack([rng.integers(0, size, (2, n)) for size in (5, 7)], 1).astype(np.uint8)
    want = np.ones((2, 5, 7), dtype.numpy)
    for row in range(2):
        np.add.at(want[row], (keys[row, 0], keys[row, 1]), 1)
    compiled = td.compile(s)
    np.testing.assert_array_equal(td.emulate(compiled)(keys), want)
    if lanes == 32 and dtype is not td.u8:
        assert td.count_memory(compiled, keys).conflict_degree == 1


def test_lanes_that_do_not_divide_the_threads_are_refused():
    out = histogram(td.Tensor("keys", (5000,), td.i32), 16, td.i32, 5000)
    s = td.Schedule(out, target="cuda:sm_89")
    with pytest.raises(td.ScheduleError, match="64 threads are no multiple of lanes=3"):
        td.recipes.block_updates(s[out].update(0), threads=64, lanes=3)


def test_a_histogram_has_as_many_copies_in_a_block_as_leave_it_its_threads(rng):
    def plan(n: int, size: int) -> int:
        out = histogram(td.Tensor("keys", (n,), td.i32), size, td.i32, n)
        s = td.Schedule(out, target="cuda:sm_89")
        return int(td.recipes.block_updates(s[out].update(0)).lanes)

    assert [plan(1 << 26, size) for size in (16, 256, 1000, 20_000)] == [32, 32, 16, 1]
    assert plan(1 << 14, 256) == 1


@pytest.mark.parametrize("combine, at", [(td.maximum, np.maximum.at), (td.minimum, np.minimum.at)])
@pytest.mark.parametrize("dtype", [td.i32, td.u8, td.f32, td.f16])
def test_largest_and_smallest_values_at_places_that_are_data(rng, combine, at, dtype):
    n = 5001
    keys, v, r = td.Tensor("keys", (n,), td.i32), td.Tensor("v", (n,), dtype), td.range("r", 0, n)
    out, place = td.Func("out", shape=64), td.clip(td.Tensor("keys", (n,), td.i32)[r], 0, 63)
    place = td.clip(keys[r], 0, 63)
    out[i] = td.cast(50, dtype)
    out[place] = combine(out[place], v[r])
    places, values = rng.integers(0, 64, n).astype(np.int32), rng.integers(0, 100, n).astype(dtype.numpy)
    expected = np.full(64, 50, dtype.numpy)
    at(expected, places, values)
    check(out, expected, places, values)


def test_bits_at_places_that_are_data(rng):
    n = 5001
    keys, v, r = td.Tensor("keys", (n,), td.i32), td.Tensor("v", (n,), td.u32), td.range("r", 0, n)
    out = td.Func("out", shape=64)
    out[i] = td.cast(0, td.u32)
    out[td.clip(keys[r], 0, 63)] |= v[r]
    places, values = rng.integers(0, 64, n).astype(np.int32), rng.integers(0, 1 << 20, n).astype(np.uint32)
    expected = np.zeros(64, np.uint32)
    np.bitwise_or.at(expected, places, values)
    check(out, expected, places, values)


def test_a_histogram_of_each_row_has_copies_of_a_row(rng):
    x, out, r = td.Tensor("x", (5, 30_001), td.u8), td.Func("out", shape=(5, 256)), td.range("r", 0, 30_001)
    out[i, j] = td.cast(0, td.i32)
    out[i, x[i, r]] += 1
    given = rng.integers(0, 256, (5, 30_001)).astype(np.uint8)
    compiled = check(out, np.stack([np.bincount(row, minlength=256) for row in given]), given)
    assert "out_partial = alloc(i32, [1, 256, 1])  # shared" in str(compiled.loops("final"))


def test_iterations_without_a_dependence_are_shared_out(rng):
    a, out, r = td.Tensor("a", (10_000,), td.f32), td.Func("out", shape=10_000), td.range("r", 1, 9999)
    out[i] = a[i]
    out[r] = a[r - 1] + a[r + 1]
    given = rng.random(10_000, np.float32)
    expected = given.copy()
    expected[1:-1] = given[:-2] + given[2:]
    compiled = check(out, expected, given)
    assert all(n >= 2048 for n in threads(compiled))
    assert "atomic" not in str(compiled.loops("final"))


@pytest.mark.parametrize("n", [7, 1000, 300_000])
def test_sums_into_elements_are_reduced_by_blocks(rng, n):
    a, out, r = td.Tensor("a", (3, n), td.f32), td.Func("out", shape=3), td.range("r", 0, n)
    out[i] = td.cast(i, td.f32)
    out[i] += a[i, r]
    given = rng.random((3, n), np.float32)
    compiled = check(out, np.arange(3) + given.sum(1), given)
    assert "atomic" not in str(compiled.loops("final"))
    assert all(x > 1 for x in threads(compiled))


def test_sizes_that_a_call_tells(rng):
    x, out = td.Tensor("x", ("N",), td.u8), td.Func("out", shape=256)
    out[i] = td.cast(0, td.i32)
    out[x[td.range("r", 0, x.shape[0])]] += 1
    given = rng.integers(0, 256, 30_001).astype(np.uint8)
    s = td.compile(out, target="cuda:sm_89", dynamic="N")
    np.testing.assert_array_equal(td.emulate(s)(given), np.bincount(given, minlength=256))


def test_explain_says_that_floats_have_no_fixed_order():
    def text(dtype: td.DType) -> str:
        out = histogram(td.Tensor("keys", (1 << 20,), td.u8), 256, dtype, 1 << 20)
        return str(td.compile(out, target="cuda:sm_89").explain())

    assert "an order that differs from run to run" in text(td.f32)
    assert "run to run" not in text(td.i32)


def test_what_is_no_update_in_any_order_is_refused():
    x, out, r = td.Tensor("x", (100,), td.f32), td.Func("out", shape=100), td.range("r", 1, 100)
    out[i] = x[i]
    out[r] += out[r - 1]
    s = td.Schedule(out, target="cuda:sm_89")
    for stage in (s[out], s[out].update(0)):
        with pytest.raises(td.ScheduleError, match="block_updates is not for 'out'"):
            td.recipes.block_updates(stage)
