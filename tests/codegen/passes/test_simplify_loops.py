"""What loops and conditions decide is gone."""

from tdsl.codegen.passes.simplify_loops import simplify_loops
from tests.codegen.passes.written import becomes


def test_a_loop_of_one_iteration_is_its_body():
    becomes(
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


def test_loops_that_never_run_and_what_is_left_empty_go():
    becomes(
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


def test_ranges_decide_conditions_and_clips():
    becomes(
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


def test_a_condition_holds_in_its_branch_and_not_in_the_other():
    becomes(
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


def test_a_tail_bounds_the_inner_loop_by_the_outer():
    becomes(
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


def test_data_in_the_bounds_of_a_loop_may_change_inside():
    becomes(
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


def test_a_let_of_an_index_is_known():
    becomes(
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
