"""Where memory is made."""

import pytest

from tdsl.codegen.ir.loops import Alloc
from tdsl.codegen.ir.statements import walk
from tdsl.codegen.passes.hoist_allocs import hoist_allocs
from tests.codegen.passes.loop_text import assert_becomes, assert_same_results, kernel


def test_heap_is_hoisted_from_serial_loops_only():
    assert_becomes(
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


def test_varying_extent_is_bounded_or_not_hoisted():
    assert_becomes(
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


def test_allocs_of_one_name_are_merged_to_larger():
    assert_becomes(
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


def test_hoisted_extent_is_clamped_at_zero():
    assert_becomes(
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
def test_auto_scope_is_fastest_that_fits(extents, index, scope):
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
    assert_same_results(before, after)
    assert [s.scope for s in walk(after.body) if isinstance(s, Alloc)] == [scope]


def test_explicit_scope_is_kept():
    text = """
        with alloc(t, 4, "{}"):
            t[0] = 1
            out[0] = t[0]
        """
    for scope in ("heap", "stack", "register"):
        k = kernel("out[8]", text.format(scope))
        assert hoist_allocs(k) == k
