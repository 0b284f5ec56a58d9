"""Dimensions are merged where every func treats them as one, and results are those of the program."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import tdsl as td
from tdsl.autoschedule.merge_dimensions import merge_dimensions
from tdsl.lang.interp import interpret
from tdsl.machine.devices import reference_cpu

i, j, k, l = td.vars("i j k l")
SHAPE = (6, 5, 4, 3)
Program = Callable[[td.Tensor], td.Func]


def shifted(x: td.Tensor) -> td.Func:
    y = td.Func("y")
    y[i, j, k, l] = x[i, j, k, l] + 1
    return y


def chain(x: td.Tensor) -> td.Func:
    t, y = td.Func("t"), td.Func("y")
    t[i, j, k, l] = td.exp(x[i, j, k, l])
    y[i, j, k, l] = t[i, j, k, l] / (1 + t[i, j, k, l])
    return y


def total(x: td.Tensor) -> td.Func:
    y = td.Func("y")
    y[()] = td.sum(x[i, j, k, l], axis=(l, k, j, i))
    return y


def inner_sums(x: td.Tensor) -> td.Func:
    y = td.Func("y")
    y[i, j] = td.sum(x[i, j, k, l], axis=(k, l))
    return y


def middle_sums(x: td.Tensor) -> td.Func:
    y = td.Func("y")
    y[j] = td.sum(x[i, j, k, l], axis=(i, k, l))
    return y


def bias(x: td.Tensor) -> td.Func:
    b, y = td.Tensor("b", (5,), td.f32), td.Func("y")
    y[i, j, k, l] = x[i, j, k, l] + b[j]
    return y


def normalized(x: td.Tensor) -> td.Func:
    t, y = td.Func("t"), td.Func("y")
    t[i, j, k] = td.sum(x[i, j, k, l], axis=l)
    y[i, j, k, l] = x[i, j, k, l] / t[i, j, k]
    return y


def masked(x: td.Tensor) -> td.Func:
    y = td.Func("y")
    y[i, j, k, l] = td.where(l < 2, x[i, j, k, l], 0)
    return y


def neighbours(x: td.Tensor) -> td.Func:
    y = td.Func("y", shape=(6, 5, 3, 3))
    y[i, j, k, l] = x[i, j, k, l] + x[i, j, k + 1, l]
    return y


def transposed(x: td.Tensor) -> td.Func:
    y = td.Func("y")
    y[i, j, l, k] = x[i, j, k, l]
    return y


def diagonal(x: td.Tensor) -> td.Func:
    d, y = td.Tensor("d", (3, 3), td.f32), td.Func("y")
    y[i, j, k, l] = x[i, j, k, l] + d[l, l]
    return y


@pytest.mark.parametrize(
    "program, merged",
    [
        (shifted, {"y[i_j_k_l]"}), (chain, {"t[i_j_k_l]", "y[i_j_k_l]"}), (total, {"y[()]"}),
        (inner_sums, {"y[i_j]"}), (middle_sums, {"y[j]"}), (bias, {"y[i, j, k_l]"}),
    ],
)  # fmt: skip
def test_dimensions_are_merged_that_all_reads_treat_as_one(program, merged):
    s = merge_dimensions(td.Schedule(program(td.Tensor("x", SHAPE, td.f32))).state, reference_cpu(32))
    definitions = [line.strip() for line in str(s.state.program).splitlines() if " = " in line]
    assert {line.partition(" = ")[0] for line in definitions} == merged
    assert not any("k, l]" in line for line in definitions)


@pytest.mark.parametrize("program", [masked, neighbours, transposed, diagonal])
def test_rows_stay_whose_variable_is_used_alone(program):
    x = td.Tensor("x", SHAPE, td.f32)
    assert merge_dimensions(td.Schedule(program(x)).state, reference_cpu(32)) is None


@pytest.mark.parametrize(
    "program",
    [shifted, chain, total, inner_sums, middle_sums, bias, normalized, masked, neighbours, diagonal],
)
def test_merged_dimensions_give_the_same_results_for_arrays_in_any_layout(program, rng, monkeypatch):
    monkeypatch.setattr("tdsl.tilegraph.default.NEARLY", 1e9)
    f = program(td.Tensor("x", SHAPE, td.f32))
    p = td.Schedule(f).program
    given = {t.name: rng.random([n.value for n in t.shape], np.float32) for t in p.inputs}
    (want,) = interpret(p, given)
    compiled = td.compile(f)
    wide = np.zeros((*SHAPE[:-1], 2 * SHAPE[-1]), np.float32)
    wide[..., ::2] = given["x"]
    for x in (given["x"], np.asfortranarray(given["x"]), wide[..., ::2]):
        np.testing.assert_allclose(compiled(**{**given, "x": x}), want, rtol=1e-5)
    for target in ("python", "cpu:sse2"):
        np.testing.assert_allclose(td.compile(f, target=target)(**given), want, rtol=1e-5)


def test_an_output_with_gaps_keeps_its_dimensions(rng, monkeypatch):
    monkeypatch.setattr("tdsl.tilegraph.default.NEARLY", 1e9)
    x, out = rng.random(SHAPE, np.float32), np.zeros((*SHAPE[:-1], 4), np.float32)
    td.compile(shifted(td.Tensor("x", SHAPE, td.f32)))(x, out=out[..., :3])
    np.testing.assert_array_equal(out[..., :3], x + 1)
    assert not out[..., 3].any()


@pytest.mark.parametrize("shape", [(0, 3), (1, 1), (7, 1), (1, 5), (3, 0)])
def test_arrays_of_no_elements_or_of_one_have_a_default(shape, rng):
    y, n = td.Func("y"), td.Func("n")
    x = td.Tensor("x", shape, td.f32)
    y[i, j], n[()] = x[i, j] + 1, td.sum(x[i, j], axis=(i, j))
    a = rng.random(shape, np.float32)
    np.testing.assert_array_equal(td.compile(y)(a), a + 1)
    np.testing.assert_allclose(td.compile(n)(a), a.sum(), rtol=1e-6)


def test_funcs_with_directives_keep_their_dimensions():
    t, y, x = td.Func("t"), td.Func("y"), td.Tensor("x", SHAPE, td.f32)
    t[i, j, k, l] = td.exp(x[i, j, k, l])
    y[i, j, k, l] = t[i, j, k, l] / (1 + t[i, j, k, l])
    s = td.Schedule(y)
    s[t].compute_root()
    assert merge_dimensions(s.state, reference_cpu(32)) is None
    rows = td.Func("rows")
    z = td.Tensor("z", (100, 4096), td.f32)
    rows[i, j] = z[i, j] + 1
    assert merge_dimensions(td.Schedule(rows).state, reference_cpu(32)) is None


def test_the_sum_of_an_image_of_three_channels_has_full_vectors():
    x, y = td.Tensor("x", (480, 640, 3), td.f32), td.Func("y")
    y[()] = td.sum(x[i, j, k], axis=(i, j, k))
    assert "x: f32[921600] of [480, 640, 3]" in str(td.compile(y).loops())
