"""Changes of layout: any to any, each element to each rank that lacks it, and no more often."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tdsl as td

i, j = td.vars("i j")
WORD = 8


def changed(
    source: str, target: str, grid: td.Grid, shape: tuple[int, int], turned: bool
) -> tuple[td.Schedule, Any]:
    """The schedule of a copy, and the array that it copies."""
    a, f = td.Tensor("a", shape, td.i64), td.Func("f")
    f[i, j] = a[j, i] if turned else a[i, j]
    s = td.Schedule(f)
    td.recipes.redistribute(s[f], source, target, grid)
    return s, np.arange(shape[0] * shape[1]).reshape(shape)


def lacking(s: td.Schedule, turned: bool) -> int:
    """Bytes of its block that a rank does not have before, over all ranks."""
    plan, total = td.compile(s).plan(), 0
    whole = np.arange(np.prod([hi - lo for lo, hi in plan.tensors[0].whole])).reshape(
        [hi - lo for lo, hi in plan.tensors[0].whole]
    )
    p = td.compile(s)
    for rank in range(plan.grid.size):
        before, behind = p.block("a", whole, rank), p.block("f", whole.T if turned else whole, rank)
        needed = set() if behind is None else set(behind.ravel().tolist())
        total += len(needed - (set() if before is None else set(before.ravel().tolist())))
    return WORD * total


@pytest.mark.parametrize("turned", [False, True], ids=["straight", "turned"])
@pytest.mark.parametrize(
    "source, target",
    [
        ("rc -> r c", "rc -> c r"), ("rc -> r *", "rc -> * c"), ("rc -> r c", "rc -> r *"),
        ("rc -> r c", "rc -> * *"), ("rc -> r 0", "rc -> r c"), ("rc -> 0 0", "rc -> r c"),
        ("rc -> r c", "rc -> 1 1"), ("rc -> r r", "rc -> c c"), ("rc -> r/2 c/3", "rc -> r c"),
        ("rc -> c r", "rc -> r/3 c/1"), ("rc -> r/2 c/3", "rc -> r/3 c/2"), ("rc -> r/1 c/4", "rc -> c r/5"),
    ],
)  # fmt: skip
def test_each_element_moves_once_to_each_rank_that_lacks_it(source: str, target: str, turned: bool) -> None:
    s, x = changed(source, target, td.Grid(x=2, y=3), (12, 18), turned)
    out, counted = td.compile(s, target="python").simulate(x, count=True)
    np.testing.assert_array_equal(out, x.T if turned else x)
    plan = td.compile(s).plan()
    assert counted.received == plan.received
    if turned and (source, target) == ("rc -> r *", "rc -> * c"):  # copies made of copies
        assert plan.total_received <= 1.5 * lacking(s, turned)
    else:
        assert plan.total_received == lacking(s, turned)


def test_a_transpose_is_from_all_to_all() -> None:
    """Rows that become columns: each rank has a part for each other one."""
    s, _ = changed("rc -> r", "rc -> r", td.Grid(x=4), (16, 24), True)
    plan = td.compile(s).plan()
    assert set(plan.received) == {WORD * 3 * 16 * 24 // 16}
    assert set(plan.messages) == {1}  # a collective
    assert any(getattr(x, "collective", "") == "all-to-all" for x in plan.rank(0).steps)


ENTRIES = ("r", "c", "r/2", "c/1", "*", "0", "1")


@given(
    st.tuples(*[st.sampled_from(ENTRIES)] * 4), st.integers(1, 7), st.integers(1, 7), st.booleans(),
    st.sampled_from([(2, 2), (3, 2), (2, 5)]),
)  # fmt: skip
def test_any_layout_becomes_any_other(
    entries: tuple[str, ...], rows: int, columns: int, turned: bool, shape: tuple[int, int]
) -> None:
    pairs = [entries[:2], entries[2:]]
    texts = [f"rc -> {a} {b if a[0] != b[0] or a[0] not in 'rc' else '*'}" for a, b in pairs]
    s, x = changed(*texts, td.Grid(x=shape[0], y=shape[1]), (rows, columns), turned)
    out, counted = td.compile(s, target="python").simulate(x, count=True)
    np.testing.assert_array_equal(out, x.T if turned else x)
    assert counted.received == td.compile(s).plan().received


def test_what_is_no_copy_is_refused() -> None:
    a, f = td.Tensor("a", (4, 4), td.f32), td.Func("f")
    f[i, j] = a[i, j] + a[j, i]
    with pytest.raises(td.ScheduleError, match="'f' is no copy of one tensor"):
        td.recipes.redistribute(td.Schedule(f)["f"], "rc -> r", "rc -> c", td.Grid(x=2))
