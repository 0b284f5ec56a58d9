"""Tiles for tensor cores by their price: legal on every GPU, and by default for products of every shape."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest

import tdsl as td
from tdsl.autoschedule.recipes.computed_operands import outline_factors
from tdsl.autoschedule.recipes.operands import operations_of, plain_operand
from tdsl.autoschedule.recipes.tensor_tiles import (
    Product,
    Side,
    TensorCoreChoices,
    best_tiles,
    seconds,
    shared_bytes,
)  # fmt: skip
from tdsl.machine.devices import describe_gpu

i, j, k = td.vars("i j k")
ARCHS = ["sm_80", "sm_86", "sm_87", "sm_89", "sm_90a", "sm_100a", "sm_120"]
ALIGNED = Side(2, 16, turned=False, packable=True, boxed=True)
ODD = Side(2, 2, turned=False, packable=True, shifted=True)


def halves(rows, columns, terms, side=ALIGNED):
    return Product(rows, columns, terms, 1, side, side, "f16", 4, 2, (16, 8, 16), groups=True)


def blocks(p, tiles):
    return -(-p.rows // tiles.block[0]) * -(-p.columns // tiles.block[1]) * tiles.parts


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("shape", [(4096, 4096, 4096), (17, 4096, 4096), (1, 8192, 8192), (20, 20, 20)])
def test_tiles_fit_every_gpu(arch, shape):
    machine = describe_gpu(arch)
    for t in best_tiles(halves(*shape), machine):
        assert shared_bytes(t, halves(*shape)) <= machine.level("shared").bytes
        assert not t.warpgroups or machine.features & {"wgmma", "tcgen05"}
        assert t.warps * 32 <= 1024 and seconds(t, halves(*shape), machine) > 0


def test_tiles_depend_on_the_gpu():
    chosen = {best_tiles(halves(4096, 4096, 4096), describe_gpu(arch))[0] for arch in ARCHS}
    assert len(chosen) >= 4
    large = best_tiles(halves(4096, 4096, 4096), describe_gpu("sm_90a"))[0]
    assert (large.block, large.warp, large.cluster, large.blocks) == ((128, 256, 64), (64, 256), 2, 128)


@pytest.mark.parametrize("arch", ["sm_80", "sm_89", "sm_90a"])
@pytest.mark.parametrize("shape", [(256, 256, 65536), (63, 4096, 4096), (128, 128, 16384)])
def test_few_tiles_share_their_terms_among_all_multiprocessors(arch, shape):
    machine = describe_gpu(arch)
    assert blocks(halves(*shape), best_tiles(halves(*shape), machine)[0]) >= 0.9 * machine.threads


@pytest.mark.parametrize("arch", ["sm_80", "sm_120"])
@pytest.mark.parametrize("shape", [(4096, 4096, 4096), (63, 4096, 4096), (1000, 1000, 1000)])
def test_the_search_finds_tiles_about_as_cheap_as_all_of_a_lattice(arch, shape):
    machine, p = describe_gpu(arch), halves(*shape)
    sides = product((16, 32, 48, 64), (8, 16, 32, 64), (1, 2, 4), (1, 2, 4), (32, 64), (2, 3, 4, 5))
    lattice = (
        TensorCoreChoices((r * down, c * across, terms), (r, c), stages, parts=parts)
        for r, c, down, across, terms, stages in sides
        if down * across <= 8
        for parts in (1, 4)
    )
    least = min(seconds(t, p, machine) for t in lattice)
    assert seconds(best_tiles(p, machine)[0], p, machine) <= 1.005 * least


def test_rows_that_are_not_aligned_are_copied_first_where_that_pays():
    large, small = (best_tiles(halves(n, n, n, ODD), describe_gpu("sm_80"))[0] for n in (4095, 65))
    assert any(large.packed) and small.packed == (False, False)
    assert best_tiles(halves(4096, 4096, 4096), describe_gpu("sm_80"))[0].packed == (False, False)


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
def test_products_of_few_tiles_and_many_terms_by_default(rng, arch):
    x, y = td.Tensor("x", (50, 4096), td.f16), td.Tensor("y", (4096, 72), td.f16)
    c, f = td.Func("c"), td.Func("f")
    c[i, j] = td.sum(td.cast(x[i, k], td.f32) * td.cast(y[k, j], td.f32), axis=k)
    f[i, j] = td.cast(td.maximum(c[i, j], 0), td.f16)
    compiled = td.compile(f, target=f"cuda:{arch}")
    text = str(compiled.loops("final"))
    assert "mma_m" in text and "c_partial" in text
    p, q = (rng.integers(-2, 3, shape).astype(np.float16) for shape in ((50, 4096), (4096, 72)))
    want = np.maximum(p.astype(np.float32) @ q.astype(np.float32), 0).astype(np.float16)
    np.testing.assert_array_equal(td.emulate(compiled)(p, q), want, strict=True)


@pytest.mark.parametrize("packed", [(True, False), (True, True)], ids=str)
@pytest.mark.parametrize("warpgroups", [False, True])
@pytest.mark.parametrize("parts", [1, 2])
def test_operands_copied_to_aligned_rows(rng, packed, warpgroups, parts):
    x, y, c = td.Tensor("x", (77, 130), td.f16), td.Tensor("y", (130, 65), td.f16), td.Func("c")
    c[i, j] = td.sum(td.cast(td.maximum(x[i, k], 0), td.f32) * td.cast(y[k, j], td.f32), axis=k)
    s = td.Schedule(c, target="cuda:sm_90a")
    tiles = (
        {"block": (64, 64, 64), "warp": (64, 64)} if warpgroups else {"block": (64, 64, 32), "warp": (32, 32)}
    )
    td.recipes.tensor_core_matmul(s[c], warpgroups=warpgroups, packed=packed, parts=parts, **tiles)
    p, q = (rng.integers(-4, 5, shape).astype(np.float16) for shape in ((77, 130), (130, 65)))
    want = np.maximum(p, 0).astype(np.float32) @ q.astype(np.float32)
    np.testing.assert_array_equal(td.emulate(td.compile(s, target="cuda:sm_90a"))(p, q), want)


@pytest.mark.parametrize(
    "arch, instruction", [("sm_80", "mma_m8n8k4_f64"), ("sm_90a", "mma_m16n8k8_f64"), ("sm_89", "")]
)
@pytest.mark.parametrize("shape", [(50, 36, 70), (1, 17, 33), (65, 64, 129)])
def test_products_of_doubles_by_default(rng, arch, instruction, shape):
    m, terms, n = shape
    x, y, c = td.Tensor("x", (m, terms), td.f64), td.Tensor("y", (terms, n), td.f64), td.Func("c")
    c[i, j] = td.sum(x[i, k] * y[k, j], axis=k)
    compiled = td.compile(c, target=f"cuda:{arch}")
    text = str(compiled.loops("final"))
    assert instruction in text if instruction else "mma_" not in text
    p, q = rng.standard_normal((m, terms)), rng.standard_normal((terms, n))
    np.testing.assert_allclose(td.emulate(compiled)(p, q), p @ q, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("arch, first", [("sm_89", False), ("sm_90a", False), ("sm_100a", True)])
def test_operands_are_converted_by_the_kernel_that_multiplies_them(arch, first):
    """A copy in f16 is written and read again, three times the bytes of 8-bit floats; but the threads of a
    block of sm_100a convert more slowly than its tensor core multiplies."""
    side = Side(2, 16, turned=True, computed=True, packable=True, source_bytes=1, operations=1)
    assert best_tiles(halves(4096, 4096, 4096, side), describe_gpu(arch))[0].packed == (first, first)


def test_the_price_of_a_copy_counts_its_arithmetic():
    few, many = (
        halves(4096, 4096, 4096, replace(ALIGNED, computed=True, boxed=False, operations=n)) for n in (1, 400)
    )
    machine, tiles = describe_gpu("sm_80"), TensorCoreChoices(packed=(True, True))
    assert seconds(tiles, many, machine) > 1.5 * seconds(tiles, few, machine)


def test_floats_of_8_bits_take_more_operations_where_no_instruction_converts_them():
    x, w, f = td.Tensor("x", (64, 64), td.f8e4m3), td.Tensor("w", (64, 64), td.f16), td.Func("f")
    f[i, j] = td.sum(td.cast(x[i, k], td.f32) * td.cast(w[k, j], td.f32), axis=k)
    s = td.Schedule(f)
    outline_factors(s[f], ("i", "j"), "f16")
    x = plain_operand(s[f], ("i",), ("k",))
    before, since = (operations_of(s[f], x, describe_gpu(arch)) for arch in ("sm_80", "sm_89"))
    assert before >= 4 * since > 0


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a", "sm_100a"])
def test_operands_of_many_operations_are_computed_once(arch):
    side = Side(2, 16, turned=True, computed=True, packable=True, source_bytes=2, operations=40)
    assert best_tiles(halves(4096, 4096, 4096, side), describe_gpu(arch))[0].packed == (True, True)
