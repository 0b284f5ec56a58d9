"""Where memory is made."""

import pytest

from tdsl.codegen.ir.loops import Alloc
from tdsl.codegen.ir.statements import walk
from tdsl.codegen.passes.hoist_allocs import hoist_allocs
from tests.codegen.passes.written import becomes, kernel, same


def test_heap_memory_leaves_serial_loops_and_stays_in_parallel_ones():
    becomes(
        hoist_allocs,
        "out[4, 9]",
        """
        for y in parallel(0, 4):
            for x in serial(0, 3):
                for z in serial(0, 3):
                    if x < 2:
                        with alloc(t, 9000):
                            t[x] = y
                            out[y, x * 3 + z] = t[x]
        """,
        """
        for y in parallel(0, 4):
          with alloc(t, 9000):
            for x in serial(0, 3):
              for z in serial(0, 3):
                if x < 2:
                  t[x] = y
                  out[y, x * 3 + z] = t[x]
        """,
    )


def test_an_extent_that_changes_gets_a_constant_bound_or_keeps_the_memory_inside():
    becomes(
        hoist_allocs,
        "out[9]",
        """
        for y in serial(0, 9):
            with alloc(t, min(y + 1, 5000)):
                with alloc(u, y + N):
                    t[0] = y
                    u[y] = t[0]
                    out[y] = u[y]
        """,
        """
        with alloc(t, 9):
          for y in serial(0, 9):
            with alloc(u, y + N):
              t[0] = y
              u[y] = t[0]
              out[y] = u[y]
        """,
    )


def test_nests_one_after_the_other_share_the_larger_of_two_memories_of_one_name():
    becomes(
        hoist_allocs,
        "out[9000]",
        """
        for y in serial(0, 3):
            with alloc(t, 9000):
                t[y] = y
                out[y] = t[y]
            with alloc(t, 5000):
                t[y] = y
                out[y] = t[y]
        """,
        """
        with alloc(t, 9000):
          for y in serial(0, 3):
            t[y] = y
            out[y] = t[y]
            t[y] = y
            out[y] = t[y]
        """,
    )


def test_moved_memory_has_no_negative_extent():
    becomes(
        hoist_allocs,
        "out[9]",
        """
        for y in serial(0, 9):
            if 99 < N:
                with alloc(t, N - 99):
                    t[0] = y
                    out[y] = t[0]
        """,
        """
        with alloc(t, max(N - 99, 0)):
          for y in serial(0, 9):
            if 99 < N:
              t[0] = y
              out[y] = t[0]
        """,
    )


@pytest.mark.parametrize(
    "extents, index, scope",
    [
        ("4, 8", "0, 3", "register"),
        ("4, 8", "0, x", "stack"),
        ("40, 8", "0, 3", "stack"),
        ("400, 8", "0, 3", "heap"),
        ("N", "0", "heap"),
    ],
)
def test_memory_without_a_scope_gets_the_nearest_that_holds_it(extents, index, scope):
    before = kernel(
        "out[8]",
        f"""
        for x in serial(0, 8):
            with alloc(t, {extents}, "auto"):
                t[{index}] = x
                out[x] = t[{index}]
        """,
    )
    after = hoist_allocs(before)
    same(before, after)
    assert [s.scope for s in walk(after.body) if isinstance(s, Alloc)] == [scope]


def test_a_chosen_scope_is_kept():
    text = """
        with alloc(t, 4, "{}"):
            t[0] = 1
            out[0] = t[0]
        """
    for scope in ("heap", "stack", "register"):
        k = kernel("out[8]", text.format(scope))
        assert hoist_allocs(k) == k
