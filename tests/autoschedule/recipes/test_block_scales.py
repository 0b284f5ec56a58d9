"""Products with scales of blocks of terms: on tensor cores by default."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tdsl as td
from tdsl.codegen.cuda.sass import disassemble, instruction_mix
from tdsl.codegen.gpu.launches import launches_of

i, j, k, e = td.vars("i j k e")
F = np.float32
ROWS, COLUMNS, TERMS = 80, 56, 128


@pytest.fixture(autouse=True)
def small_sizes_take_the_same_kernels(monkeypatch):
    """Other kernels, which are faster for little work, are not tried."""
    monkeypatch.setattr("tdsl.tilegraph.kernels_together.FAR_FROM_BEST", 1e9)


def array(name: str, *shape: int, t: td.DType = td.f8e4m3) -> td.Tensor:
    return td.Tensor(name, shape, t)


def power(exponent: Any) -> Any:
    """The scale whose byte is an exponent (e8m0)."""
    return td.exp2(td.cast(exponent, td.f32) - 127)


def f32(x: Any) -> Any:
    return td.cast(x, td.f32)


def sum_of(term: Any) -> td.Func:
    c = td.Func("c")
    c[i, j] = td.sum(term, axis=k)
    return c


def repeated(s: np.ndarray, n: int, axis: int = 1) -> np.ndarray:
    return np.repeat(s.astype(F), n, axis)


def powers(s: np.ndarray, n: int, axis: int = 1) -> np.ndarray:
    return repeated(2.0 ** (s.astype(F) - 127), n, axis)


def nibbles(w: np.ndarray) -> np.ndarray:
    w = w.astype(int)
    return np.stack([w & 15, w >> 4], 2).reshape(len(w), -1)


A, B, BT = array("a", ROWS, TERMS), array("b", TERMS, COLUMNS), array("b", COLUMNS, TERMS)
SA, SB = array("sa", ROWS, TERMS // 32, t=td.u8), array("sb", TERMS // 32, COLUMNS, t=td.u8)
SBT = array("sb", COLUMNS, TERMS // 32, t=td.u8)
X, Q = array("x", ROWS, TERMS, t=td.f16), array("q", COLUMNS, TERMS // 2, t=td.u8)

PRODUCTS: dict[str, tuple[Callable[[], td.Func], Callable[..., Any]]] = {
    "exponents": (
        lambda: sum_of((f32(A[i, k]) * power(SA[i, k // 32])) * (f32(BT[j, k]) * power(SBT[j, k // 32]))),
        lambda a, b, sa, sb: (a * powers(sa, 32)) @ (b * powers(sb, 32)).T,
    ),
    "columns in rows": (
        lambda: sum_of(f32(A[i, k]) * power(SA[i, k // 32]) * f32(B[k, j]) * power(SB[k // 32, j])),
        lambda a, b, sa, sb: (a * powers(sa, 32)) @ (b * powers(sb, 32, 0)),
    ),
    "tiles of one scale": (
        lambda: sum_of(
            f32(A[i, k])
            * f32(BT[j, k])
            * array("sa", ROWS, TERMS // 64, t=td.f32)[i, k // 64]
            * array("sb", 2, TERMS // 32, t=td.f32)[j // 32, k // 32]
        ),
        lambda a, b, sa, sb: (a * repeated(sa, 64)) @ (b * repeated(repeated(sb, 32, 0)[:COLUMNS], 32)).T,
    ),
    "groups of weights": (
        lambda: sum_of(
            f32(X[i, k])
            * f32(((td.cast(Q[j, k // 2], td.i32) >> (4 * (k % 2))) & 15) - 8)
            * f32(array("s", COLUMNS, TERMS // 16, t=td.f16)[j, k // 16])
        ),
        lambda x, q, s: x @ ((nibbles(q) - 8) * repeated(s, 16)).T,
    ),
    "a divisor": (
        lambda: sum_of(f32(A[i, k]) * f32(BT[j, k]) / array("sa", ROWS, TERMS // 32, t=td.f32)[i, k // 32]),
        lambda a, b, sa: (a / repeated(sa, 32)) @ b.T,
    ),
}


VALUES = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], F)
P, PT = array("p", ROWS, TERMS // 2, t=td.u8), array("q", COLUMNS, TERMS // 2, t=td.u8)


def f4(packed: Any) -> Any:
    return f32(td.f4e2m1(packed, k % 2))


FLOATS_OF_4_BITS: dict[str, tuple[Callable[[], td.Func], Callable[..., Any]]] = {
    "mxf4": (
        lambda: sum_of(f4(P[i, k // 2]) * f4(PT[j, k // 2]) * power(SA[i, k // 32]) * power(SBT[j, k // 32])),
        lambda p, q, sa, sb: (VALUES[nibbles(p)] * powers(sa, 32)) @ (VALUES[nibbles(q)] * powers(sb, 32)).T,
    ),
    "nvf4": (
        lambda: sum_of(
            f4(P[i, k // 2])
            * abs(f32(array("sa", ROWS, TERMS // 16)[i, k // 16]))
            * (f4(PT[j, k // 2]) * abs(f32(array("sb", COLUMNS, TERMS // 16)[j, k // 16])))
        ),
        lambda p, q, sa, sb: (
            (VALUES[nibbles(p)] * repeated(sa, 16)) @ (VALUES[nibbles(q)] * repeated(sb, 16)).T
        ),
    ),
}
PRODUCTS |= FLOATS_OF_4_BITS


def arrays_of(f: td.Compiled, rng: np.random.Generator) -> list[np.ndarray]:
    arrays = []
    for a in f.signature.inputs:
        shape = tuple(int(n.value) for n in a.shape)
        if a.name in ("sa", "sb") and a.dtype == td.u8:
            arrays.append(rng.integers(118, 134, shape).astype(np.uint8))
        elif a.dtype.is_integer:
            arrays.append(rng.integers(0, 256, shape).astype(a.dtype.numpy))
        else:
            arrays.append(
                (rng.random(shape) + 0.5 if a.name[0] == "s" else rng.normal(size=shape)).astype(
                    a.dtype.numpy
                )
            )
    return arrays


def check(f: td.Compiled, expected: Callable[..., Any], rng: np.random.Generator) -> None:
    arrays = arrays_of(f, rng)
    wide = (a.astype(int) if a.dtype.kind in "iu" else a.astype(F) for a in arrays)
    want = expected(**dict(zip((a.name for a in f.signature.inputs), wide, strict=True)))
    atol = 1e-6 * TERMS * abs(want).max(initial=0)
    np.testing.assert_allclose(td.emulate(f)(*arrays), want, rtol=0, atol=atol)


@pytest.mark.parametrize("name", PRODUCTS)
def test_sums_of_blocks_are_made_by_tensor_cores(rng, name):
    write, expected = PRODUCTS[name]
    f = td.compile(write(), target="cuda:sm_80")
    assert "mma_m16n8k16_f16_f16" in f.loops("final")
    check(f, expected, rng)


@pytest.mark.parametrize(
    "name, instruction",
    [
        ("exponents", "k32_mx_f8e4m3_f8e4m3"),
        ("mxf4", "k64_mxf4"),
        ("nvf4", "k64_nvf4"),
        ("columns in rows", "k16_f16_f16"),
        ("a divisor", "k16_f16_f16"),
    ],
)
def test_an_instruction_takes_the_scales_where_there_is_one(rng, name, instruction):
    write, expected = PRODUCTS[name]
    f = td.compile(write(), target="cuda:sm_120a")
    assert f"mma_m16n8{instruction}(" in f.loops("final")
    check(f, expected, rng)


def large(rows: int, columns: int, terms: int) -> td.Func:
    a, b = array("a", rows, terms), array("b", columns, terms, t=td.f8e5m2)
    sa, sb = array("sa", rows, terms // 32, t=td.u8), array("sb", columns, terms // 64, t=td.u8)
    return sum_of(f32(a[i, k]) * power(sa[i, k // 32]) * f32(b[j, k]) * power(sb[j, k // 64]))


def test_the_text_with_scales_is_right(tmp_path, rng):
    pytest.importorskip("tvm", reason='pip install "tdsl[cuda]"')
    from tests.codegen.cuda import programs
    from tests.codegen.cuda.shim import HAS_COMPILER, run_text

    if not HAS_COMPILER:
        pytest.skip("g++ runs the text")
    f = td.compile(large(64, 32, 128), target="cuda:sm_120a")
    a, b, sa, sb = arrays_of(f, rng)
    s = td.Schedule(large(64, 32, 128), target="cuda:sm_120a")
    plan = td.recipes.block_scaled_matmul(s["c"])
    assert plan.instruction == "mma_m16n8k32_mx_f8e4m3_f8e5m2"
    c = np.zeros((64, 32), F)
    run_text(launches_of(programs.kernel_of(s)), [a, b, sa, sb, c], tmp_path)
    want = (a.astype(F) * powers(sa, 32)) @ (b.astype(F) * powers(sb, 64)).T
    np.testing.assert_allclose(c, want, rtol=0, atol=1e-6 * 128 * abs(want).max())


def test_one_instruction_multiplies_a_block_with_its_scales():
    pytest.importorskip("tvm", reason='pip install "tdsl[cuda]"')
    f = td.compile(large(512, 512, 512), target="cuda:sm_120a")
    (mix,) = instruction_mix(disassemble(f.launch.code))
    assert mix.count("QMMA") >= 8 and mix.count("FFMA") == 0 and f.launch.spills == 0


@pytest.mark.parametrize("arch", ["sm_80", "sm_120a"])
def test_terms_under_a_condition_and_parts_of_blocks_are_added_up_otherwise(rng, arch):
    a, b = array("a", ROWS, 72), array("b", COLUMNS, 72)
    sa, sb = array("sa", ROWS, 3, t=td.u8), array("sb", COLUMNS, 3, t=td.u8)
    every = np.arange(72)
    for r, chosen in (
        (td.range("r", 0, 64, where=lambda r: r % 3 < 2), (every < 64) & (every % 3 < 2)),
        (td.range("r", 0, 72), every >= 0),
    ):
        c = td.Func("c")
        c[i, j] = td.sum(f32(a[i, r]) * power(sa[i, r // 32]) * f32(b[j, r]) * power(sb[j, r // 32]), axis=r)

        def expected(a, b, sa, sb, chosen=chosen):
            return (a * powers(sa, 32)[:, :72] * chosen) @ (b * powers(sb, 32)[:, :72]).T

        f = td.compile(c, target=f"cuda:{arch}")
        assert "mma" not in f.loops("final")
        check(f, expected, rng)


@pytest.mark.parametrize("rows, columns, terms", [(0, 16, 32), (1, 24, 32), (37, 41, 96)])
def test_sizes_are_any(rng, rows, columns, terms):
    f = td.compile(large(rows, columns, terms * 2), target="cuda:sm_80")
    check(f, lambda a, b, sa, sb: (a * powers(sa, 32)) @ (b * powers(sb, 64)).T, rng)
