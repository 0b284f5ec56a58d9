"""What lowering once got wrong, each as the smallest program that showed it."""

import numpy as np

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
