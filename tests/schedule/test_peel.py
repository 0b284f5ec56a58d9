"""Peeled splits: the tail has the iterations that are left, whatever the loops inside it became."""

import numpy as np
import pytest

import tdsl as td

i, j = td.vars("i j")


def scaled():
    a, f = td.Tensor("a", ("M", "N"), td.i32), td.Func("f")
    f[i, j] = a[i, j] * 3
    return f


def check(schedule, m, n, target):
    a = np.arange(m * n, dtype=np.int32).reshape(m, n)
    compiled = td.compile(schedule, target=target)
    np.testing.assert_array_equal(compiled(a), a * 3)
    return str(compiled.loops())


@pytest.mark.parametrize("target", ["python", "cpu"])
@pytest.mark.parametrize("m", [1, 5, 24, 61, 64])
def test_a_tail_that_is_split_again_needs_no_tests(m, target):
    s = td.Schedule(scaled())
    f = s["f"]
    _, ii = f.split(i, 24, tail="peel")
    f.split(ii, 6, tail="peel")
    f.serial()
    text = check(s, m, 7, target)
    assert "if " not in text


def test_the_tail_of_a_tail_has_the_remaining_iterations():
    s = td.Schedule(scaled())
    f = s["f"]
    _, inner = f.split(i, 24, tail="peel", names=("io", "ii"))
    f.split(inner, 6, tail="peel", names=("it", "i0"))
    text = check(s, 61, 7, "python")  # 61 = 2 * 24 + 2 * 6 + 1
    extents = [line.partition(" in ")[2] for line in text.splitlines() if "for f_i" in line]
    assert extents == [
        "range(0, 2):",
        "range(0, 4):",
        "range(0, 6):",
        "range(0, 2):",
        "range(0, 6):",
    ]


@pytest.mark.parametrize("target", ["python", "cpu"])
def test_an_inner_loop_outside_of_its_outer_loop_keeps_its_guard(target):
    s = td.Schedule(scaled())
    f = s["f"]
    io, ii = f.split(i, 8, tail="peel")
    f.reorder(ii, io)
    check(s, 21, 5, target)


@pytest.mark.parametrize("target", ["python", "cpu"])
@pytest.mark.parametrize("n", [1, 16, 40, 47])
def test_renamed_and_fused_parts_of_a_tail(n, target):
    s = td.Schedule(scaled())
    f = s["f"]
    jo, ji = f.split(j, 16, tail="peel")
    f.reorder(jo, i, ji)
    f.fuse(i, f.rename(ji, "lane"))
    check(s, 3, n, target)


def test_parts_of_a_number_of_blocks():
    s = td.Schedule(scaled())
    s["f"].split(i, nparts=6, tail="peel")
    check(s, 10, 3, "cpu")


def test_sizes_that_are_not_known():
    s = td.Schedule(scaled())
    f = s["f"]
    _, inner = f.split(j, 12, tail="peel")
    f.split(inner, 4, tail="peel")
    compiled = td.compile(s, dynamic="N")
    for n in (0, 3, 12, 31):
        a = np.arange(2 * n, dtype=np.int32).reshape(2, n)
        np.testing.assert_array_equal(compiled(a), a * 3)


@pytest.mark.parametrize("n", [32, 35, 3])
def test_threads_share_the_blocks_and_the_tail(n):
    s = td.Schedule(scaled())
    f = s["f"]
    jo, ji = f.split(j, 16, tail="peel")
    f.reorder(jo, i, ji)
    f.parallel(jo)
    text = check(s, 5, n, "cpu")
    assert text.count("# parallel") == (n >= 16)


def test_threads_share_blocks_of_sizes_that_are_not_known():
    s = td.Schedule(scaled())
    f = s["f"]
    jo, _ = f.split(j, 12, tail="peel")
    f.reorder(jo, i)
    f.parallel(jo)
    compiled = td.compile(s, dynamic="N")
    for n in (0, 3, 12, 31):
        a = np.arange(2 * n, dtype=np.int32).reshape(2, n)
        np.testing.assert_array_equal(compiled(a), a * 3)
