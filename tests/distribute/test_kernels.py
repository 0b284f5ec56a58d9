"""Kernels on tensors of more dimensions: what they give, and what they move by closed forms."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tdsl as td

WORD = 8
I, J, K, L = 12, 8, 18, 4
i, j, k, l, m = td.vars("i j k l m")
B = td.Tensor("B", (I, J, K), td.f64)
c, D, E = (td.Tensor(n, s, td.f64) for n, s in (("c", (K,)), ("D", (K, L)), ("E", (J, L))))
CUBE = td.Grid(x=2, y=2, z=3)


def run(
    out: td.Func, placed: dict[str, str], loops: Any, grid: td.Grid, subscripts: str,
    *operands: td.Tensor,
) -> Any:  # fmt: skip
    """The plan of a func that is what NumPy's einsum gives, moving what it says."""
    rng = np.random.default_rng(0)
    arrays = {t.name: rng.integers(-9, 9, t.shape).astype(float) for t in operands}
    s = td.Schedule(out)
    for name, notation in placed.items():
        s.place(name, notation, grid)
    s[out].distribute(loops, grid)
    p = td.compile(s, target="python")
    got, counted = p.simulate(**arrays, count=True)
    np.testing.assert_array_equal(got, np.einsum(subscripts, *(arrays[t.name] for t in operands)))
    assert counted.received == p.plan().received
    return p.plan()


def ttv() -> td.Func:
    f = td.Func("f")
    f[i, j] = td.sum(B[i, j, k] * c[k], axis=k)
    return f


@pytest.mark.parametrize("vector, each", [("z -> * *", 0), ("z -> z z", K - K // 6)])
def test_a_tensor_times_a_vector_fetches_the_vector(vector: str, each: int) -> None:
    placed = {"B": "xyz -> x y", "c": vector, "f": "xy -> x y"}
    plan = run(ttv(), placed, (i, j), td.Grid(x=2, y=3), "ijk,k->ij", B, c)
    assert set(plan.received) == {WORD * each}


@pytest.mark.parametrize("matrix, each", [("zl -> *", 0), ("zl -> z", K * L * 2 // 3)])
def test_a_tensor_times_a_matrix_fetches_the_matrix(matrix: str, each: int) -> None:
    f = td.Func("f")
    f[i, j, l] = td.sum(B[i, j, k] * D[k, l], axis=k)
    placed = {"B": "xyz -> x", "D": matrix, "f": "xyl -> x"}
    plan = run(f, placed, (i,), td.Grid(x=3), "ijk,kl->ijl", B, D)
    assert set(plan.received) == {WORD * each}


def test_an_inner_product_sends_one_number_a_rank() -> None:
    f = td.Func("f")
    f[()] = td.sum(B[i, j, k] * B[i, j, k], axis=(i, j, k))
    plan = run(f, {"B": "xyz -> x", "f": "-> 0"}, (i,), td.Grid(x=4), "ijk,ijk->", B, B)
    assert (plan.total_received, plan.moved("B")) == (3 * WORD, 0)


def mttkrp() -> td.Func:
    f = td.Func("f")
    f[i, l] = td.sum(B[i, j, k] * E[j, l] * D[k, l], axis=(j, k))
    return f


def test_a_tensor_times_a_khatri_rao_product_stays_where_it_is() -> None:
    """Factors on edges of the grid: totals of Ballard, Knight and Rouse's algorithm."""
    placed = {"B": "xyz -> x y z", "E": "yl -> 0 y 0", "D": "zl -> 0 0 z", "f": "xl -> x 0 0"}
    plan = run(mttkrp(), placed, (i, j, k), CUBE, "ijk,jl,kl->il", B, E, D)
    gx, gy, gz = CUBE.shape
    assert plan.moved("B") == 0
    assert plan.moved("E") == WORD * J * L * (gx * gz - 1)
    assert plan.moved("D") == WORD * K * L * (gx * gy - 1)
    assert plan.moved("f") == WORD * I * L * (gy * gz - 1)


def test_evenly_distributed_factors_move_the_same_total() -> None:
    edges = {"B": "xyz -> x y z", "E": "yl -> 0 y 0", "D": "zl -> 0 0 z", "f": "xl -> x 0 0"}
    evenly = {"B": "xyz -> x y z", "E": "yl -> y' y y'", "D": "zl -> z' z' z", "f": "xl -> x x' x'"}
    plans = [run(mttkrp(), placed, (i, j, k), CUBE, "ijk,jl,kl->il", B, E, D) for placed in (edges, evenly)]
    for name in "EDf":
        assert plans[0].moved(name) == plans[1].moved(name)
    assert plans[1].moved("B") == 0
    assert max(plans[1].received) < max(plans[0].received)


def test_a_chain_of_products_in_two_stages(rng: np.random.Generator) -> None:
    """(P Q) R: the product is made in tiles and read in rows."""
    P, Q, R = (td.Tensor(n, s, td.f64) for n, s in (("P", (13, 9)), ("Q", (9, 17)), ("R", (17, 5))))
    t, f, grid = td.Func("t"), td.Func("f"), td.Grid(x=2, y=2)
    t[i, j] = td.sum(P[i, k] * Q[k, j], axis=k)
    f[i, j] = td.sum(t[i, m] * R[m, j], axis=m)
    s = td.Schedule(f)
    for name in ("P", "Q", "R", "t"):
        s.place(name, "rc -> r c", grid)
    s.place("f", "rc -> r r", grid)
    s[t].distribute(onto=t)
    s[f].distribute(onto=f)
    arrays = [rng.integers(-9, 9, x.shape).astype(float) for x in (P, Q, R)]
    p = td.compile(s, target="python")
    got, counted = p.simulate(*arrays, count=True)
    np.testing.assert_array_equal(got, arrays[0] @ arrays[1] @ arrays[2])
    assert counted.received == p.plan().received
    assert p.plan().moved("t") <= WORD * 13 * 17 * 2


SUBSCRIPTS = (
    "ij,jk->ik",
    "ijk,jl->ikl",
    "ij,jk,kl->il",
    "ijk,ijl->kl",
    "ij,ij->",
    "ijk,k,j->i",
    "i,j->ij",
)


@given(st.sampled_from(SUBSCRIPTS), st.sampled_from([(2,), (3,), (2, 2), (1, 3)]), st.data())
def test_any_einsum_by_any_of_its_loops(subscripts: str, shape: tuple[int, ...], data: st.DataObject) -> None:
    sizes = {x: data.draw(st.integers(1, 6)) for x in sorted(set(subscripts) - set(",->"))}
    terms, result = subscripts.split("->")
    loops = {x.name: x for x in td.vars(" ".join(sizes))} if len(sizes) > 1 else {"i": i}
    tensors = [
        td.Tensor(f"t{n}", tuple(sizes[x] for x in term), td.f64) for n, term in enumerate(terms.split(","))
    ]
    product: Any = 1
    for t, term in zip(tensors, terms.split(","), strict=True):
        product = product * t[tuple(loops[x] for x in term)]
    f = td.Func("f")
    summed = tuple(loops[x] for x in sizes if x not in result)
    f[tuple(loops[x] for x in result)] = td.sum(product, axis=summed) if summed else product
    grid = td.Grid(**dict(zip("xy", shape, strict=False)))
    placed = {}
    for name, dims in (
        *zip((t.name for t in tensors), terms.split(","), strict=True),
        ("f", result),
    ):
        entries = data.draw(st.lists(st.sampled_from([*dims, "*", "0"]), min_size=len(shape),
                                     max_size=len(shape)))  # fmt: skip
        placed[name] = f"{dims} -> {' '.join(entries)}"
    shared = [loops[data.draw(st.sampled_from(sorted(sizes)))] for _ in shape]
    run(f, placed, shared, grid, subscripts, *tensors)
