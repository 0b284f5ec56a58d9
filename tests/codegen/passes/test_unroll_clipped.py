"""Copies for unrolled loops, before there is vector code."""

from tdsl.codegen.passes.unroll_clipped import unroll_clipped
from tests.codegen.passes.loop_text import assert_becomes, kernel


def test_outer_of_two_vectorized_loops_is_unrolled():
    assert_becomes(
        unroll_clipped,
        "out[2, 4]",
        """
        for y in vectorized(0, 2):
            for x in vectorized(0, 4):
                out[y, x] = 1
        """,
        """
        for y in unrolled(0, 2):
            for x in vectorized(0, 4):
                out[y, x] = 1
        """,
    )


def test_long_outer_of_two_vectorized_loops_is_serial():
    assert_becomes(
        unroll_clipped,
        "out[99, 4]",
        """
        for y in vectorized(0, 99):
            for x in vectorized(0, 4):
                out[y, x] = 1
        """,
        """
        for y in serial(0, 99):
            for x in vectorized(0, 4):
                out[y, x] = 1
        """,
    )


def test_vectorized_extent_that_depends_on_unrolled_loop():
    assert_becomes(
        unroll_clipped,
        "out[3, 8]",
        """
        for y in unrolled(0, 3):
            for x in vectorized(0, min(8, 4 * y)):
                out[y, x] = 1
        """,
        """
        for x_2 in vectorized(0, 4):
            out[1, x_2] = 1
        for x_3 in vectorized(0, 8):
            out[2, x_3] = 1
        """,
    )


def test_clip_through_a_let():
    assert_becomes(
        unroll_clipped,
        "out[16]",
        """
        for u in unrolled(0, 2):
            for x in vectorized(0, 8):
                i = 8 * u + x
                if i < 8:
                    out[i] = 1
        """,
        """
        for x_1 in vectorized(0, 8):
            out[x_1] = 1
        """,
    )


def test_unclipped_loops_are_not_unrolled():
    before = kernel(
        "out[4, 8]",
        """
        for u in unrolled(0, 4):
            for x in vectorized(0, 8):
                out[u, x] = min(u, 2)
        """,
    )
    assert unroll_clipped(before) is before
