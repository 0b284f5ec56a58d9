"""Convolutions and sums over several ranges as products of matrices on tensor cores."""

import numpy as np
import pytest

import tdsl as td
from tdsl.autoschedule.recipes.tensor_cores import on_tensor_cores
from tests.codegen.cuda.convolutions import Conv

SMALL = {"block": (64, 64, 32), "warp": (32, 32)}
GROUPS = {"block": (64, 64, 64), "warp": (64, 64), "warpgroups": True}

CASES = {
    "plain": Conv(),
    "strided": Conv(stride=2, channels=16),
    "dilated": Conv(dilation=2, pad=2, channels=16),
    "inside": Conv(pad=0, biased=False, channels=16),
    "filters first": Conv(filters="opqc", channels=24, filter_count=40),
    "few channels": Conv(channels=3, window=(5, 5), stride=2, pad=2),
    "planes": Conv(points="ncyx", filters="ocpq", channels=8),
    "planes of sums": Conv(points="ncyx", filters="ocpq", channels=8, biased=False),
    "points": Conv(window=(1, 1), pad=0, channels=64, size=(5, 7)),
    "bytes": Conv(dtype=td.i8, biased=False, filters="opqc"),
    "bfloat": Conv(dtype=td.bf16, channels=16, batch=1),
}


@pytest.mark.in_part(5)
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_a_convolution(rng, case):
    result, sums = case.funcs()
    s = td.Schedule(result)
    assert td.recipes.tensor_core_matmul(s[sums], **SMALL) is not None
    given, want = case.arrays(rng)
    got = td.emulate(td.compile(s, target="cuda:sm_80"))(*given)
    np.testing.assert_array_equal(got, want, strict=True)


@pytest.mark.parametrize("case", [Conv(), Conv(points="ncyx", filters="ocpq", channels=8)])
def test_a_convolution_by_warpgroups(rng, case):
    result, sums = case.funcs()
    s = td.Schedule(result)
    assert td.recipes.tensor_core_matmul(s[sums], **GROUPS).instruction.startswith("wgmma")
    given, want = case.arrays(rng)
    np.testing.assert_array_equal(td.emulate(td.compile(s, target="cuda"))(*given), want, strict=True)


def fetched(case, **choices):
    """The lines of the loops that fetch points, and those that fetch filters."""
    result, sums = case.funcs()
    s = td.Schedule(result)
    td.recipes.tensor_core_matmul(s[sums], **{**SMALL, **choices})
    lines = [x.strip() for x in str(td.compile(s, target="cuda:sm_80").loops("final")).splitlines()]
    return [[x for x in lines if x.startswith(f"{name}_cache[")] for name in ("image", "weights")]


@pytest.mark.parametrize("name", ["plain", "strided", "dilated", "filters first"])
def test_points_and_filters_are_copied_past_registers(name):
    for lines in fetched(CASES[name]):
        assert lines and all(x.endswith("# asynchronous") for x in lines)
        assert all("min(" not in x and "ramp" not in x for x in lines)


def test_filters_are_copied_past_registers_where_points_are_not_neighbours():
    points, filters = fetched(Conv(points="ncyx", filters="opqc", channels=8))
    assert not any("# asynchronous" in x for x in points)
    assert filters and all("# asynchronous" in x for x in filters)


def test_the_default_schedule_takes_it(rng):
    case = Conv(batch=1, size=(16, 16), channels=64, filter_count=64)
    result, _ = case.funcs()
    f = td.compile(result, target="cuda:sm_80")
    assert "mma_m16n8k16_f16_f16" in str(f.loops("final"))
    given, want = case.arrays(rng)
    np.testing.assert_array_equal(td.emulate(f)(*given), want, strict=True)


@pytest.mark.parametrize("arch, columns", [("sm_80", (64, 128, 128)), ("sm_90a", (64, 128, 256))])
def test_tiles_are_hardly_wider_than_the_number_of_filters(arch, columns):
    for filters, expected in zip((64, 128, 256), columns, strict=True):
        result, sums = Conv(batch=32, size=(56, 56), channels=64, filter_count=filters).funcs()
        plan = on_tensor_cores(td.Schedule(result)[sums], td.Target("cuda", arch=arch).machine())
        assert plan.block[1] == expected


b, i, j, k, m = td.vars("b i j k m")


def test_a_sum_over_two_ranges_with_batches(rng):
    x, y, c = (
        td.Tensor("x", (2, 40, 3, 16), td.f16),
        td.Tensor("y", (2, 3, 16, 24), td.f16),
        td.Func("c"),
    )
    wide = td.cast(x[b, i, m, k], td.f32) * td.cast(y[b, m, k, j], td.f32)
    c[b, i, j] = td.sum(wide, axis=(k, m))
    s = td.Schedule(c)
    td.recipes.tensor_core_matmul(s[c], **SMALL)
    one, two = (rng.integers(-3, 4, s_).astype(np.float16) for s_ in ((2, 40, 3, 16), (2, 3, 16, 24)))
    want = np.einsum("bimk,bmkj->bij", one.astype(np.float32), two.astype(np.float32))
    np.testing.assert_array_equal(td.emulate(td.compile(s, target="cuda:sm_80"))(one, two), want)


def test_groups_are_batches_where_they_are_a_dimension(rng):
    g = td.vars("g")
    x, y, c = (
        td.Tensor("x", (40, 2, 16), td.f16),
        td.Tensor("y", (2, 3, 16, 24), td.f16),
        td.Func("c"),
    )
    wide = td.cast(x[i + m, g, k], td.f32) * td.cast(y[g, m, k, j], td.f32)
    c[i, g, j] = td.sum(wide, axis=(m, k))
    s = td.Schedule(c)
    td.recipes.tensor_core_matmul(s[c], **SMALL)
    one, two = (rng.integers(-3, 4, s_).astype(np.float16) for s_ in ((40, 2, 16), (2, 3, 16, 24)))
    rows = np.lib.stride_tricks.sliding_window_view(one.astype(np.float32), 3, 0)
    want = np.einsum("igkm,gmkj->igj", rows, two.astype(np.float32))
    np.testing.assert_array_equal(td.emulate(td.compile(s, target="cuda:sm_80"))(one, two), want)


def sum_of(make):
    c = td.Func("c")
    a, w = td.Tensor("a", (32, 32), td.f16), td.Tensor("w", (32, 32), td.f16)
    c[i, j] = make(*(lambda *at, t=t: td.cast(t[at], td.f32) for t in (a, w)))
    return td.Schedule(c)


@pytest.mark.parametrize(
    "make, reason",
    [
        (lambda a, w: td.sum(a(i, k) * w(0, j), axis=k), "is not indexed by 'k'"),
        (lambda a, w: td.sum(a(i, k) * w(k, i), axis=k), "no variable of the result"),
        (lambda a, w: td.max(a(i, k) * w(k, j), axis=k), "does not add its terms up"),
    ],
)
def test_other_sums_are_refused(make, reason):
    s = sum_of(make)
    before = s.state
    with pytest.raises(td.ScheduleError, match=reason):
        td.recipes.tensor_core_matmul(s["c"], **SMALL)
    assert s.state == before
