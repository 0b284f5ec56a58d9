"""Values that a loop reads of its last iteration, and the loops that must stay as they are."""

import pytest

from tdsl.codegen.passes.carry_values import carry_values
from tests.codegen.passes.loop_text import assert_same_results, kernel


def is_carried(text: str) -> bool:
    before = kernel("a[8, 16], b[16], out[8, 16]", text)
    after = carry_values(before)
    assert_same_results(before, after)
    return after != before


@pytest.mark.parametrize(
    "value",
    [
        "out[y, r - 1] + a[y, r]",
        "out[y, r - 1] * 2 + out[y, r - 1]",
        "max(out[y, r - 1], out[y, r])",
    ],
)
@pytest.mark.parametrize("loop", ["serial(1, 16)", "serial(3, 4)", "serial(1, min(a[0, 0], 16))"])
def test_last_value_is_carried_in_register(loop, value):
    text = f"""
    for y in serial(0, 8):
        for r in {loop}:
            out[y, r] = {value}
    """
    assert is_carried(text)


@pytest.mark.parametrize(
    "index, value",
    [
        ("y, r", "out[y, r] + 1"),
        ("y, r", "out[y, r - 2 + b[0] * 0] + 1"),
        ("y, 0", "out[y, 0] + a[y, r]"),
        ("y, r", "a[y, r - 1] + 1"),
    ],
)
def test_other_loops_are_unchanged(index, value):
    text = f"""
    for y in serial(0, 8):
        for r in serial(2, 16):
            out[{index}] = {value}
    """
    assert not is_carried(text)


@pytest.mark.parametrize("rows", ["unrolled(0, 4)", "unrolled(2, 5)"])
def test_unrolled_rows_have_one_register_each(rows):
    text = f"""
    for r in serial(1, 16):
        for y in {rows}:
            out[y, r] = out[y, r - 1] + a[y, r] * a[0, r]
    """
    assert is_carried(text)


@pytest.mark.parametrize("index", ["y // 2, r", "0, r", "3 - y, r"])
def test_rows_that_may_overlap_stay_in_memory(index):
    before = index.replace("r", "r - 1")
    text = f"""
    for r in serial(1, 4):
        for y in unrolled(0, 4):
            out[{index}] = out[{before}] + a[y, r]
    """
    assert not is_carried(text)


def test_row_reads_value_stored_by_neighbour():
    text = """
    for r in serial(1, 16):
        for y in unrolled(1, 8):
            out[y, r] = out[y, r - 1] + out[y - 1, r]
    """
    assert is_carried(text)
