"""How many iterations loops have, as far as schedules know."""

import numpy as np
import pytest

import tdsl as td

i, j = td.vars("i j")


@pytest.mark.parametrize("tail", ["guard", "peel", "shift"])
@pytest.mark.parametrize("shape", [(3, 5), (2, 8), (1, 13)], ids=str)
def test_a_fused_loop_of_constant_extents_is_vectorized_whole(rng, shape, tail):
    x, f = td.Tensor("x", shape, td.i64), td.Func("f")
    f[i, j] = x[i, j] * 3
    s = td.Schedule(f)
    outer, inner = s[f].split(j, 4, tail=tail)
    s[f].reorder(inner, i, outer)
    s[f].vectorize(s[f].fuse(i, outer))
    a = rng.integers(-9, 9, shape)
    np.testing.assert_array_equal(td.compile(s)(a), a * 3)


def test_a_loop_of_unknown_length_needs_a_number_of_lanes():
    x, f = td.Tensor("x", ("N", 4), td.i64), td.Func("f")
    f[i, j] = x[i, j] * 3
    s = td.Schedule(f)
    with pytest.raises(td.ScheduleError, match="not a constant"):
        s[f].vectorize(s[f].fuse(i, j))


def test_lanes_of_a_stage_that_others_read_are_those_of_its_extent():
    t, f = td.Tensor("t", (1003,), td.i64), td.Func("f")
    f[()] = td.sum(t[i], axis=i)
    s = td.Schedule(f)
    _, inner = s[f].split(i, 16)
    partial = s[f].rfactor(inner)
    s[partial].vectorize(inner)
    assert "for f_partial_i_i in range(0, 16):  # vectorized" in td.compile(s).loops()
    assert td.compile(s)(np.arange(1003)) == 1003 * 501


@pytest.mark.parametrize("rows", [5, "N"])
@pytest.mark.parametrize("place", ["compute_root", "compute_at", "inside"])
def test_lanes_of_a_func_in_the_middle_are_those_of_its_extent(rows, place):
    t, f, g = td.Tensor("t", (rows, 8), td.f32), td.Func("f"), td.Func("g")
    f[i, j] = t[i, j] * 2
    g[i, j] = f[i, j] + f[i, 7 - j]
    s = td.Schedule(g)
    if place == "compute_at":
        s[f].compute_at(s[g], i)
    s[f].vectorize(j)
    if place == "inside":
        s[f].compute_at(s[g], j)
    a = np.random.default_rng(0).random((5, 8), dtype=np.float32)
    np.testing.assert_allclose(td.compile(s)(a), 2 * (a + a[:, ::-1]))


@pytest.mark.parametrize("target", ["python", "cpu"])
@pytest.mark.parametrize("first", [0, 3, 13])
def test_aligned_blocks_begin_at_multiples_of_the_factor(target, first):
    x, g, f, h = td.Tensor("x", (40,), td.f64), td.Func("g"), td.Func("f", shape=(20,)), td.Func("h")
    r = td.range("r", first, first + 20)
    g[i] = x[i] * 2
    f[i] = g[i + first] + g[i + first + 1]
    h[()] = td.sum(x[r], axis=r)
    s = td.Schedule(f, h)
    s[g].compute_root().vectorize(s[g].split(i, 4, tail="align")[1])
    s[f].parallel(s[f].split(i, 7, tail="align")[0])
    s[h].split(r, 8, tail="align")
    a = np.random.default_rng(0).random(40)
    out, total = td.compile(s, target=target)(a)
    np.testing.assert_array_equal(out, 2 * a[first : first + 20] + 2 * a[first + 1 : first + 21])
    np.testing.assert_allclose(total, a[first : first + 20].sum())
    loops = td.compile(s, target="python").loops()
    assert f"range(0, {(first + 21 + 3) // 4 - first // 4})" in loops
