"""Formulas of the sizes give the bytes of plans, for sizes that blocks divide and for others."""

from __future__ import annotations

from typing import Any

import pytest

import tdsl as td
from tests.distribute.matmuls import cube, flat, two_and_a_half

i, j, k = td.vars("i j k")
SIZES = [(8, 8, 8), (7, 5, 11), (1, 9, 2), (3, 0, 2), (13, 2, 1)]


def value(formula: Any, sizes: dict[str, int]) -> int:
    return int(formula.subs({s: sizes[s.name] for s in formula.free_symbols}))


def agree(p: Any, ranks: range, *tried: dict[str, int]) -> None:
    """The formulas of some ranks, made once, give what plans for other sizes receive."""
    formulas = [p.plan(**tried[0]).formula(r) for r in ranks]
    for sizes in tried:
        plan = p.plan(**sizes)
        assert [value(f, sizes) for f in formulas] == [plan.received[r] for r in ranks]


@pytest.mark.parametrize(
    "make",
    [
        lambda: flat(td.Grid(x=2, y=3), "ij"),
        lambda: flat(td.Grid(x=1, y=4), ""),
        lambda: cube(td.Grid(x=2, y=1, z=3)),
        lambda: two_and_a_half(td.Grid(x=2, y=2, z=2)),
        lambda: flat(td.Grid(x=2, y=3), "ij", "rc -> r/2 c/3"),
        lambda: flat(td.Grid(x=3, y=1), "", "rc -> c/4 r/1"),
    ],
    ids=["cannon", "summa", "johnson", "2.5d", "dealt out", "dealt out the other way"],
)
def test_products_for_all_sizes(make: Any) -> None:
    p = td.compile(make())
    agree(p, range(3), *({"M": m, "N": n, "K": depth} for m, n, depth in SIZES))


def test_formulas_of_the_literature_where_blocks_are_even() -> None:
    """Cannon and SUMMA: (q - 1) (m k + k n) / P elements, of 8 bytes; Johnson: a face of each."""
    import sympy

    m, n, depth = (sympy.Symbol(s, integer=True, nonnegative=True) for s in "MNK")
    for turn in ("", "ij"):
        plan = td.compile(flat(td.Grid(x=3, y=3), turn)).plan(M=9, N=9, K=9)
        expected = sympy.Rational(8 * 2, 9) * (m * depth + depth * n)
        assert sympy.simplify(plan.formula(4, even=True) - expected) == 0
    plan = td.compile(cube(td.Grid(x=2, y=2, z=2))).plan(M=8, N=8, K=8)
    assert sympy.simplify(plan.formula(3, even=True) - 8 * m * depth / 4) == 0


@pytest.mark.parametrize("place", ["r -> r", "r -> *", "r -> 2", "r -> partial(sum)"])
def test_reductions_and_their_convention(place: str) -> None:
    a, f, grid = td.Tensor("a", ("K", "N"), td.f32), td.Func("f"), td.Grid(x=4)
    f[j] = td.sum(a[k, j], axis=k)
    s = td.Schedule(f).place("a", "rc -> r", grid).place("f", place, grid)
    s[f].distribute(k, grid)
    p = td.compile(s)
    sizes = ((16, 12), (5, 9), (3, 2), (7, 5), (0, 4))
    agree(p, range(4), *({"N": n, "K": depth} for n, depth in sizes))


@pytest.mark.parametrize("home", ["r -> 0 0", "r -> 1 2"])
def test_hierarchical_reductions(home: str) -> None:
    a, f, machine = (
        td.Tensor("a", ("K", "N"), td.f32),
        td.Func("f"),
        [td.Grid(node=2), td.Grid(x=3)],
    )
    f[j] = td.sum(a[k, j], axis=k)
    s = td.Schedule(f).place("a", "rc -> r r", machine).place("f", home, machine)
    s[f].distribute((k, k), machine)
    sizes = ((16, 12), (5, 9), (3, 2), (1, 6), (0, 4))
    agree(td.compile(s), range(6), *({"N": n, "K": depth} for n, depth in sizes))


def test_halos_of_stages() -> None:
    u = td.Tensor("u", ("M", "N"), td.f64)
    source: Any = td.pad(u, mode="edge")
    grid, funcs = td.Grid(x=3, y=1), []
    for n in range(2):
        f = td.Func(f"f{n}")
        f[i, j] = source[i, j] + source[i - 1, j] + source[i, j + 1]
        funcs.append(f)
        source = td.pad(f, mode="edge", shape=u.shape)
    s = td.Schedule(funcs[-1]).place(u, "rc -> r c", grid)
    for f in funcs:
        s.place(f, "rc -> r c", grid)[f].distribute((i, j), grid)
    p = td.compile(s)
    agree(p, range(3), *({"M": m, "N": n} for m, n in ((12, 8), (7, 5), (4, 3))))


def test_block_cyclic_placements() -> None:
    """From blocks of 2 and 3 to blocks of a quarter: three of four elements, on average, come from others."""
    a, f, grid = td.Tensor("a", ("M", "N"), td.f64), td.Func("f"), td.Grid(x=2, y=2)
    f[i, j] = a[i, j] * 2
    s = td.Schedule(f).place("a", "rc -> r/2 c/3", grid).place("f", "rc -> r c", grid)
    s[f].distribute((i, j), grid)
    formula = td.compile(s).plan(M=8, N=12).formula(3, even=True)
    assert str(formula) == "3*M*N/2"


def test_sizes_that_the_schedule_knows_stay_names() -> None:
    plan = td.compile(flat(td.Grid(x=2, y=2), "ij", M=8, N=6, K=4)).plan()
    assert {s.name for s in plan.formula(1).free_symbols} == {"M", "N", "K"}
    assert value(plan.formula(1), {"M": 8, "N": 6, "K": 4}) == plan.received[1]


def test_plans_without_a_formula_are_errors() -> None:
    a, f, grid = td.Tensor("a", ("N", "K"), td.f32), td.Func("f"), td.Grid(x=2)
    f[i] = td.sum(a[i, k], axis=k)
    s = td.Schedule(f).place("a", "rc -> c", grid).place("f", "r -> r", grid)
    s[f].distribute(i, grid)
    steps, _ = s[f].split(k, 4)
    s[f].reorder(steps, i)
    s[f].communicate("a", at=steps)
    with pytest.raises(td.TypeMismatch, match="depends on sizes"):
        td.compile(s).plan(N=8, K=8).formula()
