"""Floats of 8 and 16 bits mean on every target what NumPy makes of them with ml_dtypes."""

import numpy as np
import pytest

import tdsl as td
from tdsl.autoschedule.explain import explain
from tdsl.core.node import post_order
from tdsl.lang import arithmetic
from tdsl.lang.build_program import build_program
from tdsl.lang.interp import interpret
from tdsl.lang.types import ALL
from tdsl.pipeline import completed_with_decisions

i, j, k = td.vars("i j k")
NARROW = [t for t in ALL if t.is_narrow]
BYTES = [t for t in ALL if t.is_float and t.bits == 8]
TARGETS = {
    "cpu": td.compile,
    "python": lambda s: td.compile(s, target="python"),
    "emulated": lambda s: td.emulate(td.compile(s, target="cuda")),
}


@pytest.fixture(params=TARGETS)
def compiled(request):
    """A function that compiles funcs for a target; on a GPU one thread makes each element."""
    if request.param == "emulated":

        def compile_threads(*funcs):
            s = td.Schedule(*funcs)
            for f in funcs:
                block, thread = s[f].split(i, 128)
                s[f].bind(block, "blockIdx.x").bind(thread, "threadIdx.x")
            return TARGETS[request.param](s)

        return compile_threads
    return lambda *funcs: TARGETS[request.param](td.Schedule(*funcs))


def all_of(t):
    return np.arange(256, dtype=np.uint8).view(t.numpy)


def boundary_values(t):
    """All numbers of a type in f32, the ties between neighbours, what is beside each, and special ones."""
    with np.errstate(all="ignore"):
        numbers = all_of(t).astype(np.float32)
        numbers = np.sort(np.r_[numbers[np.isfinite(numbers)], 2 * t.largest, -2 * t.largest])
        midpoints = np.r_[numbers, (numbers[1:] + numbers[:-1]) / 2].astype(np.float32)
        values = [
            midpoints,
            np.nextafter(midpoints, np.float32(0)),
            np.nextafter(midpoints, 2 * midpoints),
        ]
    return np.concatenate([*values, np.float32([np.inf, -np.inf, np.nan, -0.0, 1e-45, 3e38])])


def assert_same(result, want):
    assert result.dtype == want.dtype
    np.testing.assert_array_equal(result.astype(np.float64), want.astype(np.float64))


@pytest.mark.parametrize("t", BYTES, ids=str)
def test_every_8_bit_value_converts_to_its_number(t, compiled):
    x, y = td.Tensor("x", ("N",), t), all_of(t)
    funcs = {to: td.Func(f"as_{to}") for to in ALL}
    for to, f in funcs.items():
        f[i] = td.cast(x[i], to)
    for (to, _), result in zip(funcs.items(), compiled(*funcs.values())(y), strict=True):
        with np.errstate(all="ignore"):
            wide = y.astype(np.float32)
            assert_same(result, wide.astype(to.numpy) if to.is_float else arithmetic.cast(wide, to))


@pytest.mark.parametrize("t", BYTES, ids=str)
def test_casts_to_8_bits_round_to_nearest_even_and_overflow(t, compiled):
    x, names = td.Tensor("x", ("N",), td.f32), ("near", "by_f64", "finite")
    nearest, by_f64, finite = map(td.Func, names)
    nearest[i] = td.cast(x[i], t)
    by_f64[i] = td.cast(td.cast(x[i], td.f64), t)
    finite[i] = td.saturating_cast(x[i], t)
    values = boundary_values(t)
    with np.errstate(all="ignore"):
        want = values.astype(t.numpy)
        clipped = np.clip(values, -t.largest, t.largest).astype(t.numpy)
    for result, expected in zip(
        compiled(nearest, by_f64, finite)(values), (want, want, clipped), strict=True
    ):
        assert_same(result, expected)


@pytest.mark.parametrize("t", NARROW, ids=str)
def test_integers_become_narrow_floats_by_way_of_f32(t, compiled):
    n, plain, clipped, small = td.Tensor("n", ("N",), td.i32), *map(td.Func, ("p", "c", "s"))
    plain[i] = td.cast(n[i], t)
    clipped[i] = td.saturating_cast(n[i], t)
    small[i] = td.saturating_cast(td.cast(n[i], td.u8), t)
    values = np.int32([0, 1, -1, 7, 9, 17, 26, 255, 256, 448, 464, 465, 70000, -(2**31), 2**31 - 1])
    result = compiled(plain, clipped, small)(values)
    with np.errstate(all="ignore"):
        assert_same(result[0], values.astype(np.float32).astype(t.numpy))
        most = int(min(t.largest, 2**31 - 1))
        assert_same(result[1], np.clip(values, -most, most).astype(np.float32).astype(t.numpy))
        assert_same(result[2], values.astype(np.uint8).astype(np.float32).astype(t.numpy))


OPERATORS = {
    "sum": lambda x, y: x + y,
    "product": lambda x, y: x * y,
    "less": lambda x, y: td.where(x < y, x, y * 2),
    "extremes": lambda x, y: td.minimum(x, 1.5) - td.maximum(y, x),
    "signs": lambda x, y: -x + abs(y),
    "roots": lambda x, y: td.sqrt(abs(x)),
}


@pytest.mark.parametrize("t", BYTES, ids=str)
def test_operators_round_after_each(t, compiled):
    x, y = td.Tensor("x", ("N",), t), td.Tensor("y", ("N",), t)
    funcs = [td.Func(name) for name in OPERATORS]
    for f, expression in zip(funcs, OPERATORS.values(), strict=True):
        f[i] = expression(x[i], y[i])
        assert f.dtypes[0] == t
    left, right = all_of(t), np.random.default_rng(0).permutation(all_of(t))
    with np.errstate(all="ignore"):
        a, b = left.astype(np.float32), right.astype(np.float32)
        r = lambda value: value.astype(t.numpy).astype(np.float32)
        want = {
            "sum": a + b,
            "product": a * b,
            "less": np.where(a < b, a, r(b * 2)),
            "extremes": np.minimum(a, np.float32(1.5)) - np.maximum(b, a),
            "signs": -a + abs(b),
            "roots": np.sqrt(abs(a)),
        }
        for name, result in zip(OPERATORS, compiled(*funcs)(left, right), strict=True):
            assert_same(result, want[name].astype(t.numpy))


@pytest.mark.parametrize("t", BYTES, ids=str)
def test_reductions_of_8_bits(t, compiled):
    x, funcs = (
        td.Tensor("x", ("N", "K"), t),
        [td.Func(n) for n in ("least", "most", "total", "first")],
    )
    least, most, total, first = funcs
    least[i] = td.min(x[i, k], axis=k)
    most[i] = td.max(x[i, k], axis=k)
    total[i] = td.sum(td.cast(x[i, k], td.f32), axis=k)
    first[i] = td.argmax(x[i, k], axis=k)
    values = np.random.default_rng(1).integers(-8, 9, (3, 5)).astype(t.numpy)
    values[1] = -t.largest
    result, wide = compiled(*funcs)(values), values.astype(np.float32)
    assert_same(result[0], wide.min(1).astype(t.numpy))
    assert_same(result[1], wide.max(1).astype(t.numpy))
    assert_same(result[2], wide.sum(1))
    assert_same(result[3], wide.argmax(1))


@pytest.mark.parametrize("t", BYTES, ids=str)
def test_scalars_and_literals_of_8_bits(t, compiled):
    s, x, f = td.Scalar("s", t), td.Tensor("x", ("N",), t), td.Func("f")
    f[i] = td.where(x[i] == s, np.ones((), t.numpy)[()], s + 0.5)
    result = compiled(f)(x=np.arange(5).astype(t.numpy), s=3)
    assert_same(result, np.array([3.5, 3.5, 3.5, 1, 3.5]).astype(t.numpy))
    with pytest.raises(td.TypeMismatch, match="does not fit"):
        compiled(f)(x=np.arange(5).astype(t.numpy), s=1e6)


@pytest.mark.parametrize("t", NARROW, ids=str)
@pytest.mark.parametrize("target", TARGETS)
def test_sums_and_means_are_accumulated_in_f32_and_rounded_once(t, target):
    x, total, mean = td.Tensor("x", (50_000,), t), td.Func("total"), td.Func("mean")
    total[()] = td.sum(x[i], axis=i)
    mean[()] = td.mean(x[i], axis=i)
    assert total.dtype == mean.dtype == t
    result = TARGETS[target](td.Schedule(total, mean))(np.full(50_000, 0.5, t.numpy))
    with np.errstate(all="ignore"):
        want = np.float32(25_000).astype(t.numpy)
    np.testing.assert_array_equal(np.float32(result[0]), np.float32(want))
    assert float(result[1]) == 0.5


@pytest.mark.parametrize("t", NARROW, ids=str)
def test_factors_in_a_sum_are_not_rounded_and_the_product_of_many_is_rounded_once(t, compiled):
    x, w, (dots, prods) = (
        td.Tensor("x", ("N", 40), t),
        td.Tensor("w", ("N", 40), t),
        map(td.Func, "dp"),
    )
    dots[i] = td.sum(x[i, k] * w[i, k] * x[i, k], axis=k)
    prods[i] = td.prod(x[i, k], axis=k)
    rng = np.random.default_rng(0)
    a, b = ((1 + rng.integers(-1, 2, (3, 40)) / 4).astype(t.numpy) for _ in range(2))
    program = build_program((dots, prods))
    exact, wide = interpret(program, {"x": a, "w": b}), a.astype(np.float32)
    assert_same(exact[0], (wide * b.astype(np.float32) * wide).sum(1).astype(t.numpy))
    assert_same(exact[1], wide.prod(1, dtype=np.float64).astype(np.float32).astype(t.numpy))
    for result, want in zip(compiled(dots, prods)(a, b), exact, strict=True):
        np.testing.assert_allclose(result.astype(np.float64), want.astype(np.float64), rtol=2.0**-t.fraction)


def test_the_dtype_of_a_sum_is_that_of_its_accumulator():
    x, sums = td.Tensor("x", ("N",), td.bf16), [td.Func(n) for n in ("own", "wide", "narrow")]
    for f, t in zip(sums, (td.bf16, td.f32, td.f16), strict=True):
        f[()] = td.sum(x[i] * x[i], axis=i, dtype=t)
        assert f.dtype == t
    values = np.full(600, 1 + 2**-7, td.bf16.numpy)
    program = build_program(tuple(sums))
    in_bf16, wide, narrow = interpret(program, {"x": values})
    assert float(in_bf16) == 512  # where a term is a quarter of the last place
    np.testing.assert_allclose(wide, 600 * np.float32(1 + 2**-7) ** 2, rtol=1e-6)
    assert narrow.dtype == np.float16


def test_updates_of_a_narrow_func_round_each_time():
    x, f = td.Tensor("x", (600,), td.bf16), td.Func("f")
    r = td.range("r", 0, 600)
    f[()] = td.cast(0, td.bf16)
    f[()] += x[r]
    values = np.ones(600, td.bf16.numpy)
    assert float(interpret(build_program((f,)), {"x": values})[0]) == 256
    assert float(td.compile(f, target="python")(values)) == 256


@pytest.mark.parametrize("t", [td.bf16, td.f16], ids=str)
def test_a_mean_over_a_masked_range_is_accumulated_in_f32(t):
    x, f = td.Tensor("x", (3, 5000), t), td.Func("f")
    r = td.range("r", 0, 5000, where=lambda r: r % 2 == 0)
    f[i] = td.mean(x[i, r], axis=r)
    values = np.full((3, 5000), 0.5, t.numpy)
    for target in ("cpu", "python"):
        assert (td.compile(f, target=target)(values).astype(np.float32) == 0.5).all()


@pytest.mark.parametrize("t", [td.bf16, td.f16], ids=str)
def test_a_product_without_casts_is_the_program_with_casts(t):
    a, b = td.Tensor("a", (64, 64), t), td.Tensor("b", (64, 64), t)
    plain, casts, by_letters = td.Func("c"), td.Func("c"), td.einsum("ik,kj->ij", a, b, name="c")
    plain[i, j] = td.sum(a[i, k] * b[k, j], axis=k)
    wide = td.sum(td.cast(a[i, k], td.f32) * td.cast(b[k, j], td.f32), axis=k)
    casts[i, j] = td.cast(wide, t)
    assert build_program((plain,)) == build_program((casts,)) == build_program((by_letters,))


def test_a_product_of_narrow_matrices_runs_on_matrix_instructions():
    a, b, c = td.Tensor("a", (64, 64), td.f16), td.Tensor("b", (64, 64), td.f16), td.Func("c")
    c[i, j] = td.sum(a[i, k] * b[k, j], axis=k)
    assert "tensor cores" in decisions_on("cuda", c)
    a, b, c = td.Tensor("a", (256, 512), td.bf16), td.Tensor("b", (512, 256), td.bf16), td.Func("c")
    c[i, j] = td.sum(a[i, k] * b[k, j], axis=k)
    assert "terms summed by tile_bf16" in decisions_on("cpu:amx", c)


def decisions_on(target, f):
    compiled = td.compile(f, target=target)
    state, decisions = completed_with_decisions(compiled.variant(compiled.specialisation({})))
    return explain(decisions, state)


def test_sharing_factors_of_a_sum_costs_nothing():
    e = td.Tensor("x", (8,), td.f16)[i]
    for _ in range(60):
        e = e * e
    assert len(list(post_order(td.sum(e, axis=i).node))) < 100
