"""What lowering once got wrong, each as the smallest program that showed it."""

import numpy as np
import pytest

import tdsl as td

i, j, k, l, m, n = td.vars("i j k l m n")


def same(schedule, *arrays, **options):
    """The compiled schedule gives what the program means; returns the result."""
    from tdsl.lang.interp import interpret

    names = schedule.program.parameters
    want = interpret(schedule.program, dict(zip(names, arrays, strict=True)))
    got = td.compile(schedule, **options)(*arrays)
    for x, y in zip(want, got if isinstance(got, tuple) else (got,), strict=True):
        np.testing.assert_array_equal(y, x)
    return got


def test_sums_start_also_where_a_condition_leaves_out_all_points():
    a, f = td.Tensor("a", (5, 3), td.i32), td.Func("f")
    f[i] = td.sum(a[i, m], axis=td.range("m", 0, 3, where=lambda m: i > 2))
    same(td.Schedule(f), np.arange(15, dtype=np.int32).reshape(5, 3))


def test_a_stage_that_shares_loops_has_points_of_its_own():
    a, f, g = td.Tensor("a", (7,), td.i32), td.Func("f"), td.Func("g")
    f[i] = a[td.clip(i, 0, 6)] * 2
    g[j] = a[j] + 1
    f.with_shape(6)
    s = td.Schedule(f, g)
    s[f].split(i, 4, names=("io", "ii"))
    s[g].split(j, 4, names=("jo", "ji"))
    s[g].compute_with(f, "ii")
    same(s, np.arange(7, dtype=np.int32))


def test_stages_that_share_loops_may_both_be_empty():
    a, f, g = td.Tensor("a", ("N",), td.i32), td.Func("f"), td.Func("g")
    f[i] = a[i] * 2
    g[j] = a[j] + 1
    s = td.Schedule(f, g)
    s[g].compute_with(f, i)
    same(s, np.zeros(0, np.int32))


def test_rfactor_of_the_only_loop_starts_its_partial_results():
    a, f = td.Tensor("a", (7,), td.u8), td.Func("f")
    f[()] = td.prod(a[m], axis=m)
    s = td.Schedule(f)
    s[f].rfactor("m")
    same(s, np.arange(1, 8, dtype=np.uint8))


def test_a_cache_may_be_folded():
    a, f = td.Tensor("a", (5,), td.i32), td.Func("f")
    f[i] = a[i] * 2
    s = td.Schedule(f)
    s[f].split(i, 2)
    s.cache_write(f, at="i_o")
    s[f].fold_storage(0, 2)
    same(s, np.arange(5, dtype=np.int32))


def test_what_is_made_inside_a_loop_is_not_prefetched():
    a, f = td.Tensor("a", (40,), td.i32), td.Func("f")
    f[i] = a[i] * 2
    s = td.Schedule(f)
    s[f].split(i, 4)
    s.cache_read("a", s[f], at="i_o", name="c")
    s[f].prefetch("c", "i_o")
    same(s, np.arange(40, dtype=np.int32))


def test_default_rows_of_one_dimension_hold_what_is_computed_in_them():
    a, f = td.Tensor("a", (7, 8), td.bool_), td.Func("f")
    f[i] = td.cast(td.any(a[i, 0], axis=td.range("m", 0, 0)), td.i32)
    same(td.Schedule(f), np.ones((7, 8), np.bool_))


def test_defaults_skip_what_nothing_is_read_of():
    a, f, g = td.Tensor("a", (7, 0, 3), td.f64), td.Func("f"), td.Func("g")
    f[i, j] = a[i, j, 0]
    g[i] = td.clip(td.min(f[m, i], axis=m), 0, 0)
    same(td.Schedule(g), np.zeros((7, 0, 3)))


def test_defaults_of_a_reduction_that_is_read_along_a_line():
    a, f, g = td.Tensor("a", (4, 4), td.f32), td.Func("f"), td.Func("g")
    f[i, j] = td.sum(a[i, m] * a[m, j], axis=m)
    g[i] = f[i, 0] + 1
    same(td.Schedule(g), np.arange(16, dtype=np.float32).reshape(4, 4))


def test_a_cache_copies_what_starts_though_no_point_is_added_to_it():
    f = td.Func("f")
    f[i] = td.sum(i * 0 + 1, axis=td.range("m", 0, 2, where=lambda m: m > i))
    f.with_shape(3)
    s = td.Schedule(f)
    s.cache_write(f, at="i")
    np.testing.assert_array_equal(same(s), [1, 0, 0])


def test_what_follows_a_producer_that_rounds_up_stays_in_its_memory():
    a, p, f, g = td.Tensor("a", (5,), td.i32), td.Func("p"), td.Func("f"), td.Func("g")
    p[i] = a[td.clip(i, 0, 4)] * 2
    f[i] = p[i] + 1
    g[i] = f[i] * 3
    s = td.Schedule(g.with_shape(5))
    s[g].compute_root()
    s[p].split(i, 4, tail="round_up")
    s[f].reverse_compute_at(p, "i_o").serial()
    same(s, np.arange(5, dtype=np.int32))
    assert "range(p_i_o * 4, min(p_i_o * 4 + 4, 5))" in str(td.compile(s).loops())


def test_loops_shared_with_an_empty_stage_are_refused():
    a, f, g = td.Tensor("a", ("N",), td.f64), td.Func("f"), td.Func("g")
    f[i, j] = a[i]
    g[i, j] = 1.75
    s = td.Schedule(f.with_shape(0, 0), g.with_shape(1, 1))
    s[g].compute_with(f, "j")
    with pytest.raises(td.ScheduleError, match="no iterations to share"):
        td.compile(s)(np.zeros(0))


def test_a_packed_copy_of_a_func_stays_in_its_range():
    a, f, g = td.Tensor("a", (8, 8), td.i32), td.Func("f"), td.Func("g")
    f[i] = a[i, i - 1]
    g[j] = td.sum(f[m] * j, axis=m)
    s = td.Schedule(g.with_shape(2))
    s.cache_read("f", s[g], at="j", pack={0: 2})
    same(s, np.arange(64, dtype=np.int32).reshape(8, 8))


def test_a_cache_of_a_cache_has_room_for_what_it_copies():
    f = td.Func("f")
    f[i, j] = i * 10 + j
    s = td.Schedule(f.with_shape(1, 3))
    s.cache_write(f, at=j)
    s["f_out"].vectorize(j, 2)
    s.cache_write("f_out", at="j_v")
    same(s)


def test_a_partial_sum_without_ranges_left_is_still_a_sum():
    f = td.Func("f")
    f[i] = td.sum(td.cast(1, td.i64), axis=td.range("m", 0, 1, where=lambda m: m < i))
    s = td.Schedule(f.with_shape(3))
    s[f].rfactor("m")
    np.testing.assert_array_equal(same(s), [0, 1, 1])
    with pytest.raises(td.ScheduleError, match="is a reduction"):
        s["f_partial"].inline()


def test_a_factored_scatter_keeps_to_its_range():
    a, f = td.Tensor("a", (2, 2), td.i32), td.Func("f")
    f[i] = i - 1
    f.with_shape(4)
    r = td.range("r", 0, 2)
    f[r] += a[r, r]
    s = td.Schedule(f)
    s[f].update(0).rfactor("r")
    same(s, np.arange(4, dtype=np.int32).reshape(2, 2))


def test_an_update_of_a_diagonal_keeps_to_both_dimensions():
    a, f = td.Tensor("a", (9,), td.i32), td.Func("f")
    f[i, j] = i - j
    f[i, i] += a[i]
    for shape in ((3, 5), (5, 3)):
        g = td.Func("g")
        g[i, j] = f[i, j] * 2
        s = td.Schedule(g.with_shape(*shape))
        s[f].compute_root()
        x = np.arange(9, dtype=np.int32)
        want = np.subtract.outer(np.arange(shape[0]), np.arange(shape[1]))
        want[range(3), range(3)] += x[:3]
        np.testing.assert_array_equal(same(s, x), want * 2)


def test_a_guard_bounds_the_quotient_of_what_was_split():
    a, b, f = td.Tensor("a", (9,), td.i32), td.Tensor("b", (5,), td.i32), td.Func("f")
    f[()] = td.sum(a[m] * b[m // 2], axis=m)
    for loop in ("m_i", "m_o"):
        s = td.Schedule(f)
        s[f].split("m", 4)
        s[f].rfactor(loop)
        same(s, np.arange(9, dtype=np.int32), np.arange(5, dtype=np.int32))


def test_blocks_of_a_size_known_at_a_call_hold_what_is_computed_in_them():
    a, f, g = td.Tensor("a", ("N",), td.i32), td.Func("f"), td.Func("g")
    f[i] = a[i] * 2
    g[i, j] = f[i] + a[j]
    s = td.Schedule(g)
    s[f].compute_at(g, i)
    s[g].split(j, nparts=2)
    same(s, np.arange(5, dtype=np.int32), dynamic="N")


def test_a_cache_of_a_cache_in_a_loop_with_a_tail_of_its_own():
    f = td.Func("f")
    f[i, j] = i * 10 + j
    s = td.Schedule(f.with_shape(1, 13))
    s[f].split(j, 2, tail="peel")
    s.cache_write(f, at="j_i")
    s["f_out"].vectorize(j, 2)
    s.cache_write("f_out", at="j_o")
    same(s)


def test_a_packed_copy_stored_outside_keeps_to_its_memory():
    a, f = td.Tensor("a", ("N",), td.u8), td.Func("f")
    f[i] = a[i]
    s = td.Schedule(f)
    s[f].split(i, nparts=2)
    s[f].unroll("i_i", 2)
    c = s.cache_read("a", s[f], pack={0: 2}, name="c")
    c.compute_at(s[f], "i_i_u")
    c.store_root()
    same(s, np.arange(1, dtype=np.uint8))
    assert "c[0, 0] = a[0]" in str(td.compile(s).loops(N=1))


@pytest.mark.parametrize("place", ["y_o", "y_i"])
def test_the_last_iterations_use_the_ring_of_the_others(place):
    a, rows, blur = td.Tensor("a", (40, 4), td.i32), td.Func("rows"), td.Func("blur")
    y, x = td.vars("y x")
    edge = td.pad(a, mode="edge")
    rows[y, x] = edge[y, x] + edge[y, x + 1]
    blur[y, x] = rows[y, x] * rows[y + 1, x]
    s = td.Schedule(blur.with_shape(40, 4))
    s[blur].split(y, 7, tail="peel")
    s[rows].compute_at(blur, place).store_root()
    same(s, np.arange(160, dtype=np.int32).reshape(40, 4))
    assert f"rows = alloc(i32, [{8 if place == 'y_o' else 2}, 4])" in str(td.compile(s).loops())


@pytest.mark.parametrize("size", [32, 33])
def test_a_ring_has_room_for_every_specialization(size):
    a, p, f = td.Tensor("a", ("N",), td.i32), td.Func("p"), td.Func("f")
    edge = td.pad(a, mode="edge")
    p[i] = edge[i] * 2
    f[i] = p[i] + p[i + 1]
    f.with_shape(a.shape[0])
    s = td.Schedule(f)
    s[f].split(i, 2, names=("io", "ii"))
    s[f].reorder("ii", "io")
    s[p].compute_at(f, "io").store_root()
    s[f].specialize(a.shape[0] % 4 == 0, lambda g: g.reorder("io", "ii"))
    same(s, np.arange(size, dtype=np.int32), dynamic="N")
    loops = str(td.compile(s, dynamic="N").loops())
    assert "p = alloc(i32, [4])" in loops, loops


def test_a_shifted_tail_of_a_sum_adds_to_no_point_twice():
    a, f = td.Tensor("a", (6, 3), td.i32), td.Func("f")
    f[i] = td.sum(a[i, m], axis=m)
    s = td.Schedule(f)
    s[f].split(i, 4, tail="shift")
    s[f].reorder("i_o", "m", "i_i")
    same(s, np.arange(18, dtype=np.int32).reshape(6, 3))
    with pytest.raises(td.ScheduleError, match="inside of 'm'"):
        s[f].reorder("m", "i_o")
    with pytest.raises(td.ScheduleError, match="two iterations of 'i_o'"):
        s[f].parallel("i_o")


def test_what_follows_its_producer_does_not_round_up():
    p, f = td.Func("p"), td.Func("f")
    p[i, j] = i * 10 + j
    f[i] = p[i, 0]
    s = td.Schedule(f.with_shape(1))
    s[p].compute_root()
    s.cache_write(p, at=j)
    s["p_out"].split("j", 2, tail="round_up")
    same(s)
    assert "p = alloc(i64, [1, 1])" in str(td.compile(s).loops())


def test_a_peeled_loop_over_less_than_nothing_does_not_run():
    a, g, f = td.Tensor("a", ("N",), td.i32), td.Tensor("g", ("M", "N"), td.i32), td.Func("f")
    f[i] = a[i] + 1
    f[0] += g[m, m - 2]
    s = td.Schedule(f)
    s[f].update(0).split("m", 2, tail="peel")
    same(s, np.arange(3, dtype=np.int32), np.ones((1, 3), np.int32))


def test_unrolled_iterations_that_store_to_one_element_pass_no_values_on():
    a, b, f = td.Tensor("a", (8, 4), td.i32), td.Tensor("b", (12,), td.i32), td.Func("f")
    r, u = td.range("r", 1, 8), td.range("u", 0, 4)
    f[i] = b[i]
    f[r + u] = f[r + u - 1] * 3 + a[r, u]
    s = td.Schedule(f)
    s[f].update(0).unroll(u)
    same(s, np.arange(32, dtype=np.int32).reshape(8, 4), np.arange(12, dtype=np.int32))


@pytest.mark.parametrize("target", ["cpu", "python", "numba"])
def test_a_random_number_of_zeros_is_not_zero(target):
    f, i = td.Func("f", shape=2), td.vars("i")
    f[i] = td.random(i)
    np.testing.assert_array_equal(td.compile(f, target=target)(), np.float32([0.2817613, 0.01403302]))


def test_a_packed_copy_of_partial_results_stays_in_their_range():
    # the last pack of 2 asked for partial results of a row that `a` does not have
    a, f = td.Tensor("a", (5, 6), td.i32), td.Func("f")
    f[i] = td.sum(a[i, m], axis=m)
    s = td.Schedule(f)
    s[f].split(m, 4)
    s[f].rfactor("m_o")
    s.cache_read("f_partial", s[f], pack={0: 2, 1: 3})
    same(s, np.arange(30, dtype=np.int32).reshape(5, 6))


def test_packed_copies_of_what_one_pass_sums_stay_in_their_range():
    a, top, total = td.Tensor("a", (5, 7), td.f64), td.Func("top"), td.Func("total")
    top[i] = td.max(a[i, m], axis=m)
    total[i] = td.sum(td.exp2(a[i, m] - top[i]), axis=m)
    s = td.Schedule(total)
    s[total].online(m, 4)
    s.cache_read("total_tile", s["total_online"], pack={0: 2, 1: 3})
    s.cache_read("total_online", s[total], pack={0: 2})
    same(s, np.arange(35.0).reshape(5, 7) % 4)


def test_what_is_made_in_a_masked_loop_of_no_terms_has_no_place():
    f, g = td.Func("f"), td.Func("g")
    f[i] = i
    g[i] = td.sum(f[i], axis=td.range("m", 0, 0, where=lambda m: m > i))
    s = td.Schedule(g.with_shape(2))
    s[f].compute_at(g, "m").store_root()
    same(s)


def test_an_iteration_beyond_a_tail_needs_no_more_than_there_is_around():
    f0, f1, f2, f3 = (td.Func(n) for n in ("f0", "f1", "f2", "f3"))
    f0[i] = i + 1
    f1[i] = f0[i]
    f2[i] = f1[i % 2]
    f3[i] = f2[i]
    s = td.Schedule(f3.with_shape(2))
    s[f2].split(i, nparts=2)
    s[f2].compute_at(f3, i)
    s[f1].compute_at(f2, "i_o")
    s[f0].compute_at(f3, i)
    same(s)
    assert "f1[0] = f0[0]" in str(td.compile(s).loops())


def test_memory_further_out_of_what_no_iteration_needs_is_no_place_for_it():
    f, g, total = td.Func("f"), td.Func("g"), td.Func("total", shape=(1, 1))
    f[i, j] = 3
    g[i, j] = td.sum(f[i, j], axis=td.range("m", -1, 0, where=lambda m: m < j), dtype=td.i32)
    total[i, j] = td.sum(g[0, m], axis=td.range("m", -2, 0), dtype=td.i32)
    s = td.Schedule(total)
    s[g].compute_root()
    s[f].compute_at(g, "m").store_root()
    same(s)


def test_what_follows_a_copy_has_no_more_than_that():
    """bound_extent of a copy's copy, in the loops in which the first one has a single element."""
    a, f, g = td.Tensor("a", (1,), td.i32), td.Func("f"), td.Func("g", shape=(1, 1))
    f[i, j] = a[i] + j
    g[i, j] = td.sum(f[m, 1] + f[i, m], axis=m)
    s = td.Schedule(g)
    s[f].compute_root()
    s.cache_write(s[f], at="j")
    s.cache_write(s["f_out"], at="j")
    s["f_out_out"].bound_extent(1, 2)
    assert "for f_out_j" not in str(td.compile(s).loops())
    same(s, np.array([5], np.int32))
