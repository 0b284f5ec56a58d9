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


@pytest.mark.parametrize("element, rebased", [("o * 4 + v", True), ("(o * 4 + v) // 2", False)])
def test_points_that_depend_on_each_other_stay_in_one_parallel_iteration(element, rebased):
    before = kernel(
        "a[32], out[32]",
        f"""
        for k in serial(0, 9):
            for o in parallel(0, 8):
                for v in vectorized(0, 4):
                    if k * 3 <= o * 4 + v:
                        out[{element}] = out[{element}] + a[o * 4 + v]
        """,
    )
    after = rebase_loops(before)
    assert_same_results(before, after)
    assert (after != before) == rebased


def test_bounds_that_the_loop_changes_are_evaluated_once():
    before = kernel(
        "out[32]",
        """
        for k in serial(0, 9):
            for o in serial(0, 1 + min(out[0], 7)):
                for v in vectorized(0, 4):
                    if o * 4 + v + k < 20:
                        out[o * 4 + v] = o * 4 + v
        """,
    )
    assert_same_results(before, rebase_loops(before))
