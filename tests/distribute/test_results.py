"""Results over ranks: parts that stay, several values, updates; each as one rank gives it."""

from __future__ import annotations

import numpy as np
import pytest

import tdsl as td
from tdsl.distribute.check import check
from tests.distribute.test_simulate import simulate_as_planned

i, j, k = td.vars("i j k")
four = td.Grid(x=4)


def histogram(place: str) -> td.Schedule:
    b, h, r = td.Tensor("b", (19,), td.i32), td.Func("h", shape=(5,)), td.range("r", 0, 19)
    h[i] = 0
    h[td.clip(b[r], 0, 4)] += 1
    s = td.Schedule(h).place("b", "r -> r", four).place("h", place, four)
    s[h].update(0).distribute(r, four)
    return s


@pytest.mark.parametrize("place", ["r -> r", "r -> *", "r -> 2", "r -> partial(sum)"])
def test_ranks_compute_partial_histograms(place: str, rng: np.random.Generator) -> None:
    b = rng.integers(0, 5, 19).astype(np.int32)
    got = simulate_as_planned(histogram(place), b)
    np.testing.assert_array_equal(got, np.bincount(b, minlength=5))


def test_partial_products_stay_on_the_ranks_that_compute_them(rng: np.random.Generator) -> None:
    a, b, f = td.Tensor("a", (7, 9), td.i64), td.Tensor("b", (9, 5), td.i64), td.Func("f")
    f[i, j] = td.sum(a[i, k] * b[k, j], axis=k)
    grid = td.Grid(x=2, y=3)
    s = td.Schedule(f).place("a", "ik -> i k", grid).place("b", "kj -> * k", grid)
    s.place("f", "ij -> i partial(sum)", grid)[f].distribute((i, k), grid)
    x, y = rng.integers(-9, 9, (7, 9)), rng.integers(-9, 9, (9, 5))
    np.testing.assert_array_equal(simulate_as_planned(s, x, y), x @ y)
    assert td.compile(s).plan().total_received == 0
    assert "partial(sum)" in str(s)


@pytest.mark.parametrize("place", ["r -> x x", "r -> * *", "r -> 1 r"])
def test_a_later_stage_reduces_partial_results_that_it_reads(place: str, rng: np.random.Generator) -> None:
    """Sums of rows lie in parts along the second axis; each reader fetches all parts of what it needs."""
    a, f, g = td.Tensor("a", (7, 9), td.i64), td.Func("f"), td.Func("g", shape=(7,))
    f[i] = td.sum(a[i, k], axis=k)
    g[i] = f[i] * 2 + td.pad(f, mode="edge", shape=(7,))[i - 1]
    grid = td.Grid(x=2, y=3)
    s = td.Schedule(g).place("a", "rc -> r c", grid).place("f", "r -> r partial(sum)", grid)
    s[f].distribute((i, k), grid)
    s.place("g", place.replace("x x", "r r"), grid)[g].distribute((i, i), grid)
    x = rng.integers(-9, 9, (7, 9))
    total = x.sum(1)
    expected = total * 2 + total[[0, 0, 1, 2, 3, 4, 5]]
    np.testing.assert_array_equal(simulate_as_planned(s, x), expected)
    plan = td.compile(s).plan()
    check(plan)
    if place == "r -> x x":  # on rank 1: its two elements and the one before, of three parts but its own
        assert plan.received[1] == 8 * 2 * 3
        assert int(plan.formula(1)) == plan.received[1]


def test_an_argument_of_the_maximum_over_ranks(rng: np.random.Generator) -> None:
    a, f, grid = td.Tensor("a", (6, 21), td.f64), td.Func("f"), td.Grid(x=2, y=2)
    f[i] = td.argmax(a[i, k], axis=k)
    s = td.Schedule(f).place("a", "rc -> r c", grid)
    s.place("f_argmax", "r -> r 0", grid).place("f", "r -> 1 r", grid)
    s["f_argmax"].distribute((i, k), grid)
    s[f].distribute(s[f].split(i, 3), grid)
    x = rng.integers(0, 5, (6, 21)).astype(float)  # with ties: the first one counts
    np.testing.assert_array_equal(simulate_as_planned(s, x), x.argmax(axis=1))


def test_several_values_are_returned_as_several_arrays(rng: np.random.Generator) -> None:
    c, f, grid = td.Tensor("c", (7, 2), td.i64), td.Func("f"), td.Grid(x=3)
    f[i] = (c[i, 0], c[i, 1] * 0.5)
    s = td.Schedule(f).place("c", "rc -> r", grid).place("f", "r -> *", grid)
    s[f].distribute(i, grid)
    x = rng.integers(-9, 9, (7, 2))
    first, second = simulate_as_planned(s, x)
    np.testing.assert_array_equal(first, x[:, 0])
    np.testing.assert_array_equal(second, x[:, 1] * 0.5)


def test_updates_follow_the_first_definition(rng: np.random.Generator) -> None:
    """Sums along the rows, which ranks share; the result lives in columns."""
    c, f, r = td.Tensor("c", (7, 9), td.i64), td.Func("f", shape=(7, 9)), td.range("r", 1, 9)
    f[i, j] = c[i, j]
    f[i, r] = f[i, r - 1] + c[i, r]
    grid = td.Grid(x=3)
    s = td.Schedule(f).place("c", "rc -> r", grid).place("f", "rc -> c", grid)
    s[f].distribute(i, grid)
    x = rng.integers(-9, 9, (7, 9))
    np.testing.assert_array_equal(simulate_as_planned(s, x), x.cumsum(axis=1))


def test_what_an_update_reads_is_fetched(rng: np.random.Generator) -> None:
    c, d = td.Tensor("c", (8,), td.i64), td.Tensor("d", (8, 3), td.i64)
    f, r, grid = td.Func("f"), td.range("r", 0, 3), td.Grid(x=2)
    f[i] = c[i]
    f[i] = f[i] * 2 + d[7 - i, r]
    s = td.Schedule(f).place("c", "r -> r", grid).place("d", "rc -> r", grid)
    s.place("f", "r -> r", grid)[f].distribute(i, grid)
    x, y = rng.integers(-9, 9, 8), rng.integers(-9, 9, (8, 3))
    expected = ((x * 2 + y[::-1, 0]) * 2 + y[::-1, 1]) * 2 + y[::-1, 2]
    np.testing.assert_array_equal(simulate_as_planned(s, x, y), expected)
