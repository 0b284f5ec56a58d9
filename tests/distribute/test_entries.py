"""`distribute` with "*", a coordinate or "partial" in place of a loop."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tdsl as td
from tdsl.distribute.check import check
from tdsl.distribute.plan import Plan
from tests.distribute.volumes import assert_volume_is_of_plan

i, j, k = td.vars("i j k")
Entry = Any


def simulated(s: td.Schedule, *arrays: np.ndarray) -> tuple[Any, Plan]:
    """The result of all ranks, whose counted bytes and messages are those of the verified plan."""
    p = td.compile(s, target="python")
    out, counted = p.simulate(*arrays, count=True)
    plan = p.plan()
    assert (counted.received, counted.sent) == (plan.received, plan.sent)
    assert counted.messages == plan.messages
    check(plan)
    return out, plan


def adam(ranks: int, size: int, gradient: str, state: str) -> td.Schedule:
    """A step of Adam after the gradient of one weight, whose placement decides how it is reduced."""
    grid, b = td.Grid(x=ranks), td.vars("b")
    x, d = (td.Tensor(n, (2 * ranks, size), td.f32) for n in "xd")
    m, v, w = (td.Tensor(n, (size, size), td.f32) for n in "mvw")
    g, m2, v2, w2 = (td.Func(n) for n in ("g", "m2", "v2", "w2"))
    g[i, j] = td.sum(x[b, i] * d[b, j], axis=b)
    m2[i, j] = m[i, j] / 2 + g[i, j] / 2
    v2[i, j] = v[i, j] / 2 + g[i, j] * g[i, j] / 2
    w2[i, j] = w[i, j] - m2[i, j] / (td.sqrt(v2[i, j]) + 1)
    s = td.Schedule(m2, v2, w2).place(x, "bi -> b", grid).place(d, "bi -> b", grid)
    s.place(g, f"ij -> {gradient}", grid)[g].distribute(b, grid)
    for t in (m, v, m2, v2):
        s.place(t, f"ij -> {state}", grid)
    s.place(w, "ij -> *", grid).place(w2, "ij -> *", grid)
    for f in (m2, v2, w2):
        s[f].distribute(onto=m2 if f is w2 else f)
    return s


def adam_by_numpy(arrays: list[np.ndarray]) -> list[np.ndarray]:
    x, d, m, v, w = arrays
    g = x.T @ d
    m2, v2 = m / 2 + g / 2, v / 2 + g * g / 2
    return [m2, v2, w - m2 / (np.sqrt(v2) + 1)]


@pytest.mark.parametrize("gradient, state", [("*", "*"), ("i", "i")])
def test_adam_moves_the_same_by_all_reduce_and_by_reduce_scatter(gradient: str, state: str) -> None:
    """CoCoNet's plans: 2 (p - 1) / p times the gradient; the second has 1 / p of the memory of m and v."""
    s = adam(8, 128, gradient, state)
    plan = td.compile(s, target="python").plan()
    assert set(plan.received) == {2 * 7 * 128 * 128 * 4 // 8} == {114_688}
    s, rng = adam(4, 8, gradient, state), np.random.default_rng(0)
    arrays = [rng.integers(0, 4, (n, 8)).astype(np.float32) for n in (8, 8, 8, 8, 8)]
    out, _ = simulated(s, *arrays)
    for got, expected in zip(out, adam_by_numpy(arrays), strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-6)


def two_products(entry: Entry, placed: str, value: Callable[[Any, Any], Any], ranks: int = 4) -> td.Schedule:
    """A value of two products, of which ranks have partial results."""
    grid = td.Grid(x=ranks)
    shapes = {"a": (6, 8), "b": (8, 5), "c": (6, 8), "d": (8, 5)}
    a, b, c, d = (td.Tensor(n, shape, td.i64) for n, shape in shapes.items())
    p, q, z = td.Func("p"), td.Func("q"), td.Func("z")
    p[i, j] = td.sum(a[i, k] * b[k, j], axis=k)
    q[i, j] = td.sum(c[i, k] * d[k, j], axis=k)
    z[i, j] = value(p[i, j], q[i, j])
    s = td.Schedule(z)
    for t, notation in ((a, "ik -> k"), (b, "kj -> k"), (c, "ik -> k"), (d, "kj -> k")):
        s.place(t, notation, grid)
    for f in (p, q):
        s.place(f, "ij -> partial(sum)", grid)[f].distribute(k, grid)
    s.place(z, placed, grid)[z].distribute(entry, grid)
    return s


def product_of_sums(placed: str, shape: tuple[int, int] = (2, 2), terms: int = 7) -> td.Schedule:
    """The product of two sums, each in parts along an axis of its own, and a sum in parts along both."""
    grid = td.Grid(x=shape[0], y=shape[1])
    a, b = td.Tensor("a", (3, terms), td.i64), td.Tensor("b", (terms, 5), td.i64)
    p, q, e, z = td.Func("p"), td.Func("q"), td.Func("e"), td.Func("z")
    p[i] = td.sum(a[i, k], axis=k)
    q[j] = td.sum(b[k, j], axis=k)
    e[i, j] = td.sum(a[i, k] * b[k, j], axis=k)
    z[i, j] = p[i] * q[j] - e[i, j]
    s = td.Schedule(z).place(a, "ik -> * *", grid).place(b, "kj -> * *", grid)
    s.place(p, "i -> partial(sum) *", grid)[p].distribute((k, "*"), grid)
    s.place(q, "j -> * partial(sum)", grid)[q].distribute(("*", k), grid)
    s.place(e, "ij -> partial(sum) partial(sum)", grid)[e].distribute((k, k), grid)
    s.place(z, placed, grid)[z].distribute(("partial", "partial"), grid)
    return s


def factors() -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    return [rng.integers(-9, 9, shape) for shape in ((6, 8), (8, 5), (6, 8), (8, 5))]


@pytest.mark.parametrize(
    "entry, placed, received",
    [
        ("partial", "ij -> *", (368, 368, 368, 336)),  # one all-reduce of both
        ("partial", "ij -> i", (240, 240, 240, 0)),  # a reduce-scatter
        ("partial", "ij -> 2", (0, 0, 720, 0)),
        ("partial", "ij -> partial(sum)", (0, 0, 0, 0)),
        ("*", "ij -> *", (736, 736, 736, 672)),  # an all-reduce of each
        (1, "ij -> 1", (0, 1440, 0, 0)),
        (i, "ij -> *", (640, 640, 640, 240)),
    ],
)
def test_values_of_partial_sources(entry: Entry, placed: str, received: tuple[int, ...]) -> None:
    a, b, c, d = factors()
    out, plan = simulated(two_products(entry, placed, lambda p, q: 2 * p - q), a, b, c, d)
    np.testing.assert_array_equal(out, 2 * (a @ b) - c @ d)
    assert plan.received == received


@pytest.mark.parametrize("placed", ["* *", "i *", "* i", "j i", "0 1", "partial(sum) partial(sum)"])
@pytest.mark.parametrize("shape, terms", [((2, 2), 7), ((3, 2), 2), ((1, 3), 3)])
def test_products_of_parts_along_axes_of_their_own(placed: str, shape: tuple[int, int], terms: int) -> None:
    rng = np.random.default_rng(terms)
    a, b = rng.integers(-9, 9, (3, terms)), rng.integers(-9, 9, (terms, 5))
    out, _ = simulated(product_of_sums(f"ij -> {placed}", shape, terms), a, b)
    np.testing.assert_array_equal(out, np.outer(a.sum(1), b.sum(0)) - a @ b)


@pytest.mark.parametrize(
    "value, why",
    [
        (lambda p, q: p * q, "it multiplies two of them"),
        (lambda p, q: p - q + 1, "it adds what is not partial"),
        (lambda p, q: td.maximum(p, q), "max is not linear"),
        (lambda p, q: td.where(p > 0, q, 0), "gt is not linear"),
        (lambda p, q: (p - q) // 2, "floordiv is not linear"),
        (lambda p, q: td.cast(p - q, td.f64), "a cast from i64 to f64 is not linear"),
    ],
)
def test_what_is_not_linear_in_partial_sources_is_refused(value: Any, why: str) -> None:
    with pytest.raises(td.ScheduleError, match=f"no sum of what ranks compute .*: {why}") as error:
        td.compile(two_products("partial", "ij -> *", value))
    assert "'p' is partial" in str(error.value)
    assert "this definition" in str(error.value)


def test_partial_entries_and_placements_that_do_not_fit_are_refused() -> None:
    reasons = ((i, "it is no sum, and not distributed so"), ("*", "every coordinate computes the whole"))
    for entry, why in reasons:
        with pytest.raises(td.ScheduleError, match=why):
            td.compile(two_products(entry, "ij -> partial(sum)", lambda p, q: p + q))
    g, a = td.Func("g"), td.Tensor("a", (4,), td.f64)
    g[i] = 2 * a[i]
    s = td.Schedule(g).place(a, "i -> i", td.Grid(x=2)).place(g, "i -> *", td.Grid(x=2))
    s[g].distribute("partial", td.Grid(x=2))
    with pytest.raises(td.ScheduleError, match="reads nothing that is placed as partial along axis 'x'"):
        td.compile(s)


def test_coordinates_and_copies_on_a_grid_of_two_axes() -> None:
    """Tensor parallel over t, data parallel over d: what follows the product is computed by all of t."""
    grid = td.Grid(d=2, t=3)
    x, w = td.Tensor("x", (5, 7), td.i64), td.Tensor("w", (7, 4), td.i64)
    y, z = td.Func("y"), td.Func("z")
    y[i, j] = td.sum(x[i, k] * w[k, j], axis=k)
    z[i, j] = td.maximum(y[i, j], 0) + y[i, 0]
    a, b = np.random.default_rng(0).integers(-9, 9, (5, 7)), np.random.default_rng(1).integers(-9, 9, (7, 4))
    expected = np.maximum(a @ b, 0) + (a @ b)[:, :1]
    for entry, placed, more in (("*", "i *", 0), (1, "i 1", 0), (1, "i *", 1), ("*", "i j", 0)):
        s = td.Schedule(z).place(x, "ik -> i k", grid).place(w, "kj -> * k", grid)
        s.place(y, "ij -> i *", grid)[y].distribute((i, k), grid)
        s.place(z, f"ij -> {placed}", grid)[z].distribute((i, entry), grid)
        out, plan = simulated(s, a, b)
        np.testing.assert_array_equal(out, expected)
        assert bool(plan.moved("z")) == bool(more)


def test_reductions_are_combined_within_each_coordinate_of_a_repeated_axis() -> None:
    grid = td.Grid(d=3, t=2)
    x, y = td.Tensor("x", (12, 5), td.i64), td.Func("y")
    y[j] = td.sum(x[i, j], axis=i)
    a = np.arange(60).reshape(12, 5)
    for placed, kinds in (("* *", 6), ("0 *", 2), ("* 0", 3), ("j *", 6)):
        s = td.Schedule(y).place(x, "ij -> i *", grid).place(y, f"j -> {placed}", grid)
        s[y].distribute((i, "*"), grid)
        out, plan = simulated(s, a)
        np.testing.assert_array_equal(out, a.sum(0))
        assert sum(n > 0 for n in plan.received) == kinds, placed


def test_functions_without_dimensions_are_distributed_as_a_whole() -> None:
    """The place of the largest of all elements: a pair that ranks reduce, then its second value."""
    x, f, grid = td.Tensor("x", (11,), td.f64), td.Func("f"), td.Grid(x=4)
    f[()] = td.argmax(x[i], axis=i)
    pair = td.Schedule(f).program.funcs[0].name
    values = np.random.default_rng(0).permutation(11).astype(float)
    for placed, entry in (("-> *", "*"), ("-> 2", 2), ("-> *", 1)):
        s = td.Schedule(f).place(x, "i -> i", grid).place(pair, placed, grid).place(f, placed, grid)
        s[pair].distribute(i, grid)
        s[f].distribute(entry, grid)
        assert simulated(s, values)[0] == values.argmax()


def test_distribute_onto_takes_copies_coordinates_and_parts() -> None:
    s = two_products("partial", "ij -> *", lambda p, q: p + q)
    assert 's["z"].distribute(("partial",), td.Grid(x=4))' in str(s)
    grid = td.Grid(x=2, y=2, z=2)
    a, f = td.Tensor("a", (4, 6), td.f64), td.Func("f")
    f[i, j] = 2 * a[i, j]
    s = td.Schedule(f).place(a, "rc -> c * 1", grid)
    assert [loop.name for loop in s[f].distribute(onto=a)] == ["j_o"]
    assert td.Schedule(f).replay(s.to_json()).state == s.state
    assert str(s).endswith('s["f"].distribute(("j", "*", 1), td.Grid(x=2, y=2, z=2))')


@pytest.mark.parametrize("levels", [[{"a": 9, "b": 9}], [{"a": 2}, {"b": 3}]])
def test_the_volume_of_entries_is_that_of_plans(levels: list[dict[str, int]]) -> None:
    """On more ranks than an all-to-all is looked for, and level by level."""
    grid = [td.Grid(**axes) for axes in levels]
    for x_at, y_at, y_by, z_at, z_by in (
        ("ik -> i k", "ij -> i *", (i, k), "ij -> * j", (i, "*")),
        ("ik -> i *", "ij -> j *", (i, "*"), "ij -> j i", ("*", j)),
        ("ik -> i k", "ij -> i partial(sum)", (i, k), "ij -> i *", (i, "partial")),
        ("ik -> i k", "ij -> i partial(sum)", (i, k), "ij -> 1 j", (1, "partial")),
        ("ik -> i k", "ij -> j *", (k, "*"), "ij -> 1 *", (1, j)),
    ):
        x, w = td.Tensor("x", (21, 19), td.i64), td.Tensor("w", (19, 17), td.i64)
        y, z = td.Func("y"), td.Func("z")
        y[i, j] = td.sum(x[i, k] * w[k, j], axis=k)
        z[i, j] = 2 * y[i, j] + y[i, 0]
        s = td.Schedule(z).place(x, x_at, grid).place(w, "kj -> * k", grid)
        s.place(y, y_at, grid)[y].distribute(y_by, grid)
        s.place(z, z_at, grid)[z].distribute(z_by, grid)
        assert_volume_is_of_plan(td.compile(s, target="python")._specialise({}), str(s))
