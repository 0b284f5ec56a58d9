"""Simulated programs give what one rank gives, and carry what was planned, rank by rank."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tdsl as td
from tdsl.codegen.runtime.binding import bind_sizes
from tdsl.codegen.runtime.signature import ArrayArg
from tdsl.distribute.task import inner_nest
from tests.distribute.matmuls import cube, flat, matmul, two_and_a_half

i, j, k = td.vars("i j k")


def simulate_as_planned(s: Any, *arrays: np.ndarray) -> Any:
    p = td.compile(s)
    out, counted = p.simulate(*arrays, count=True)
    given = zip(p.signature.inputs, arrays, strict=True)
    plan = p.plan(**bind_sizes(p.signature, [(arg, x) for arg, x in given if isinstance(arg, ArrayArg)]))
    assert (counted.received, counted.sent) == (plan.received, plan.sent)
    assert counted.messages == plan.messages
    return out


SCHEDULES = {
    "summa on 2x3": lambda: flat(td.Grid(x=2, y=3), ""),
    "pumma on 3x2": lambda: flat(td.Grid(x=3, y=2), "i"),
    "cannon on 3x3": lambda: flat(td.Grid(x=3, y=3), "ij"),
    "cannon on 5x1": lambda: flat(td.Grid(x=5, y=1), "ij"),
    "johnson on 2x2x2": lambda: cube(td.Grid(x=2, y=2, z=2)),
    "cosma on 1x3x2": lambda: cube(td.Grid(x=1, y=3, z=2)),
    "2.5d on 4x4x2": lambda: two_and_a_half(td.Grid(x=4, y=4, z=2)),
}


@pytest.mark.in_part(8)
@pytest.mark.parametrize("shape", [(11, 7, 13), (4, 4, 4), (2, 9, 1), (3, 5, 0), (0, 2, 3)])
@pytest.mark.parametrize("make", SCHEDULES.values(), ids=SCHEDULES.keys())
def test_products_of_whole_numbers_are_exact(make: Any, shape: tuple[int, int, int]) -> None:
    m, n, k = shape
    rng = np.random.default_rng(0)
    a, b = (rng.integers(-9, 9, s).astype(float) for s in ((m, k), (k, n)))
    np.testing.assert_array_equal(simulate_as_planned(make(), a, b), a @ b)


def test_a_maximum_over_ranks_is_combined_on_its_owner(rng: np.random.Generator) -> None:
    a, f = td.Tensor("a", (7, 10), td.i32), td.Func("f")
    f[i] = td.max(a[i, k], axis=k)
    grid = td.Grid(x=2, y=3)
    s = td.Schedule(f).place("a", "rc -> r c", grid).place("f", "r -> r *", grid)
    s[f].distribute((i, k), grid)
    x = rng.integers(-99, 99, (7, 10)).astype(np.int32)
    np.testing.assert_array_equal(simulate_as_planned(s, x), x.max(axis=1))


def test_a_combiner_with_a_scalar_of_the_call(rng: np.random.Generator) -> None:
    a, limit, f = td.Tensor("a", (9,), td.i64), td.Scalar("limit", td.i64), td.Func("f")
    f[()] = td.sum(td.minimum(a[k], limit), axis=k)
    grid = td.Grid(x=4)
    s = td.Schedule(f).place("a", "r -> 0", grid).place("f", "-> 3", grid)
    s[f].distribute(k, grid)
    x = rng.integers(0, 99, 9)
    assert simulate_as_planned(s, x, 50) == np.minimum(x, 50).sum()


def test_the_output_may_be_owned_by_other_ranks_than_compute_it(rng: np.random.Generator) -> None:
    a, f = td.Tensor("a", (10, 7), td.f32), td.Func("f")
    f[j, i] = a[i, j] + 1
    grid = td.Grid(x=3)
    s = td.Schedule(f).place("a", "rc -> r", grid).place("f", "rc -> r", grid)
    s[f].distribute(i, grid)
    x = rng.random((10, 7)).astype(np.float32)
    np.testing.assert_array_equal(simulate_as_planned(s, x), x.T + 1)


def test_stages_with_different_layouts(rng: np.random.Generator) -> None:
    """Rows are summed where they live, columns afterwards where those live: a change of layout between."""
    a, f, g = td.Tensor("a", (8, 9), td.i64), td.Func("f"), td.Func("g")
    f[i, j] = a[i, j] * (i + 1)
    g[i, j] = f[i, j] + f[i, 8 - j]
    grid = td.Grid(x=4)
    s = td.Schedule(g)
    s.place("a", "rc -> r", grid).place("f", "rc -> r", grid).place("g", "rc -> c", grid)
    s[f].distribute(i, grid)
    s[g].distribute(j, grid)
    x = rng.integers(0, 99, (8, 9))
    scaled = x * np.arange(1, 9)[:, None]
    np.testing.assert_array_equal(simulate_as_planned(s, x), scaled + scaled[:, ::-1])


@pytest.mark.parametrize("grid", [td.Grid(x=2, y=2), td.Grid(x=3, y=1), td.Grid(x=2, y=5)])
def test_block_cyclic_inputs_and_outputs(grid: td.Grid, rng: np.random.Generator) -> None:
    """The layout of ScaLAPACK, in blocks of other sizes than those that ranks compute."""
    s = flat(grid, "", "rc -> r/2 c/3", M=11, N=7, K=13)
    a, b = rng.integers(0, 9, (11, 13)).astype(float), rng.integers(0, 9, (13, 7)).astype(float)
    np.testing.assert_array_equal(simulate_as_planned(s, a, b), a @ b)
    p = td.compile(s)
    rows = [r for r in range(11) if r // 2 % grid.x == 0]
    columns = [c for c in range(13) if c // 3 % grid.y == 0]
    np.testing.assert_array_equal(p.block("A", a, 0), a[np.ix_(rows, columns)])


def test_levels_of_a_grid_distribute_the_same_loops_again(rng: np.random.Generator) -> None:
    """SUMMA over nodes, and in each of them over its ranks."""
    nodes, cores = td.Grid(X=2, Y=1), td.Grid(x=2, y=2)
    s = matmul.schedule(M=12, N=10, K=9)
    for name in "ABC":
        s.place(name, ("rc -> r c", "rc -> r c"), [nodes, cores])
    C = s["C"]
    outer = C.distribute(("i", "j", "i", "j"), [nodes, cores])
    panel, inside = C.divide("k", 2)
    C.reorder(panel, C.local("i"), C.local("j"), inside)
    C.communicate("C", at=outer[-1]).communicate(("A", "B"), at=panel)
    a, b = rng.integers(0, 9, (12, 9)).astype(float), rng.integers(0, 9, (9, 10)).astype(float)
    np.testing.assert_array_equal(simulate_as_planned(s, a, b), a @ b)
    plan = td.compile(s).plan()
    assert plan.moved("C") == 0
    assert [plan.owned("C", r) for r in (0, 1, 4)] == [
        ((0, 3), (0, 5)), ((0, 3), (5, 10)), ((6, 9), (0, 5)),
    ]  # fmt: skip
    assert str(s).count("[td.Grid(X=2, Y=1), td.Grid(x=2, y=2)]") == 4
    again = matmul.schedule(M=12, N=10, K=9).replay(s.to_json())
    assert again.state == s.state


def test_unread_padding_is_not_sent(rng: np.random.Generator) -> None:
    a, f = td.Tensor("a", (12,), td.i64), td.Func("f", shape=(12,))
    padded = td.pad(a, mode="constant")
    f[i] = padded[i - 1] + padded[i + 1]
    grid = td.Grid(x=3)
    s = td.Schedule(f).place("a", "r -> r", grid).place("f", "r -> r", grid)
    s[f].distribute(i, grid)
    x = rng.integers(0, 99, 12)
    whole = np.pad(x, 1)
    np.testing.assert_array_equal(simulate_as_planned(s, x), whole[:-2] + whole[2:])
    assert td.compile(s).plan().received == (8, 16, 8)


def test_directives_within_a_rank_are_kept(rng: np.random.Generator) -> None:
    s = flat(td.Grid(x=2, y=2), "ij")
    C = s["C"]
    C.split("i", 4)
    C.vectorize("j", 8)
    a, b = rng.integers(0, 9, (21, 18)).astype(float), rng.integers(0, 9, (18, 30)).astype(float)
    np.testing.assert_array_equal(simulate_as_planned(s, a, b), a @ b)
    nest = inner_nest(s.state.plan("C").nests[0], ("i_o", "j_o", "k_or"), ("i", "j", "k"))
    assert [(x.name, x.kind) for x in nest.loops] == [
        ("i_i_o", "serial"), ("i_i_i", "serial"), ("j_i_o", "serial"), ("j_i_v", "vectorized"),
        ("k_i", "serial"),
    ]  # fmt: skip


def test_a_gather_fetches_what_it_may_read(rng: np.random.Generator) -> None:
    a, at, f = td.Tensor("a", (16,), td.i64), td.Tensor("at", (10,), td.i32), td.Func("f")
    f[i] = a[td.clip(at[i], 0, 15)]
    grid = td.Grid(x=4)
    s = td.Schedule(f).place("a", "r -> r", grid).place("at", "r -> r", grid).place("f", "r -> r", grid)
    s[f].distribute(i, grid)
    x, where = rng.integers(0, 99, 16), rng.integers(0, 16, 10).astype(np.int32)
    p = td.compile(s)
    np.testing.assert_array_equal(p.simulate(at=where, a=x), x[where])


def test_loops_are_shared_out_onto_a_placement() -> None:
    """A tensor of three dimensions stays where it is; its loops follow."""
    l = td.vars("l")
    b, c, f = td.Tensor("b", (8, 6, 5), td.i64), td.Tensor("c", (5, 7), td.i64), td.Func("f")
    f[i, l, j] = td.sum(b[i, j, k] * c[k, l], axis=k)
    grid = td.Grid(x=2, y=2)
    s = td.Schedule(f).place("b", "xyz -> y x", grid).place("c", "zl -> * *", grid)
    s.place("f", "xly -> y x", grid)
    assert [x.name for x in s[f].distribute(onto=b)] == ["j_o", "i_o"]
    x, y = np.arange(240).reshape(8, 6, 5), np.arange(35).reshape(5, 7)
    np.testing.assert_array_equal(simulate_as_planned(s, x, y), np.einsum("ijk,kl->ilj", x, y))
    assert td.compile(s).plan().total_received == 0
    again = td.Schedule(f).place("f", "xly -> y x", grid)
    assert [x.name for x in again[f].distribute(onto=f)] == ["j_o", "i_o"]


def test_a_read_outside_of_a_tensor_is_an_error_of_the_program() -> None:
    i, grid = td.vars("i"), td.Grid(x=3)
    x, f = td.Tensor("x", (6,), td.f64), td.Func("f", shape=(6,))
    f[i] = x[i + 1]
    s = td.Schedule(f).place("x", "r -> r", grid).place("f", "r -> r", grid)
    s[f].distribute(i, grid)
    with pytest.raises(td.IndexBoundError, match=r"'x' may be read at 6 in axis 0"):
        td.compile(s).simulate(np.ones(6))


@pytest.mark.parametrize("names", ["self out pair", "out_0 self out", "a out out_0"])
def test_tensors_have_names_of_parameters_of_calls(names: str) -> None:
    first, second, third = names.split()
    a, f, pair = td.Tensor(first, (6,), td.f64), td.Func(second), td.Func(third)
    g = td.Func("g", shape=(6,))
    f[i] = a[i] + 1
    pair[i] = (f[i], f[(i + 1) % 6])
    g[i] = pair[i][0] * 2 + pair[i][1]
    s, line = td.Schedule(g), td.Grid(x=2)
    for t in (a, f, pair, g):
        s.place(t, "i -> i", line)
    for t in (f, pair, g):
        s[t].distribute(i, line)
    x = np.arange(6.0) ** 2
    np.testing.assert_array_equal(simulate_as_planned(s, x), (x + 1) * 2 + np.roll(x + 1, -1))
    assert "def " in td.compile(s).source("mpi")
