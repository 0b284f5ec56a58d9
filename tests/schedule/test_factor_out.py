"""Positive factors of maxima, minima and element-wise funcs: not a bit of a result changes."""

import numpy as np
import pytest

import tdsl as td
from tdsl.lang.interp import interpret

i, j = td.vars("i j")
x = td.Tensor("x", (5, 7), td.f32)
TERMS = {
    "product": lambda e: e * 0.3,
    "quotient": lambda e: e / 11.3,
    "both, in their order": lambda e: 3.7 * (e / 11.3) * 1e-30,
    "overflow": lambda e: e * 1e38,
    "masked": lambda e: td.where(j <= i, e * 0.3, -np.inf),
    "masked by zeros": lambda e: td.where(j <= i, 0, e / 3),
}


def values() -> np.ndarray:
    """Floats of all magnitudes, with NaN and infinities in rows of their own."""
    rng = np.random.default_rng(0)
    given = rng.standard_normal((5, 7)) * 10.0 ** rng.integers(-20, 20, (5, 7))
    given[3, 2], given[4, 1:3] = np.nan, (np.inf, -np.inf)
    return given.astype(np.float32)


@pytest.mark.parametrize("reduce", [td.max, td.min])
@pytest.mark.parametrize("name", TERMS)
def test_extremes_of_scaled_terms_are_scaled_extremes(name, reduce):
    f = td.Func("f")
    f[i] = reduce(TERMS[name](x[i, j]), axis=j)
    s = td.Schedule(f)
    before = interpret(s.program, {"x": values()})
    assert s[f].factor_out().func == "f_terms"
    after = interpret(s.state.program, {"x": values()})
    np.testing.assert_array_equal(after[0], before[0])


@pytest.mark.parametrize("name", TERMS)
def test_points_are_scaled_after_they_are_chosen(name):
    f = td.Func("f")
    f[i, j] = TERMS[name](x[i, j])
    s = td.Schedule(f)
    before = interpret(s.program, {"x": values()})
    s[f].factor_out()
    after = interpret(s.state.program, {"x": values()})
    np.testing.assert_array_equal(after[0], before[0])


def test_factors_of_inlined_funcs_count():
    y, f = td.Func("y"), td.Func("f")
    y[i, j] = x[i, j] / 8
    f[i] = td.max(y[i, j], axis=j)
    s = td.Schedule(f)
    s[y].inline()
    s[f].factor_out()
    assert "f_terms[i] = max(x[i, j], axis=j)" in str(s.state.program)


@pytest.mark.parametrize("terms", [lambda e: e * -2, lambda e: e * 0, lambda e: e / np.inf, lambda e: e + 1])
def test_other_factors_stay(terms):
    f = td.Func("f")
    f[i] = td.max(terms(x[i, j]), axis=j)
    s = td.Schedule(f)
    with pytest.raises(td.ScheduleError, match="no positive constant"):
        s[f].factor_out()
    assert not s.directives


@pytest.mark.parametrize("reduce", [td.argmax, td.prod])
def test_places_and_products_are_left_alone(reduce):
    f = td.Func("f")
    f[i] = reduce(x[i, j] * 2, axis=j)
    s = td.Schedule(f)
    with pytest.raises(td.ScheduleError, match="no sum of numbers"):
        s[s.program.funcs[0].name].factor_out()
