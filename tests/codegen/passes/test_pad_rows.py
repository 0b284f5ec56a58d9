"""Masks that go because memory has room for all lanes, and those that must stay."""

import pytest

from tdsl.codegen.ir.loops import Alloc, Store
from tdsl.codegen.ir.statements import exprs_of, walk
from tdsl.codegen.passes.pad_rows import pad_rows
from tdsl.codegen.passes.vectorize import vectorize
from tdsl.core.node import post_order
from tdsl.lang.expr import Load
from tests.codegen.passes.written import kernel, same


def after(arrays: str, text: str):
    """The kernel after the pass, which computes the same; its masked accesses of `t`; extents of `t`."""
    before = vectorize(kernel(arrays, text))
    made = pad_rows(before)
    same(before, made)
    masked = 0
    for s in walk(made.body):
        masked += isinstance(s, Store) and s.buffer == "t" and s.mask is not None
        loads = {n for n in post_order(*exprs_of(s)) if isinstance(n, Load) and n.buffer == "t"}
        masked += sum(n.mask is not None for n in loads)
    (alloc,) = (s for s in walk(made.body) if isinstance(s, Alloc))
    return masked, [e.value for e in alloc.extents]


def test_the_last_vector_of_a_row_is_whole():
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
    assert after("out[2, 13], a[2, 13]", text) == (0, [2, 16])


def test_a_condition_on_another_variable_that_says_the_same():
    text = """
    with alloc(t, 5):
        for x in vectorized(0, 8):
            if x + 40 < 45:
                t[x] = a[x]
        for x in vectorized(0, 8):
            if 4 >= x:
                out[x] = t[x]
    """
    assert after("out[8], a[8]", text) == (0, [8])


@pytest.mark.parametrize(
    "condition",
    ["x < 4", "a[x] < 5", "x > 0", "2 * x < 5", "M < 4"],
    ids=["fewer", "data", "first", "step", "other"],
)
def test_lanes_in_the_row_that_are_left_out_keep_their_mask(condition):
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
    assert after("out[8], a[8]", text)[0] >= (condition != "M < 4")


def test_a_vector_that_begins_between_multiples_of_its_lanes_keeps_its_mask():
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
    assert after("out[2, 7], a[8]", text) == (1, [2, 7])


def test_a_vector_wholly_beyond_the_row_stays_masked():
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
    assert after("out[2, 7], a[24]", text) == (1, [2, 7])


def test_large_memory_does_not_become_much_larger():
    text = """
    with alloc(t, 40000, 3):
        for y in serial(0, 4):
            for x in vectorized(0, 16):
                if x < 3:
                    t[y, x] = a[x]
            out[y] = t[y, 2]
    """
    assert after("out[4], a[16]", text) == (1, [40000, 3])
