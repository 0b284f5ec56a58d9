"""bound_extent: as many elements of a dimension wherever a func is computed."""

import numpy as np
import pytest

import tdsl as td

i = td.vars("i")


def blur(size):
    """Sums of three neighbours of doubled values, within the edges."""
    a, g, f = td.Tensor("a", (size,), td.f32), td.Func("g"), td.Func("f", shape=(size,))
    g[i] = a[i] * 2
    around = td.pad(g, shape=(size,))
    f[i] = around[i - 1] + around[i] + around[i + 1]
    return g, f


def in_blocks(size, extent=None):
    g, f = blur(size)
    s = td.Schedule(f)
    block, _ = s[f].split(i, 8)
    s[g].compute_at(f, block).bound_extent(i, extent)
    return s


@pytest.mark.parametrize("size", [1, 2, 7, 8, 9, 16, 23, 64])
@pytest.mark.parametrize("target", ["cpu", "python"])
def test_edges_are_right(size, target):
    x = np.arange(1, size + 1, dtype=np.float32)
    padded = np.pad(2 * x, 1)
    want = padded[:-2] + padded[1:-1] + padded[2:]
    np.testing.assert_array_equal(td.compile(in_blocks(size), target=target)(x), want)


def plain_loops(s):
    """The loops of a schedule of which the default vectorises none."""
    for f in s.program.funcs:
        s[f.name].pin()
    return str(td.compile(s).loops())


@pytest.mark.parametrize("extent", [None, 10])
def test_loops_have_one_extent_also_at_edges(extent):
    text = plain_loops(in_blocks(64, extent))
    first = "min(max(f_i_o * 8 - 1, 0), 54)"
    assert f"g_i_first = {first}" in text
    assert "for g_i in range(g_i_first, g_i_first + 10):" in text


def test_a_shorter_dimension_is_computed_whole():
    text = plain_loops(in_blocks(9))
    assert "for g_i in range(0, 9):" in text


def test_the_extent_may_exceed_the_needed_one():
    x = np.arange(64, dtype=np.float32)
    got = td.compile(in_blocks(64, 16))(x)
    np.testing.assert_array_equal(got, td.compile(in_blocks(64))(x))


def test_an_extent_below_the_needed_one_is_an_error():
    with pytest.raises(td.ScheduleError, match="dimension 'i' needs 10 elements, not 9"):
        td.compile(in_blocks(64, 9)).loops()


def test_outputs_are_refused():
    _, f = blur(64)
    with pytest.raises(td.ScheduleError, match="'f' is an output"):
        td.Schedule(f)[f].bound_extent(i, 8)


def test_updates_may_write_anywhere():
    g, f = td.Func("g"), td.Func("f", shape=(8,))
    g[i] = 1.0
    g[i] += 2.0
    f[i] = g[i]
    with pytest.raises(td.ScheduleError, match="'g' has updates"):
        td.Schedule(f)["g"].bound_extent(i, 8)


def chain(at_producer, *, outer, extent):
    """Blocks of 8 in which `h` is made for each point, and `g`, which both read, in the block or with it."""
    a, g, h = td.Tensor("a", (24,), td.i32), td.Func("g"), td.Func("h")
    f = td.Func("f", shape=(19,))
    g[i] = a[i] * 3
    h[i] = g[i] + g[i + 2]
    f[i] = h[i // 2] + g[i // 2 + 1]
    s = td.Schedule(f)
    block, inner = s[f].split(i, 8)
    s[h].compute_at(f, inner).bound_extent(i, extent)
    s[g].compute_at(f, block if outer else inner)
    if at_producer:
        s[g].store_at(f, block).bound_extent(i)
    return s


@pytest.mark.parametrize("at_producer", [False, True])
@pytest.mark.parametrize("outer", [False, True])
@pytest.mark.parametrize("extent", [1, 2, 4])
@pytest.mark.parametrize("target", ["cpu", "python"])
def test_reads_stay_within_the_box_of_the_enclosing_place(at_producer, outer, extent, target):
    """What is moved back stays within what is needed of it in an outer loop."""
    s = chain(at_producer, outer=outer, extent=extent)
    x = np.arange(24, dtype=np.int32) ** 2
    g, at = 3 * x, np.arange(19) // 2
    np.testing.assert_array_equal(td.compile(s, target=target)(x), g[at] + g[at + 2] + g[at + 1])


def steps_within_edges(size, target):
    """Three steps of which each reads the one before within its edges, the first two in blocks of 4."""
    u, r, steps = td.Tensor("u", (size,), td.f32), td.Tensor("r", (size,), td.f32), []
    for n in range(3):
        around = td.pad(steps[-1] if steps else u)
        steps.append(td.Func(f"f{n}", shape=(size,)))
        steps[-1][i] = around[i - 1] + around[i + 1] - r[i]
    s = td.Schedule(steps[-1], target=target)
    block, inner = s[steps[-1]].split(i, 4)
    if target == "cuda":
        s[steps[-1]].bind(block, "blockIdx.x").bind(inner, "threadIdx.x")
    for f in steps[1::-1]:
        s[f].compute_at(steps[-1], block).bound_extent(i)
        if target == "cuda":
            s[f].set_scope("shared").bind(i, "threadIdx.x")
    return s


@pytest.mark.parametrize("size", [3, 4, 13, 16, 40])
@pytest.mark.parametrize("target", ["cpu", "python", "cuda"])
def test_boxes_that_are_moved_back_twice_have_the_needed_extent(size, target):
    """Starts that are extremes of extremes: no more is made, and read, than there is."""
    compiled = td.compile(steps_within_edges(size, target))
    u, r = (np.arange(n, n + size, dtype=np.float32) for n in (1, 5))
    got = td.emulate(compiled)(u, r) if target == "cuda" else compiled(u, r)
    for _ in range(3):
        around = np.pad(u, 1)
        u = around[:-2] + around[2:] - r
    np.testing.assert_array_equal(got, u)


def test_loops_that_are_moved_back_twice_have_one_extent():
    text = plain_loops(steps_within_edges(64, "cpu"))
    assert "range(f0_i_first, f0_i_first + 9)" in text
    assert "range(f1_i_first, f1_i_first + 6)" in text


def test_a_func_that_no_point_needs_may_have_an_extent():
    i = td.vars("i")
    f, g = td.Func("f"), td.Func("g", shape=(2,))
    f[i] = 7
    g[i] = td.sum(f[i], axis=td.range("m", 0, 0, where=lambda m: m >= i), dtype=td.i32)
    s = td.Schedule(g)
    s[f].bound_extent(0)
    s[f].compute_at(s[g], "m")
    np.testing.assert_array_equal(td.compile(s)(), [0, 0])


def test_an_extent_is_an_error_if_all_of_a_dimension_is_needed():
    i, j = td.vars("i j")
    a, p, q = td.Tensor("a", (64, 64), td.f32), td.Func("p"), td.Func("q")
    p[i, j] = td.exp(a[i, j])
    q[i, j] = p[i, j] + p[i, 63 - j]
    s = td.Schedule(q)
    s[p].compute_at(q, i).bound_extent(j, 5)
    with pytest.raises(td.ScheduleError, match="needs 64 elements, not 5"):
        td.compile(s, target="python").loops()
