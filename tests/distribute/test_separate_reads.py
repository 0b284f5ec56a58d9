"""Reads of one tensor at distant places are fetched as boxes of their own, and near ones as one box."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tdsl as td
from tdsl.distribute.check import check
from tests.distribute.volumes import assert_volume_is_of_plan

i, j = td.vars("i j")
N, GRID = 64, td.Grid(p=8)
A = np.random.default_rng(0).standard_normal(N)


def on_ranks(f: td.Func, x: td.Tensor, grid: td.Grid = GRID) -> Any:
    s = td.Schedule(f).place(x, "i -> i", grid).place(f, "i -> i", grid)
    s[f].distribute(i, grid)
    return td.compile(s, target="python")


def assert_as_planned(p, expected: np.ndarray, *arrays: np.ndarray) -> None:
    """Results are right, and each rank moves what plan and volume say."""
    out, counted = p.simulate(*arrays, count=True)
    plan = p.plan()
    np.testing.assert_allclose(out, expected)
    assert (counted.received, counted.sent, counted.messages) == (plan.received, plan.sent, plan.messages)
    assert_volume_is_of_plan(p._specialise({}))
    check(plan)


@pytest.mark.parametrize("h", [4, 8, 16, 32])
def test_a_butterfly_with_its_own_block_receives_that_of_its_partner(h: int) -> None:
    x, f = td.Tensor("x", (N,), td.f64), td.Func("f")
    f[i] = x[i] - x[i ^ h]
    p = on_ranks(f, x)
    assert_as_planned(p, A - A[np.arange(N) ^ h], A)
    assert set(p.plan().received) == {0 if h < 8 else 64}
    assert set(p.plan().messages) == {0 if h < 8 else 1}


@pytest.mark.parametrize("ranks", [3, 7, 8])
def test_reversed_pairs_receive_the_mirrored_block(ranks: int) -> None:
    x, f, grid = td.Tensor("x", (N,), td.f64), td.Func("f"), td.Grid(p=ranks)
    f[i] = x[i] - x[N - 1 - i]
    p = on_ranks(f, x, grid)
    assert_as_planned(p, A - A[::-1], A)
    for rank, received in enumerate(p.plan().received):
        ((lo, hi),) = p.plan().owned("x", rank)
        mirrored = set(range(N - hi, N - lo))
        assert received == 8 * len(mirrored - set(range(lo, hi)))


def test_a_far_stencil_receives_two_blocks_and_a_near_one_a_halo() -> None:
    for far, interior in ((16, 128), (2, 32)):
        x, f = td.Tensor("x", (N,), td.f64), td.Func("f", shape=N)
        padded = td.pad(x, mode="wrap")
        f[i] = padded[i - far] - padded[i + far]
        p = on_ranks(f, x)
        assert_as_planned(p, np.roll(A, far) - np.roll(A, -far), A)
        assert p.plan().received[3] == interior


def cholesky(n: int, ranks: int) -> Any:
    """Right-looking, unrolled: each step reads a column of the last one, its pivot, and its own rows."""
    a, grid = td.Tensor("A", (n, n), td.f64), td.Grid(x=ranks)
    last, steps = a, []
    for t in range(n):
        f = td.Func(f"c{t}", shape=(n, n))
        scaled = td.where(
            (j == t) & (i >= t), last[i, t] / td.sqrt(last[t, t]), td.where(j < t, last[i, j], 0)
        )
        rest = last[i, j] - last[i, t] * last[j, t] / last[t, t]
        f[i, j] = td.where((j > t) & (i >= j), rest, scaled)
        steps.append(f)
        last = f
    s = td.Schedule(last).place(a, "rc -> r", grid)
    for f in steps:
        s.place(f, "rc -> r", grid)[f].distribute(i, grid)
    return td.compile(s, target="python")


def test_an_unrolled_cholesky_receives_a_column_in_each_step() -> None:
    n, ranks = 8, 4
    q = np.random.default_rng(0).standard_normal((n, n))
    a = q @ q.T + n * np.eye(n)
    p = cholesky(n, ranks)
    assert_as_planned(p, np.linalg.cholesky(a), a)
    assert set(p.plan().received) == {n * (n - n // ranks) * 8}


@pytest.mark.parametrize("prefetch", [0, 1])
def test_boxes_follow_the_steps_of_a_loop(prefetch: int) -> None:
    x, f, grid = td.Tensor("x", (48,), td.f64), td.Func("f"), td.Grid(p=4)
    f[i] = x[i] + 2 * x[47 - i]
    s = td.Schedule(f).place(x, "i -> i", grid).place(f, "i -> i", grid)
    s[f].distribute(i, grid)
    steps, _ = s[f].split(i, 3)
    s[f].communicate(x, at=steps, prefetch=prefetch)
    a = A[:48]
    p = td.compile(s, target="python")
    assert_as_planned(p, a + 2 * a[::-1], a)
    assert set(p.plan().received) == {12 * 8}
    assert p.plan().moved("x") == 48 * 8


def test_names_of_boxes_are_no_names_of_the_program() -> None:
    """The second box of x is not confused with an input of a name that it could have."""
    x, other, f = td.Tensor("x", (N,), td.f64), td.Tensor("x_2", (N,), td.f64), td.Func("f")
    f[i] = x[i] - x[N - 1 - i] + 3 * other[i]
    s = td.Schedule(f)
    for t in (x, other, f):
        s.place(t, "i -> i", GRID)
    s[f].distribute(i, GRID)
    p = td.compile(s, target="python")
    assert_as_planned(p, A - A[::-1] + 3 * A**2, A, A**2)
    assert set(p.plan().received) == {64}


def test_rows_of_a_func_of_several_values_have_their_own_boxes() -> None:
    x, best, f = td.Tensor("x", (N, 3), td.f64), td.Func("best"), td.Func("f")
    best[i] = td.argmax(x[i, j], axis=j)
    f[i] = best[i] + 10 * best[N - 1 - i]
    s = td.Schedule(f)
    name = s.program.funcs[0].name
    s.place(x, "ij -> i", GRID)
    for n in dict.fromkeys([name, *(g.name for g in s.program.funcs)]):
        s.place(n, "i -> i", GRID)[n].distribute(i, GRID)
    a = np.random.default_rng(1).standard_normal((N, 3))
    index = a.argmax(1)
    assert_as_planned(td.compile(s, target="python"), index + 10 * index[::-1], a)


def test_there_is_no_formula_of_several_boxes() -> None:
    x, f = td.Tensor("x", (N,), td.f64), td.Func("f")
    f[i] = x[i] - x[N - 1 - i]
    with pytest.raises(td.errors.TypeMismatch, match="'f' reads several boxes of 'x', of which there is no"):
        on_ranks(f, x).plan().formula(0)


def test_the_module_of_all_ranks_reads_each_box() -> None:
    x, f = td.Tensor("x", (N,), td.f64), td.Func("f")
    f[i] = x[i] - x[N - 1 - i]
    text = str(on_ranks(f, x).source("mpi"))
    assert "x_2" in text
    compile(text, "module", "exec")
