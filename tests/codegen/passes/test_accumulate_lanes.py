"""Vector lanes that each accumulate some of the terms of one element."""

import pytest

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
