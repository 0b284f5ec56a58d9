"""Masks that go because memory has room for all lanes, and those that must stay."""

import pytest

from tdsl.codegen.ir.loops import Alloc, Store
from tdsl.codegen.ir.statements import exprs_of, walk
from tdsl.codegen.passes.pad_rows import pad_rows
from tdsl.codegen.passes.vectorize import vectorize
from tdsl.core.node import post_order
from tdsl.lang.expr import Load
from tests.codegen.passes.loop_text import assert_same_results, kernel


def pad_and_describe(arrays: str, text: str):
    """The kernel after the pass, which computes the same; its masked accesses of `t`; extents of `t`."""
    before = vectorize(kernel(arrays, text))
    padded = pad_rows(before)
    assert_same_results(before, padded)
    masked = 0
    for s in walk(padded.body):
        masked += isinstance(s, Store) and s.buffer == "t" and s.mask is not None
        loads = {n for n in post_order(*exprs_of(s)) if isinstance(n, Load) and n.buffer == "t"}
        masked += sum(n.mask is not None for n in loads)
    (alloc,) = (s for s in walk(padded.body) if isinstance(s, Alloc))
    return masked, [e.value for e in alloc.extents]


def test_last_vector_of_row_needs_no_mask():
    text = """
    with alloc(t, 2, 13):
        for y in serial(0, 2):
            for o in serial(0, 2):
                for x in vectorized(0, 8):
                    if o * 8 + x < 13:
                        t[y, o * 8 + x] = a[y, o * 8 + x] * 2
        for y in serial(0, 2):
            for o in serial(0, 2):
                for x in vectorized(0, 8):
                    if o * 8 + x < 13:
                        out[y, o * 8 + x] = t[y, o * 8 + x] + 1
    """
    assert pad_and_describe("out[2, 13], a[2, 13]", text) == (0, [2, 16])


def test_equivalent_condition_on_another_variable():
    text = """
    with alloc(t, 5):
        for x in vectorized(0, 8):
            if x + 40 < 45:
                t[x] = a[x]
        for x in vectorized(0, 8):
            if 4 >= x:
                out[x] = t[x]
    """
    assert pad_and_describe("out[8], a[8]", text) == (0, [8])


@pytest.mark.parametrize(
    "condition",
    ["x < 4", "a[x] < 5", "x > 0", "2 * x < 5", "M < 4"],
    ids=["fewer", "data", "first", "step", "other"],
)
def test_mask_of_lanes_inside_row_is_kept(condition):
    text = f"""
    with alloc(t, 5):
        for x in vectorized(0, 5):
            t[x] = 7
        for x in vectorized(0, 8):
            if x < 5:
                if {condition}:
                    t[x] = a[x]
        for x in vectorized(0, 5):
            out[x] = t[x]
    """
    assert pad_and_describe("out[8], a[8]", text)[0] >= (condition != "M < 4")


def test_unaligned_vector_keeps_mask():
    text = """
    with alloc(t, 2, 7):
        for y in serial(0, 2):
            for x in vectorized(0, 8):
                if x + 1 < 7:
                    t[y, x + 1] = a[x]
            t[y, 0] = y
        for y in serial(0, 2):
            for x in serial(0, 7):
                out[y, x] = t[y, x]
    """
    assert pad_and_describe("out[2, 7], a[8]", text) == (1, [2, 7])


def test_vector_beyond_row_keeps_mask():
    text = """
    with alloc(t, 2, 7):
        for y in serial(0, 2):
            for o in serial(0, 3):
                for x in vectorized(0, 8):
                    if o * 8 + x < 7:
                        t[y, o * 8 + x] = a[o * 8 + x]
        for y in serial(0, 2):
            for x in serial(0, 7):
                out[y, x] = t[y, x]
    """
    assert pad_and_describe("out[2, 7], a[24]", text) == (1, [2, 7])


def test_large_memory_is_not_padded():
    text = """
    with alloc(t, 40000, 3):
        for y in serial(0, 4):
            for x in vectorized(0, 16):
                if x < 3:
                    t[y, x] = a[x]
            out[y] = t[y, 2]
    """
    assert pad_and_describe("out[4], a[16]", text) == (1, [40000, 3])
