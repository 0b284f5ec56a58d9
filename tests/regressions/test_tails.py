"""Last, partial vectors: what lies behind them is left as it is."""

import numpy as np
import pytest

import tdsl as td
from tdsl.codegen.python.run import PythonExecutable
from tdsl.codegen.runtime.call import Entry
from tdsl.machine import cpu as machine
from tdsl.pipeline import make_kernel

i, j, m = td.vars("i j m")


@pytest.mark.parametrize("level", ["", ":avx512", ":avx2"])
@pytest.mark.parametrize(
    "wide, narrow",
    [
        (td.i32, td.i16), (td.i32, td.i8), (td.f32, td.bf16), (td.f32, td.f16), (td.i64, td.i32),
        (td.i64, td.i16), (td.i64, td.u8), (td.i16, td.i8),
    ],
)  # fmt: skip
def test_a_narrowing_store_of_one_lane_writes_one_element(wide, narrow, level):
    if level and not machine.level(level[1:]).has <= machine.host().has:
        pytest.skip(f"runs code for {level}")
    # LLVM stored all of the wide element: the first element of the next row was lost
    for columns, lanes in ((5, 4), (17, 16), (33, 8), (65, 32)):
        a, f = td.Tensor("a", (4, columns), wide), td.Func("f")
        f[i, j] = td.cast(a[i, j], narrow)
        s = td.Schedule(f)
        block, _ = s[f].split(j, lanes)
        s[f].vectorize("j_i")
        s[f].reorder(block, i, "j_i").unroll(block)
        x = (np.arange(4 * columns) % 100 + 1).reshape(4, columns).astype(wide.numpy)
        out = np.zeros(4 * columns + 8, narrow.numpy)
        got = out[: 4 * columns].reshape(4, columns)
        td.compile(s, target=f"cpu{level}")(x, out=got)
        np.testing.assert_array_equal(got.astype(np.int64), x.astype(np.int64))
        assert not out[4 * columns :].astype(np.int64).any()


@pytest.mark.parametrize("tail", ["shift", "round_up"])
def test_sums_whose_start_goes_apart_have_no_tail_that_is_computed_twice(tail):
    # the sums became updates, and the points of a shifted tail were added up twice
    a, f = td.Tensor("a", (8,), td.i32), td.Func("f")
    f[i] = td.sum(a[i + m], axis=td.range("m", 0, 2))
    f.with_shape(7)
    g = td.Func("g")
    g[i] = f[i] + 1
    s = td.Schedule(g)
    s[f].split(i, 4, tail=tail)
    with pytest.raises(td.ScheduleError, match=f"'i' is split with tail='{tail}'"):
        s[f].atomic()


@pytest.mark.parametrize("at", ["below", "right"])
@pytest.mark.parametrize("factor", [2, 4, 16])
@pytest.mark.parametrize("inside", [False, True])
def test_rounded_loops_of_one_definition_have_memory_in_all_of_them(at, factor, inside):
    """Columns by vectors are more columns, at which f[i + 1, i] is in more rows."""
    f, g = td.Func("f"), td.Func("g", shape=5)
    f[i, j] = i * 2 + j
    if at == "below":
        f[i + 1, i] += 1
    else:
        f[i, i + 1] += 1
    g[i] = f[i, i]
    s = td.Schedule(g)
    s[f].split(j, factor, tail="round_up")
    s[f].update(0).split(i, factor, tail="round_up")
    if inside:
        s[f].compute_at(g, i)
    for target in ("python", "cpu"):
        np.testing.assert_array_equal(td.compile(s, target=target)(), 3 * np.arange(5))


@pytest.mark.parametrize("extent", [4, 8])
def test_loops_that_round_up_a_bounded_range_read_what_is_computed(extent):
    """The limits of a bounded range have room for one rounding up, not for another."""
    f, g, h, out = td.Func("f"), td.Func("g"), td.Func("h"), td.Func("out", shape=2)
    f[i] = i * 3
    g[i] = f[0] ^ f[i]
    h[i] = g[i]
    out[i] = h[1] + h[i]
    s = td.Schedule(out)
    s[f].compute_root()
    s[g].compute_at(h, i).bound_extent(i, extent).split(i, 2, tail="round_up")
    c = td.compile(s, target="python")
    checked = Entry(
        c.signature, c.dynamic, lambda x: PythonExecutable(make_kernel(c.variant(x)), checked=True)
    )
    np.testing.assert_array_equal(checked(), [3, 6])
