"""A body for each part of a loop that reads another array."""

from tdsl.codegen.passes.split_on_selects import split_on_selects
from tests.codegen.passes.loop_text import assert_becomes

SIDE_BY_SIDE = """
    for c in parallel(0, 8):
        for x in vectorized(0, 4):
            out[c, x] = where(c < 3, a[c % 3, x], where(c <= 5, b[c % 3, x], d[c % 2, x]))
    """


def test_concatenated_arrays_are_read_separately():
    assert_becomes(
        split_on_selects,
        "a[3, 4], b[3, 4], d[2, 4], out[8, 4]",
        SIDE_BY_SIDE,
        """
        for c in parallel(0, 8):
            if c < 3:
                for x in vectorized(0, 4):
                    out[c, x] = a[c, x]
            else:
                if c < 6:
                    for x_1 in vectorized(0, 4):
                        out[c, x_1] = b[c - 3, x_1]
                else:
                    for x_2 in vectorized(0, 4):
                        out[c, x_2] = d[c - 6, x_2]
        """,
    )


def test_condition_with_negative_coefficient():
    assert_becomes(
        split_on_selects,
        "a[8], b[8], out[8]",
        """
        for x in serial(0, 8):
            out[x] = where(5 - x > 2, a[x], b[x])
        """,
        """
        for x in serial(0, 8):
            if x < 3:
                out[x] = a[x]
            else:
                out[x] = b[x]
        """,
    )


def test_select_between_load_and_constant_is_not_split():
    text = """
        for c in serial(0, 8):
            for x in vectorized(0, 4):
                out[c, x] = where(c < 3, a[min(c, 2), x], 0)
        """
    assert_becomes(split_on_selects, "a[3, 4], out[8, 4]", text, text)


def test_vectorized_loops_are_not_split():
    text = """
        for x in vectorized(0, 8):
            out[x] = where(x < 3, a[x], b[x])
        """
    assert_becomes(split_on_selects, "a[8], b[8], out[8]", text, text)
