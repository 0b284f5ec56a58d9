"""The math functions against a wider type, on every kind of CPU whose code can run here."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

import tdsl as td
from benchmarks import ulp
from tdsl.codegen.cpu import jit
from tdsl.codegen.cpu.vecmath import ULP
from tdsl.lang.types import BY_NAME, f32, f64
from tdsl.machine import cpu as machine

WIDER_THAN_F64 = np.finfo(np.longdouble).nmant > 60
OWN = [n for n in ulp.NAMES if n not in (*ulp.PREDICATES, "fma")]
KINDS = ulp.targets()
INLINE = (
    "exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "tanh", "erf", "sigmoid", "sinh", "cosh",
    "arcsin", "arccos", "arctan", "arctan2", "arcsinh", "arccosh", "arctanh", "hypot", "pow",
)  # fmt: skip


def test_every_function_of_floats_has_a_bound():
    expected = {(fn, t) for fn in (*OWN, "fma") for t in ("f32", "f64")}
    assert set(ULP) == expected


@pytest.mark.parametrize("dtype", ["f32", "f64"])
@pytest.mark.parametrize("fn", OWN)
def test_error_is_within_the_bound(fn, dtype):
    if dtype == "f64" and not WIDER_THAN_F64:
        pytest.skip("no type wider than f64 to compare with")
    t = BY_NAME[dtype]
    count = 1 << 11 if (fn, t) == ("erf", f64) else 1 << 16
    (worst,) = ulp.largest(fn, t, [ulp.Compiled(fn, t)], count)
    assert worst <= ULP[fn, dtype]


@pytest.mark.parametrize("dtype", ["f32", "f64"])
@pytest.mark.parametrize("fn", ["exp", "expm1", "log", "log1p", "sin", "cos", "tan", "pow", "sinh"])
@pytest.mark.parametrize("kind", KINDS)
def test_error_is_within_the_bound_on_every_kind_of_cpu(fn, dtype, kind):
    if dtype == "f64" and not WIDER_THAN_F64:
        pytest.skip("no type wider than f64 to compare with")
    t = BY_NAME[dtype]
    run = ulp.Compiled(fn, t, 4, KINDS[kind])
    (worst,) = ulp.largest(fn, t, [run], 1 << 14)
    assert worst <= ULP[fn, dtype]


@pytest.mark.parametrize("dtype", ["f32", "f64"])
@pytest.mark.parametrize("fn", ["exp", "log", "sin", "cos", "tan", "pow", "erf", "arctan2"])
def test_a_result_does_not_depend_on_the_number_of_lanes(fn, dtype):
    t = BY_NAME[dtype]
    xs = tuple(x[: x.size // 96 * 96] for x in ulp.inputs(fn, t, 1 << 12))
    scalar = ulp.Compiled(fn, t, 1)(*xs)
    for lanes in (3, 4, 6, 8, 12, 32):
        wide = ulp.Compiled(fn, t, lanes)(*xs)
        np.testing.assert_array_equal(wide, scalar)


@pytest.mark.parametrize("dtype", ["f32", "f64"])
def test_predicates(dtype):
    t = BY_NAME[dtype]
    x = ulp.inputs("isnan", t, 1 << 10)[0]
    for fn in ulp.PREDICATES:
        for lanes in (1, 16):
            np.testing.assert_array_equal(ulp.Compiled(fn, t, lanes)(x), getattr(np, fn)(x))


@pytest.mark.parametrize("kind", KINDS)
def test_fma_rounds_once(kind):
    rng = np.random.default_rng(0)
    for t in (f32, f64):
        a, b = (rng.normal(size=64).astype(t.numpy) for _ in range(2))
        c = (-a * b).astype(t.numpy)  # leaves the rounding error of the product
        got = ulp.Compiled("fma", t, 16, KINDS[kind])(a, b, c)
        exact = [
            Fraction(float(p)) * Fraction(float(q)) + Fraction(float(r))
            for p, q, r in zip(a, b, c, strict=True)
        ]
        assert [Fraction(float(g)) for g in got] == exact


@pytest.mark.parametrize("level", ["avx512", "avx2", "sse2", "aarch64"])
def test_code_of_inlined_functions_calls_nothing(level):
    target = machine.level(level)
    for fn in INLINE:
        for t in (f32, f64):
            if (fn, t.name, level) == ("pow", "f64", "sse2"):
                continue  # needs a fused multiply-add
            text = ulp.function_text(fn, t, 4, target)
            declared = [line.partition("@")[2] for line in text.splitlines() if line.startswith("declare")]
            assert all(name.startswith("llvm.") for name in declared), (fn, t)


def test_aarch64_code_is_vectors_without_calls():
    code = jit.assembly(ulp.function_text("exp", f32, 4, machine.level("aarch64")), machine.level("aarch64"))
    assert "fmla" in code
    assert "\tbl\t" not in code


def test_far_arguments_leave_their_neighbours_alone():
    small = np.linspace(-3, 3, 16, dtype=np.float32)
    mixed = small.copy()
    mixed[5] = 1e30
    sin = ulp.Compiled("sin", f32)
    want = sin(small)
    want[5] = np.float32(np.sin(np.float64(np.float32(1e30))))
    np.testing.assert_array_equal(sin(mixed), want)


@pytest.mark.parametrize("power", [0.5, -0.5, 1.5, -1.5])
@pytest.mark.parametrize("t", [td.f32, td.f64], ids=str)
def test_powers_of_halves_are_computed_by_roots(power, t):
    """Within 2 ulp, also where the result is subnormal; special cases as those of C's pow."""
    i, n = td.vars("i"), 4096
    x, y = td.Tensor("x", ("N",), t), td.Func("y")
    y[i] = x[i] ** td.cast(power, t)
    compiled = td.compile(y)
    assert "sqrt" in str(compiled.source("llvm", N=n)) and "tdsl.pow" not in str(compiled.source("llvm", N=n))
    dtype = np.float32 if t == td.f32 else np.float64
    limits = np.finfo(dtype)
    exponents = np.linspace(np.log2(limits.tiny) + 1, np.log2(limits.max) - 1, n - 8)
    special = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, -2.0, 1.0, 4.0])
    values = np.concatenate([special, np.exp2(exponents)]).astype(dtype)
    with np.errstate(all="ignore"):
        expected = np.power(values.astype(np.longdouble), np.longdouble(power)).astype(dtype)
        close = np.abs(compiled(values) - expected) <= 2 * np.spacing(np.abs(expected))
    same = (compiled(values) == expected) | (np.isnan(compiled(values)) & np.isnan(expected))
    assert (close | same).all(), values[~(close | same)]
