"""Lanes combined as trees, and the loops that must stay as they are."""

from dataclasses import replace

import pytest

from tdsl.codegen.ir.loops import For
from tdsl.codegen.ir.statements import walk
from tdsl.codegen.passes.reduce_lanes import reduce_lanes
from tdsl.codegen.passes.vectorize import vectorize
from tests.codegen.passes.loop_text import assert_same_results, kernel


def is_reduced(text: str) -> bool:
    """Whether the pass changes a kernel, which computes the same before, after, and as vectors."""
    before = kernel("a[8, 16], b[16], out[8]", text)
    after = reduce_lanes(before)
    assert_same_results(before, after)
    assert_same_results(before, vectorize(after))
    return after != before


@pytest.mark.parametrize("lanes", [4, 8, 16])
@pytest.mark.parametrize("op", ["{} + {}", "{} * {}", "min({}, {})", "max({}, {})"])
def test_lanes_are_reduced_by_halves(lanes, op):
    value = op.format("out[y]", "a[y, x]")
    text = f"""
    for y in serial(0, 8):
        out[y] = 3
        for x in vectorized(0, {lanes}):
            out[y] = {value}
    """
    assert is_reduced(text)


@pytest.mark.parametrize(
    "loop, value",
    [
        ("serial(0, 8)", "out[y] + a[y, x]"),
        ("vectorized(0, 6)", "out[y] + a[y, x]"),  # not a power of two
        ("vectorized(0, 2)", "out[y] + a[y, x]"),
        ("vectorized(0, 8)", "out[y] - a[y, x]"),
        ("vectorized(0, 8)", "out[y] + a[y, x] * b[x]"),
        ("vectorized(0, 8)", "out[y] + a[x, x]"),
        ("vectorized(0, 8)", "out[y] + out[x]"),
        ("vectorized(0, 8)", "out[0] + a[y, x]"),
    ],
)
def test_other_loops_are_unchanged(loop, value):
    text = f"""
    for y in serial(0, 8):
        for x in {loop}:
            out[y] = {value}
    """
    assert not is_reduced(text)


def test_reduced_loop_is_fully_vectorized():
    text = """
    for y in serial(0, 8):
        for x in vectorized(0, 16):
            out[y] = out[y] + a[y, x]
    """
    after = vectorize(reduce_lanes(kernel("a[8, 16], b[16], out[8]", text)))
    assert [s.name for s in walk(after.body) if isinstance(s, For)] == ["y"]


@pytest.mark.parametrize("value", ["out[y] * a[y, x] + out[y] + a[y, x]", "out[y] + a[y, x] * 1"])
def test_loop_with_merges_accepts_any_combiner(value):
    text = f"""
    for y in serial(0, 8):
        for x in vectorized(0, 16):
            out[y] = {value}
    """
    assert not is_reduced(text)
    before = kernel("a[8, 16], b[16], out[8]", text)
    outer = before.body
    stated = replace(outer, body=replace(outer.body, merges=(("out", "a"),)))
    after = reduce_lanes(replace(before, body=stated))
    assert_same_results(before, after)
    assert_same_results(before, vectorize(after))
    assert [s.name for s in walk(vectorize(after).body) if isinstance(s, For)] == ["y"]
