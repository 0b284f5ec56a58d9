"""The recipe for sums of sums of products, by default, too."""

from dataclasses import replace

import numpy as np
import pytest

import tdsl as td
from tdsl.autoschedule.recipes.inner_sums import InnerSums
from tdsl.machine.model import Machine, MemoryLevel
from tdsl.schedule.state import Root
from tdsl.tilegraph.default import complete

WIDE = Machine(vector_bytes=64, threads=2)
SHAPES = [(1, 9, 8, 4), (5, 1, 11, 3), (7, 13, 17, 16), (3, 20, 33, 37), (2, 8, 8, 1)]


def operands(rng, text, **sides):
    """Small whole numbers, so that sums are exact in any order."""
    terms = text.partition("->")[0].split(",")
    return [rng.integers(-3, 4, [sides[x] for x in term]).astype(np.float32) for term in terms]


def program(text, arrays):
    terms = text.partition("->")[0].split(",")
    names = "pqstuv"[: len(terms)]
    shapes = [tuple(term.upper()) for term in terms]
    tensors = [td.Tensor(n, t, td.f32) for n, t in zip(names, shapes, strict=True)]
    return td.einsum(text, *tensors), dict(zip(names, arrays, strict=True))


@pytest.mark.parametrize("i, j, k, r", SHAPES)
@pytest.mark.parametrize("text", ["ijk,jr,kr->ir", "ijk,ir,kr->jr", "ijk,ir,jr->kr", "ijk,jr,kr->ri"])
def test_matricised_tensor_times_khatri_rao(rng, text, i, j, k, r):
    arrays = operands(rng, text, i=i, j=j, k=k, r=r)
    func, given = program(text, arrays)
    want = np.einsum(text, *arrays)
    np.testing.assert_array_equal(td.compile(func)(**given), want)
    known = dict(zip("IJKR", (i, j, k, r), strict=True))
    np.testing.assert_array_equal(td.compile(func, **known)(**given), want)


@pytest.mark.parametrize(
    "text", ["ijk,k->ij", "ijk,j->ik", "ijk,i->jk", "ijk,kl->ijl", "ijk,jl->ilk", "ijk,il->ljk"]
)
def test_tensor_times_vector_and_matrix(rng, text):
    arrays = operands(rng, text, i=7, j=19, k=23, l=18)
    func, given = program(text, arrays)
    np.testing.assert_array_equal(td.compile(func)(**given), np.einsum(text, *arrays))


def test_inner_sums_are_computed_for_each_row(rng):
    text, sides = "ijk,jr,kr->ir", {"i": 6, "j": 24, "k": 40, "r": 20}
    arrays = operands(rng, text, **sides)
    func, given = program(text, arrays)
    schedule = td.Schedule(func, sizes={n.upper(): s for n, s in sides.items()})
    assert td.recipes.inner_sums(schedule["einsum"], machine=WIDE) == InnerSums("i", ("einsum_0",))
    run = td.compile(schedule)
    np.testing.assert_array_equal(run(**given), np.einsum(text, *arrays))
    assert "einsum_0_out = alloc(f32, [1, 24, 20])" in str(run.loops())


@pytest.mark.parametrize("k, fused", [(37, False), (64, False), (40, True)])
def test_rows_from_memory_are_prefetched(rng, k, fused):
    i, j, r = td.vars("i j r")
    x, c, out = td.Tensor("x", (3, 21, k), td.f32), td.Tensor("c", (k, 20), td.f32), td.Func("out")
    product = td.einsum("ijk,kr->ijr", x, c)
    out[i, j, r] = td.maximum(product[i, j, r], 0)
    small = tuple(MemoryLevel(name, 1 << 10) for name in ("L1", "L2", "L3"))
    schedule = td.Schedule(out if fused else product)
    tiles = td.recipes.matmul(schedule["out" if fused else "einsum"], machine=replace(WIDE, levels=small))
    assert tiles.fetch == 16
    run = td.compile(schedule)
    a, b = operands(rng, "ijk,kr", i=3, j=21, k=k, r=20)
    want = a @ b
    np.testing.assert_array_equal(run(a, b), np.maximum(want, 0) if fused else want)
    later = f"einsum_j_o * {tiles.rows} + x_line_1 + {tiles.rows}, einsum_k_o * 16]"
    assert ("einsum_k_o * 16 + 16]" if fused else later) in str(run.loops())


def test_stages_of_other_kinds_are_left_alone():
    i, j, k = td.vars("i j k")
    p, q = td.Tensor("p", (32, 40), td.f32), td.Tensor("q", (40, 24), td.f32)
    columns, wide = td.Func("columns"), td.Func("wide")
    product = td.einsum("ij,jk->ik", p, q, name="product")
    columns[k] = td.sum(product[i, k], axis=i)  # no row needs values of its own
    wide[i, j] = p[i, j] * 2
    for func in (columns, wide, product):
        schedule = td.Schedule(func)
        with pytest.raises(td.ScheduleError, match="inner_sums is not for"):
            td.recipes.inner_sums(schedule[func], machine=WIDE)
        assert not schedule.directives


@pytest.mark.parametrize("empty", "ijkr")
def test_nothing_to_sum(rng, empty):
    sides = {x: 0 if x == empty else 16 for x in "ijkr"}
    arrays = operands(rng, "ijk,jr,kr->ir", **sides)
    func, given = program("ijk,jr,kr->ir", arrays)
    sizes = {n.upper(): s for n, s in sides.items()}
    got = td.compile(func, **sizes)(**given)
    np.testing.assert_array_equal(got, np.zeros((sides["i"], sides["r"]), np.float32))


def test_operands_of_all_rows_are_prefetched(rng):
    """One row alone would stay in the cache."""
    text, sides = "ijk,jr,kr->ir", {"i": 6, "j": 24, "k": 40, "r": 20}
    arrays = operands(rng, text, **sides)
    func, given = program(text, arrays)
    schedule = td.Schedule(func, sizes={n.upper(): s for n, s in sides.items()})
    sizes = {"L1": 1 << 12, "L2": 1 << 14, "L3": 1 << 14}
    levels = tuple(MemoryLevel(name, size) for name, size in sizes.items())
    td.recipes.inner_sums(schedule["einsum"], machine=replace(WIDE, levels=levels))
    assert 'prefetch("p"' in str(schedule)
    np.testing.assert_array_equal(td.compile(schedule)(**given), np.einsum(text, *arrays))


def test_sums_that_a_row_reads_of_other_rows_too_are_computed_first(rng):
    i, j, k, r = td.vars("i j k r")
    x, c = td.Tensor("x", (12, 12, 16), td.f32), td.Tensor("c", (16, 12), td.f32)
    inner, out = td.Func("inner"), td.Func("out")
    inner[i, j, r] = td.sum(x[i, j, k] * c[k, r], axis=k)
    out[i, r] = td.sum(inner[i, j, r] * inner[j, i, r], axis=j)
    state = complete(td.Schedule(out).state, Machine(vector_bytes=64, threads=2, registers=32))
    assert isinstance(state.plan("inner").place, Root)
    a, b = rng.random((12, 12, 16), dtype=np.float32), rng.random((16, 12), dtype=np.float32)
    t = a @ b
    np.testing.assert_allclose(td.compile(out)(a, b), np.einsum("ijr,jir->ir", t, t), rtol=1e-5)
