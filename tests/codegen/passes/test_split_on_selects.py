"""A body for each part of a loop that reads another array."""

from tdsl.codegen.passes.split_on_selects import split_on_selects
from tests.codegen.passes.written import becomes

SIDE_BY_SIDE = """
    for c in parallel(0, 8):
        for x in vectorized(0, 4):
            out[c, x] = where(c < 3, a[c % 3, x], where(c <= 5, b[c % 3, x], d[c % 2, x]))
    """


def test_arrays_side_by_side_are_read_one_by_one():
    becomes(
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


def test_a_condition_may_count_down():
    becomes(
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


def test_what_is_a_constant_elsewhere_is_left_to_masks():
    text = """
        for c in serial(0, 8):
            for x in vectorized(0, 4):
                out[c, x] = where(c < 3, a[min(c, 2), x], 0)
        """
    becomes(split_on_selects, "a[3, 4], out[8, 4]", text, text)


def test_vectors_stay_whole():
    text = """
        for x in vectorized(0, 8):
            out[x] = where(x < 3, a[x], b[x])
        """
    becomes(split_on_selects, "a[8], b[8], out[8]", text, text)
