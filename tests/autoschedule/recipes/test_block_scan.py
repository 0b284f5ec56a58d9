"""Scans on GPUs: along rows and across them, forwards and backwards, of any length."""

import re

import numpy as np
import pytest

import tdsl as td

ACCUMULATED = {
    "add": np.add.accumulate, "mul": np.multiply.accumulate,
    "max": np.maximum.accumulate, "min": np.minimum.accumulate,
}  # fmt: skip


def scan(
    shape: tuple[int, ...], axis: int, dtype: td.DType, op: str = "add", *, backward: bool = False
) -> td.Func:
    """A scan as programs write it: of its elements, or with elements of the input."""
    n, x, out = shape[axis], td.Tensor("x", shape, dtype), td.Func("out", shape=shape)
    r, v = td.range("r", 1, shape[axis]), list(td.vars("i j k")[: len(shape)])
    out[tuple(v)] = x[tuple(v)]
    here = (*v[:axis], n - 1 - r if backward else r, *v[axis + 1 :])
    before = (*v[:axis], n - r if backward else r - 1, *v[axis + 1 :])
    match op:
        case "add":
            out[here] += out[before]
        case "mul":
            out[here] *= out[before]
        case "max":
            out[here] = td.maximum(out[here], out[before])
        case _:
            out[here] = td.minimum(out[before], x[here])
    return out


def check(rng, shape, axis, dtype, op="add", *, backward=False) -> td.Compiled:
    compiled = td.compile(scan(shape, axis, dtype, op, backward=backward), target="cuda:sm_89")
    given = rng.integers(1, 50, shape) if not dtype.is_float else rng.random(shape) + 0.5
    given = given.astype(dtype.numpy)
    turned = np.flip(given, axis) if backward else given
    wide = turned.astype(np.float64) if dtype.is_float else turned
    expected = ACCUMULATED[op](wide, axis=axis, dtype=wide.dtype)
    expected = np.flip(expected, axis) if backward else expected
    np.testing.assert_allclose(td.emulate(compiled)(given), expected, rtol=2e-3 if dtype == td.f16 else 1e-4)
    return compiled


@pytest.mark.parametrize(
    "shape, axis",
    [
        ((1,), 0), ((2,), 0), ((5,), 0), ((3000,), 0), ((20_000,), 0), ((1, 7), 0), ((4, 4), 1),
        ((30, 70), 1),
        ((80, 5000), 1), ((5, 5000), 1), ((100, 70), 0), ((33, 64), 0), ((2, 77, 40), 1), ((200, 3, 501), 2),
        ((3, 0), 0),
    ],
)  # fmt: skip
def test_running_sums_of_any_length(rng, shape, axis):
    check(rng, shape, axis, td.f32)


@pytest.mark.in_part(4)
@pytest.mark.parametrize("op", ACCUMULATED)
@pytest.mark.parametrize(
    "dtype, shape, axis", [(td.f64, (3, 333), 1), (td.i32, (10_007,), 0), (td.f16, (70, 33), 0)]
)
def test_other_operators_types_and_directions(rng, op, dtype, shape, axis):
    for backward in (False, True):
        if op == "mul" and dtype == td.f16:
            continue  # beyond its range
        check(rng, shape, axis, dtype, op, backward=backward)


def test_rows_stay_in_the_registers_of_a_block(rng):
    compiled = check(rng, (80, 16_384), 1, td.f32)
    assert [(x.grid, x.block) for x in compiled.launch.kernels] == [((80, 1, 1), (512, 1, 1))]
    counts = td.count_memory(compiled, np.zeros((80, 16_384), np.float32), blocks=8)
    assert (counts.sector_efficiency, counts.conflict_degree) == (1, 1)
    assert all(x.spills == 0 for x in compiled.launch.kernels)


def test_long_arrays_are_scanned_in_parts(rng):
    compiled = check(rng, (200_000,), 0, td.f32)
    kernels = [int(np.prod(x.grid)) for x in compiled.launch.kernels]
    assert (kernels[0], kernels[-1]) == (99, 100)  # sums of all parts but the last, and all parts
    assert all(np.prod(x.block) > 1 for x in compiled.launch.kernels)
    counts = td.count_memory(compiled, np.zeros(200_000, np.float32))
    assert counts.sector_efficiency > 0.9
    assert counts.conflict_degree < 1.005


def test_columns_are_scanned_by_more_blocks_than_they_have(rng):
    compiled = check(rng, (1024, 256), 0, td.f32)
    assert int(np.prod(compiled.launch.kernels[-1].grid)) == 1024 // 32 * 256 // 4 // 256


def test_odd_rows_are_loaded_in_vectors_and_stored_by_neighbours(rng):
    compiled = check(rng, (3, 1027), 1, td.f16)
    counts = td.count_memory(compiled, np.zeros((3, 1027), np.float16))
    assert counts.sector_efficiency > 0.8
    assert max(a.site.width for a in counts.accesses if a.site.array == "x") == 16


@pytest.mark.parametrize("n, kernels", [(256, 1), (259, 1), (5000, 3)])
@pytest.mark.parametrize("turned", [False, True])
def test_what_alone_reads_a_scan_is_in_its_kernel(rng, n, kernels, turned):
    x, sums, out = td.Tensor("x", (2, n), td.f32), td.Func("sums", shape=(2, n)), td.Func("out")
    i, j, r = *td.vars("i j"), td.range("r", 1, n)
    sums[i, j] = x[i, j]
    sums[i, r] += sums[i, r - 1]
    out[(j, i) if turned else (i, j)] = sums[i, j] * 2 + x[i, j]
    compiled = td.compile(out, target="cuda:sm_89")
    given = rng.integers(-3, 4, (2, n)).astype(np.float32)
    want = given.cumsum(1) * 2 + given
    np.testing.assert_array_equal(td.emulate(compiled)(given), want.T if turned else want)
    assert len(compiled.launch.kernels) == kernels + turned


def test_the_recipe_says_what_is_no_scan():
    x, out, r = td.Tensor("x", (40,), td.f32), td.Func("out", shape=40), td.range("r", 1, 40)
    out[td.vars("i")] = x[td.vars("i")]
    out[r] = 1 / out[r - 1]
    with pytest.raises(td.ScheduleError, match="it is no scan: it combines by no operator"):
        td.recipes.block_scan(td.Schedule(out, target="cuda:sm_80")[out].update(0))


@pytest.mark.parametrize("n", [4097, 5000, 20_001])
def test_a_short_last_part_has_the_loops_of_a_whole_part(rng, n):
    """The elements of a thread in a part are bounded by the thread, not by the end of the part."""
    short, whole = (check(rng, (k,), 0, td.f32) for k in (n, 20_480))
    assert [k.stack for k in short.launch.kernels] == [0, 0, 0]
    assert _loops_of_local(short) == _loops_of_local(whole) == ["range(0, 4)", "range(1, 4)"]


def _loops_of_local(compiled: td.Compiled) -> list[str]:
    return re.findall(r"for out_local_local_\w+ in (range\(.*?\)):", str(compiled.loops()))


@pytest.mark.parametrize("shape, kernels", [((3000,), 2), ((4096,), 2), ((40, 30), 1)])
def test_two_parts_have_no_scan_of_their_sums(rng, shape, kernels):
    assert len(check(rng, shape, 0, td.f32).launch.kernels) == kernels
