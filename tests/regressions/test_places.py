"""Places of funcs stay right when the loops that hold them change."""

import numpy as np
import pytest

import tdsl as td

i, j, k = td.vars("i j k")
A = np.arange(24, dtype=np.int32).reshape(4, 6)


def chain():
    """f reads 2 a, with nothing else between."""
    a = td.Tensor("a", (4, 6), td.i32)
    p, f = td.Func("p"), td.Func("f")
    p[i, j] = a[i, j] * 2
    f[i, j] = p[i, j] + 1
    return p, f


def test_a_func_moves_with_a_loop_that_is_split_renamed_or_fused():
    p, f = chain()
    s = td.Schedule(f)
    s[p].compute_at(f, j)
    s[f].split(j, 4)
    s[f].fuse("i", "j_o", name="t")
    s[f].rename("j_i", "u")
    assert s.state.plan("p").place.level.loop == "u"
    np.testing.assert_array_equal(td.compile(s)(A), A * 2 + 1)


def test_a_loop_that_holds_a_func_cannot_be_lost():
    p, f = chain()
    s = td.Schedule(f)
    s[p].compute_at(f, i)
    with pytest.raises(td.ScheduleError, match="place at loop 'i' of 'f'"):
        s[f].fuse("i", "j")
    s = td.Schedule(f)
    s[p].inline()
    with pytest.raises(td.ScheduleError, match="inlined"):
        s.cache_read("a", p, at=i)


def test_funcs_cannot_hold_each_other():
    _, f = chain()
    s = td.Schedule(f)
    s.cache_write(f, at=i)
    with pytest.raises(td.ScheduleError, match="inside itself"):
        s[f].compute_at("f_out", i)


def test_what_an_output_follows_cannot_be_computed_inside_of_what_it_reads():
    p, f = chain()
    s = td.Schedule(f)
    s.cache_write(f, at=i)
    with pytest.raises(td.ScheduleError, match="'f_out' is an output"):
        s[f].compute_at(p, i)


def test_an_output_at_the_end_of_several_copies_stays_at_the_root():
    p, f = chain()
    s = td.Schedule(f)
    copy = s.cache_write(f, at=i)
    s.cache_write(copy, at=i)
    with pytest.raises(td.ScheduleError, match="is an output"):
        s[f].compute_at(p, i)


def test_a_cache_stays_outside_of_reduction_loops():
    a, f = td.Tensor("a", (4, 6), td.i32), td.Func("f")
    f[i] = td.sum(a[i, k], axis=k)
    s = td.Schedule(f)
    s.cache_write(f, at=i)
    with pytest.raises(td.ScheduleError, match="not complete"):
        s[f].reorder("k", "i")


def test_other_loops_of_a_specialization_keep_what_is_computed_in_them():
    a = td.Tensor("a", ("N", 6), td.i32)
    p, f = td.Func("p"), td.Func("f")
    p[i, j] = a[i, j] * 2
    f[i, j] = p[i, j] + 1
    s = td.Schedule(f)
    s[p].compute_at(f, j)
    with pytest.raises(td.ScheduleError, match="specialization"):
        s[f].specialize(a.shape[0] > 2, lambda g: g.split(j, 2))
    s[f].specialize(a.shape[0] > 2, lambda g: g.reorder("j", "i"))
    np.testing.assert_array_equal(td.compile(s)(A), A * 2 + 1)


def test_a_func_in_which_others_are_computed_keeps_its_loops():
    a = td.Tensor("a", (4, 6), td.i32)
    p, q, f = td.Func("p"), td.Func("q"), td.Func("f")
    p[i, j] = a[i, j] * 2
    q[i, j] = p[i, j] + 1
    f[i, j] = q[i, j] * 3
    s = td.Schedule(f)
    s[p].compute_at(q, j)
    np.testing.assert_array_equal(td.compile(s)(A), (A * 2 + 1) * 3)


def test_a_cache_copies_boxes_only():
    a, f = td.Tensor("a", (3,), td.i32), td.Func("f")
    f[i] = a[i] * 2
    s = td.Schedule(f)
    s[f].split(i, 2)
    s[f].reorder("i_i", "i_o")
    with pytest.raises(td.ScheduleError, match="every few points"):
        s.cache_write(f, at="i_i")
    _, g = chain()
    s = td.Schedule(g)
    s[g].fuse(i, j, name="t")
    s[g].split("t", 4)
    with pytest.raises(td.ScheduleError, match="no box"):
        s.cache_write(g, at="t_o")
    s.cache_write(g, at="t_i")
    np.testing.assert_array_equal(td.compile(s)(A), A * 2 + 1)


def test_another_consumer_cannot_be_placed_outside_of_what_it_reads():
    a = td.Tensor("a", (4, 6), td.i32)
    p, f, g = td.Func("p"), td.Func("f"), td.Func("g")
    p[i, j] = a[i, j] * 2
    f[i, j] = p[i, j] + 1
    g[i, j] = f[i, j] + p[i, j]
    s = td.Schedule(g)
    s[p].compute_at(g, j)
    with pytest.raises(td.ScheduleError, match="'f' reads 'p' outside"):
        s[f].compute_root()


def test_a_stage_with_points_cannot_share_loops_of_one_without():
    a, b = td.Tensor("a", ("N",), td.i32), td.Tensor("b", (3,), td.i32)
    f, g = td.Func("f"), td.Func("g")
    f[i] = a[i] + 1
    g[i] = b[i] + 1
    s = td.Schedule(f, g)
    s[g].compute_with(f, i)
    with pytest.raises(td.ScheduleError, match="iterations"):
        td.compile(s)(np.zeros(0, np.int32), np.zeros(3, np.int32))


def test_a_cache_of_a_cache_keeps_its_values_where_they_are_read():
    a, f = td.Tensor("a", (7,), td.i32), td.Func("f")
    f[i] = a[i] * 2
    f[0] += td.sum(a[k], axis=k)
    s = td.Schedule(f)
    s.cache_read("a", s[f].update(0), name="c")
    s["c"].split("d0", 2)
    s.cache_write("c", at="d0_o")
    s.cache_write("c_out", at="d0")
    x = np.arange(7, dtype=np.int32)
    np.testing.assert_array_equal(td.compile(s)(x), x * 2 + [21, 0, 0, 0, 0, 0, 0])


def test_what_follows_a_func_waits_for_everything_else_that_it_reads():
    a = td.Tensor("a", (6,), td.i32)
    p, q, f, g = td.Func("p"), td.Func("q"), td.Func("f"), td.Func("g")
    p[i] = a[i] * 2
    q[i] = a[5 - i] + 1
    f[i] = p[i] + q[i]
    g[i] = f[i] + f[0]
    s = td.Schedule(g)
    for x in (q, p, g):
        s[x].compute_root()
    s[f].reverse_compute_at(p, i)
    x = np.arange(6, dtype=np.int32)
    both = x * 2 + x[::-1] + 1
    np.testing.assert_array_equal(td.compile(s)(x), both + both[0])


def test_factoring_a_reduction_keeps_special_loops_out():
    a, f = td.Tensor("a", ("N", 4), td.i32), td.Func("f")
    f[i] = td.sum(a[i, k], axis=k)
    s = td.Schedule(f)
    s[f].specialize(a.shape[0] > 3, lambda x: x.split(i, 2))
    with pytest.raises(td.ScheduleError, match="special cases"):
        s[f].vectorize("k", 2)
    with pytest.raises(td.ScheduleError, match="special cases"):
        s[f].rfactor("k")


def test_stages_that_share_loops_do_not_read_each_other():
    a = td.Tensor("a", (6,), td.i32)
    p, q, f = td.Func("p"), td.Func("q"), td.Func("f")
    p[i] = a[i] * 2
    q[i] = a[5 - i] + 1
    f[i] = p[i] + q[i]
    s = td.Schedule(f)
    s[q].compute_with(p, i)
    with pytest.raises(td.ScheduleError, match="shares these loops"):
        s[f].reverse_compute_at(p, i)


@pytest.mark.parametrize("place", ["inline", "compute_root"])
def test_a_declared_shape_of_a_dynamic_size_is_checked_wherever_its_func_is_computed(place):
    a, b = td.Tensor("a", ("N",), td.i32), td.Tensor("b", ("M",), td.i32)
    g, f = td.Func("g", shape="N"), td.Func("f")
    g[i] = a[td.clip(i, 0, 0)] + 1
    f[i] = b[i] + g[td.clip(i, 0, 3)]
    s = td.Schedule(f)
    getattr(s[g], place)()
    compiled, data = td.compile(s, dynamic=("N", "M")), np.arange(6, dtype=np.int32)
    np.testing.assert_array_equal(compiled(data[:4], data), data + 1)
    with pytest.raises(td.IndexBoundError, match="'g' is read out of range in axis 0"):
        compiled(data[:2], data)


@pytest.mark.parametrize("target", ["cpu", "python"])
@pytest.mark.parametrize("inner", [True, False])
def test_a_scatter_into_a_declared_shape_of_a_dynamic_size_is_checked(target, inner):
    at = td.Tensor("at", ("N",), td.i32)
    g, f = td.Func("g", shape="N"), td.Func("f")
    g[i] = td.cast(0, td.i32)
    g[td.clip(at[k], 0, 3)] += 1
    f[i] = g[i] * 2
    compiled = td.compile(f if inner else g, dynamic="N", target=target)
    data, times = np.array([0, 1, 7, 2, 3], np.int32), 2 if inner else 1
    np.testing.assert_array_equal(compiled(data), times * np.array([1, 1, 1, 2, 0]))
    with pytest.raises(td.IndexBoundError, match="'g' may be written out of range in axis 0"):
        compiled(data[:2])


def test_a_stage_with_points_cannot_share_an_empty_reduction():
    a, f, g = td.Tensor("a", (3,), td.i32), td.Func("f"), td.Func("g")
    f[()] = td.sum(a[k], axis=td.range("k", 0, 0))
    g[i] = a[i] + 1
    s = td.Schedule(f, g)
    s[g].compute_with(f, "k")
    with pytest.raises(td.ScheduleError, match="iterations"):
        td.compile(s)(np.zeros(3, np.int32))


def test_groups_of_stages_that_share_loops_do_not_wait_for_each_other():
    a = td.Tensor("a", (3,), td.i32)
    p, q, f, g = td.Func("p"), td.Func("q"), td.Func("f"), td.Func("g")
    p[i] = a[i] + 1
    q[i] = a[i] + 2
    f[i] = p[i] * 3
    g[i] = q[i] * 5
    s = td.Schedule(f, g)
    s[q].compute_with(f, i)
    with pytest.raises(td.ScheduleError, match="in the middle"):
        s[g].compute_with(p, i)


def test_a_reduction_loop_that_holds_a_func_stays():
    a, p, f = td.Tensor("a", (4, 6), td.i32), td.Func("p"), td.Func("f")
    p[i, j] = a[i, j] * 2
    f[i] = td.sum(p[i, k], axis=k)
    s = td.Schedule(f)
    s[p].compute_at(f, "k")
    with pytest.raises(td.ScheduleError, match="'p' outside of loop 'k_v'"):
        s[f].vectorize("k", 2)


def test_registers_hold_what_has_a_constant_size():
    a, f, g = td.Tensor("a", ("N", 3), td.i32), td.Func("f"), td.Func("g")
    f[i, j] = a[i, j] * 2
    g[i] = f[i, 0] + f[i, 1]
    for scope in ("register", "stack"):
        s = td.Schedule(g)
        s[f].compute_root().set_scope(scope)
        with pytest.raises(td.ScheduleError, match=f"in {scope} memory, but its size"):
            td.compile(s, dynamic="N")(np.ones((4, 3), np.int32))
        x = np.arange(12, dtype=np.int32).reshape(4, 3)
        np.testing.assert_array_equal(td.compile(s)(x), 2 * (x[:, 0] + x[:, 1]))


def test_by_default_a_table_may_have_a_reader_that_nothing_needs():
    m = td.range("m", 0, 0)
    a, at = td.Tensor("a", (4,), td.f32), td.Tensor("at", (4,), td.i32)
    table, reader, total = td.Func("table"), td.Func("reader"), td.Func("total")
    table[i] = td.sqrt(a[i]) + 1
    reader[i] = table[td.clip(at[i], 0, 3)] * table[i]
    total[()] = td.sum(reader[m], axis=m)
    assert td.compile(total)(np.ones(4, np.float32), np.zeros(4, np.int32)) == 0


def test_a_func_after_a_producer_that_it_does_not_need_is_computed_alone():
    a, sums, f, g = td.Tensor("a", (4, 6), td.f32), *map(td.Func, ("sums", "f", "g"))
    sums[i] = td.sum(a[i, k], axis=k)
    f[i] = td.where(td.cast(1, td.i32) == 1, 0.25, sums[i])
    g[i] = f[i] + 1
    s = td.Schedule(g)
    s[f].reverse_compute_at(sums, "i")
    np.testing.assert_array_equal(td.compile(s)(np.ones((4, 6), np.float32)), np.full(4, 1.25))


@pytest.mark.parametrize("target", ["cpu", "python"])
@pytest.mark.parametrize("size", [7, 30, 32])
def test_a_cache_behind_a_split_of_a_split_writes_what_was_computed(target, size):
    x, y = td.Tensor("x", ("N",), td.f32), td.Func("y")
    y[i] = x[i] * 2
    s = td.Schedule(y)
    outer, rest = s[y].split(i, 8)
    middle, inner = s[y].split(rest, 3)
    s[y].reorder(middle, outer, inner)
    s.cache_write(y, at=outer)
    a = np.arange(1, size + 1, dtype=np.float32)
    np.testing.assert_array_equal(td.compile(s, target=target)(a), 2 * a)


def test_a_copy_serves_reads_through_inlined_funcs():
    a, f, g = td.Tensor("a", (10,), td.f32), td.Func("f"), td.Func("g", shape=(9,))
    f[i] = a[i] + 1
    g[i] = f[i] * f[i + 1]
    s = td.Schedule(g)
    s[f].inline()
    copy = s.cache_read(a, g)
    x = np.arange(10, dtype=np.float32)
    np.testing.assert_array_equal(td.compile(s)(x), (x + 1)[:-1] * (x + 1)[1:])
    assert f"({copy.func}[" in str(td.compile(s).loops())


def through_an_inlined_func():
    """f reads a sum of rows through `scaled`, which has no memory; g may do so, too."""
    a = td.Tensor("a", (4, 6), td.i32)
    total, scaled, f, g = map(td.Func, ("total", "scaled", "f", "g"))
    total[i] = td.sum(a[i, k], axis=k)
    scaled[i] = total[i] * 3
    f[i] = scaled[i] + 1
    g[i] = scaled[i] - 1
    return total, scaled, f, g


def test_what_reads_through_an_inlined_func_follows_its_producer():
    total, scaled, f, _ = through_an_inlined_func()
    s = td.Schedule(f)
    s[scaled].inline()
    s[total].compute_root()
    s[f].reverse_compute_at(s[total], i)
    s[total].store_at(s[total], i)
    assert "alloc(i64, [1])" in str(td.compile(s, target="python").loops())
    for schedule in (s, td.Schedule(f).replay(s.to_json())):
        np.testing.assert_array_equal(td.compile(schedule)(A), A.sum(1) * 3 + 1)


def test_a_producer_that_others_read_through_an_inlined_func_has_no_sole_consumer():
    total, scaled, f, g = through_an_inlined_func()
    s = td.Schedule(f, g)
    s[scaled].inline()
    s[total].compute_root()
    with pytest.raises(td.ScheduleError, match="'g' reads 'total', too"):
        s[f].reverse_compute_at(s[total], i)


def two_readers():
    """f reads p and g, which reads p through q."""
    a = td.Tensor("a", (4, 6), td.i32)
    p, q, g, f = (td.Func(n) for n in "pqgf")
    p[i, j] = a[i, j] * 2
    q[i, j] = p[i, j] + 3
    g[i, j] = q[i, j] * q[i, j]
    f[i, j] = g[i, j] - p[i, j]
    return p, q, g, f


OUTSIDE = "'q' reads 'p' outside of loop 'i' of 'f'"
WANTED = (A * 2 + 3) ** 2 - A * 2


def test_a_func_that_reads_through_an_inlined_one_is_checked_where_it_moves():
    p, q, g, f = two_readers()
    s = td.Schedule(f)
    s[q].inline()
    s[p].compute_at(f, i)
    s[g].compute_at(f, i)
    with pytest.raises(td.ScheduleError, match=rf"compute_root\(\).*{OUTSIDE}"):
        s[g].compute_root()
    np.testing.assert_array_equal(td.compile(s)(A), WANTED)


def test_a_place_in_a_func_that_has_none_yet_is_checked_when_it_gets_one():
    p, q, g, f = two_readers()
    s = td.Schedule(f)
    s[p].compute_at(f, i)
    s[q].compute_at(g, j)
    with pytest.raises(td.ScheduleError, match=OUTSIDE):
        td.compile(s)
    with pytest.raises(td.ScheduleError, match=OUTSIDE):
        s[g].compute_root()
    s[g].compute_at(f, i)
    np.testing.assert_array_equal(td.compile(s)(A), WANTED)


def test_what_is_read_through_an_inlined_func_can_be_prefetched():
    a = td.Tensor("a", (64, 64), td.i32)
    p, f = td.Func("p"), td.Func("f")
    p[i, j] = a[i, j] * 2
    f[j] = td.sum(p[i, j], axis=i)
    s = td.Schedule(f)
    s[p].inline()
    s[f].prefetch("a", "i", 4)
    assert "prefetch" in str(td.compile(s).loops())
    with pytest.raises(td.ScheduleError, match="'f' does not read 'b'"):
        s[f].prefetch("b", "i", 4)


@pytest.mark.parametrize("rounds", [False, True])
def test_updates_along_diagonals_are_computed_inside_a_loop(rounds):
    """The ends of the range of one iteration, which never come to rest, are those of all iterations."""
    f, g = td.Func("f"), td.Func("g", shape=7)
    f[i, j] = td.cast(0, td.i32)
    f[i, 5 - i] = td.cast(i, td.i32)
    r = td.range("r", 1, 2)
    f[r + 2, r + 1] += 1
    f[i, i] = td.cast(i, td.i32)
    g[i] = f[i, i + 1]
    s = td.Schedule(g)
    s[f].compute_at(g, i)
    if rounds:
        s[f].split(i, 4, tail="round_up")
        with pytest.raises(td.IndexBoundError, match="ever larger range"):
            td.compile(s)()
    else:
        np.testing.assert_array_equal(td.compile(s)(), [0, 0, 2, 0, 0, 0, 0])
