"""A stage in the loops of another gives what it gives in its own, also where it reduces over them."""

import numpy as np
import pytest

import tdsl as td

i, j, k = td.vars("i j k")
BOTH = pytest.mark.parametrize("target", ["cpu", "python"])


def doubled_and_sums(rows, columns):
    """Twice a matrix, and the sums of its columns."""
    a = td.Tensor("a", (rows, columns), td.i32)
    f, h = td.Func("f"), td.Func("h")
    f[i, j] = a[i, j] * 2
    h[j] = td.sum(a[k, j], axis=k)
    return f, h, np.arange(rows * columns, dtype=np.int32).reshape(rows, columns)


def check(s, a, target):
    twice, sums = td.compile(s, target=target)(a)
    np.testing.assert_array_equal(twice, a * 2)
    np.testing.assert_array_equal(sums, a.sum(0, dtype=np.int32))


@BOTH
@pytest.mark.parametrize("rows, columns", [(1, 1), (7, 5), (9, 33)])
@pytest.mark.parametrize("tail", ["guard", "peel"])
def test_a_sum_shares_the_loop_of_rows_that_it_reduces_over(rows, columns, tail, target):
    f, h, a = doubled_and_sums(rows, columns)
    s = td.Schedule(f, h)
    block, row = s[f].split(i, 4)
    s[f].vectorize(j, 4)
    s[h].split(k, 4, tail=tail)
    s[h].reorder("k_o", "k_i", j).vectorize(j, 4)
    s[h].compute_with(f, row if tail == "guard" else block)
    check(s, a, target)


@BOTH
def test_partial_sums_share_parallel_blocks_of_rows(target):
    f, h, a = doubled_and_sums(13, 6)
    s = td.Schedule(f, h)
    block, row = s[f].split(i, 5)
    s[f].parallel(block)
    part, inner = s[h].split(k, 5)
    partial = s[h].rfactor(part)
    partial.reorder(part, inner, j)
    partial.compute_with(f, row)
    check(s, a, target)


@BOTH
def test_sums_share_the_loop_that_both_reduce_over(target):
    a = td.Tensor("a", (6, 7), td.i32)
    f, h = td.Func("f"), td.Func("h")
    f[j] = td.max(a[k, j], axis=k)
    h[j] = td.sum(a[k, j], axis=k)
    s = td.Schedule(f, h)
    s[f].reorder(k, j)
    s[h].reorder(k, j).compute_with(f, j)
    x = np.arange(42, dtype=np.int32).reshape(6, 7) % 10
    most, sums = td.compile(s, target=target)(x)
    np.testing.assert_array_equal(most, x.max(0))
    np.testing.assert_array_equal(sums, x.sum(0))


@BOTH
def test_the_initial_value_is_set_inside_the_shared_free_loops(target):
    a = td.Tensor("a", (3, 4, 5), td.i32)
    f, h = td.Func("f"), td.Func("h")
    r = td.range("r", 0, 4)
    f[i, j, k] = a[i, j, k] * 2
    h[i, k] = td.sum(a[i, r, k], axis=r)
    s = td.Schedule(f, h)
    s[h].reorder(i, "r", k).compute_with(f, j)
    x = np.arange(60, dtype=np.int32).reshape(3, 4, 5)
    twice, sums = td.compile(s, target=target)(x)
    np.testing.assert_array_equal(twice, x * 2)
    np.testing.assert_array_equal(sums, x.sum(1))


def test_readers_of_a_shared_sum_run_after_its_loops():
    a = td.Tensor("a", (4, 5), td.i32)
    f, h, e = td.Func("f"), td.Func("h"), td.Func("e")
    f[i, j] = a[i, j] * 2
    h[j] = td.sum(a[k, j], axis=k)
    e[i, j] = a[i, j] - h[j]
    s = td.Schedule(f, e)
    s[h].reorder(k, j).compute_with(f, i)
    x = np.arange(20, dtype=np.int32).reshape(4, 5)
    _, less = td.compile(s)(x)
    np.testing.assert_array_equal(less, x - x.sum(0))


@pytest.mark.parametrize("directive", ["parallel", "vectorize"])
def test_a_loop_that_is_reduced_over_stays_in_order(directive):
    f, h, _ = doubled_and_sums(8, 5)
    s = td.Schedule(f, h)
    s[h].reorder(k, j).compute_with(f, i)
    with pytest.raises(td.ScheduleError, match="does not run in order"):
        getattr(s[f], directive)(i)


def test_a_sum_starts_in_front_of_loops_of_the_stage_that_runs_them():
    f, h, _ = doubled_and_sums(8, 5)
    b, g = td.Tensor("b", (8, 5), td.i32), td.Func("g")
    g[i, j] = b[i, j] + 1
    s = td.Schedule(f, g, h)
    s[g].compute_with(f, i)
    with pytest.raises(td.ScheduleError, match="shares with another stage"):
        s[h].reorder(k, j).compute_with(g, j)


def test_a_shared_loop_with_other_funcs_is_not_removed():
    i, j = td.vars("i j")
    a = td.Tensor("a", (8, 8), td.f32)
    f, g, h = td.Func("f"), td.Func("g"), td.Func("h")
    f[i, j] = a[i, j] * 2
    g[i, j] = f[i, j] + 1
    h[i, j] = a[i, j] + 3
    s = td.Schedule(g, h)
    s[g].compute_with(s[h], "i")
    s[f].compute_at(s[g], "j")
    with pytest.raises(td.ScheduleError, match="'g' has its place at loop 'i' of 'h', which would"):
        s[h].fuse("i", "j")
