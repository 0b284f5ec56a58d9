"""Transposes on a GPU: right at every size, neighbours by neighbours on both sides, no bank conflicts."""

import numpy as np
import pytest

import tdsl as td
from tdsl.lang.interp import interpret

b, c, i, j, k = td.vars("b c i j k")


def turned(dtype=td.f32):
    a, f = td.Tensor("a", ("M", "N"), dtype), td.Func("f")
    f[i, j] = a[j, i] + 1
    return f


def added():
    """One operand is turned, the other is not."""
    a, other, f = (
        td.Tensor("a", ("M", "N"), td.f32),
        td.Tensor("o", ("N", "M"), td.f32),
        td.Func("f"),
    )
    f[i, j] = a[j, i] * 2 + other[i, j]
    return f


def permuted():
    a, f = td.Tensor("a", (2, "M", 3, "N"), td.f32), td.Func("f")
    f[c, i, b, j] = a[b, j, c, i]
    return f


PROGRAMS = {"turned": turned, "added": added, "permuted": permuted}


def agrees(s: td.Schedule, rng, m: int, n: int) -> None:
    known = {"M": m, "N": n}
    arrays = {}
    for t in s.program.inputs:
        shape = [known.get(getattr(e, "name", ""), getattr(e, "value", 0)) for e in t.shape]
        arrays[t.name] = rng.integers(-9, 9, shape).astype(t.dtype.numpy)
    got = td.emulate(td.compile(s, target="cuda"))(**arrays)
    (want,) = interpret(s.program, arrays)
    np.testing.assert_array_equal(got, want, strict=True)


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("m, n", [(0, 5), (1, 1), (31, 33), (32, 64), (67, 40)])
def test_transposes_at_any_size(rng, name, m, n):
    f = PROGRAMS[name]()
    s = td.Schedule(f)
    tree = td.recipes.block_transpose(s[f])
    assert all(x.array == "a" for x in (*tree.shared, *tree.registers))
    agrees(s, rng, m, n)


@pytest.mark.parametrize("dtype", [td.f16, td.f32, td.f64, td.i8], ids=str)
def test_both_sides_are_contiguous_and_banks_differ(dtype):
    a, f = td.Tensor("a", (960, 1280), dtype), td.Func("f")
    f[i, j] = a[j, i] + 1
    s = td.Schedule(f, target="cuda")
    td.recipes.block_transpose(s[f])
    counts = td.count_memory(td.compile(s), np.zeros((960, 1280), dtype.numpy))
    assert counts.sector_efficiency == counts.conflict_degree == 1


def test_the_default_schedule_takes_it_where_both_sides_are_long(rng):
    a, f = td.Tensor("a", (640, 800), td.f32), td.Func("f")
    f[i, j] = a[j, i]
    counts = td.count_memory(td.compile(f, target="cuda"), np.zeros((640, 800), np.float32))
    assert counts.sector_efficiency == counts.conflict_degree == 1
    agrees(td.Schedule(turned()), rng, 40, 50)


def test_reads_along_the_rows_written_are_no_transpose():
    a, f, g = td.Tensor("a", (64, 64), td.f32), td.Func("f"), td.Func("g")
    f[i, j] = a[i, j] + a[i, 63 - j]
    g[i] = td.sum(a[k, i], axis=k)
    for func in (f, g):
        s = td.Schedule(func)
        with pytest.raises(td.ScheduleError, match="block_transpose is not for"):
            td.recipes.block_transpose(s[func])
        assert not s.directives
