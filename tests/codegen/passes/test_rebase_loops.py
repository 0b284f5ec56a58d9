"""Loops of a split range that start and end at the points of a triangle."""

import pytest

from tdsl.codegen.passes.rebase_loops import rebase_loops
from tests.codegen.passes.loop_text import assert_same_results, kernel


@pytest.mark.parametrize(
    "condition",
    [
        "k < o * 4 + v",
        "k * 2 <= o * 4 + v + 1",
        "o * 4 + v <= k",
        "o * 4 + v + k < 20",
        "(o * 4 + v > 4) & (o * 4 + v <= k)",
        "(o * 4 + v > 7) & (o * 4 + v <= k)",
    ],
)
def test_conditions_become_bounds(condition):
    before = kernel(
        "a[32], out[32]",
        f"""
        for k in serial(0, 30):
            for o in serial(0, 8):
                for v in vectorized(0, 4):
                    if {condition}:
                        out[o * 4 + v] = out[o * 4 + v] * 2 + a[o * 4 + v]
        """,
    )
    after = rebase_loops(before)
    assert_same_results(before, after)
    assert after != before


@pytest.mark.parametrize("value, condition", [("a[o]", "k < o * 4 + v"), ("a[v]", "k < o * 4 + v")])
def test_loops_that_are_used_alone_keep_their_start(value, condition):
    before = kernel(
        "a[32], out[32]",
        f"""
        for k in serial(0, 30):
            for o in serial(0, 8):
                for v in vectorized(0, 4):
                    if {condition}:
                        out[o * 4 + v] = {value}
        """,
    )
    assert rebase_loops(before) == before
