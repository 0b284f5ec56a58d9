"""Products whose operands are one array: each read of it is an operand of its own, with a tile of its own."""

import numpy as np
import pytest

import tdsl as td
from tdsl.autoschedule.block_tree.tree import BlockTree
from tdsl.autoschedule.recipes.blocks import on_blocks
from tdsl.autoschedule.recipes.tensor_cores import on_tensor_cores
from tdsl.lang.interp import interpret
from tdsl.target import Target
from tdsl.tilegraph.search import candidates

b, i, j, k, h = td.vars("b i j k h")
SMALL = {"block": (32, 32, 16), "warp": (16, 16)}

READS = {
    "x^T x": (lambda x: (x[k, i], x[k, j])),
    "x x^T": (lambda x: (x[i, k], x[j, k])),
    "x x": (lambda x: (x[i, k], x[k, j])),
}


def product(reads, shape, dtype=td.f32):
    x, f = td.Tensor("x", shape, dtype), td.Func("f")
    left, right = (td.cast(r, td.f32) for r in READS[reads](x))
    f[i, j] = td.sum(left * right, axis=k)
    return f


def agrees(s, rng, target="cuda:sm_80"):
    """Small whole numbers: their sums are exact in any order."""
    given = {}
    for t in s.program.inputs:
        shape = [n.value for n in t.shape]
        given[t.name] = rng.integers(-3, 4, shape).astype(t.dtype.numpy)
    got = td.emulate(td.compile(s, target=target))(**given)
    (want,) = interpret(s.program, given)
    np.testing.assert_array_equal(got, want, strict=True)


@pytest.mark.parametrize("reads", READS)
@pytest.mark.parametrize("n", [1, 37])
def test_tiles_of_one_array_at_any_size(rng, reads, n):
    f = product(reads, (n, n) if reads == "x x" else (n, 41))
    s = td.Schedule(f)
    td.recipes.block_tiles(s[f])
    assert n == 1 or {"x_cache", "x_cache_1"} <= {g.name for g in s.state.program.funcs}
    agrees(s, rng)


def test_tiles_of_one_array_with_terms_in_parts(rng):
    f = product("x^T x", (26, 19))
    s = td.Schedule(f)
    td.recipes.block_tiles(s[f], parts=2)
    agrees(s, rng)


@pytest.mark.parametrize("reads", READS)
@pytest.mark.parametrize("n, dtype", [(1, td.f16), (37, td.f16), (37, td.i8)], ids=str)
def test_tensor_cores_read_one_array_twice(rng, reads, n, dtype):
    x, f = td.Tensor("x", (n, n) if reads == "x x" else (n, 41), dtype), td.Func("f")
    total = td.f32 if dtype.is_float else td.i32
    left, right = (td.cast(r, total) for r in READS[reads](x))
    f[i, j] = td.sum(left * right, axis=k, dtype=total)
    s = td.Schedule(f)
    td.recipes.tensor_core_matmul(s[f], block=(32, 32, 32), warp=(16, 16))
    agrees(s, rng)


def test_groups_of_warps_fetch_one_array_twice_as_wholes(rng):
    f = product("x x^T", (256, 64), td.f16)
    s = td.Schedule(f, target="cuda:sm_90a")
    td.recipes.tensor_core_matmul(s[f], block=(64, 64, 64), warp=(64, 64), warpgroups=True)
    assert str(s).count("bulk_copy") == 2
    agrees(s, rng, "cuda:sm_90a")


def test_batches_and_windows_of_one_array(rng):
    x, f = td.Tensor("x", (2, 20, 18), td.f16), td.Func("f", shape=(2, 19, 19))
    p = td.range("p", 0, 2)
    wide = td.cast(x[b, i + p, k], td.f32) * td.cast(x[b, j + p, k], td.f32)
    f[b, i, j] = td.sum(wide, axis=(p, k))
    s = td.Schedule(f)
    td.recipes.tensor_core_matmul(s[f], **SMALL)
    agrees(s, rng)


def test_weights_of_one_array_by_itself(rng):
    """Attention whose queries are its keys."""
    x, v = td.Tensor("x", (64, 16), td.f16), td.Tensor("v", (64, 32), td.f16)
    score, top, w, total, out = (td.Func(n) for n in ("score", "top", "w", "total", "out"))
    score[i, j] = td.sum(td.cast(x[i, k], td.f32) * td.cast(x[j, k], td.f32), axis=k)
    top[i] = td.max(score[i, j], axis=j)
    w[i, j] = td.exp(score[i, j] - top[i])
    total[i] = td.sum(w[i, j], axis=j)
    weight = td.cast(td.cast(w[i, j], td.f16), td.f32)
    out[i, h] = td.sum(weight * td.cast(v[j, h], td.f32), axis=j) / total[i]
    s = td.Schedule(out, target="cuda:sm_80")
    td.recipes.online_tensor_cores(s["out_sum"])
    given = {n: rng.standard_normal((64, m)).astype(np.float16) for n, m in (("x", 16), ("v", 32))}
    got = td.emulate(td.compile(s, target="cuda:sm_80"))(**given)
    (want,) = interpret(td.Schedule(out).program, given)
    np.testing.assert_allclose(got, want, rtol=4e-3, atol=4e-3)


@pytest.mark.parametrize("reads", READS)
def test_the_default_schedule_takes_tiles_and_tensor_cores(reads):
    f = product(reads, (512, 512))
    assert isinstance(on_blocks(td.Schedule(f)[f]), BlockTree)
    half = product(reads, (512, 512), td.f16)
    assert on_tensor_cores(td.Schedule(half)[half], Target("cuda").machine()) is not None


@pytest.mark.parametrize("dtype", [td.f32, td.f16], ids=str)
def test_a_product_of_one_array_moves_what_one_of_two_moves(dtype):
    one = product("x^T x", (4096, 1024), dtype)
    x, y, two = (
        td.Tensor("x", (4096, 1024), dtype),
        td.Tensor("y", (4096, 1024), dtype),
        td.Func("f"),
    )
    two[i, j] = td.sum(td.cast(x[k, i], td.f32) * td.cast(y[k, j], td.f32), axis=k)
    mine, other = (candidates(td.Schedule(f).program, {}, Target("cuda"))[0] for f in (one, two))
    assert mine.schedule.traffic("global") == other.schedule.traffic("global")
    assert mine.seconds == other.seconds


@pytest.mark.parametrize("arch, dtype", [("sm_80", td.f32), ("sm_90a", td.f16)], ids=str)
def test_machine_code_of_a_product_of_one_array_spills_nothing(arch, dtype):
    pytest.importorskip("tvm", reason='pip install "tdsl[cuda]"')
    target = Target("cuda", arch=arch)
    f = product("x x^T", (1024, 512), dtype)
    best = candidates(td.Schedule(f).program, {}, target)[0].schedule
    (kernel,) = td.compile(best, target=target).launch.kernels
    assert (kernel.spills, kernel.stack) == (0, 0)


def test_a_reader_of_a_gram_matrix_shares_its_tiles(rng):
    """Relu(x x^T) w by nested tiles."""
    x, w = td.Tensor("x", (37, 5), td.f32), td.Tensor("w", (37, 11), td.f32)
    a, y = td.Func("a"), td.Func("y")
    a[i, j] = td.sum(x[i, k] * x[j, k], axis=k)
    y[i, h] = td.sum(td.maximum(a[i, j], 0) * w[j, h], axis=j)
    tiled = candidates(td.Schedule(y).program, {}, Target("cuda"))[0].schedule
    assert "x_cache -> a: kept in shared" in tiled.explain()
    agrees(tiled, rng)
