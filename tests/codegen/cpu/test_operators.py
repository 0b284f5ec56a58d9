"""Operators on every element type and number of lanes compute what `lang.arithmetic` says."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tdsl.lang import arithmetic
from tdsl.lang.expr import Binary, Call, Cast, Const, Select, Unary
from tdsl.lang.types import ALL, DType, bf16, bool_, f16, f32, f64, i8, i16, i32, i64, u8, u32, u64
from tdsl.machine.cpu import host, level
from tests.codegen.cpu.running import pointwise, wide

Array = np.ndarray[Any, Any]
LANES = (1, 4, 16)
NUMBERS = tuple(t for t in ALL if t != bool_)
FLOATS = tuple(t for t in ALL if t.is_float)
NARROW = tuple(t for t in ALL if t.is_narrow)
X86 = pytest.mark.skipif(host().architecture != "x86_64", reason="runs code for x86")


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    with np.errstate(all="ignore"):  # edge values overflow
        yield


_COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge")
_INTEGER = (
    "add", "sub", "mul", "floordiv", "mod", "pow", "min", "max", "and", "or", "xor", "shl", "shr",
)  # fmt: skip
_FLOAT = ("add", "sub", "mul", "div", "floordiv", "mod", "min", "max")


@functools.cache
def edges(t: DType) -> Array:
    """Values at which operators differ, and ordinary ones."""
    if t == bool_:
        return np.array([False, True, True, False] * 4)
    rng = np.random.default_rng(1)
    if t.is_float:
        info = _info(t)
        special = [0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 1.5, 2.5, -2.5, 3.0, np.inf, -np.inf, np.nan]
        special += [info["tiny"], info["max"], -info["max"], info["tiny"] / 4, 127.5, 255.5, -128.5]
        special += [65503.0, 65520.0, 2.0**31, 2.0**32, -(2.0**31), 2.0**63, 2.0**64, -(2.0**63)]
        values = np.concatenate([special, rng.normal(size=16) * 10.0 ** rng.integers(-3, 4, 16)])
        with np.errstate(all="ignore"):
            return values.astype(t.numpy)
    least, most = int(t.low), int(t.high)
    special = [0, 1, 2, 3, 7, 8, 9, 31, 32, 63, 64, most, most - 1, least, least + 1, most // 2]
    special += [-1, -2, -3, -7, -8] if t.kind == "i" else [most // 3, 16, 5, 6, 10]
    drawn = rng.integers(least, most, 16, dtype=t.numpy, endpoint=True)
    return np.concatenate([np.array(special, t.numpy), drawn])


def _info(t: DType) -> dict[str, float]:
    info = ml_dtypes.finfo(t.numpy)
    return {"tiny": float(info.tiny), "max": float(info.max)}


def pairs(t: DType) -> tuple[Array, Array]:
    """Every pair of edge values, a multiple of 16 of them."""
    grid = np.array(list(itertools.product(range(edges(t).size), repeat=2)))
    grid = grid[: grid.shape[0] // 16 * 16]
    return edges(t)[grid[:, 0]], edges(t)[grid[:, 1]]


def same(got: Array, expected: Array, what: str) -> None:
    """Equal bits, but for the sign of zeros and the bits of NaN."""
    assert got.dtype == expected.dtype, what
    with np.errstate(all="ignore"):
        equal = (got == expected) | ((got != got) & (expected != expected))
    assert equal.all(), f"{what}: {np.flatnonzero(~equal)[:5]}"


def binary_on(op: str) -> Any:
    return lambda x, y: Binary(op, x, y)


@pytest.mark.parametrize("lanes", LANES)
@pytest.mark.parametrize("t", ALL, ids=repr)
def test_binary_operators(t: DType, lanes: int) -> None:
    names = ("and", "or", "xor") if t == bool_ else _FLOAT if t.is_float else _INTEGER
    x, y = pairs(t)
    got = pointwise([x, y], [binary_on(op) for op in (*names, *_COMPARISONS)], lanes)
    for op, result in zip((*names, *_COMPARISONS), got, strict=True):
        same(result, arithmetic.binary(op, x, y), f"{op} of {t}")


@pytest.mark.parametrize("t", [t for t in ALL if t.is_integer], ids=repr)
def test_a_constant_on_the_right(t: DType) -> None:
    x = np.resize(edges(t), 48)
    numbers = [0, 1, 2, 3, 7, 8, 10, 64, 100, int(t.high)]
    numbers += [-1, -2, -7, -8, int(t.low)] if t.kind == "i" else []
    for lanes in (1, 16):
        cases = [
            (op, c)
            for op in ("floordiv", "mod", "shl", "shr", "mul", "pow")
            for c in numbers
            if op != "pow" or 0 <= c < 64
        ]
        values = [lambda e, op=op, c=c, n=lanes: Binary(op, e, wide(Const(c, t), n)) for op, c in cases]
        for (op, c), result in zip(cases, pointwise([x], values, lanes), strict=True):
            expected = arithmetic.binary(op, x, np.full_like(x, c))
            same(result, expected, f"{op} by {c} of {t}")


@pytest.mark.parametrize("lanes", LANES)
def test_unary_operators_and_functions(lanes: int) -> None:
    for t in ALL:
        x = np.resize(edges(t), 48)
        cases = ["not"] if t == bool_ else ["neg", "abs"] + ["not"] * t.is_integer
        values: list[Any] = [lambda e, op=op: Unary(op, e) for op in cases]
        calls = [("popcount", t), ("clz", t), ("ctz", i32)] if t.is_integer else []
        if t.is_float:
            functions = ("sqrt", "rsqrt", "floor", "ceil", "trunc", "round")
            calls = [(fn, t) for fn in functions]
            calls += [(fn, bool_) for fn in ("isnan", "isinf", "isfinite")]
        values += [lambda e, fn=fn, r=r: Call(fn, (e,), r) for fn, r in calls]
        results = pointwise([x], values, lanes)
        for op, result in zip(cases, results, strict=False):
            same(result, arithmetic.unary(op, x), f"{op} of {t}")
        for (fn, r), result in zip(calls, results[len(cases) :], strict=True):
            same(result, arithmetic.call(fn, (x,), r), f"{fn} of {t}")


@pytest.mark.parametrize("lanes", LANES)
@pytest.mark.parametrize("t", FLOATS, ids=repr)
def test_functions_of_several_floats(t: DType, lanes: int) -> None:
    x, y = pairs(t)
    z = np.resize(edges(t), x.size)
    got = pointwise(
        [x, y, z],
        [
            lambda x, y, z: Call("copysign", (x, y), t),
            lambda x, y, z: Select(Binary("lt", x, y), z, Unary("neg", x)),
        ],
        lanes,
    )
    same(got[0], arithmetic.call("copysign", (x, y), t), "copysign")
    same(got[1], np.where(arithmetic.binary("lt", x, y), z, -x), "select")


@pytest.mark.parametrize("lanes", LANES)
@pytest.mark.parametrize("t", ALL, ids=repr)
def test_casts(t: DType, lanes: int) -> None:
    x = np.resize(edges(t), 64)
    check_casts(x, t, lanes)


def check_casts(x: Array, t: DType, lanes: int, **options: Any) -> None:
    cases = [(to, saturate) for to in ALL if to != t for saturate in (False, True)]
    values = [lambda e, to=to, s=saturate: Cast(e, to, s) for to, saturate in cases]
    for (to, saturate), result in zip(cases, pointwise([x], values, lanes, **options), strict=True):
        expected = arithmetic.cast(x, to, saturate)
        same(result, expected, f"{t} to {to}{' clipped' * saturate}")


@X86
@pytest.mark.parametrize("name", ["sse2", "avx2", "avx512"])
def test_narrow_floats_without_their_instructions(name: str) -> None:
    for t in NARROW:
        x = np.arange(1 << t.bits, dtype=f"u{t.bytes}").view(t.numpy)
        (got,) = pointwise([x], [lambda e: Cast(e, f32)], 16, target=level(name))
        same(got, x.astype(np.float32), f"{t} to f32")
    bits = np.random.default_rng(0).integers(0, 1 << 32, 1 << 14, dtype=np.uint32)
    for t in NARROW:
        x = np.concatenate([bits.view(np.float32), ties(t)])
        (got,) = pointwise([x], [lambda e, t=t: Cast(e, t)], 16, target=level(name))
        with np.errstate(all="ignore"):
            same(got, x.astype(t.numpy), f"f32 to {t}")


def ties(t: DType) -> Array:
    """The f32 between the neighbours of a narrow type, and those next to them."""
    numbers = np.arange(1 << t.bits, dtype=f"u{t.bytes}").view(t.numpy).astype(np.float64)
    numbers = np.sort(np.r_[numbers[np.isfinite(numbers)], 2 * t.largest, -2 * t.largest])
    middle = ((numbers[1:] + numbers[:-1]) / 2).astype(np.float32)
    around = (middle, np.nextafter(middle, np.float32(0)), np.nextafter(middle, 2 * middle))
    values: Array = np.resize(np.concatenate(around), -(-3 * middle.size // 16) * 16)
    return values


def test_f64_to_f16_rounds_once() -> None:
    base = np.arange(1 << 16, dtype=np.uint16).view(np.float16).astype(np.float64)
    with np.errstate(all="ignore"):
        x = np.concatenate(
            [base * (1 + s * 2.0**-11 * (1 + d * 2.0**-30)) for s in (0, 1, 3) for d in (-1, 0, 1)]
        )
        (got,) = pointwise([x], [lambda e: Cast(e, f16)], 16)
        same(got, x.astype(np.float16), "f64 to f16")


@pytest.mark.parametrize("lanes", LANES)
def test_random_is_the_stated_hash(lanes: int) -> None:
    key = np.arange(-24, 24, dtype=np.int64)
    for t in (f32, f64):
        (got,) = pointwise(
            [key],
            [lambda e, t=t, n=lanes: Call("random", (wide(Const(7, i64), n), e, e), t)],
            lanes,
        )
        expected = arithmetic.call("random", (np.full_like(key, 7), key, key), t)
        same(got, expected, f"random {t}")


def test_reinterpret_keeps_bits() -> None:
    for t, to in ((f32, u32), (i64, f64), (bf16, i16), (u64, i64), (i8, u8), (bool_, u8)):
        x = np.resize(edges(t), 32)
        (got,) = pointwise([x], [lambda e, to=to: Call("reinterpret", (e,), to)], 16)
        assert got.tobytes() == x.tobytes()


def test_a_scalar_condition_chooses_a_vector() -> None:
    x = np.arange(16, dtype=np.float32)
    yes = wide(Binary("lt", Const(1, i32), Const(2, i32)), 16)
    (got,) = pointwise([x], [lambda e: Select(yes, e, Unary("neg", e))], 16)
    assert (got == x).all()
