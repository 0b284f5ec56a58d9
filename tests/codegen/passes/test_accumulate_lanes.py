"""Vector lanes that each accumulate some of the terms of one element."""

import numpy as np
import pytest

import tdsl as td
from tdsl.codegen.ir.show import show
from tdsl.codegen.passes.accumulate_lanes import accumulate_lanes
from tests.codegen.passes.loop_text import assert_same_results, kernel


@pytest.mark.parametrize(
    "update, lanes",
    [
        ("out[y] = out[y] + a[o * 4 + v]", True),
        ("out[y] = out[y] - a[o * 4 + v]", True),
        ("out[y] = a[o * 4 + v] * out[y]", True),
        ("out[y] = max(out[y], a[o * 4 + v])", True),
        ("out[y] = a[o * 4 + v] - out[y]", False),
        ("out[y] = out[y] + out[o * 4 + v]", False),
        ("out[y] = out[y] + out[o * 4 + v + 9]", True),
        ("out[o] = out[o] + a[o * 4 + v]", False),
        ("out[y] = out[y] + a[o * 4 + v] * out[y]", False),
    ],
)
@pytest.mark.parametrize("condition", ["", "if o * 4 + v < y + 9:"])
def test_updates_of_one_element(update, lanes, condition):
    inner = f"{condition}\n                        {update}" if condition else update
    before = kernel(
        "a[32], out[48]",
        f"""
        for y in serial(0, 8):
            for o in serial(0, 8):
                for v in vectorized(0, 4):
                    {inner}
        """,
    )
    after = accumulate_lanes(before)
    assert_same_results(before, after)
    assert ("out_lanes" in show(after)) == lanes


def lanes(text: str) -> bool:
    """True if the pass gives lanes to the update of `out`."""
    before = kernel("a[32], out[48]", text)
    after = accumulate_lanes(before)
    assert_same_results(before, after)
    return "out_lanes" in show(after)


@pytest.mark.parametrize(
    "condition, steps",
    [
        ("y + o * 4 + v < 40", "8"),
        ("(y < 48) & (o * 4 + v <= y)", "8"),
        ("(y + o * 4 + v < 40) & (o * 4 + v > 5)", "8"),
        ("o * 4 + v < 40 - y", "max(12 - y // 4, 0)"),
    ],
)
def test_an_element_that_is_never_updated_is_not_accessed(condition, steps):
    assert lanes(
        f"""
        for y in serial(0, 90):
            for o in serial(0, {steps}):
                for v in vectorized(0, 4):
                    if {condition}:
                        out[y] = out[y] + a[max(31 - o * 4 - v, 0)]
        """
    )


@pytest.mark.parametrize("last, expected", [(48, True), (49, False)])
def test_elements_are_in_bounds_where_data_decides_about_updates(last, expected):
    text = f"""
        for y in serial(0, {last}):
            for o in serial(0, 8):
                for v in vectorized(0, 4):
                    if (a[o * 4 + v] > 4) & (y < 48):
                        out[y] = out[y] + a[o * 4 + v]
        """
    assert lanes(text) == expected


@pytest.mark.parametrize("index, expected", [("y", True), ("y % 8", False)])
def test_no_thread_writes_back_an_element_of_another(index, expected):
    text = f"""
        for y in parallel(0, 16):
            for o in serial(0, 8):
                for v in vectorized(0, 4):
                    if (a[o * 4 + v] > 4) & (y < 8):
                        out[{index}] = out[{index}] + a[o * 4 + v]
        """
    assert lanes(text) == expected


@pytest.mark.parametrize("sign", [1, -1])
def test_elements_without_updates_keep_their_bits(sign):
    rows = 12
    i = td.vars("i")
    x, start = td.Tensor("x", (64,), td.f32), td.Tensor("start", (rows,), td.f32)
    f = td.Func("f", shape=(rows,))
    f[i] = start[i]
    row = td.range("row", 0, rows)
    r = td.range("r", 0, 64, where=lambda r: (r + row < 9) & (x[r] > 0))
    f[row] += sign * x[r] * x[r]
    s = td.Schedule(f)
    s[f].update(0).vectorize("r", 8).pin()
    values = np.full(64, -1, np.float32)
    values[:3] = 1
    zeros = np.full(rows, -0.0, np.float32)
    expected = [sign * max(0, min(3, 9 - n)) or -0.0 for n in range(rows)]
    np.testing.assert_array_equal(
        td.compile(s)(values, zeros).view(np.int32), np.float32(expected).view(np.int32)
    )
