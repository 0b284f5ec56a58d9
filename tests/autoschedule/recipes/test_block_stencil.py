"""Windows on a GPU: right at every size, with halos fetched once and what is between in shared memory."""

import numpy as np
import pytest

import tdsl as td
from tdsl.codegen.gpu.launches import launches_of
from tdsl.lang.interp import interpret
from tests.codegen.cuda.conflicts import conflicts
from tests.codegen.cuda.programs import barriers, kernel_of

b, i, j, p, q = td.vars("b i j p q")


def blur(m: int, n: int):
    a = td.Tensor("a", (m + 2, n + 2), td.f32)
    rows, f = td.Func("rows"), td.Func("f", shape=(m, n))
    rows[i, j] = (a[i, j] + a[i, j + 1] + a[i, j + 2]) * 2
    f[i, j] = rows[i, j] + rows[i + 1, j] + rows[i + 2, j]
    return f


def heat(m: int, n: int):
    a = td.Tensor("a", (m, n), td.f32)
    edge, f = td.pad(a, mode="edge"), td.Func("f")
    f[i, j] = a[i, j] * 4 - edge[i - 1, j] - edge[i + 1, j] - edge[i, j - 1] - edge[i, j + 1]
    return f


def filtered(m: int, n: int):
    a, w, f = (
        td.Tensor("a", (2, m + 2, n + 4), td.f32),
        td.Tensor("w", (3, 5), td.f32),
        td.Func("f"),
    )
    f[b, i, j] = td.sum(a[b, i + p, j + q] * w[p, q], axis=(p, q))
    return f.with_shape(2, m, n)


def sharpened(m: int, n: int):
    """Three stages, the last of which reads the first source, too."""
    a = td.Tensor("a", (m + 4, n + 4), td.f32)
    rows, soft, f = td.Func("rows"), td.Func("soft"), td.Func("f", shape=(m, n))
    rows[i, j] = (a[i, j] + a[i, j + 1] * 2 + a[i, j + 2]) * 3
    soft[i, j] = (rows[i, j] + rows[i + 1, j] * 2 + rows[i + 2, j]) * 5
    f[i, j] = a[i + 1, j + 1] * 2 - soft[i, j] - soft[i + 1, j + 1]
    return f


PROGRAMS = {"blur": blur, "heat": heat, "filter": filtered, "sharpen": sharpened}


def agrees(s: td.Schedule, rng) -> None:
    arrays = {
        t.name: rng.integers(-3, 4, [e.value for e in t.shape]).astype(np.float32) for t in s.program.inputs
    }
    got = td.emulate(td.compile(s, target="cuda"))(**arrays)
    (want,) = interpret(s.program, arrays)
    np.testing.assert_array_equal(got, want, strict=True)


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("m, n", [(32, 128), (33, 131), (47, 32)])
def test_windows_at_any_size(rng, name, m, n):
    f = PROGRAMS[name](m, n)
    s = td.Schedule(f)
    plan = td.recipes.block_stencil(s[f])
    assert plan.sources == ("a",)
    agrees(s, rng)


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("m, n", [(1, 1), (5, 40), (34, 40)])
def test_the_default_schedule_of_windows(rng, name, m, n):
    agrees(td.Schedule(PROGRAMS[name](m, n)), rng)


def test_a_pipeline_is_one_kernel_and_passes_nothing_through_global_memory():
    f = sharpened(256, 512)
    s = td.Schedule(f)
    assert set(td.recipes.block_stencil(s[f]).inside) == {"rows", "soft"}
    kernel = kernel_of(s)
    (launch,) = launches_of(kernel).launches
    assert launch.grid == (4, 16, 1) and launch.shared < 48 << 10
    assert barriers(kernel) == 3
    assert max(conflicts(kernel)) <= 2  # at the ends of lines, which are as long as the tile and its halo


def test_choices_replace_what_is_chosen(rng):
    f = blur(40, 70)
    s = td.Schedule(f)
    plan = td.recipes.block_stencil(s[f], tile=(8, 32), threads=(4, 32))
    assert (plan.tile, plan.threads) == ((8, 32), (4, 32))
    agrees(s, rng)


def test_what_reads_no_windows_is_left_as_it_is():
    a, f, g = td.Tensor("a", (64, 64), td.f32), td.Func("f"), td.Func("g")
    f[i, j] = a[i, j] * 2
    g[i] = td.sum(a[i, p], axis=p)
    for func in (f, g):
        s = td.Schedule(func)
        with pytest.raises(td.ScheduleError, match="block_stencil is not for"):
            td.recipes.block_stencil(s[func])
        assert not s.directives
