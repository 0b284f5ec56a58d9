"""Copies for unrolled loops."""

import pytest

from tdsl.codegen.ir.loops import For
from tdsl.codegen.ir.statements import walk
from tdsl.codegen.passes.simplify_loops import simplify_loops
from tdsl.codegen.passes.unroll import unroll
from tdsl.errors import ScheduleError
from tests.codegen.passes.loop_text import assert_becomes, assert_same_results, kernel


def unrolled(k):
    return simplify_loops(unroll(k))


def test_copies_have_fresh_names():
    assert_becomes(
        unrolled,
        "out[12]",
        """
        for y in unrolled(1, 3):
            with alloc(t, 2):
                for x in serial(0, 2):
                    t[x] = y
                k = t[0] + 1
                out[y * 4] = t[1] + k
        """,
        """
        with alloc(t_1, 2):
          for x_1 in serial(0, 2):
            t_1[x_1] = 1
          k_1 = t_1[0] + 1
          out[4] = k_1 + t_1[1]
        with alloc(t_2, 2):
          for x_2 in serial(0, 2):
            t_2[x_2] = 2
          k_2 = t_2[0] + 1
          out[8] = k_2 + t_2[1]
        """,
    )


def test_bounded_extent_guards_copies():
    assert_becomes(
        unrolled,
        "out[12]",
        """
        for y in serial(0, 5):
            for x in unrolled(0, min(3, 11 - y * 2)):
                out[y * 2 + x] = x
        """,
        """
        for y in serial(0, 5):
          out[y * 2] = 0
          out[y * 2 + 1] = 1
          out[y * 2 + 2] = 2
        """,
    )
    assert_becomes(
        unrolled,
        "out[12]",
        """
        for y in serial(0, 6):
            for x in unrolled(0, min(2, 11 - y * 2)):
                out[y * 2 + x] = x
        """,
        """
        for y in serial(0, 6):
          out[y * 2] = 0
          if 1 < min(y * -2 + 11, 2):
            out[y * 2 + 1] = 1
        """,
    )


def test_loaded_extent_is_read_once():
    before = kernel(
        "out[9], n[1]",
        """
        for x in unrolled(0, n[0] % 4):
            n[0] = 0
            out[x] = 100
        """,
    )
    assert_same_results(before, unrolled(before))


def test_unbounded_extent_raises():
    k = kernel("out[N]", "for x in unrolled(0, N):\n    out[x] = 1")
    with pytest.raises(ScheduleError, match="split it by a constant factor"):
        unroll(k)


def test_large_loop_becomes_serial():
    before = kernel(
        "out[100, 100]",
        """
        for y in unrolled(0, 100):
            for x in unrolled(0, 100):
                out[y, x] = y
        """,
    )
    after = unroll(before)
    assert [s.name for s in walk(after.body) if isinstance(s, For)] == ["y"]
    assert_same_results(before, after)
