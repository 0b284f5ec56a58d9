"""Sums of products whose terms hold other such sums, made in another order."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import tdsl as td
from tdsl.lang.interp import interpret

h, i, j, k, l = td.vars("h i j k l")
SIZES = {"H": 2, "I": 5, "K": 7, "J": 11, "L": 3}


def tensors(t: td.DType) -> tuple[td.Tensor, td.Tensor, td.Tensor]:
    return (
        td.Tensor("p", ("I", "K"), t),
        td.Tensor("q", ("K", "J"), t),
        td.Tensor("r", ("J", "L"), t),
    )


def chain(t: td.DType = td.f32, of: Callable[[td.Value], object] = lambda s: s) -> td.Schedule:
    """(P Q) R with something done to each element of P Q."""
    (p, q, r), s, y = tensors(t), td.Func("s"), td.Func("y")
    s[i, j] = td.sum(p[i, k] * q[k, j], axis=k, dtype=t)
    y[i, l] = td.sum(of(s[i, j]) * r[j, l], axis=j, dtype=t if t.is_integer else None)
    return td.Schedule(y)


def linear_attention() -> td.Schedule:
    """Weights that are products themselves, divided by their sum."""
    q, key = (td.Tensor(n, ("H", "I", "K"), td.f32) for n in ("q", "key"))
    v = td.Tensor("v", ("H", "I", "L"), td.f32)
    score, total, y = td.Func("score"), td.Func("total"), td.Func("y")
    score[h, i, j] = td.sum(td.exp(q[h, i, k]) * td.exp(key[h, j, k]), axis=k) / 8
    total[h, i] = td.sum(score[h, i, j], axis=j)
    y[h, i, l] = td.sum(score[h, i, j] * v[h, j, l], axis=j) / total[h, i]
    return td.Schedule(y)


def scaled_by_rows() -> td.Schedule:
    """Factors that depend on the row or the column of the result, and a second sum inside."""
    (p, q, r), s, y = tensors(td.f64), td.Func("s"), td.Func("y")
    s[i, j] = td.sum(p[i, k] * q[k, j], axis=k) * p[i, 0]
    y[i, l] = td.sum(s[i, j] * (r[j, l] * r[0, l]) / (p[i, 1] * p[i, 1] + 1), axis=j)
    return td.Schedule(y)


def windows() -> td.Schedule:
    """A convolution of a product."""
    (p, q, r), s, y = tensors(td.f64), td.Func("s"), td.Func("y")
    s[i, j] = td.sum(p[i, k] * q[k, j], axis=k)
    y[i, l] = td.sum(s[i, l + h] * r[h, 0], axis=h)
    return td.Schedule(y)


def both_same_names() -> td.Schedule:
    """Two sums over variables of one name, and over two variables each."""
    x, w, s, y = (
        td.Tensor("x", ("I", "K", "K"), td.f64),
        td.Tensor("w", ("K",), td.f64),
        *map(td.Func, "sy"),
    )
    s[i, j] = td.sum(x[i, k, l] * w[k] * x[j, l, k], axis=(k, l))
    y[i] = td.sum(s[i, k] * x[k, l, l], axis=(k, l))
    return td.Schedule(y)


CASES: dict[str, tuple[Callable[[], td.Schedule], list[tuple[str, str]]]] = {
    "plain": (chain, [("y", "s")]),
    "scaled": (lambda: chain(of=lambda s: s * 0.125), [("y", "s")]),
    "divided": (lambda: chain(of=lambda s: -(s / 3)), [("y", "s")]),
    "masked": (lambda: chain(of=lambda s: td.where(j <= i, s, 0)), [("y", "s")]),
    "wider": (lambda: chain(td.f16, of=lambda s: td.cast(s, td.f32)), [("y", "s")]),
    "of the row": (lambda: chain(of=lambda s: td.where(i > 1, s, 0)), [("y", "s")]),
    "attention": (linear_attention, [("total", "score_sum"), ("y_sum", "score_sum")]),
    "by rows": (scaled_by_rows, [("y", "s_sum")]),
    "there and back": (chain, [("y", "s"), ("y", "y_factor")]),
    "windows": (windows, [("y", "s")]),
    "one name": (both_same_names, [("y", "s")]),
}  # fmt: skip


def given_for(
    program: td.lang.program.Program, sizes: dict[str, int], seed: int = 0
) -> dict[str, np.ndarray]:
    rng, inputs = np.random.default_rng(seed), {}
    for t in program.inputs:
        shape = [sizes[n.name] for n in t.shape]
        if t.dtype.is_integer:
            inputs[t.name] = rng.integers(t.dtype.low, t.dtype.high, shape, dtype=t.dtype.numpy)
        else:
            inputs[t.name] = rng.standard_normal(shape).astype(t.dtype.numpy)
    return inputs


@pytest.mark.parametrize("name", CASES)
def test_sums_in_another_order_mean_the_same(name: str) -> None:
    make, steps = CASES[name]
    s = make()
    for func, source in steps:
        s[func].reassociate(source)
    given = given_for(s.program, SIZES)
    (want,), (meant,) = (interpret(p, given) for p in (s.program, s.state.program))
    close = 5e-2 if name == "wider" else 2e-5
    np.testing.assert_allclose(meant, want, close, close)
    if name in ("scaled", "attention", "windows"):
        np.testing.assert_allclose(td.compile(s)(**given), want, close, close)
    again = make().replay(s.to_json())
    assert str(again) == str(s)
    assert again.state.program == s.state.program


@pytest.mark.parametrize("t", [td.i8, td.u16, td.i32, td.i64])
def test_integers_wrap_to_the_same(t: td.DType) -> None:
    s = chain(t, of=lambda x: td.where(j != 4, x * 3, 0))
    s["y"].reassociate("s")
    given = given_for(s.program, SIZES)
    (want,) = interpret(s.program, given)
    np.testing.assert_array_equal(interpret(s.state.program, given)[0], want, strict=True)
    if t == td.i32:
        np.testing.assert_array_equal(td.compile(s)(**given), want, strict=True)
    assert np.unique(want).size > 4


@pytest.mark.parametrize("empty", SIZES)
@pytest.mark.parametrize("extent", [0, 1])
def test_extents_of_0_and_1(empty: str, extent: int) -> None:
    s = chain(td.i32)
    s["y"].reassociate("s")
    given = given_for(s.program, {**SIZES, empty: extent})
    np.testing.assert_array_equal(td.compile(s)(**given), interpret(s.program, given)[0], strict=True)


def test_the_inner_sum_has_only_the_variables_of_its_factors() -> None:
    s = linear_attention()
    factor = s["y_sum"].reassociate("score_sum")
    s["total"].reassociate("score_sum", name="keys")
    funcs = {f.name: f for f in s.state.program.funcs}
    names = "keys_sum", "keys", "total", "y_sum_factor_sum", "y_sum_factor", "y_sum", "y"
    assert sorted(funcs) == sorted(names)
    assert factor.func == "y_sum_factor_sum"
    assert funcs[factor.func].variables == ("h", "k", "l")
    assert funcs["keys"].variables == ("h", "k")
    assert [n for n, _, _ in funcs["total"].definitions[0].ranges] == ["k"]


def test_a_sum_that_others_read_stays() -> None:
    (p, q, r), s, y, z = tensors(td.f64), *map(td.Func, "syz")
    s[i, j] = td.sum(p[i, k] * q[k, j], axis=k)
    y[i, l] = td.sum(s[i, j] * r[j, l], axis=j)
    z[i, j] = s[i, j] * s[i, j]
    schedule = td.Schedule(y, z)
    schedule["y"].reassociate("s")
    given = given_for(schedule.program, SIZES)
    assert schedule.state.program.has_func("s")
    for result, want in zip(td.compile(schedule)(**given), interpret(schedule.program, given), strict=True):
        np.testing.assert_allclose(result, want)


def test_data_dependent_rows_are_summed_first() -> None:
    """Rows of a sparse matrix times a product: the ranges of the sum outside may depend on its row."""
    x, w = td.Tensor("x", ("J", "K"), td.f64), td.Tensor("w", ("K", "L"), td.f64)
    start, at = td.Tensor("start", ("S",), td.i64), td.Tensor("at", ("Z",), td.i64)
    s, y = td.Func("s"), td.Func("y", shape=(start.shape[0] - 1, w.shape[1]))
    n = td.range("n", td.clip(start[i], 0, at.shape[0]), td.clip(start[i + 1], 0, at.shape[0]))
    s[j, l] = td.sum(x[j, k] * w[k, l], axis=k)
    y[i, l] = td.sum(s[td.clip(at[n], 0, x.shape[0] - 1), l], axis=n)
    schedule = td.Schedule(y)
    schedule["y"].reassociate("s")
    rng = np.random.default_rng(0)
    given = {
        "x": rng.standard_normal((6, 5)), "w": rng.standard_normal((5, 3)),
        "start": np.array([0, 2, 2, 7]), "at": np.array([5, 0, 3, 3, 1, 2, 4]),
    }  # fmt: skip
    np.testing.assert_allclose(td.compile(schedule)(**given), interpret(schedule.program, given)[0])
    assert schedule.state.program.func("y_factor").variables == ("i", "k")


@pytest.mark.parametrize(
    "of",
    [lambda s: s + 1, lambda s: s * s, td.exp, lambda s: 1 / s, lambda s: td.where(s > 0, s, 0)],
)
def test_terms_that_are_not_linear_are_refused(of: Callable[[td.Value], object]) -> None:
    stage = chain(of=of)["y"]
    with pytest.raises(td.ScheduleError, match="no products with 's' as one factor"):
        stage.reassociate("s")


def test_integers_that_wrapped_before_they_were_widened_are_refused() -> None:
    (p, q, r), s, y = tensors(td.i16), td.Func("s"), td.Func("y")
    s[i, j] = td.sum(p[i, k] * q[k, j], axis=k, dtype=td.i16)
    y[i, l] = td.sum(td.cast(s[i, j], td.i32) * td.cast(r[j, l], td.i32), axis=j, dtype=td.i32)
    with pytest.raises(td.ScheduleError, match="no products with 's'"):
        td.Schedule(y)["y"].reassociate("s")


def test_the_sign_of_an_unsigned_factor_wraps() -> None:
    a, f = td.Tensor("a", (5,), td.u8), td.Func("f", shape=3)
    f[i] = td.sum(a[k] * -td.sum(a[l], axis=l, dtype=td.u8), axis=k, dtype=td.u8)
    s = td.Schedule(f)
    s[f].reassociate("f_sum")
    x = np.uint8([250, 3, 7, 255, 1])
    (want,) = interpret(td.Schedule(f).program, {"a": x})
    np.testing.assert_array_equal(td.compile(s)(x), want)
