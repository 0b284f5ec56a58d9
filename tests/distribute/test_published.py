"""Products that the tests of the library COSMA multiply: its strategies, layouts and calls of PDGEMM."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import tdsl as td
from tdsl.autoschedule.recipes.strategies import Strategy
from tdsl.distribute.check import check
from tests.distribute.matmuls import matmul, place

i, j, k = td.vars("i j k")

# extents m, n and k, ranks, splits; the rest of a strategy is left to the recipe
MULTIPLIED = [
    (4, 4, 4, 1, ""), (3, 4, 5, 1, ""), (8, 4, 2, 4, "pm2,sm2,pn2"), (8, 4, 2, 4, ""), (4, 4, 4, 2, "pm2"),
    (4, 4, 4, 2, ""), (4, 4, 4, 4, "sm2,pn2,pn2"), (30, 35, 40, 4, ""), (8, 8, 2, 2, "sm2,sm2,pn2"),
    (8, 8, 2, 2, ""), (16, 4, 4, 4, "pm2,pm2"), (16, 4, 4, 4, ""), (20, 20, 20, 3, "sk2,pm3"),
    (20, 20, 20, 3, ""), (16, 16, 16, 16, "pm2,pn2,pk2,pm2"), (16, 16, 16, 16, ""),
    (20, 30, 25, 4, "sm2,sn2,pk2,pm2"), (20, 30, 25, 4, ""), (100, 100, 100, 10, "sm2,pn2,sk2,pm5"),
    (100, 100, 100, 10, ""), (4, 4, 5, 4, "sm2,pn2,sk2,pm2"), (4, 4, 5, 4, ""),
    (100, 100, 100, 12, "pm2,pn2,pk3"), (100, 100, 100, 12, ""), (100, 100, 100, 4, ""),
    (100, 100, 100, 7, "pm7"), (100, 100, 100, 7, ""), (100, 100, 100, 8, "sm2,pn2,sk2,pm2,sn2,pk2"),
    (100, 100, 100, 8, ""), (31, 32, 33, 4, "pm2,pk2"), (100, 100, 100, 4, "pm2,pk2"),
    (100, 100, 100, 8, "pm2,pk2"), (100, 100, 100, 8, "sm2,sk2,sn2,pn2,pm2,pk2"),
    (100, 100, 100, 8, "sk2,pm2,sn2,pk2,sm2,pn2"), (200, 200, 200, 8, "sk3,sm3,sn3,pk2,pn2,pm2"),
    (200, 200, 200, 8, ""), (200, 200, 200, 8, "sm3,pn2,sk3,pm2,sn3,pk2"), (512, 32, 736, 8, "pk2,pm2,pk2"),
    (20, 20, 80, 4, ""),
]  # fmt: skip


@pytest.mark.in_part(10)
@pytest.mark.parametrize("case", MULTIPLIED, ids=lambda c: "-".join(map(str, c)))
def test_strategies_multiply(case: tuple[int, int, int, int, str], rng: np.random.Generator) -> None:
    """Each is proved as it stands; large ones are multiplied with smaller extents, as uneven."""
    m, n, depth, ranks, splits = case
    s = matmul.schedule(M=m, N=n, K=depth)
    grid = td.recipes.cosma(s["C"], ranks, splits=splits)
    assert ranks < 2 * grid.size <= 2 * ranks
    plan = td.compile(s).plan()
    check(plan)
    parts = [split[1:] for split in splits.split(",") if split.startswith("p")]
    for axis in "mnk":
        assert not getattr(grid, axis) % math.prod(int(p[1:]) for p in parts if p[0] == axis)
    small = max(m, n, depth) > 40
    shape = (7, 9, 11) if small else (m, n, depth)
    s = matmul.schedule(M=shape[0], N=shape[1], K=shape[2])
    td.recipes.cosma(s["C"], ranks, splits=splits)
    multiplies(s, rng.integers(-9, 9, (shape[0], shape[2])), rng.integers(-9, 9, shape[2:0:-1]))


def multiplies(s: Any, a: np.ndarray, b: np.ndarray) -> None:
    p = td.compile(s, target="python")
    out, counted = p.simulate(a.astype(float), b.astype(float), count=True)
    np.testing.assert_array_equal(out, a @ b)
    assert counted.received == p.plan().received


@pytest.mark.parametrize("dtype", [td.f32, td.f64, td.i32, td.i64])
def test_element_types_multiply_on_eight_ranks(dtype: Any, rng: np.random.Generator) -> None:
    a, b, c = td.Tensor("a", (12, 10), dtype), td.Tensor("b", (10, 14), dtype), td.Func("c")
    c[i, j] = td.sum(a[i, k] * b[k, j], axis=k)
    s = td.Schedule(c)
    td.recipes.cosma(s[c], 8)
    x, y = (rng.integers(-9, 9, shape).astype(dtype.numpy) for shape in ((12, 10), (10, 14)))
    out = td.compile(s, target="python").simulate(x, y)
    np.testing.assert_array_equal(out, x @ y)
    assert out.dtype == (dtype.numpy if dtype.is_float else np.int64)


def test_the_layout_of_a_strategy() -> None:
    """pm2,sm2,pn2 of 8 x 4 x 2 on four ranks: what each has, and where it stands there and in the whole."""
    s = matmul.schedule(M=8, N=4, K=2)
    grid = td.Grid(m=2, n=2)
    C = place(s, grid, "mk -> m k", "kn -> n' n", "mn -> m n")
    outer = C.distribute(("i", "j"), grid)
    step, inside = C.divide("i", 2)
    C.reorder(step, inside, "j", "k")
    C.communicate("C", at=outer[-1]).communicate(("A", "B"), at=step)
    p = td.compile(s)
    plan = p.plan()
    owned = {t: [plan.owned(t, rank) for rank in range(4)] for t in "ABC"}
    assert owned == {
        "A": [((r, r + 4), (c, c + 1)) for r in (0, 4) for c in (0, 1)],
        "B": [((0, 2), (c, c + 1)) for c in (0, 2, 1, 3)],
        "C": [((r, r + 4), (c, c + 2)) for r in (0, 4) for c in (0, 2)],
    }
    wholes = {
        "A": np.arange(16).reshape(8, 2),
        "B": np.arange(8).reshape(2, 4),
        "C": np.arange(32).reshape(8, 4),
    }
    for t, whole in wholes.items():  # a block has the elements of its box, in their order
        for rank in range(4):
            rows, columns = (slice(*span) for span in owned[t][rank])
            np.testing.assert_array_equal(p.block(t, whole.astype(float), rank), whole[rows, columns])
    assert {len(p.block("A", wholes["A"].astype(float), r).ravel()) for r in range(4)} == {4}
    assert plan.total_received == 4 * 8 * Strategy((2, 2, 1), (2, 1, 1)).received(8, 4, 2)
    multiplies(s, wholes["A"], wholes["B"])


Case = tuple[tuple[int, int, int], tuple[int, int, int], tuple[int, int], str, float, float, tuple[int, ...]]


def pdgemm(case: Case) -> tuple[Any, list[np.ndarray], np.ndarray]:
    """alpha op(A) op(B) + beta C of parts of matrices that are dealt out, with its inputs and result.

    A case has the extents m, n and k; the blocks of rows, columns and terms; rows and columns of ranks; what
    is transposed; alpha and beta; and where the parts begin, two places for each of A, B and C.
    """
    (m, n, depth), (bm, bn, bk), (rows, columns), turned, alpha, beta, at = case
    r = td.range("r", 0, depth)
    first, second = (1 if t == "N" else -1 for t in turned)
    shapes = [(m, depth)[::first], (depth, n)[::second], (m, n)]
    blocks = [(bm, bk)[::first], (bk, bn)[::second], (bm, bn)]
    starts = [at[0:2], at[2:4], at[4:6]]
    # a tensor ends a little behind its part
    sizes = [
        tuple(x + lo + 2 for x, lo in zip(*both, strict=True)) for both in zip(shapes, starts, strict=True)
    ]
    tensors = [td.Tensor(name, size, td.f64) for name, size in zip("ABC", sizes, strict=True)]
    index = [(i, r)[::first], (r, j)[::second], (i, j)]
    left, right, old = (
        t[tuple(x + lo for x, lo in zip(indices, start, strict=True))]
        for t, indices, start in zip(tensors, index, starts, strict=True)
    )
    product, out = td.Func("product", shape=(m, n)), td.Func("out", shape=(m, n))
    product[i, j] = td.sum(left * right, axis=r)
    out[i, j] = alpha * product[i, j] + beta * old if beta else alpha * product[i, j]
    count = 3 if beta else 2  # without beta C is not even an input
    grid = td.Grid(x=rows, y=columns)
    s = td.Schedule(out)
    for t, (down, across) in list(zip(tensors, blocks, strict=True))[:count]:
        s.place(t, f"rc -> r/{down} c/{across}", grid)
    s.place("out", f"rc -> r/{bm} c/{bn}", grid)[out].distribute((i, j), grid)
    rng = np.random.default_rng(0)
    arrays = [rng.integers(-9, 9, size).astype(float) for size in sizes]
    parts = [
        x[lo : lo + down, first : first + across]
        for x, (lo, first), (down, across) in zip(arrays, starts, shapes, strict=True)
    ]
    x, y = (part if t == "N" else part.T for part, t in zip(parts, turned, strict=False))
    expected = alpha * (x @ y) + (beta * parts[2] if beta else 0)
    return s, arrays[:count], expected


def square(edge: int) -> tuple[int, int, int]:
    return edge, edge, edge


NONE = (0,) * 6
CALLS: list[Case] = [
    ((0, 5, 5), square(2), (2, 2), "NT", 1, 1, NONE), ((5, 0, 5), square(2), (2, 2), "NT", 1, 1, NONE),
    (square(0), square(2), (2, 2), "NT", 1, 1, NONE), ((10, 0, 0), square(2), (2, 2), "NT", 1, 1, NONE),
    ((10, 10, 0), square(2), (2, 2), "NT", 1, 1.5, NONE),
    ((7, 11, 0), (5, 7, 3), (2, 3), "NN", 1, 1.5, (0, 1, 1, 2, 2, 3)),
    ((4, 4, 4), square(2), (2, 1), "TN", 1, 0, NONE), ((10, 10, 10), square(2), (2, 2), "NT", 0, 1.5, NONE),
    ((7, 11, 5), (5, 7, 3), (2, 3), "NN", 0, 1.5, (0, 1, 1, 2, 2, 3)),
    ((10, 11, 13), square(2), (1, 1), "NN", 1, 0, NONE),
    ((10, 10, 10), square(2), (2, 2), "NN", 1, 0, NONE), ((5, 5, 5), square(2), (2, 2), "TN", 1, 0, NONE),
    ((8, 4, 8), square(2), (3, 2), "NN", 0.5, 0, NONE), ((8, 4, 8), square(2), (3, 2), "TN", 0.5, 0, NONE),
    ((10, 12, 12), square(2), (2, 2), "TN", 1, 0, NONE),
    ((10, 11, 12), (3, 2, 3), (3, 2), "TN", 1, 1, NONE),
    ((10, 11, 12), (3, 2, 3), (3, 2), "TN", 0, 0, NONE),
    ((10, 11, 12), (3, 2, 3), (3, 2), "TN", 0.5, 0.5, NONE),
    ((2, 2, 8), (2, 2, 4), (2, 1), "TN", 1, 0, NONE),
    ((16, 16, 96), (32, 32, 32), (2, 8), "TN", 0.5, 0.5, NONE),
    ((13, 13, 48), square(13), (2, 7), "TN", 0.5, 0.5, NONE),
    ((13, 13, 48), square(13), (2, 7), "NN", 1, 0.5, NONE),
    ((3, 3, 7), square(3), (1, 1), "TN", 1, 0, NONE), ((5, 5, 11), square(5), (2, 1), "TN", 1, 0, NONE),
    ((26, 13, 48), square(13), (2, 7), "TN", 1, 0.5, NONE),
    ((20, 6, 23), (8, 4, 8), (2, 4), "NT", 1, 1, (0, 17, 16, 17, 0, 16)),
]  # fmt: skip


@pytest.mark.parametrize("case", CALLS, ids=lambda c: "-".join(map(str, c)).replace(" ", ""))
def test_calls_of_pdgemm(case: Case) -> None:
    """Nothing along a dimension or to add, transposes, parts of matrices, more ranks than there is work."""
    s, arrays, expected = pdgemm(case)
    p = td.compile(s, target="python")
    out, counted = p.simulate(*arrays, count=True)
    np.testing.assert_array_equal(out, expected)
    assert counted.received == p.plan().received


@pytest.mark.parametrize(
    "case",
    [
        ((512, 32, 736), square(32), (2, 4), "NT", 1, 1, (0, 544, 512, 544, 0, 512)),
        ((128, 128, 1824), square(32), (2, 2), "TN", 1, 0, NONE),
        ((43417, 217, 217), square(128), (4, 4), "NN", 1, 0, NONE),
    ],
    ids=["parts", "deep", "tall"],
)
def test_plans_of_large_pdgemm_calls_are_verified(case: Case) -> None:
    s, _, _ = pdgemm(case)
    check(td.compile(s).plan())
