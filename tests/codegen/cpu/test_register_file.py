"""Instructions on registers of their own kind: what is loaded and stored, and when; AMX, emulated."""

import re

import ml_dtypes
import numpy as np
import pytest

import tdsl as td
from tdsl.machine import amx_permission as permission
from tdsl.machine import cpu as machine
from tdsl.machine.cpu import host
from tdsl.machine.instructions.dots import DOTS, declare
from tdsl.machine.model import Machine
from tests.codegen.cpu.emulated_amx import NEEDED, run_emulated

i, j, k = td.vars("i j k")
TILES = [d for d in DOTS if d.rows > 1]
emulation = pytest.mark.skipif(not host().has >= NEEDED, reason="the rest needs AVX-512")

# three registers of 2 x 2 floats in memory, on any machine
BANK = td.RegisterFile(
    "bank", 3,
    load="call void @bank.load(i8 {register}, ptr {pointer}, i64 {stride})",
    store="call void @bank.store(i8 {register}, ptr {pointer}, i64 {stride})",
    declarations=(
        "@bank.registers = internal global [3 x <4 x float>] zeroinitializer",
        """define internal ptr @bank.at(i8 %n) alwaysinline {
  %p = getelementptr <4 x float>, ptr @bank.registers, i8 %n
  ret ptr %p
}""",
        """define internal void @bank.load(i8 %n, ptr %p, i64 %stride) alwaysinline {
  %second = getelementptr i8, ptr %p, i64 %stride
  %a = load <2 x float>, ptr %p, align 4
  %b = load <2 x float>, ptr %second, align 4
  %x = shufflevector <2 x float> %a, <2 x float> %b, <4 x i32> <i32 0, i32 1, i32 2, i32 3>
  %r = call ptr @bank.at(i8 %n)
  store <4 x float> %x, ptr %r
  ret void
}""",
        """define internal void @bank.store(i8 %n, ptr %p, i64 %stride) alwaysinline {
  %second = getelementptr i8, ptr %p, i64 %stride
  %r = call ptr @bank.at(i8 %n)
  %x = load <4 x float>, ptr %r
  %a = shufflevector <4 x float> %x, <4 x float> poison, <2 x i32> <i32 0, i32 1>
  %b = shufflevector <4 x float> %x, <4 x float> poison, <2 x i32> <i32 2, i32 3>
  store <2 x float> %a, ptr %p, align 4
  store <2 x float> %b, ptr %second, align 4
  ret void
}""",
        """define internal void @bank.multiply(i8 %t, i8 %l, i8 %r) alwaysinline {
  %pt = call ptr @bank.at(i8 %t)
  %pl = call ptr @bank.at(i8 %l)
  %pr = call ptr @bank.at(i8 %r)
  %c = load <4 x float>, ptr %pt
  %a = load <4 x float>, ptr %pl
  %b = load <4 x float>, ptr %pr
  %a0 = shufflevector <4 x float> %a, <4 x float> poison, <4 x i32> <i32 0, i32 0, i32 2, i32 2>
  %b0 = shufflevector <4 x float> %b, <4 x float> poison, <4 x i32> <i32 0, i32 1, i32 0, i32 1>
  %a1 = shufflevector <4 x float> %a, <4 x float> poison, <4 x i32> <i32 1, i32 1, i32 3, i32 3>
  %b1 = shufflevector <4 x float> %b, <4 x float> poison, <4 x i32> <i32 2, i32 3, i32 2, i32 3>
  %p0 = fmul <4 x float> %a0, %b0
  %p1 = fmul <4 x float> %a1, %b1
  %s0 = fadd <4 x float> %c, %p0
  %s1 = fadd <4 x float> %s0, %p1
  store <4 x float> %s1, ptr %pt
  ret void
}""",
    ),
)  # fmt: skip


def multiply():
    left, right = td.Tensor("left", (2, 2), td.f32), td.Tensor("right", (2, 2), td.f32)
    total = td.Func("total")
    total[i, j] += left[i, k] * right[k, j]
    call = "call void @bank.multiply(i8 {total}, i8 {left}, i8 {right})"
    return td.instruction("multiply_2x2", total, llvm=call, registers=BANK)


def product(m, n, terms):
    a, b, c = td.Tensor("a", (m, terms), td.f32), td.Tensor("b", (terms, n), td.f32), td.Func("c")
    c[i, j] = td.sum(a[i, k] * b[k, j], axis=k)
    return c


def moves(f):
    """Loads and stores of registers in the text, as far as they are written out."""
    text = str(f.source("llvm"))
    return tuple(len(re.findall(rf"  call void @bank.{x}\(", text)) for x in ("load", "store"))


def by_tiles(c, order, unrolled=()):
    s = td.Schedule(c)
    s[c].tile((i, j, k), (2, 2, 2), tail="peel")
    s[c].reorder(*order, "i_i", "j_i", "k_i")
    for loop in unrolled:
        s[c].unroll(loop)
    s[c].tensorize("i_i", multiply())
    return td.compile(s)


@pytest.mark.parametrize(
    "order, unrolled, moved",
    [
        (("i_o", "j_o", "k_o"), (), (3, 1)),  # one sum stays through the loop over k
        # no loop: the sum is loaded once, operands not kept
        (("i_o", "j_o", "k_o"), ("k_o",), (13, 1)),
        (("k_o", "i_o", "j_o"), (), (3, 1)),  # the sums move with the inner loop
        (("i_o", "k_o", "j_o"), ("j_o",), (9, 4)),  # more sums than registers: each stored in time
    ],
    ids=["in a loop", "unrolled", "outer products", "too many sums"],
)
def test_results_do_not_depend_on_what_stays_in_registers(rng, order, unrolled, moved):
    f = by_tiles(product(6, 8, 12), order, unrolled)
    a, b = (rng.integers(-9, 9, s).astype(np.float32) for s in ((6, 12), (12, 8)))
    np.testing.assert_array_equal(f(a, b), a @ b)
    assert moves(f) == moved


@pytest.mark.parametrize("shape", [(7, 9, 13), (2, 2, 2), (1, 8, 4), (6, 6, 1), (4, 4, 0)])
def test_tails_run_as_loops(rng, shape):
    m, n, terms = shape
    f = by_tiles(product(m, n, terms), ("i_o", "j_o", "k_o"))
    a, b = (rng.integers(-9, 9, s).astype(np.float32) for s in ((m, terms), (terms, n)))
    np.testing.assert_array_equal(f(a, b), a @ b)


def test_tiles_that_overlap_are_stored_in_between(rng):
    # sums of the upper two and of the lower two of three rows: the middle one is in both
    a, b = td.Tensor("a", (3, 2), td.f32), td.Tensor("b", (2, 2), td.f32)
    c, f = td.Func("c", shape=(3, 2)), td.Func("f")
    first, r = td.range("first", 0, 2), td.range("r", 0, 2)
    c[i, j] = td.cast(0, td.f32)
    c[first + r, j] += a[first + r, k] * b[k, j]
    f[i, j] = c[i, j]
    s = td.Schedule(f)
    update = s[c].compute_root().update(0)
    update.reorder("first", "r", j, k)
    update.unroll("first").tensorize("r", multiply())
    x, y = (rng.integers(-9, 9, n).astype(np.float32) for n in ((3, 2), (2, 2)))
    got = td.compile(s)
    np.testing.assert_array_equal(got(x, y), x @ y * np.float32([[1], [2], [1]]))
    assert moves(got) == (6, 2)


def sums_of(dot, turned="nn"):
    a = td.Tensor("a", ("M", "K") if turned[0] == "n" else ("K", "M"), dot.left)
    b = td.Tensor("b", ("K", "N") if turned[1] == "n" else ("N", "K"), dot.right)
    left = a[i, k] if turned[0] == "n" else a[k, i]
    right = b[k, j] if turned[1] == "n" else b[j, k]
    c = td.Func("c")
    c[i, j] = td.sum(td.cast(left, dot.total) * td.cast(right, dot.total), axis=k, dtype=dot.total)
    return c


def small_numbers(rng, t, *shape):
    if t == td.bf16:
        return (rng.integers(-16, 17, shape) / 4).astype(ml_dtypes.bfloat16)
    ends = np.iinfo(t.numpy)
    return rng.integers(ends.min, ends.max, shape, dtype=t.numpy, endpoint=True)


def exact(dot, a, b):
    wide = np.float64 if dot.total.is_float else np.int64
    return (a.astype(wide) @ b.astype(wide)).astype(dot.total.numpy)


@emulation
@pytest.mark.parametrize("dot", TILES, ids=lambda d: d.name)
@pytest.mark.parametrize("turned", ["nn", "nt", "tn", "tt"])
def test_products_by_amx_are_right(rng, dot, turned):
    f = td.compile(sums_of(dot, turned), target="cpu:amx")
    odd = [(165, 144, 321)] if turned == "nn" else []
    for m, n, terms in [(64, 32, 128), *odd]:
        a, b = small_numbers(rng, dot.left, m, terms), small_numbers(rng, dot.right, terms, n)
        given = [np.ascontiguousarray(x.T) if t == "t" else x for t, x in zip(turned, (a, b), strict=True)]
        got = run_emulated(f, *given, M=m, N=n, K=terms)
        np.testing.assert_array_equal(got, exact(dot, a, b))
        assert "tile_" in str(f.loops(M=m, N=n, K=terms))


@emulation
@pytest.mark.parametrize("turned", [False, True])
def test_a_matrix_times_itself_by_amx(rng, turned):
    x, c = td.Tensor("x", ("M", "N"), td.bf16), td.Func("c")
    left, right = (x[i, k], x[j, k]) if turned else (x[k, i], x[k, j])
    c[i, j] = td.sum(td.cast(left, td.f32) * td.cast(right, td.f32), axis=k)
    a = small_numbers(rng, td.bf16, 96, 64)
    f, wide = td.compile(c, target="cpu:amx"), a.astype(np.float32)
    np.testing.assert_array_equal(run_emulated(f, a, M=96, N=64), wide @ wide.T if turned else wide.T @ wide)
    assert "tile_bf16" in str(f.loops(M=96, N=64))


@emulation
@pytest.mark.parametrize("ends", [(-128, -128), (127, -128)])
def test_the_ends_of_signed_bytes_by_amx(ends):
    a, b = np.full((32, 64), ends[0], np.int8), np.full((64, 32), ends[1], np.int8)
    dot = next(d for d in TILES if d.name == "tile_i8")
    got = run_emulated(td.compile(sums_of(dot), target="cpu:amx"), a, b, M=32, N=32, K=64)
    np.testing.assert_array_equal(got, np.full((32, 32), 64 * ends[0] * ends[1]))


@emulation
@pytest.mark.parametrize("shape", [(96, 33, 64), (70, 64, 96), (32, 32, 20480)])
def test_an_epilogue_of_products_by_amx(rng, shape):
    m, n, terms = shape
    dot = next(d for d in TILES if d.name == "tile_bf16")
    c, out = sums_of(dot), td.Func("out")
    out[i, j] = td.cast(td.maximum(c[i, j] * 0.5, 0), td.bf16)
    a, b = small_numbers(rng, td.bf16, m, terms), small_numbers(rng, td.bf16, terms, n)
    got = run_emulated(td.compile(out, target="cpu:amx"), a, b, M=m, N=n, K=terms)
    want = np.maximum(exact(dot, a, b) * np.float32(0.5), 0).astype(ml_dtypes.bfloat16)
    np.testing.assert_array_equal(got, want)


@emulation
def test_products_by_amx_in_bands_of_rows(rng):
    q, p, v, e = (*(td.Tensor(n, ("S", "D"), td.bf16) for n in "qpv"), td.vars("e"))
    scores, most, weights, total, out = (td.Func(n) for n in ("scores", "most", "weights", "total", "out"))
    scores[i, j] = td.sum(td.cast(q[i, k], td.f32) * td.cast(p[j, k], td.f32), axis=k)
    most[i] = td.max(scores[i, j], axis=j)
    weights[i, j] = td.cast(td.cast(scores[i, j] >= most[i] / 2, td.i32), td.bf16)
    total[i] = td.sum(td.cast(weights[i, j], td.f32), axis=j)
    products = td.cast(weights[i, j], td.f32) * td.cast(v[j, e], td.f32)
    out[i, e] = td.sum(products, axis=j) / total[i]
    f = td.compile(out, target="cpu:amx")
    x, y, z = (small_numbers(rng, td.bf16, 512, 64) for _ in range(3))
    s = x.astype(np.float32) @ y.T.astype(np.float32)
    chosen = (s >= s.max(1, keepdims=True) / 2).astype(np.float32)
    want = chosen @ z.astype(np.float32) / chosen.sum(1, keepdims=True)
    np.testing.assert_array_equal(run_emulated(f, x, y, z, S=512, D=64), want)
    assert "out: bands" in str(f.explain(S=512, D=64))
    assert str(f.loops(S=512, D=64)).count("tile_bf16") >= 2


@pytest.mark.parametrize("dot, call", [(TILES[0], "tdpbf16ps"), (TILES[1], "tdpbssd")])
def test_sums_of_amx_stay_in_tiles_through_the_loop(dot, call):
    f = td.compile(sums_of(dot), target="cpu:amx", M=256, N=256, K=256)
    lines = [x.split()[0] for x in str(f.source("asm")).splitlines() if x.split()]
    kinds = [x for x in lines if x.startswith(("tile", "tdp"))]
    loop = ["tileloadd"] * 2 + [call] + ["tileloadd", call] * 2 + [call]
    assert kinds == ["tileloadd"] * 4 + loop + ["tilestored"] * 4


def test_functions_with_tiles_set_their_shapes_and_give_back_those_of_the_caller():
    f = td.compile(sums_of(TILES[0]), target="cpu:amx", M=256, N=256, K=256)
    asm = str(f.source("asm"))
    # for the function that threads call, not for the one that starts them
    assert len(re.findall(r"\bsttilecfg\b", asm)) == 1
    assert len(re.findall(r"\bldtilecfg\b", asm)) == 2
    plain = str(td.compile(sums_of(TILES[0]), target="cpu:avx512", M=256, N=256, K=256).source("asm"))
    assert "tilecfg" not in plain


@pytest.mark.parametrize("shape", [(1024, 8, 1024), (40, 40, 40), (18, 64, 64), (64, 64, 31)])
def test_small_shapes_and_work_beyond_tiles_use_vectors(shape):
    sizes = dict(zip("MNK", shape, strict=True))
    loops = str(td.compile(sums_of(TILES[0]), target="cpu:amx").loops(**sizes))
    assert "tile_bf16" not in loops


@pytest.mark.parametrize("dot", TILES, ids=lambda d: d.name)
def test_the_meaning_in_python_is_that_of_the_loops(rng, dot):
    c = sums_of(dot)
    s = td.Schedule(c, sizes={"M": 40, "N": 35, "K": 2 * dot.terms + 3})
    wide = Machine(vector_bytes=64, features=frozenset({dot.feature}), registers=32)
    tiles = td.recipes.matmul(
        s[c], machine=wide, dot=declare(dot).name, lanes=16, rows=32, vectors=2, panel="root"
    )
    assert tiles is not None and tiles.dot == dot.name
    a, b = (
        small_numbers(rng, dot.left, 40, 2 * dot.terms + 3),
        small_numbers(rng, dot.right, 2 * dot.terms + 3, 35),
    )
    f = td.compile(s, target="python")
    np.testing.assert_array_equal(f(a, b), exact(dot, a, b))
    assert dot.name in str(f.loops())


def test_where_the_system_refuses_tiles_there_are_none(monkeypatch):
    features = {"avx2": True, "amx-tile": True, "amx-bf16": True, "amx-int8": True}
    monkeypatch.setattr(machine.llvm, "get_host_cpu_features", lambda: dict(features))
    permission.may_use_tiles.cache_clear()
    try:
        monkeypatch.setattr(permission, "_request", lambda: False)
        with pytest.warns(RuntimeWarning, match="does not let this process use AMX") as seen:
            refused = [machine.host.__wrapped__() for _ in range(2)]
        assert len(seen) == 1
        assert all(not {"amx-tile", "amx-bf16", "amx-int8"} & x.has for x in refused)
        assert "-amx-tile" in refused[0].features
        permission.may_use_tiles.cache_clear()
        monkeypatch.setattr(permission, "_request", lambda: True)
        assert machine.host.__wrapped__().has >= {"amx-tile", "amx-bf16", "amx-int8"}
    finally:
        permission.may_use_tiles.cache_clear()


@emulation
def test_a_transposed_operand_of_a_product_in_bands_is_copied_twice_in_them(rng):
    # once for its terms to lie side by side, once more in tiles: the first copy stands where the second is
    a, b = td.Tensor("a", ("K", "M"), td.i8), td.Tensor("b", ("K", "N"), td.u8)
    c, out = td.Func("c"), td.Func("out")
    c[i, j] = td.sum(td.cast(a[k, i], td.i32) * td.cast(b[k, j], td.i32), axis=k, dtype=td.i32)
    out[i, j] = td.maximum(c[i, j], 3) - c[i, j]
    x, y = small_numbers(rng, td.i8, 1822, 48), small_numbers(rng, td.u8, 1822, 32)
    sums = x.T.astype(np.int32) @ y.astype(np.int32)
    got = run_emulated(td.compile(out, target="cpu:amx"), x, y, M=48, N=32, K=1822)
    np.testing.assert_array_equal(got, np.maximum(sums, 3) - sums)


@emulation
def test_bands_that_begin_anywhere_use_separate_tiles(rng):
    # bands of 81 rows: rows of the packed operand are counted from the first of a band
    dot = next(d for d in TILES if d.name == "tile_bf16")
    c, out = sums_of(dot, "nt"), td.Func("out")
    out[i, j] = td.maximum(c[i, j], 3) - c[i, j]
    f = td.compile(out, target="cpu:amx")
    x, y = small_numbers(rng, td.bf16, 162, 66), small_numbers(rng, td.bf16, 96, 66)
    sums = x.astype(np.float32) @ y.T.astype(np.float32)
    got = run_emulated(f, x, y, M=162, N=96, K=66)
    np.testing.assert_array_equal(got, np.maximum(sums, 3) - sums)
