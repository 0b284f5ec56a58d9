"""Tails of loops around shared memory: who runs what where some threads, or a whole block, have no points."""

import numpy as np

import tdsl as td
from tdsl.lang.interp import interpret

i, j, m = td.vars("i j m")


def agree(s: td.Schedule, **arguments: np.ndarray) -> None:
    """Emulation gives what the interpreter gives, and reads nothing that no thread wrote."""
    (want,) = interpret(s.program, arguments)
    np.testing.assert_array_equal(td.emulate(td.compile(s, target="cuda"))(**arguments), want)


def test_peeled_tails_keep_the_guards_of_the_nest_around_them():
    a, g, total, f = td.Tensor("a", (7,), td.i32), td.Func("g"), td.Func("total"), td.Func("f", shape=(1,))
    total[i] = td.sum(a[i], axis=td.range("m", 0, 0))
    g[i] = a[i] - total[i]
    f[i] = g[0]
    s = td.Schedule(f)
    s[g].compute_at(s[f], i).split(i, 2, tail="peel")
    s[total].compute_at(s[f], i)
    s[f].split(i, 2)
    s[f].bind("i_i", "threadIdx.x")
    s[f].split("i_o", 2)
    s[total].set_scope("shared")
    agree(s, a=np.arange(3, 10, dtype=np.int32))


def test_predicates_are_read_after_the_tail_around_them():
    a, kept, f, g = td.Tensor("a", ("N",), td.u8), td.Func("kept"), td.Func("f"), td.Func("g", shape=(3,))
    kept[i] = a[0]
    f[i] = i
    r = td.range("r", 2, 3, where=lambda r: kept[r] > 0)
    f[r] += f[r]
    g[i] = f[i]
    s = td.Schedule(g)
    s[g].vectorize(i, 4)
    s[f].compute_at(s[g], "i_v")
    s[kept].compute_at(s[g], "i_v").set_scope("shared")
    s[g].split("i_o", 2)
    s[g].bind("i_o_i", "threadIdx.x")
    agree(s, a=np.uint8([3]))


def test_shared_memory_is_not_filled_for_a_tail_without_threads():
    a, h, g, f = td.Tensor("a", (1,), td.f32), td.Func("h"), td.Func("g"), td.Func("f", shape=(1, 1))
    h[i] = a[i] * 2
    g[i, j] = td.sum(h[j] * m, axis=td.range("m", 0, 3))
    f[i, j] = g[j, j]
    s = td.Schedule(f)
    s[h].compute_at(s[f], i)
    s[g].compute_at(s[f], i)
    s[f].split(i, 4)
    s[f].bind("i_o", "blockIdx.x")
    s.cache_read(g, s[f], at=j, scope="shared")
    agree(s, a=np.float32([7]))


def test_every_thread_has_the_registers_that_shared_memory_is_filled_from():
    # thread 0 has no points, and fills the tile
    a, g, tile, f = td.Tensor("a", (1,), td.i32), td.Func("g"), td.Func("tile"), td.Func("f", shape=(2,))
    padded = td.pad(a, mode="symmetric")
    g[i] = padded[i] * 2
    tile[i] = g[i] + 1
    f[i] = td.sum(tile[i], axis=td.range("m", -1, 0, where=lambda m: m < i - 1))
    s = td.Schedule(f)
    s[f].split(i, 2)
    s[g].compute_at(s[f], m)
    s[tile].compute_at(s[f], m).set_scope("shared")
    s[f].bind("i_i", "threadIdx.x")
    agree(s, a=np.int32([5]))


def test_a_pipeline_does_not_wait_for_a_copy_that_its_block_leaves_out():
    a, g, f = td.Tensor("a", (9,), td.i32), td.Func("g"), td.Func("f", shape=(1, 1))
    g[i] = a[i] + 1
    f[i, j] = g[i]
    s = td.Schedule(f)
    s[f].split(i, 3)
    s[f].split("i_i", 2)
    s[f].bind("i_i_o", "threadIdx.x")
    s[g].compute_root()
    s.cache_read(g, s[f], at=j, scope="shared").bulk_copy()
    s[f].pipeline(j, 4)
    agree(s, a=np.arange(9, dtype=np.int32))


def test_a_window_that_moves_in_two_axes_is_computed_anew():
    # its rows have a fixed extent, but another first one in each iteration
    g, f = td.Func("g", shape=(5, 5)), td.Func("f", shape=(3,))
    g[i, j] = i * 10 + j
    f[i] = g[i, 0] + g[1, i]
    s = td.Schedule(f)
    s[g].bound_extent(0, 2).compute_at(s[f], i).store_root()
    agree(s)
    np.testing.assert_array_equal(td.compile(s)(), [10, 21, 32])
