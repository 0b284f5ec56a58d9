"""Blocks that are turned in registers: when they are, and that they hold what they should."""

import re

import numpy as np
import pytest

import tdsl as td
from tdsl.codegen.cpu.executable import text_of
from tdsl.machine.cpu import cpu_for
from tdsl.pipeline import make_kernel

i, j = td.vars("i j")


def turned(dtype, lanes: int, count: int, value=lambda x: x, target=None):
    """f[i, j] = a[j, i], `count` vectors along i at a time."""
    a, f = td.Tensor("a", ("N", "M"), dtype), td.Func("f")
    f[i, j] = value(a[j, i])
    s = td.Schedule(f)
    stage = s[f]
    blocks, one = stage.split(j, count, tail="peel")
    vectors, lane = stage.split(i, lanes, tail="peel")
    stage.reorder(blocks, vectors, one, lane)
    stage.vectorize(lane)
    stage.unroll(one)
    return td.compile(s, target=target)


@pytest.mark.parametrize("dtype", [td.f32, td.f64, td.i16, td.u8, td.bf16, td.bool_], ids=str)
def test_any_element(rng, dtype):
    a = rng.integers(0, 99, (40, 24)).astype(dtype.numpy)
    np.testing.assert_array_equal(turned(dtype, 8, 8)(a), a.T)


@pytest.mark.parametrize("lanes, count", [(16, 16), (8, 4), (4, 8), (16, 5), (5, 16), (7, 7), (8, 32)])
def test_blocks_of_any_sides_and_what_is_left_over(rng, lanes, count):
    a = rng.standard_normal((41, 53), dtype=np.float32)
    np.testing.assert_array_equal(turned(td.f32, lanes, count)(a), a.T)


@pytest.mark.parametrize("level, count, lanes", [("avx512", 16, 16), ("avx2", 32, 8)])
def test_a_block_is_stored_in_vectors_of_the_length_of_a_register(level, count, lanes):
    compiled = turned(td.f32, 16, 16, target=f"cpu:{level}")
    text = str(compiled.source("llvm", N=64, M=32))
    assert text.count(f"store <{lanes} x float>") == count
    assert "scatter" not in text


@pytest.mark.parametrize("adjacent, rows", [(2, 4), (4, 2), (2, 3), (3, 2)])
def test_rows_along_several_dimensions_that_follow_each_other_in_memory(rng, adjacent, rows):
    # f[i, j, t] = a[j, adjacent * i + t]: blocks of `rows` times `adjacent` elements of f side by side
    t = td.vars("t")
    a, f = td.Tensor("a", (2 * rows, 16 * adjacent), td.i16), td.Func("f")
    f[i, j, t] = a[j, i * adjacent + t]
    s = td.Schedule(f.with_shape(16, 2 * rows, adjacent))
    block, one = s[f].split(j, rows)
    vectors, lane = s[f].split(i, 8)
    s[f].reorder(block, vectors, one, t, lane).unroll(one).unroll(t).vectorize(lane)
    compiled, x = td.compile(s), rng.integers(0, 999, (2 * rows, 16 * adjacent), dtype=np.int16)
    want = x.reshape(2 * rows, 16, adjacent).transpose(1, 0, 2)
    np.testing.assert_array_equal(compiled(x), want)
    parts = {8: (8,), 6: (4, 2)}[rows * adjacent]
    assert all(f"store <{n} x i16>" in str(compiled.source("llvm")) for n in parts)


def test_values_are_computed_before_they_are_turned(rng):
    a = rng.integers(-99, 99, (32, 32), dtype=np.int32)
    f = turned(td.i32, 8, 8, lambda x: x * 3 + 1)
    np.testing.assert_array_equal(f(a), a.T * 3 + 1)


def test_rows_with_any_stride(rng):
    a = rng.standard_normal((64, 80), dtype=np.float32)
    f = turned(td.f32, 16, 16)
    out = np.zeros((32, 100), np.float32)
    f(a[::2, 3:35], out=out[:, 5:37])
    np.testing.assert_array_equal(out[:, 5:37], a[::2, 3:35].T)
    assert not out[:, :5].any()
    assert not out[:, 37:].any()


def test_columns_that_depend_on_each_other_are_stored_one_after_the_other(rng):
    f = td.Func("f", shape=(8, 8))
    a, k = td.Tensor("a", (8,), td.i32), td.range("k", 1, 8)
    f[i, j] = a[i]
    f[i, k] = f[i, k - 1] * 2
    s = td.Schedule(f)
    update = s[f].update()
    update.reorder("k", "i")
    update.unroll("k")
    update.vectorize("i", 8)
    x = rng.integers(-9, 9, 8, dtype=np.int32)
    np.testing.assert_array_equal(td.compile(s)(x), x[:, None] * 2 ** np.arange(8))


def paired(dtype, count: int, lanes: int, target=None):
    """f[k // count, i, k % count] = a[k, i]: rows side by side, as dot products want them."""
    a, f = td.Tensor("a", ("K", "N"), dtype), td.Func("f")
    k = td.vars("k")
    f[i] = td.sum(a[k, i] * 1, axis=k, dtype=dtype)
    s = td.Schedule(f)
    copy = s.cache_read("a", f, pack={0: count}, name="p")
    rows, columns, term = (loop.name for loop in copy.loops)
    copy.reorder(rows, term, columns)
    blocks, lane = copy.split(columns, lanes, tail="peel")
    copy.reorder(rows, blocks, term, lane)
    copy.vectorize(lane)
    copy.unroll(term)
    return td.compile(s, target=target)


@pytest.mark.parametrize("dtype", [td.f32, td.i16, td.u8], ids=str)
@pytest.mark.parametrize("count", [2, 3, 4])
def test_rows_are_interleaved(rng, dtype, count):
    a = rng.integers(0, 4, (4 * count + 1, 37)).astype(dtype.numpy)
    np.testing.assert_array_equal(paired(dtype, count, 16)(a), a.sum(0, dtype=dtype.numpy))


@pytest.mark.parametrize("count", [2, 4])
def test_interleaved_rows_are_stored_in_whole_vectors(count):
    text = str(paired(td.f32, count, 16, "cpu:avx512").source("llvm", K=8 * count, N=64))
    assert f"store <{16 * count} x float>" in text


@pytest.mark.parametrize("level, register", [("amx", 64), ("avx2", 32), ("sse2", 16)])
@pytest.mark.parametrize("dtype", [td.i8, td.f32], ids=str)
@pytest.mark.parametrize("count, copy", [(2, paired), (4, paired), (5, turned)])
def test_shuffles_are_of_powers_of_two_within_registers(level, register, dtype, count, copy):
    # LLVM 22 does not end where it puts together those of four vectors of 17 bytes
    for lanes in (5, 17, 37):
        sides = (count, lanes) if copy is paired else (lanes, count)
        compiled = copy(dtype, *sides, target=f"cpu:{level}")
        variant = compiled.variant(compiled.specialisation(dict.fromkeys(compiled.signature.sizes, 80)))
        text = text_of(make_kernel(variant), cpu_for(variant.target.level))
        shuffles = re.findall(r"shufflevector <(\d+) x .*<(\d+) x i32> <", text)
        assert shuffles
        for operand, result in shuffles:
            assert {int(operand).bit_count(), int(result).bit_count()} == {1}
            assert max(int(operand), int(result)) * dtype.bytes <= count * register
