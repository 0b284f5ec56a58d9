"""Values that the stores of a loop do not change, and elements that accumulate in registers."""

import pytest

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
