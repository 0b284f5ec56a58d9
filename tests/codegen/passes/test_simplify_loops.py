"""What loops and conditions decide is gone."""

from tdsl.codegen.passes.simplify_loops import simplify_loops
from tests.codegen.passes.loop_text import assert_becomes


def test_loop_of_extent_one_becomes_its_body():
    assert_becomes(
        simplify_loops,
        "out[9]",
        """
        for y in parallel(3, 4):
            for x in serial(y, y + 2):
                out[x + y] = x
        """,
        """
        for x in serial(3, 5):
          out[x + 3] = x
        """,
    )


def test_loop_of_at_most_one_iteration_becomes_a_test_and_its_body():
    assert_becomes(
        simplify_loops,
        "out[9]",
        """
        for y in serial(0, 9):
            for x in serial(y, min(y + 1, 5)):
                out[x] = y
        """,
        """
        for y in serial(0, 9):
          if 0 < 5 - y:
            out[y] = y
        """,
    )


def test_empty_loops_and_statements_are_removed():
    assert_becomes(
        simplify_loops,
        "out[9]",
        """
        for y in serial(0, 5):
            for x in serial(y, min(y, 3)):
                out[x] = y
        with alloc(t, 4):
            if 1 < 0:
                t[0] = 1
        out[0] = 7
        """,
        """
        out[0] = 7
        """,
    )


def test_conditions_and_clips_are_decided_by_ranges():
    assert_becomes(
        simplify_loops,
        "out[40], a[40]",
        """
        for y in serial(0, 4):
            for x in serial(0, 8):
                if y * 8 + x < 40:
                    out[y * 8 + x] = where(x < 8, a[max(min(x - 1, 39), 0)], 5)
                else:
                    out[0] = 1
        """,
        """
        for y in serial(0, 4):
          for x in serial(0, 8):
            out[y * 8 + x] = a[max(x - 1, 0)]
        """,
    )


def test_condition_is_assumed_in_its_branch_only():
    assert_becomes(
        simplify_loops,
        "out[20]",
        """
        for x in serial(0, 20):
            if x < 7:
                out[min(x, 6)] = where(x < 9, 1, 2)
            else:
                out[max(x, 7)] = where(x < 7, 1, 2)
        """,
        """
        for x in serial(0, 20):
          if x < 7:
            out[x] = 1
          else:
            out[x] = 2
        """,
    )


def test_clip_implied_by_guard_is_dropped():
    assert_becomes(
        simplify_loops,
        "out[13]",
        """
        for y in serial(0, 4):
            for x in serial(0, 4):
                if y * 4 + x < 13:
                    out[min(y * 4 + x, 12)] = 1
        """,
        """
        for y in serial(0, 4):
          for x in serial(0, 4):
            if y * 4 + x < 13:
              out[y * 4 + x] = 1
        """,
    )


def test_loaded_bounds_are_not_assumed_inside_loop():
    assert_becomes(
        simplify_loops,
        "out[9], n[2]",
        """
        n[0] = 5
        for x in serial(0, n[0]):
            n[0] = 2
            if x < n[0]:
                out[x] = 1
        """,
        """
        n[0] = 5
        for x in serial(0, n[0]):
          n[0] = 2
          if x < n[0]:
            out[x] = 1
        """,
    )


def test_value_of_index_let_is_known():
    assert_becomes(
        simplify_loops,
        "out[20]",
        """
        for y in serial(0, 4):
            k = y + 2
            for x in serial(0, 4):
                out[min(k + x, 8)] = k
        """,
        """
        for y in serial(0, 4):
          k = y + 2
          for x in serial(0, 4):
            out[k + x] = k
        """,
    )
