"""Loops of vectors cut where one iteration writes what the others read."""

import pytest

from tdsl.codegen.ir.show import show
from tdsl.codegen.passes.cut_at_conflicts import cut_at_conflicts
from tests.codegen.passes.loop_text import assert_same_results, kernel


@pytest.mark.parametrize(
    "store, cuts",
    [
        ("out[o * 4 + v] = out[o * 4 + v] + out[k]", True),
        ("out[o * 4 + v] = out[k] * 2 - a[o * 4 + v]", True),
        ("out[40 - o * 4 - v] = out[k] + 1", True),
        ("out[o * 4 + v + 1] = out[o * 4 + v] + 1", False),
        ("out[o * 4 + v] = out[min(max(a[k], 0), 9)] + 1", False),
        ("out[o * 4 + v] = out[k] + o", False),
        ("out[o * 4 + v] = out[o * 4 + v] * 2", False),
    ],
)
@pytest.mark.parametrize("condition", ["", "if o * 4 + v < k + 9:", "if k < o * 4 + v:"])
@pytest.mark.parametrize("first", [0, 2])
def test_one_point_is_computed_alone(store, cuts, condition, first):
    inner = f"{condition}\n                        {store}" if condition else store
    before = kernel(
        "a[32], out[48]",
        f"""
        for k in serial(1, 30):
            for o in serial({first}, 6):
                for v in vectorized(0, 4):
                    {inner}
        """,
    )
    after = cut_at_conflicts(before)
    assert_same_results(before, after)
    if cuts and condition == "" and first == 0:
        assert show(after).count("vectorized") == 2
    assert cuts or after == before


def test_bounds_that_the_loop_changes_are_evaluated_once():
    before = kernel(
        "out[32]",
        """
        for k in serial(0, 9):
            for o in serial(0, 1 + min(max(out[0], 0), 7)):
                for v in vectorized(0, 4):
                    out[o * 4 + v] = out[k] - out[o * 4 + v]
        """,
    )
    assert_same_results(before, cut_at_conflicts(before))
