"""Copies of what a body computes of single elements."""

import numpy as np
import pytest

import tdsl as td
from tdsl.errors import ScheduleError

i, j, k = td.vars("i j k")


def product_of_maxima():
    a, w = td.Tensor("a", ("M", "K"), td.f32), td.Tensor("w", ("K", "N"), td.f32)
    out = td.Func("out")
    out[i, j] = td.sum(td.maximum(a[i, k], 0) * w[k, j], axis=k)
    return out


@pytest.mark.parametrize("at", [None, "i"])
@pytest.mark.parametrize("pack", [None, {1: 4}])
def test_a_copy_stores_the_expression_of_an_element(rng, at, pack):
    a, w = (rng.integers(-4, 5, n).astype(np.float32) for n in ((5, 7), (7, 6)))
    s = td.Schedule(product_of_maxima())
    s.cache_read("a", "out", at, pack=pack, mapped=True)
    compiled = td.compile(s)
    np.testing.assert_array_equal(compiled(a, w), np.maximum(a, 0) @ w)
    assert str(compiled.loops()).count("max(a[") == 1
    again = td.Schedule(product_of_maxima()).replay(s.to_json())
    assert str(again) == str(s)
    assert "mapped=True" in str(s)


def test_an_element_that_is_read_several_times_is_one(rng):
    a, w, out = td.Tensor("a", (9,), td.f32), td.Tensor("w", (9, 4), td.f32), td.Func("out")
    leak = td.Scalar("leak", td.f32)
    out[j] = td.sum(td.where(a[i] > 0, a[i], leak * a[i]) * w[i, j], axis=i)
    s = td.Schedule(out)
    s.cache_read("a", "out", mapped=True)
    run = td.compile(s)
    x, y = (rng.integers(-4, 5, n).astype(np.float32) for n in ((9,), (9, 4)))
    np.testing.assert_array_equal(run(a=x, w=y, leak=0.5), np.where(x > 0, x, x / 2) @ y)
    assert "leak" in str(run.loops()).partition("out[")[0]


def test_two_functions_of_an_element_are_refused():
    a, b, out = td.Tensor("a", (9,), td.f32), td.Tensor("b", (9,), td.f32), td.Func("out")
    out[i] = (a[i] + 1) * b[i] - (a[i] + 2) / b[i]
    with pytest.raises(ScheduleError, match="does not read one function of an element of 'a'"):
        td.Schedule(out).cache_read("a", "out", mapped=True)
    with pytest.raises(ScheduleError, match="a copy is padded, mapped, filled or gathered"):
        td.Schedule(out).cache_read("a", "out", mapped=True, padded=True)
