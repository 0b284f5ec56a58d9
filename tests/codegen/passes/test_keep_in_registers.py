"""Values that the stores of a loop do not change, and elements that accumulate in registers."""

import numpy as np
import pytest

import tdsl as td
from tdsl.codegen.ir.show import show
from tdsl.codegen.passes.keep_in_registers import keep_in_registers
from tests.codegen.passes.loop_text import assert_same_results, kernel


def after(text: str) -> str:
    before = kernel("a[8, 16], out[16, 16]", text)
    changed = keep_in_registers(before)
    assert_same_results(before, changed)
    return show(changed)


@pytest.mark.parametrize(
    "loop, store, hoisted",
    [
        ("x in serial(k + 1, 15 - k)", "out[0, x] = out[0, x] - out[0, k] * a[0, x]", "same = out[0, k]"),
        ("x in serial(k, 15 - k)", "out[0, x] = out[0, x] - out[0, k] * a[0, x]", ""),
        ("x in serial(0, k)", "out[0, x] = out[0, x] - out[0, k] * a[0, x]", "same = out[0, k]"),
        ("x in serial(0, 16)", "out[1, x] = out[0, k] * 2 + out[1, x]", "same = out[0, k] * 2"),
        ("x in serial(0, 16)", "out[x, 3] = out[k, 3] * 2 + out[x, 3]", ""),
        ("x in serial(0, 16)", "out[x, 3] = out[k, k + 4] + out[x, 3]", "same = out[k, k + 4]"),
    ],
)
def test_values_before_a_loop(loop, store, hoisted):
    text = after(f"for k in serial(0, 8):\n    for {loop}:\n        {store}\n")
    assert hoisted in text
    assert ("same" in text) == bool(hoisted)


@pytest.mark.parametrize(
    "bound, index, kept",
    [("k", "k", True), ("k + 1", "k", False), ("8", "k", False), ("k", "0", False)],
)
def test_an_element_accumulates_in_a_register(bound, index, kept):
    text = after(
        f"for k in serial(0, 8):\n    for x in serial(0, {bound}):\n"
        f"        out[2, {index}] = out[2, {index}] - out[2, x] * a[0, x]\n"
    )
    assert ("out_sum" in text) == kept


def test_a_condition_around_one_store_says_nothing_about_another():
    text = after(
        """
        for k in serial(0, 12):
            for x in serial(0, 16):
                if x < k:
                    out[0, x] = out[0, x] - out[0, k]
                if k <= x:
                    out[0, x] = out[0, x] + out[0, k]
        """
    )
    assert "same" not in text


def test_a_condition_around_the_only_store_counts():
    text = after(
        """
        for k in serial(0, 12):
            for x in serial(0, 16):
                if x < k:
                    out[0, x] = out[0, x] - out[0, k]
        """
    )
    assert "same = out[0, k]" in text


def test_an_empty_loop_does_not_access_the_element():
    text = after(
        """
        for k in serial(0, 40):
            for x in serial(0, 12 - k):
                out[k, 0] = out[k, 0] + out[k, 1] * a[0, x]
        """
    )
    assert "out_sum" in text


def test_a_part_of_a_triangle_is_read_where_earlier_rows_change_it():
    a = td.Tensor("a", (20, 12), td.f64)
    i, j = td.vars("i j")
    f = td.Func("f", shape=(20, 12))
    f[i, j] = a[i, j]
    k = td.range("k", 0, 20)
    x = td.range("x", 0, 12, where=lambda x: x < k)
    f[k, x] = f[k, x] + f[3, 1]
    s = td.Schedule(f)
    update = s[f].update(0)
    _, point = update.split("x", 8, tail="peel")
    update.unroll(point)
    update.pin()
    values = np.random.default_rng(0).random((20, 12))
    expected = values.copy()
    for row in range(20):
        for column in range(min(row, 12)):
            expected[row, column] += expected[3, 1]
    np.testing.assert_array_equal(td.compile(s)(values), expected)
