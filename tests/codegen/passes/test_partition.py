"""Steady parts of loops: nothing is clipped or masked in them, and the whole computes the same."""

import pytest

from tdsl.codegen.ir.loops import For, Kernel
from tdsl.codegen.ir.show import show
from tdsl.codegen.ir.statements import walk
from tdsl.codegen.passes.partition import partition
from tdsl.codegen.passes.simplify_loops import simplify_loops
from tests.codegen.passes.loop_text import assert_becomes, assert_same_results, kernel


def partitioned(k: Kernel) -> Kernel:
    return partition(simplify_loops(k))


def test_clamped_stencil_with_tail_has_unclamped_interior():
    assert_becomes(
        partitioned,
        "out[61], a[61]",
        """
        for x in serial(0, 8):
            for v in vectorized(0, 8):
                if x * 8 + v < 61:
                    out[x * 8 + v] = a[max(x * 8 + v - 1, 0)] + a[min(x * 8 + v + 1, 60)]
        """,
        """
        for v_1 in vectorized(0, 8):
          out[v_1] = a[max(v_1 - 1, 0)] + a[v_1 + 1]
        for x in serial(1, 7):
          for v in vectorized(0, 8):
            out[v + x * 8] = a[v + x * 8 - 1] + a[v + x * 8 + 1]
        for v_2 in vectorized(0, 8):
          if v_2 + 56 < 61:
            out[v_2 + 56] = a[v_2 + 55] + a[min(v_2 + 57, 60)]
        """,
    )


def interior_text(k: Kernel) -> str:
    """The text of the loop that runs most often among those that were cut."""
    loops = [s for s in walk(k.body) if isinstance(s, For) and s.name == "x"]
    return show(max(loops, key=lambda s: s.extent.value if hasattr(s.extent, "value") else 1 << 20))


@pytest.mark.parametrize(
    "index",
    [
        "pad_reflect(x * 4 + v - 3, 80)",
        "pad_wrap(x * 4 + v + 2, 80)",
        "pad_symmetric(x * 4 + v - 9, 80)",
        "max(min(pad_reflect(x * 4 + v + 1, 70), 79), 2)",
        "where((x * 4 + v >= 2) & (x * 4 + v < 77), x * 4 + v, 5)",
        "where(x * 4 + v == 0, 7, x * 4 + v)",
        "79 - max(x * 4 + v, 3)",
    ],
)
def test_clips_and_padding_are_only_in_end_parts(index):
    before = kernel(
        "out[80], a[80]",
        f"""
        for x in serial(0, 20):
            for v in vectorized(0, 4):
                out[x * 4 + v] = a[{index}]
        """,
    )
    after = partitioned(before)
    assert_same_results(before, after)
    text = interior_text(after)
    assert not any(word in text for word in ("min", "max", "pad", "where"))


def test_interior_holds_for_all_inner_iterations():
    before = kernel(
        "out[80], a[80]",
        """
        for x in serial(0, 20):
            for k in serial(0, 5):
                for v in vectorized(0, 4):
                    out[x * 4 + v] = out[x * 4 + v] + a[max(min(x * 4 + v + k - 2, 79), 0)]
        """,
    )
    after = partitioned(before)
    assert_same_results(before, after)
    assert [s.extent.value for s in walk(after.body) if isinstance(s, For) and s.name[0] == "x"] == [18]


def test_parallel_loop_becomes_branch():
    assert_becomes(
        partitioned,
        "out[99]",
        """
        for x in parallel(0, 13):
            for v in vectorized(0, 8):
                if x * 8 + v < 99:
                    out[x * 8 + v] = 1
        """,
        """
        for x in parallel(0, 13):
          if x <= 11:
            for v in vectorized(0, 8):
              out[v + x * 8] = 1
          else:
            for v_1 in vectorized(0, 8):
              if v_1 + x * 8 < 99:
                out[v_1 + x * 8] = 1
        """,
    )


def test_outer_loop_is_cut_if_interior_dominates():
    before = kernel(
        "out[320], a[320]",
        """
        for t in serial(0, 20):
            for x in serial(0, 4):
                for v in vectorized(0, 4):
                    out[t * 16 + x * 4 + v] = a[max(t * 16 + x * 4 + v - 1, 0)]
        """,
    )
    after = partitioned(before)
    assert_same_results(before, after)
    assert [s.extent.value for s in walk(after.body) if isinstance(s, For) and s.name == "t"] == [19]


@pytest.mark.parametrize(
    "statement",
    [
        "out[x * 4 + v] = a[min(y, 3), x * 4 + v]",  # moves with another loop
        "out[x * 4 + v] = a[y, min(out[x * 4 + v], 79)]",  # moves with data
        "out[x * 4 + v] = a[y, (x * 4 + v) // 2]",  # is not clipped
        "out[x * 4 + v] = a[y, max(79 - y, v)]",  # is decided by no iteration of x
    ],
)
def test_loop_without_gain_is_not_cut(statement):
    k = kernel(
        "out[80], a[5, 80]",
        f"""
        for y in serial(0, 5):
            for x in serial(0, 20):
                for v in vectorized(0, 4):
                    {statement}
        """,
    )
    assert partition(k) == k


def test_overlapping_ends_leave_no_interior():
    before = kernel(
        "out[N], a[N]",
        """
        for x in serial(0, (N + 3) // 4):
            for v in vectorized(0, 4):
                if x * 4 + v < N:
                    out[x * 4 + v] = a[max(x * 4 + v - 9, 0)] + a[min(x * 4 + v + 9, N - 1)]
        """,
    )
    after = partitioned(before)
    assert sum(isinstance(s, For) and s.name[0] == "x" for s in walk(after.body)) == 3
    assert_same_results(before, after)


@pytest.mark.parametrize("how", ["serial", "parallel"])
def test_decided_conditions_are_removed(how):
    k = kernel(
        "out[64], a[64]",
        f"""
        for x in {how}(0, 8):
            for v in vectorized(0, 8):
                if x * 8 + v < 64:
                    out[x * 8 + v] = a[x * 8 + v]
        """,
    )
    text = show(partition(k))
    assert "if" not in text
    assert_same_results(k, partition(k))
