"""Results of tensor cores leave registers for shared memory by stmatrix."""

import numpy as np
import pytest

import tdsl as td
from tdsl.codegen.cuda import module
from tdsl.codegen.cuda.sass import disassemble, instruction_mix
from tdsl.codegen.gpu.launches import launches_of
from tests.codegen.cuda import programs

i, j, k = td.vars("i j k")


def staged(dtype: td.DType = td.f16, *, swizzle: int = 64) -> td.Schedule:
    """Products of 32 x 32 by each of four warps, rounded in registers, passed on in shared memory."""
    a, b = td.Tensor("a", ("M", "K"), td.f16), td.Tensor("b", ("K", "N"), td.f16)
    acc, rounded, c = td.Func("acc"), td.Func("rounded"), td.Func("c")
    acc[i, j] = td.sum(td.cast(a[i, k], td.f32) * td.cast(b[k, j], td.f32), axis=k)
    rounded[i, j] = td.cast(acc[i, j], dtype)
    c[i, j] = rounded[i, j]
    s = td.Schedule(c)
    io, jo, ii, ji = s[c].tile((i, j), (64, 64))
    wi, wj, ii, ji = s[c].tile((ii, ji), (32, 32))
    s[c].bind(io, "blockIdx.y").bind(jo, "blockIdx.x").bind(wi, "threadIdx.z").bind(wj, "threadIdx.y")
    mi, nj, tile, _ = s[c].tile((ii, ji), (16, 16))
    out = s.cache_write(c, at=wj, scope="shared")
    s[c].tensorize(tile, f"stmatrix_m16n16_{dtype.name}").unroll(mi).unroll(nj)
    if swizzle:
        s[c].swizzle(swizzle)
    pieces, lanes = out.split(out.loops[1], 8)
    _, threads = out.split(out.fuse(out.loops[0], pieces), 32)
    out.bind(threads, "threadIdx.x").vectorize(lanes)
    s[rounded].compute_at(s[c], wj).set_scope("fragment").cooperate(2)
    s[acc].compute_at(s[c], wj).set_scope("fragment")
    mi, nj, tile, j1 = s[acc].tile((i, j), (16, 8))
    ko, k1 = s[acc].split(k, 16)
    s[acc].reorder(ko, mi, nj, tile, j1, k1).tensorize(tile, "mma_m16n8k16_f16_f16").unroll(mi).unroll(nj)
    for t in (a, b):
        s.cache_read(t, acc, at=ko, scope="fragment").cooperate()
    return s


def operands(m: int, n: int, terms: int) -> tuple[np.ndarray, np.ndarray]:
    a = (np.arange(m * terms) * 7 % 11 - 3).reshape(m, terms).astype(np.float16)
    return a, (np.arange(terms * n) * 5 % 13 - 4).reshape(terms, n).astype(np.float16)


@pytest.mark.parametrize("dtype", [td.f16, td.bf16], ids=str)
@pytest.mark.parametrize("m, n, terms", [(64, 64, 16), (128, 64, 48)])
def test_products_pass_through_shared_memory(m, n, terms, dtype):
    x, y = operands(m, n, terms)
    got = td.emulate(td.compile(staged(dtype), target="cuda:sm_90a"))(x, y)
    want = (x.astype(np.float32) @ y.astype(np.float32)).astype(dtype.numpy)
    np.testing.assert_array_equal(got.astype(np.float32), want.astype(np.float32))


@pytest.mark.parametrize("arch", ["sm_90", "sm_90a", "sm_100a", "sm_120"])
def test_one_instruction_stores_a_tile_of_a_warp(arch):
    pytest.importorskip("tvm", reason='pip install "tdsl[cuda]"')
    kernel = programs.kernel_of(staged(), M=128, K=64, N=64)
    assert programs.barriers(kernel) == 1
    m = module.build(launches_of(kernel), arch)
    (mix,) = instruction_mix(disassemble(m.code))
    assert mix.count("STSM") == 4 and mix.count("STS") == 0 and m.spills == 0


def test_the_text_is_right(tmp_path):
    pytest.importorskip("tvm", reason='pip install "tdsl[cuda]"')
    from tests.codegen.cuda.shim import HAS_COMPILER, run_text

    if not HAS_COMPILER:
        pytest.skip("g++ runs the text")
    x, y = operands(128, 64, 32)
    c = np.zeros((128, 64), np.float16)
    library = run_text(launches_of(programs.kernel_of(staged(), M=128, K=32, N=64)), [x, y, c], tmp_path)
    np.testing.assert_array_equal(c, (x.astype(np.float32) @ y.astype(np.float32)).astype(np.float16))
    assert library.bank_ways() == 1


def test_a_missing_barrier_is_a_hazard():
    from dataclasses import replace

    from tdsl.codegen.emulation.run import EmulatedExecutable

    whole = programs.kernel_of(staged(), M=64, K=16, N=64)
    broken = replace(whole, body=programs.without_barrier(whole.body, 0))
    x, y = operands(64, 64, 16)
    with pytest.raises(td.Hazard, match="another thread"):
        EmulatedExecutable(broken).run([x, y, np.zeros((64, 64), np.float16)])


@pytest.mark.parametrize("swizzle, degree", [(64, 1), (0, 8)])
def test_a_swizzle_spreads_rows_over_banks(swizzle, degree):
    x, y = operands(64, 64, 16)
    counts = td.count_memory(td.compile(staged(swizzle=swizzle), target="cuda"), x, y)
    (stored,) = (a for a in counts.accesses if a.site.kind.startswith("stmatrix"))
    assert stored.conflict_degree == degree


def test_four_warps_store_a_tile_of_64_rows():
    a, h, f = td.Tensor("a", (64, 32), td.f32), td.Func("h"), td.Func("f")
    h[i, j] = td.cast(a[i, j] * 2, td.f16)
    f[i, j] = h[i, j]
    s = td.Schedule(f)
    io, jo, tile, _ = s[f].tile((i, j), (64, 16))
    s[f].bind(io, "blockIdx.x")
    out = s.cache_write(f, at=io, scope="shared")
    s[f].tensorize(tile, "stmatrix_m64n16_f16").swizzle(64)
    _, threads = out.split(out.fuse(*out.loops), 128)
    out.bind(threads, "threadIdx.x")
    s[h].compute_at(s[f], jo).set_scope("fragment").cooperate()
    x = (np.arange(64 * 32) % 99).reshape(64, 32).astype(np.float32)
    np.testing.assert_array_equal(
        td.emulate(td.compile(s, target="cuda:sm_90"))(x), (x * 2).astype(np.float16)
    )
