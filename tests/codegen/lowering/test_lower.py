"""Where funcs are computed that the threads of a block share."""

import numpy as np
import pytest

import tdsl as td

i = td.vars("i")


def on_threads(f, shared, at, threads):
    """`f` in blocks of 8 points, so many threads each, with `shared` in shared memory at a loop."""
    s = td.Schedule(f)
    s[f].split(i, 8)
    s[f].split("i_i", threads)
    s[f].bind("i_o", "blockIdx.x").bind("i_i_i", "threadIdx.x")
    s[shared].compute_at(s[f], at).set_scope("shared")
    return td.compile(s, target="cuda")


@pytest.mark.parametrize("at", ["i_i_o", "i_i_i"])
@pytest.mark.parametrize("n", [1, 3, 9])
def test_shared_func_updates_are_guarded_by_active_threads(n, at):
    a, shared, f = td.Tensor("a", (n,), td.i32), td.Func("s", shape=n + 2), td.Func("f", shape=n)
    r = td.range("r", 0, n)
    shared[i] = i * 2
    shared[r + 2] += a[r]
    f[i] = shared[i] + shared[i + 1]
    x = np.arange(n, dtype=np.int32) + 1
    want = np.arange(n + 2) * 2
    want[2:] += x
    got = td.emulate(on_threads(f, shared, at, threads=2))(x)
    np.testing.assert_array_equal(got, want[:-2] + want[1:-1])


def test_shared_func_is_unguarded_if_every_block_has_points():
    a, shared, f = td.Tensor("a", ("N",), td.i32), td.Func("s"), td.Func("f")
    shared[i] = a[i] * 2
    f[i] = shared[i] + 1
    loops = str(on_threads(f, shared, "i_i_i", threads=8).loops(N=12))
    assert [line.strip() for line in loops.splitlines() if "if" in line] == [
        "if f_i_i_i == 0:",
        "if f_i_o * 8 + f_i_i_i < 12:",
    ]


def test_terms_with_false_condition_read_nothing():
    a, f, total, out = td.Tensor("a", (7,), td.i32), td.Func("f"), td.Func("total"), td.Func("out")
    f[i] = a[td.clip(i + 3, 0, 6)] * 3
    m = td.range("m", -3, -2, where=lambda m: m >= i - 2)
    total[i] = td.sum(f[i + m], axis=m)
    out[i] = total[i] + 1
    s = td.Schedule(out.with_shape(2))
    s[f].compute_root()
    s[total].vectorize("m", 4)
    s[out].split(i, 8)
    s[out].bind("i_o", "blockIdx.x").bind("i_i", "threadIdx.x")
    got = td.emulate(td.compile(s, target="cuda"))(np.arange(7, dtype=np.int32))
    np.testing.assert_array_equal(got, [1, 1])
