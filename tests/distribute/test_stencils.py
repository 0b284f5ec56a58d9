"""Stencils on ranks: halos exchanged or made again, pyramids, and random pipelines."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tdsl as td
from tdsl.communication.steps import Exchange
from tdsl.distribute.check import check
from tdsl.lang.interp import interpret
from tests.distribute.pipelines import program, random_distribution
from tests.distribute.test_simulate import simulate_as_planned

i, j = td.vars("i j")
WORD = 8


def simulate_and_check(s: td.Schedule, **arrays: np.ndarray) -> Any:
    """The plan of a schedule that gives what one rank gives, and carries what it says."""
    p = td.compile(s, target="python")
    (expected,) = interpret(s.program, arrays)
    got, counted = p.simulate(**arrays, count=True)
    np.testing.assert_array_equal(got, expected)
    plan = p.plan()
    assert (counted.received, counted.sent) == (plan.received, plan.sent)
    assert counted.messages == plan.messages
    return plan


@given(st.integers(0, 2**32 - 1))
def test_random_pipelines(seed: int) -> None:
    rng = np.random.default_rng(seed)
    s = random_distribution(rng, program(rng))
    shape = tuple(e.value for e in s.program.inputs[0].shape)
    simulate_and_check(s, a=rng.integers(-99, 99, shape))


def heat(steps: int, every: int, grid: td.Grid, mode: str = "edge") -> td.Schedule:
    """Steps of a stencil, of which every so many exchange halos and the others are made again."""
    u, funcs = td.Tensor("u", (48, 36), td.i64), []
    source: Any = u
    for n in range(steps):
        f, p = td.Func(f"step{n}"), td.pad(source, mode=mode, shape=u.shape)
        f[i, j] = p[i, j] + p[i - 1, j] - p[i + 1, j] + 2 * p[i, j - 1] - p[i, j + 1]
        funcs.append(f)
        source = f
    s = td.Schedule(funcs[-1]).place(u, "rc -> r c", grid)
    for n, f in enumerate(funcs, 1):
        if n % every == 0:
            s.place(f, "rc -> r c", grid)
            s[f].distribute(onto=f)
    return s


@pytest.mark.parametrize("every", [1, 2, 3, 6])
def test_deep_halos_are_one_exchange_for_several_steps(every: int, rng: np.random.Generator) -> None:
    """In rows, k steps need k lines of either neighbour; the bytes are the same, the messages fewer."""
    plan = simulate_and_check(heat(6, every, td.Grid(x=4, y=1)), u=rng.integers(-9, 9, (48, 36)))
    lines = WORD * 36 * 6
    assert plan.received == (lines, 2 * lines, 2 * lines, lines)
    assert plan.messages == tuple(n * 6 // every for n in (1, 2, 2, 1))


@pytest.mark.parametrize("mode", ["edge", "constant", "reflect", "symmetric"])
def test_deep_halos_of_tiles(mode: str, rng: np.random.Generator) -> None:
    """Tiles of 24 x 18 with neighbours on two sides: one line and a corner for each of two steps, or two."""
    a = rng.integers(-9, 9, (48, 36))
    each = simulate_and_check(heat(2, 1, td.Grid(x=2, y=2), mode), u=a)
    deep = simulate_and_check(heat(2, 2, td.Grid(x=2, y=2), mode), u=a)
    assert set(each.received) == {2 * WORD * (25 * 19 - 24 * 18)}
    assert set(deep.received) == {WORD * (26 * 20 - 24 * 18)}
    assert set(each.messages) == {6}
    assert set(deep.messages) == {3}


@pytest.mark.parametrize("every", [1, 2])
def test_halos_that_wrap_around(every: int, rng: np.random.Generator) -> None:
    plan = simulate_and_check(heat(2, every, td.Grid(x=4, y=1), "wrap"), u=rng.integers(-9, 9, (48, 36)))
    assert plan.received[1] == WORD * 36 * 4  # inside as with any other padding
    if every == 1:
        assert set(plan.received) == {WORD * 36 * 4}  # and at the ends


@pytest.mark.parametrize("ranks", [1, 2, 3, 5, 8])
def test_wrapped_reads_are_one_block(ranks: int, rng: np.random.Generator) -> None:
    """By a modulo and by padding, to both sides; with few elements a rank needs all."""
    a, f, grid = td.Tensor("a", (23, 4), td.i64), td.Func("f", shape=(23, 4)), td.Grid(x=ranks)
    padded = td.pad(a, mode="wrap", shape=a.shape)
    f[i, j] = a[(i + 3) % 23, j] * 5 + padded[i - 2, j] + a[i, j] * 3
    s = td.Schedule(f).place(a, "rc -> r", grid).place(f, "rc -> r", grid)
    s[f].distribute(i, grid)
    x = rng.integers(-9, 9, (23, 4))
    np.testing.assert_array_equal(simulate_as_planned(s, x), np.roll(x, -3, 0) * 5 + np.roll(x, 2, 0) + x * 3)
    plan = td.compile(s).plan()
    check(plan)
    if ranks == 3:
        assert plan.received == (WORD * 4 * 5,) * 3
        assert str(td.compile(s).source("mpi")).count("def compute_") == 2  # of 8 rows, and of 7
    with pytest.raises(td.TypeMismatch, match="runs around"):
        plan.formula()


@pytest.mark.parametrize("mode", ["wrap", "reflect", "symmetric", "edge", "constant"])
@pytest.mark.parametrize("columns", [1, 2, 9, 11, 15])
def test_a_sum_of_padded_columns_reads_those_of_a_rank(
    columns: int, mode: str, rng: np.random.Generator
) -> None:
    """Lanes of the sum beyond the columns of a rank read nothing."""
    g = td.Grid(y=2)
    a, c, d, f = td.Tensor("a", (6, columns), td.f64), td.Func("c"), td.Func("d"), td.Func("f")
    c[i, j] = a[i, j] + 1
    c.with_shape(6, columns)
    d[i, j] = c[i, j] * 2 + td.pad(c, mode=mode)[i - 1, j]
    f[i] = td.sum(d[i, j], axis=j)
    s = td.Schedule(f).place(a, "ij -> *", g).place(c, "ij -> j", g).place(f, "i -> i", g)
    s[c].distribute(j, g)
    s[f].distribute(j, g)
    array = rng.standard_normal((6, columns))
    (expected,) = interpret(s.program, {"a": array})
    np.testing.assert_allclose(td.compile(s).simulate(array), expected)


def test_planning_a_wrapped_halo_is_logarithmic_in_ranks() -> None:
    a, f = td.Tensor("a", (8 * 65536,), td.f32), td.Func("f")
    f[i] = a[(i + 1) % (8 * 65536)]
    grid = td.Grid(x=65536)
    s = td.Schedule(f.with_shape(*a.shape)).place(a, "r -> r", grid).place(f, "r -> r", grid)
    s[f].distribute(i, grid)
    plan = td.compile(s).plan()
    for rank in (0, 65535):
        messages = [m for x in plan.rank(rank).steps if isinstance(x, Exchange) for m in x.sends + x.receives]
        assert [(m.rank - rank) % 65536 for m in messages] == [65535, 1]


def test_an_image_pyramid(rng: np.random.Generator) -> None:
    """Levels of half the extent each, placed on the same ranks; what is next to what changes."""
    a, grid = td.Tensor("a", (37, 22), td.i64), td.Grid(x=3, y=2)
    shape, level, funcs = (37, 22), a, []
    for n in range(3):
        shape = ((shape[0] + 1) // 2, (shape[1] + 1) // 2)
        f, p = td.Func(f"down{n}", shape=shape), td.pad(level, mode="edge")
        f[i, j] = p[2 * i - 1, 2 * j] + 2 * p[2 * i, 2 * j] + p[2 * i + 1, 2 * j + 1]
        funcs.append(f)
        level = f
    for n, up_to in enumerate([(10, 6), (19, 11), (37, 22)]):
        g, p = td.Func(f"up{n}", shape=up_to), td.pad(level, mode="edge")
        g[i, j] = p[i // 2, j // 2] + p[(i + 1) // 2, (j + 1) // 2]
        funcs.append(g)
        level = g
    s = td.Schedule(level).place(a, "rc -> r c", grid)
    for f in funcs:
        s.place(f, "rc -> r c", grid)
        s[f].distribute((i, j), grid)
    plan = simulate_and_check(s, a=rng.integers(-9, 9, (37, 22)))
    assert plan.moved("a") < WORD * 37 * 22 // 2


def test_each_stage_may_distribute_another_dimension(rng: np.random.Generator) -> None:
    """Sums along rows where rows are whole, then along columns: a transpose of the layout between."""
    a, grid = td.Tensor("a", (12, 8), td.i64), td.Grid(x=4)
    f, g = td.Func("f"), td.Func("g")
    f[i, j] = a[i, j] - a[i, 7 - j]
    g[i, j] = f[i, j] + f[11 - i, j]
    s = td.Schedule(g).place(a, "rc -> r", grid).place(f, "rc -> r", grid).place(g, "rc -> c", grid)
    s[f].distribute(onto=f)
    s[g].distribute(onto=g)
    plan = simulate_and_check(s, a=rng.integers(-9, 9, (12, 8)))
    assert plan.received == (WORD * 3 * 12 * 8 // 16,) * 4
    assert plan.messages == (1,) * 4  # all to all


def test_interior_blocks_share_one_task() -> None:
    """Sixteen ranks: four corners, four edges, and the middle need different code for the padding."""
    p = td.compile(heat(1, 1, td.Grid(x=4, y=4)))
    assert str(p.source("mpi")).count("def compute_") == 9
