"""Conditions that become bounds, and those that move out of loops."""

import numpy as np
import pytest

import tdsl as td
from tdsl.codegen.passes.bound_loops import bound_loops
from tests.codegen.passes.loop_text import assert_becomes


def test_tail_guard_becomes_loop_bound():
    assert_becomes(
        bound_loops,
        "out[13]",
        """
        for y in parallel(0, 4):
            for x in serial(0, 4):
                if y * 4 + x < N:
                    out[y * 4 + x] = x
        """,
        """
        for y in parallel(0, 4):
          for x in serial(0, min(4, n + y * -4)):
            out[y * 4 + x] = x
        """.replace("n + y * -4", "N - y * 4"),
    )


@pytest.mark.parametrize(
    "condition, bounds",
    [
        ("x <= y", "serial(0, y + 1)"),
        ("2 * x > y", "serial(y // 2 + 1, 6)"),
        ("x == y", "serial(y, y + 1)"),
        ("3 * x == y", "serial((y + 2) // 3, y // 3 + 1)"),
        ("x // 2 < y", "serial(0, min(6, y * 2))"),
        ("y < x // 2", "serial(y * 2 + 2, 6)"),
    ],
)
def test_affine_comparisons_become_bounds(condition, bounds):
    assert_becomes(
        bound_loops,
        "out[6, 6]",
        f"""
        for y in serial(0, 6):
            for x in serial(0, 6):
                if {condition}:
                    out[y, x] = 1
        """,
        f"""
        for y in serial(0, 6):
          for x in {bounds}:
            out[y, x] = 1
        """,
    )


def test_nonlinear_conditions_stay():
    text = """
        for x in {}:
          if {}:
            out[x] = 1
        """
    for condition in ("x % 2 == 0", "x != 3", "a[x] < 4"):
        assert_becomes(
            bound_loops,
            "out[6], a[6]",
            text.format("serial(0, 6)", condition),
            text.format("serial(0, 6)", condition),
        )


def test_vectorized_loop_keeps_extent_and_hoists_invariant_tests():
    assert_becomes(
        bound_loops,
        "out[6, 8]",
        """
        for y in serial(0, 6):
            for x in vectorized(0, 8):
                if (y < M) & (x < 7):
                    out[y, x] = 1
        """,
        """
        for y in serial(0, min(6, M)):
          for x in vectorized(0, 8):
            if x < 7:
              out[y, x] = 1
        """,
    )


def test_condition_with_loads_is_hoisted_only_if_loads_are_in_bounds():
    text = """
        for y in {}:
          if a[0] < 4:
            out[y] = a[y]
        """
    moved = """
        if a[0] < 4:
          for y in serial(0, 6):
            out[y] = a[y]
        """
    assert_becomes(bound_loops, "out[6], a[N]", text.format("serial(0, 6)"), moved)
    stays = text.format("serial(0, N - 7)")
    assert_becomes(bound_loops, "out[6], a[N]", stays, stays)
    assert_becomes(bound_loops, "out[6], a[6]", stays, moved.replace("0, 6", "0, N - 7"))
    written = text.replace("out[y] = a[y]", "a[y] = a[y] + 5")
    assert_becomes(bound_loops, "a[6]", written.format("serial(0, 6)"), written.format("serial(0, 6)"))


def test_condition_common_to_a_block_becomes_bound():
    assert_becomes(
        bound_loops,
        "out[8], b[8]",
        """
        for x in serial(0, 8):
            if (x < M) & (out[x] < 4):
                b[x] = 1
            if x < M:
                out[x] = 2
        """,
        """
        for x in serial(0, min(8, M)):
          if out[x] < 4:
            b[x] = 1
          out[x] = 2
        """,
    )


@pytest.mark.parametrize("target", ["cpu", "python", "cuda"])
@pytest.mark.parametrize("dynamic", [(), ("Z", "S")])
def test_range_with_both_bounds_loaded(target, dynamic):
    """Rows of a sparse matrix, some of which end before they begin: loops begin and end with them."""
    i = td.vars("i")
    values, start = td.Tensor("values", ("Z",), td.f32), td.Tensor("start", ("S",), td.i32)
    first, end = (td.clip(td.cast(start[i + n], td.i64), 0, values.shape[0]) for n in (0, 1))
    row, r = td.Func("row", shape=start.shape[0] - 1), td.range("r", first, end)
    row[i] = td.sum(values[r], axis=r)
    compiled = td.compile(row, target=target, dynamic=dynamic)
    ends, x = np.array([0, 2, 2, 9, 4, -3, 70], np.int32), np.arange(1, 10, dtype=np.float32)
    got = td.emulate(compiled)(x, ends) if target == "cuda" else compiled(x, ends)
    np.testing.assert_array_equal(got, [3, 0, 42, 0, 0, 45])
    assert any(
        "+ 1]" in line.split("range")[-1] for line in str(compiled.loops()).splitlines() if "for" in line
    )


def test_no_hoisted_loads_for_inner_loops_that_may_not_run():
    text = """
        for y in serial(0, 6):
          for x in serial(0, {}):
            if y < a[{}]:
              out[y] = x
        """
    stays = text.format("N", "M")
    assert_becomes(bound_loops, "out[6], a[N]", stays, stays)
