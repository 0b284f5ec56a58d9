"""Products whose factors are expressions: on tensor cores where a short type holds them, by default."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tdsl as td

b, i, j, k, n, o, p, q, v, u, c = td.vars("b i j k n o p q v u c")
ROWS, COLUMNS, TERMS = 97, 72, 80
F = np.float32


@pytest.fixture(autouse=True)
def small_sizes_take_the_same_kernels(monkeypatch):
    """Other kernels, which are faster for little work, are not tried."""
    monkeypatch.setattr("tdsl.tilegraph.kernels_together.FAR_FROM_BEST", 1e9)


def product(x: Any, w: Any) -> td.Func:
    f = td.Func("f")
    f[i, j] = td.sum(td.cast(x, td.f32) * td.cast(w, td.f32), axis=k)
    return f


def array(name: str, *shape: int, t: td.DType = td.f16) -> td.Tensor:
    return td.Tensor(name, shape, t)


X, W = array("x", ROWS, TERMS), array("w", TERMS, COLUMNS)
XT, WT = array("x", TERMS, ROWS), array("w", COLUMNS, TERMS)
BYTES, SHORT = array("w", TERMS, COLUMNS, t=td.i8), array("w", TERMS, COLUMNS, t=td.f8e4m3)
LONG = array("x", ROWS, TERMS, t=td.f32)
GROUPED, ZERO = array("s", TERMS // 16, COLUMNS), array("z", TERMS // 16, COLUMNS, t=td.u8)
PACKED = array("w", TERMS // 2, COLUMNS, t=td.u8)


def halves(x: np.ndarray) -> np.ndarray:
    return x.astype(np.float16).astype(F)


def nibbles(w: np.ndarray) -> np.ndarray:
    w = w.astype(int)
    return np.stack([w & 15, w >> 4], 1).reshape(-1, w.shape[1])


PRODUCTS: dict[str, tuple[Callable[[], td.Func], Callable[..., Any]]] = {
    "relu": (lambda: product(td.maximum(X[i, k], 0), W[k, j]), lambda x, w: np.maximum(x, 0) @ w),
    "relu in f32": (
        lambda: product(td.maximum(td.cast(X[i, k], td.f32), 0), W[k, j]),
        lambda x, w: np.maximum(x, 0) @ w,
    ),
    "both": (
        lambda: product(td.maximum(XT[k, i], 0), abs(WT[j, k])),
        lambda x, w: np.maximum(x.T, 0) @ abs(w.T),
    ),
    "one array": (lambda: product(td.maximum(X[i, k], 0), X[j, k]), lambda x: np.maximum(x, 0) @ x.T),
    "scaled terms": (
        lambda: product(X[i, k] * array("g", TERMS)[k], W[k, j]),
        lambda x, g, w: halves(x * g) @ w,
    ),
    "scaled rows": (
        lambda: product(X[i, k] * array("g", ROWS)[i], W[k, j]),
        lambda x, g, w: halves(x * g[:, None]) @ w,
    ),
    "bytes": (lambda: product(X[i, k], BYTES[k, j]), lambda x, w: x @ w),
    "dequantised": (
        lambda: product(
            X[i, k],
            td.cast(td.cast(BYTES[k, j], td.i32) - td.cast(ZERO[k // 16, j], td.i32), td.f16)
            * GROUPED[k // 16, j],
        ),
        lambda x, w, z, s: x @ halves((w - np.repeat(z, 16, 0)) * np.repeat(s, 16, 0)),
    ),
    "four bits": (
        lambda: product(X[i, k], ((td.cast(PACKED[k // 2, j], td.i32) >> (4 * (k % 2))) & 15) - 8),
        lambda x, w: x @ (nibbles(w) - 8),
    ),
    "f8": (lambda: product(X[i, k], SHORT[k, j]), lambda x, w: x @ w),
    "rounded": (lambda: product(td.cast(LONG[i, k], td.f16), W[k, j]), lambda x, w: halves(x) @ w),
    "weights": (
        lambda: product(td.cast(td.exp(td.cast(X[i, k], td.f32)), td.f16), W[k, j]),
        lambda x, w: halves(np.exp(x)) @ w,
    ),
    "triangle": (
        lambda: product(td.where(k <= i, array("x", ROWS, ROWS)[i, k], 0), array("w", ROWS, COLUMNS)[k, j]),
        lambda x, w: np.tril(x) @ w,
    ),
}
Y = array("y", TERMS, ROWS)
PRODUCTS["two layouts"] = (
    lambda: product(X[i, k] * Y[k, i], W[k, j]),
    lambda x, y, w: halves(x * y.T) @ w,
)


def arrays_of(f: td.Compiled, rng: np.random.Generator) -> list[np.ndarray]:
    arrays = []
    for a in f.signature.inputs:
        shape = tuple(int(e.value) for e in a.shape)
        if a.dtype.is_integer:
            arrays.append(rng.integers(int(a.dtype.low), int(a.dtype.high) + 1, shape, a.dtype.numpy))
        else:
            arrays.append((rng.normal(size=shape) / 2).astype(a.dtype.numpy))
    return arrays


def check(f: td.Compiled, expected: Callable[..., Any], rng: np.random.Generator) -> None:
    arrays = arrays_of(f, rng)
    wide = (a.astype(int) if a.dtype.kind in "iu" else a.astype(F) for a in arrays)
    want = expected(**dict(zip((a.name for a in f.signature.inputs), wide, strict=True)))
    np.testing.assert_allclose(td.emulate(f)(*arrays), want, atol=2e-5 * TERMS * abs(want).max())


@pytest.mark.parametrize("name", PRODUCTS)
def test_computed_factors_are_multiplied_by_tensor_cores(rng, name):
    write, expected = PRODUCTS[name]
    f = td.compile(write(), target="cuda:sm_80")
    assert "mma_m16n8k16_f16_f16(" in str(f.loops("final"))
    check(f, expected, rng)


@pytest.mark.parametrize("name", ["relu", "both", "dequantised", "triangle"])
def test_computed_factors_are_multiplied_by_groups_of_warps(rng, name):
    write, expected = PRODUCTS[name]
    s = td.Schedule(write())
    plan = td.recipes.tensor_core_matmul(s["f"], warpgroups=True, block=(64, 64, 64), warp=(64, 64), stages=3)
    assert plan.instruction.startswith("wgmma_")
    check(td.compile(s, target="cuda:sm_90a"), expected, rng)


@pytest.mark.parametrize(
    "x, w",
    [
        (LONG[i, k], BYTES[k, j]),  # f32 has more digits than a factor of a tensor core
        (td.cast(X[i, k], td.f32) + 3, W[k, j]),
        (td.cast(X[i, k], td.f32) * array("g", TERMS)[k], W[k, j]),
        (X[i, k], array("w", TERMS, COLUMNS, t=td.bf16)[k, j]),
    ],
    ids=["f32", "sum", "scaled", "f16 and bf16"],
)
def test_factors_that_would_be_rounded_stay_off_tensor_cores(x, w):
    f = td.compile(product(x, w), target="cuda:sm_80")
    assert "mma" not in str(f.loops("final"))


def test_a_computed_operand_is_read_by_16_bytes_and_stored_without_conflicts():
    x, w, g = array("x", 256, 256), array("w", 256, 256), array("g", 256)
    counts = td.count_memory(td.compile(product(x[i, k] * g[k], w[k, j]), target="cuda:sm_80"))
    assert counts.sector_efficiency == 1 and counts.conflict_degree == 1
    assert {a.site.width for a in counts.accesses if a.site.array in ("x", "w")} == {16}


def test_a_convolution_of_what_is_computed_of_an_image(rng):
    x, w, f = array("x", 2, 14, 14, 16), array("w", 3, 3, 16, 64), td.Func("f")
    point = td.maximum(td.pad(x)[n, v + p - 1, u + q - 1, c], 0)
    f[n, v, u, o] = td.sum(td.cast(point, td.f32) * td.cast(w[p, q, c, o], td.f32), axis=(p, q, c))
    compiled = td.compile(f.with_shape(2, 14, 14, 64), target="cuda:sm_80")
    assert "mma_m16n8k16_f16_f16(" in str(compiled.loops("final"))

    def expected(x: np.ndarray, w: np.ndarray) -> np.ndarray:
        padded = np.pad(np.maximum(x, 0), ((0, 0), (1, 1), (1, 1), (0, 0)))
        window = [padded[:, r : r + 14, s : s + 14] @ w[r, s] for r in range(3) for s in range(3)]
        return np.sum(window, axis=0)

    check(compiled, expected, rng)


def test_batches_of_computed_operands(rng):
    x, w, f = array("x", 3, 96, 80), array("w", 3, 80, 72, t=td.i8), td.Func("f")
    terms = td.cast(td.maximum(x[b, i, k], 0), td.f32) * td.cast(w[b, k, j], td.f32)
    f[b, i, j] = td.sum(terms, axis=k)
    compiled = td.compile(f, target="cuda:sm_80")
    assert "mma_m16n8k16_f16_f16(" in str(compiled.loops("final"))
    check(compiled, lambda x, w: np.maximum(x, 0) @ w, rng)


def test_a_plan_computes_factors_in_another_schedule(rng):
    write, expected = PRODUCTS["dequantised"]
    f = write()
    plan = td.recipes.tensor_core_matmul(td.Schedule(f)["f"], block=(64, 64, 32), warp=(32, 32))
    s = td.Schedule(f)
    plan(s)
    again = td.Schedule(f).replay(s.to_json())
    assert str(again) == str(s) and 's["f"].outline("j", "f16")' in str(s)
    check(td.compile(again, target="cuda:sm_80"), expected, rng)


ROOTS, SCALES = array("s", ROWS, t=td.f32), array("t", COLUMNS, t=td.f32)


def of_norm() -> td.Func:
    scale, y = td.Func("scale"), td.Func("y")
    scale[i] = td.rsqrt(td.mean(td.cast(X[i, k], td.f32) ** 2, axis=k))
    y[i, k] = td.cast(td.cast(X[i, k], td.f32) * scale[i], td.f16)
    return product(y[i, k], W[k, j])


SCALED: dict[str, tuple[Callable[[], td.Func], Callable[..., Any]]] = {
    "rows": (
        lambda: product(td.cast(X[i, k], td.f32) * ROOTS[i], W[k, j]),
        lambda x, s, w: x * s[:, None] @ w,
    ),
    "divided rows": (
        lambda: product(td.cast(X[i, k], td.f32) / (1 + ROOTS[i] ** 2), W[k, j]),
        lambda x, s, w: x / (1 + s**2)[:, None] @ w,
    ),
    "rows and columns": (
        lambda: product(td.cast(X[i, k], td.f32) * ROOTS[i], td.cast(BYTES[k, j], td.f32) * SCALES[j]),
        lambda x, s, w, t: x * s[:, None] @ (w * t),
    ),
    "norm": (of_norm, lambda x, w: halves(x / np.sqrt((x * x).mean(1, keepdims=True))) @ w),
}


@pytest.mark.parametrize("name", SCALED)
def test_factors_of_rows_and_columns_multiply_the_sums(rng, name):
    write, expected = SCALED[name]
    f = td.compile(write(), target="cuda:sm_80")
    assert "mma_m16n8k16_f16_f16(" in str(f.loops("final"))
    check(f, expected, rng)


def test_bf16_might_overflow_without_its_factor():
    x, w = array("x", ROWS, TERMS, t=td.bf16), array("w", TERMS, COLUMNS, t=td.bf16)
    write = lambda: product(td.cast(x[i, k], td.f32) * ROOTS[i], w[k, j])
    assert "mma" not in str(td.compile(write(), target="cuda:sm_80").loops("final"))
    f = td.fast_math(write())
    assert "mma_m16n8k16_bf16_bf16(" in str(td.compile(f, target="cuda:sm_80").loops("final"))


def test_a_norm_is_stored_by_no_kernel():
    f = td.compile(of_norm(), target="cuda:sm_80")
    assert [name for name, _ in f.launch.temporaries] == ["scale"]


@pytest.mark.parametrize("named", [True, False])
def test_what_follows_a_product_is_computed_by_its_kernel(named):
    x, first, second = array("x", 64, 128), array("first", 128, 256), array("second", 256, 64)
    h, sums, y = td.vars("h"), td.Func("sums"), td.Func("y")
    sums[i, h] = td.sum(td.cast(x[i, k], td.f32) * td.cast(first[k, h], td.f32), axis=k)
    y[i, h] = td.cast(td.maximum(sums[i, h], 0), td.f16)
    factor = y[i, k] if named else td.cast(td.maximum(sums[i, k], 0), td.f16)
    f = td.compile(product(factor, second[k, j]), target="cuda:sm_80")
    ((name, size),) = f.launch.temporaries
    assert (name, size) == ("y" if named else "sums_factor", 64 * 256 * 2)


OF_ROWS: dict[str, tuple[Callable[[], td.Func], Callable[..., Any]]] = {
    "relu": (lambda: product(td.maximum(A[i, k], 0), B[k, j]), lambda x, w: np.maximum(x, 0) @ w),
    "scaled terms": (
        lambda: product(A[i, k] * array("g", 128)[k], B[k, j]),
        lambda x, g, w: halves(x * g) @ w,
    ),
    "scores": (
        lambda: product(td.cast(td.exp(td.cast(A[i, k], td.f32) - C[i]), td.f16), B[k, j]),
        lambda x, s, w: halves(np.exp(x - s[:, None])) @ w,
    ),
}
A, B, C = array("x", 160, 128), array("w", 128, 72), array("s", 160, t=td.f32)


@pytest.mark.parametrize("cluster", [1, 2])
@pytest.mark.parametrize("name", OF_ROWS)
def test_groups_of_warps_compute_factors_of_rows_in_registers(rng, name, cluster):
    write, expected = OF_ROWS[name]
    s = td.Schedule(write())
    tiles = {"block": (64, 64, 64), "warp": (64, 64), "stages": 3, "cluster": cluster}
    if cluster == 2:
        tiles["block"] = (128, 64, 64)
    plan = td.recipes.tensor_core_matmul(s["f"], warpgroups=True, **tiles)
    assert plan.instruction == "wgmma_m64n64k16_f16_rk_kn"
    f = td.compile(s, target="cuda:sm_90a")
    loops = str(f.loops("final"))
    assert "copy_tile(x_cache[" in loops and "x_factor = alloc(f16, [64, 64])  # fragment" in loops
    check(f, expected, rng)


@pytest.mark.parametrize("arch, rows", [("sm_90a", 64), ("sm_100a", 128)])
@pytest.mark.parametrize("stages", [2, 3])
def test_tiles_are_fetched_whole_beside_tiles_that_threads_compute(rng, arch, rows, stages):
    f = product(array("x", 130, 192)[i, k], array("w", 192, 72, t=td.i8)[k, j])
    s = td.Schedule(f, target=f"cuda:{arch}")
    tiles = {"block": (128, 64, 64), "warp": (rows, 64), "stages": stages}
    td.recipes.tensor_core_matmul(s["f"], warpgroups=True, **tiles)
    f = td.compile(s, target=f"cuda:{arch}")
    loops = str(f.loops("final"))
    assert "copy_tile(x_cache[" in loops, "an array"
    assert "w_ahead = alloc(i8" in loops, "loaded before the product of the step before, computed after it"
    check(f, lambda x, w: x @ w, rng)


@pytest.mark.parametrize(
    "name, packed", [("relu", False), ("relu", True), ("scaled terms", True), ("dequantised", False)]
)
def test_parts_of_terms_of_odd_sizes(rng, name, packed):
    x, w, g = array("x", 97, 83), array("w", 83, 71), array("g", 83)
    w = array("w", 83, 71, t=td.i8) if name == "dequantised" else w
    factor = x[i, k] * g[k] if name == "scaled terms" else td.maximum(x[i, k], 0)
    s = td.Schedule(product(factor, w[k, j]))
    td.recipes.tensor_core_matmul(s["f"], block=(32, 32, 32), warp=(32, 32), parts=2, packed=(False, packed))

    def expected(x: np.ndarray, w: np.ndarray, g: np.ndarray | float = 0) -> np.ndarray:
        return (halves(x * g) if name == "scaled terms" else np.maximum(x, 0)) @ w

    check(td.compile(s, target="cuda:sm_80"), expected, rng)


@pytest.mark.parametrize("arch", ["sm_89", "sm_90a", "sm_100a"])
def test_8_bit_floats_are_multiplied_as_f16_by_default(arch):
    x, w, sums, f = *(array(name, 4096, 4096, t=td.f8e4m3) for name in "xw"), td.Func("sums"), td.Func("f")
    sums[i, j] = td.sum(td.cast(x[i, k], td.f32) * td.cast(w[k, j], td.f32), axis=k)
    f[i, j] = td.cast(sums[i, j], td.bf16)
    loops = str(td.compile(f, target=f"cuda:{arch}").loops("final"))
    assert "_f16" in loops and "mma_m16n8k32_f8" not in loops
