"""Few long rows on a GPU: several blocks for each, right for any length, in two kernels."""

import numpy as np
import pytest

import tdsl as td
from tdsl.autoschedule.recipes.blocks import on_blocks
from tdsl.codegen.gpu.launches import launches_of
from tests.codegen.cuda.programs import kernel_of

i, j = td.vars("i j")


def softmax(shape, dtype=td.f32):
    at = (i,) * (len(shape) - 1)
    x, top, e, total, y = td.Tensor("x", shape, dtype), *map(td.Func, ("top", "e", "total", "y"))
    wide = td.cast(x[(*at, j)], td.f64 if dtype is td.f64 else td.f32)
    top[at] = td.max(wide, axis=j)
    e[(*at, j)] = td.exp(wide - top[at])
    total[at] = td.sum(e[(*at, j)], axis=j)
    y[(*at, j)] = td.cast(e[(*at, j)] / total[at], dtype)
    return y


def softmax_of(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


@pytest.mark.parametrize("dtype", [td.f32, td.f16, td.bf16, td.f64])
@pytest.mark.parametrize("shape", [(3, 8200), (1, 9001), (8192,), (2, 12289)])
def test_softmax_of_few_long_rows(rng, shape, dtype):
    s = td.Schedule(softmax(shape, dtype))
    assert td.recipes.block_rows(s["y"], parts=2).parts == 2
    x = rng.standard_normal(shape).astype(dtype.numpy)
    got = td.emulate(td.compile(s, target="cuda"))(x).astype(np.float64)
    bound = {td.f32: 1e-5, td.f64: 1e-12}.get(dtype, 1e-2)
    np.testing.assert_allclose(
        got, softmax_of(x.astype(np.float64)), rtol=bound, atol=1e-7 if dtype is td.f16 else 1e-12
    )


def norm(m, n):
    x, g, mean, var, y = (
        td.Tensor("x", (m, n), td.f32), td.Tensor("g", (n,), td.f32), *map(td.Func, ("mean", "var", "y"))
    )  # fmt: skip
    mean[i] = td.mean(x[i, j], axis=j)
    var[i] = td.mean((x[i, j] - mean[i]) ** 2, axis=j)
    y[i, j] = (x[i, j] - mean[i]) * td.rsqrt(var[i] + 1e-5) * g[j]
    return y


def test_norms_of_few_long_rows(rng):
    """The variance is that of one pass, whose parts are corrected for the mean."""
    s = td.Schedule(norm(3, 8195))
    td.recipes.block_rows(s["y"], parts=2)
    x, g = (
        (10 + rng.standard_normal((3, 8195))).astype(np.float32),
        rng.standard_normal(8195).astype(np.float32),
    )
    wide = x.astype(np.float64)
    want = (wide - wide.mean(1, keepdims=True)) / np.sqrt(wide.var(1, keepdims=True) + 1e-5) * g
    np.testing.assert_allclose(td.emulate(td.compile(s, target="cuda"))(x, g), want, atol=1e-4)


def test_reductions_that_do_not_depend_on_each_other(rng):
    y, dy = (td.Tensor(n, (2, 8200), td.f32) for n in ("y", "dy"))
    total, dx = td.Func("total"), td.Func("dx")
    total[i] = td.sum(y[i, j] * dy[i, j], axis=j)
    dx[i, j] = y[i, j] * (dy[i, j] - total[i])
    s = td.Schedule(dx)
    td.recipes.block_rows(s["dx"], parts=2)
    a, b = (rng.integers(-2, 3, (2, 8200)).astype(np.float32) for _ in "ab")
    want = a * (b - (a * b).sum(1, keepdims=True))
    np.testing.assert_array_equal(td.emulate(td.compile(s, target="cuda"))(a, b), want)


@pytest.mark.parametrize("arch", ["sm_75", "sm_80", "sm_89", "sm_90a", "sm_100a", "sm_120"])
def test_the_default_schedule_fills_any_gpu_with_few_rows(arch):
    machine = td.Target("cuda", arch=arch).machine()
    plans = {rows: on_blocks(td.Schedule(norm(rows, 100_000))["y"], machine=machine) for rows in (16, 1024)}
    assert plans[1024].parts == 1
    assert 16 * plans[16].parts >= machine.threads
    assert 100_000 // plans[16].parts * 4 <= (machine.level("registers").bytes or 0)


def test_softmax_takes_two_kernels_by_default():
    assert len(launches_of(kernel_of(td.Schedule(softmax((16, 100_000))))).launches) == 2


def test_parts_are_for_the_gpu_of_the_schedule():
    """The described GPU of sm_86 has 82 multiprocessors, that of sm_90a 132: its rows are in fewer parts."""
    chosen = []
    for arch in ("sm_86", "sm_90a"):
        x, top, y = td.Tensor("x", (8, 1_000_000), td.f32), td.Func("top"), td.Func("y")
        i, j = td.vars("i j")
        top[i] = td.max(x[i, j], axis=j)
        y[i, j] = x[i, j] - top[i]
        chosen.append(td.recipes.block_rows(td.Schedule(y, target=f"cuda:{arch}")[y]).parts)
    assert 1 < chosen[0] < chosen[1]


def variance(shape):
    at = (i,) * (len(shape) - 1)
    x, mean, out = td.Tensor("x", shape, td.f32), td.Func("mean"), td.Func("out")
    mean[at] = td.mean(x[(*at, j)], axis=j)
    out[at] = td.mean((x[(*at, j)] - mean[at]) ** 2, axis=j)
    return out


@pytest.mark.parametrize("shape", [(9001,), (3, 8200)])
def test_variances_of_few_long_rows_take_one_pass(rng, shape):
    f = variance(shape)
    s = td.Schedule(f)
    assert td.recipes.block_rows(s[f], parts=3).parts == 3
    x = (10 + rng.standard_normal(shape)).astype(np.float32)
    got = td.emulate(td.compile(s, target="cuda"))(x)
    np.testing.assert_allclose(got, x.astype(np.float64).var(-1), rtol=1e-4)


def test_the_variance_of_an_array_reads_it_once_by_default():
    n = 1 << 22
    compiled = td.compile(variance((n,)), target=td.Target("cuda", arch="sm_80"))
    counts = td.count_memory(compiled, np.zeros(n, np.float32), blocks=2)
    assert sum(32 * a.fetched for a in counts.accesses if a.site.array == "x") < 1.01 * 4 * n


def test_reductions_of_a_row_that_need_no_other_are_no_chain():
    x, out = td.Tensor("x", (2, 100_000), td.f32), td.Func("out")
    out[i] = td.sqrt(td.sum(x[i, j] * x[i, j], axis=j))
    with pytest.raises(td.ScheduleError, match="do not read each other"):
        td.recipes.block_rows(td.Schedule(out)["out"], parts=2)


@pytest.mark.parametrize("n", [100, 20_000])
def test_a_mean_that_is_an_output_of_its_own_is_right(rng, n):
    x, mean, var = td.Tensor("x", (n,), td.f32), td.Func("mean"), td.Func("var")
    mean[()] = td.mean(x[j], axis=j)
    var[()] = td.mean((x[j] - mean[()]) ** 2, axis=j)
    array = rng.standard_normal(n).astype(np.float32)
    got = td.emulate(td.compile(td.Schedule(mean, var), target="cuda"))(array)
    wide = array.astype(np.float64)
    np.testing.assert_allclose(got, (wide.mean(), wide.var()), rtol=1e-4, atol=1e-6)
